// What happens on an element or the window, heard by the latest listener.
//
// Guarantees: one listener for as long as the view is there, whatever is drawn meanwhile; it may stop what the browser would do.

import type { RefObject } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

/** See the module; without `of` it is the window. */
export function useHeard<Kind extends 'wheel' | 'keydown'>(of: RefObject<Element | null> | null, kind: Kind, hear: (event: WindowEventMap[Kind]) => void): void {
  const latest = useRef(hear);
  latest.current = hear;
  useEffect(() => {
    const here = of === null ? window : of.current;
    const listener = ((event: WindowEventMap[Kind]) => { latest.current(event); }) as EventListener;
    here?.addEventListener(kind, listener, { passive: false });
    return () => { here?.removeEventListener(kind, listener); };
  }, []);
}
