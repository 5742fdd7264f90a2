// Events of an element or the window, handled by the latest handler.
//
// Guarantees: one listener for as long as the view exists, across renders; it may prevent the browser's default action.

import type { RefObject } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

/** See the module; without `of` it listens on the window. */
export function useHeard<Kind extends 'wheel' | 'keydown' | 'dragover' | 'dragleave' | 'drop'>(of: RefObject<Element | null> | null, kind: Kind, hear: (event: WindowEventMap[Kind]) => void): void {
  const latest = useRef(hear);
  latest.current = hear;
  useEffect(() => {
    const here = of === null ? window : of.current;
    const listener = ((event: WindowEventMap[Kind]) => { latest.current(event); }) as EventListener;
    here?.addEventListener(kind, listener, { passive: false });
    return () => { here?.removeEventListener(kind, listener); };
  }, []);
}
