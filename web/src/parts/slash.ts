// The key / moves the focus to the search field of a view, unless something is being typed.

import { useRef } from 'preact/hooks';
import { useHeard } from './heard';

/** The reference for the field. */
export function useSlash(): { current: HTMLInputElement | null } {
  const field = useRef<HTMLInputElement>(null);
  useHeard(null, 'keydown', (event) => {
    const isTyping = event.target instanceof Element && event.target.closest('input,select,textarea,dialog') !== null;
    if (event.key !== '/' || isTyping) return;
    event.preventDefault();
    field.current?.focus();
  });
  return field;
}
