// Keeps a view and its address in sync: the address is written when the view rests, and now and then while it moves; the
// view follows an address that changes through a link or the back button.
//
// Guarantees: a moving picture redraws only itself, and not the whole page; the address lags behind by at most LATE_MS.
// Browsers refuse more than some hundred new addresses in ten seconds, and keep the previous one.

import { useLayoutEffect, useRef } from 'preact/hooks';

/** How long a view rests before the address is written. */
const RESTS_MS = 120;
const LATE_MS = 500;

/** Writes the address unless it is up to date; `of` is the state of the view. */
export function useSettled(isTold: boolean, tell: () => void, of: unknown[]): void {
  const since = useRef<number | null>(null);
  // (A layout effect: it ends with the view. Other effects last a frame longer and would lead back to it.)
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

/** Follows an address that changed by itself. The last written address does not count as a change. Neither does the one
 * before it, because a browser may refuse to write. */
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
