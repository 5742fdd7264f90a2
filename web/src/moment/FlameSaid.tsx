// What is under the pointer or has the focus in a flame graph: its figures, its stack, and the stack to copy.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Frame } from '../api/types';
import { place } from '../draw/flame';
import { traceback } from '../words/stack';

/** Writes a stack to the clipboard, and says what came of it. */
export async function copied(stack: Frame[], figures: string): Promise<string> {
  if (stack.length === 0) return 'No stack leads here.';
  try {
    await navigator.clipboard.writeText(traceback(stack, figures));
    return `Copied ${stack.length === 1 ? '1 frame' : `${stack.length} frames`}.`;
  } catch {
    return 'The browser does not allow this page to copy.';
  }
}

interface Of {
  name: string;
  own: boolean;
  file: string | null;
  figures: string;
  exact: string;
  /** Outermost first. */
  stack: Frame[];
  copy: (stack: Frame[], name: string) => void;
  said: string;
  /** Shows the callers and callees of the function. */
  sandwich: (() => void) | null;
}

/** See the module. */
export function FlameSaid({ name, own, file, figures, exact, stack, copy, said, sandwich }: Of): JSX.Element {
  const [open, setOpen] = useState(false);
  return (
    <div class="said">
      <p>
        <strong class={own ? 'code' : undefined}>{name}</strong>
        {file !== null && <span class="faint code"> {file}</span>}
      </p>
      <p title={exact}>{figures}</p>
      <p class="tools">
        <button type="button" onClick={() => { copy(stack, figures); }}>Copy stack</button>
        {sandwich !== null && <button type="button" onClick={sandwich}>Callers and callees</button>}
        <span class="faint" role="status">{said}</span>
      </p>
      <details open={open} onToggle={(event) => { setOpen(event.currentTarget.open); }}>
        <summary>{stack.length === 0 ? 'No stack leads here' : `The stack that leads here, ${stack.length === 1 ? '1 frame' : `${stack.length} frames`}`}</summary>
        <ol class="stack code">
          {stack.map((frame, at) => (
            <li key={at} title={frame.file}>{place(frame)}</li>
          ))}
        </ol>
      </details>
    </div>
  );
}
