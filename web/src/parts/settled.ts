// A view and its address: what it shows is told when it rests, and now and then while it moves; an address that changed by itself,
// by a link or a step back, is followed.
//
// Guarantees: a picture that moves draws itself alone, and not the whole page; the address is never further behind than LATE_MS.
// Browsers refuse more than some hundred new addresses in ten seconds, and keep the one before.

import { useLayoutEffect, useRef } from 'preact/hooks';

/** So long a view rests before the address says it. */
const RESTS_MS = 120;
const LATE_MS = 500;

/** Tells, unless it is told; `of` is what a view shows. */
export function useSettled(isTold: boolean, tell: () => void, of: unknown[]): void {
  const since = useRef<number | null>(null);
  // (An effect of layout: it is over when the view goes, where others last a frame longer and would lead back to it.)
  useLayoutEffect(() => {
    if (isTold) {
      since.current = null;
      return undefined;
    }
    since.current ??= performance.now();
    const left = since.current + LATE_MS - performance.now();
    const timer = setTimeout(() => {
      since.current = null;
      tell();
    }, Math.min(Math.max(left, 0), RESTS_MS));
    return () => { clearTimeout(timer); };
  }, of);
}

/** Follows an address that changed by itself. What the answer was told of last is no such change, nor is the address before it,
 * where a browser refuses to write. */
export function useFollowed(address: string, follow: () => void): (written: string) => void {
  const [seen, written] = [useRef(address), useRef(address)];
  if (seen.current !== address) {
    seen.current = address;
    if (written.current !== address) {
      written.current = address;
      follow();
    }
  }
  return (text) => { written.current = text; };
}
