// The key / puts the focus into the search field of a view, wherever it is, unless something is being typed.

import { useEffect, useRef } from 'preact/hooks';

/** What the field is told by. */
export function useSlash(): { current: HTMLInputElement | null } {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const hear = (event: KeyboardEvent): void => {
      const isTyping = event.target instanceof Element && event.target.closest('input,select,textarea,dialog') !== null;
      if (event.key !== '/' || isTyping) return;
      event.preventDefault();
      field.current?.focus();
    };
    addEventListener('keydown', hear);
    return () => { removeEventListener('keydown', hear); };
  }, []);
  return field;
}
