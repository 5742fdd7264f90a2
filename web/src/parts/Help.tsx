// The keys of each view, shown by `?`.
//
// Guarantees: the browser's own dialog: Escape closes it, and the focus returns to where it was.

import type { JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { useHeard } from './heard';

/** Keys and what they do. */
const KEYS: [where: string, keys: [key: string, does: string][]][] = [
  ['Everywhere', [['?', 'these keys'], ['/', 'search, where there is something to search'], ['Tab', 'from part to part'], ['Enter', 'open']]],
  [
    'A job, over time',
    [
      ['P', 'the peak of what is in view'],
      ['F', 'the next finding or failed request'],
      ['A, B', 'set a pin at the cursor'],
      ['← →', 'from point to point; with Shift by steps, with Alt by epochs'],
      ['+ − 0', 'closer, further, the whole'],
      [', .', 'pan'],
      ['Enter', 'the moment at the cursor'],
    ],
  ],
  ['Ranks as a heat map', [['Arrows', 'from cell to cell'], ['Page up, page down', 'by fifty ranks'], ['Enter', 'the rank over time']]],
  [
    'A flame graph',
    [
      ['Arrows', 'from call to call'],
      ['Enter', 'zoom to a call, or unfold library calls'],
      ['I', 'callees first: what allocated is on top'],
      ['S', 'the callers and callees of the function'],
      ['U', 'unfold or fold all library calls'],
      ['C', 'copy the stack'],
      ['Escape', 'back out'],
    ],
  ],
  [
    'Memory within a step',
    [
      ['← →', 'from block to block, in the order of allocation'],
      ['↑ ↓', 'from block to block within a moment'],
      ['+ − 0', 'closer, further, the whole'],
      [', .', 'pan'],
      ['P', 'the peak'],
      ['< >', 'the previous or the next step'],
      ['Escape', 'deselect the block'],
    ],
  ],
  ['Blocks', [['Arrows', 'from block to block'], ['+ − 0', 'closer, further, the whole'], [', .', 'an event back, or forth'], ['< >', 'a hundred events'], ['Escape', 'deselect the block']]],
];

/** See the module. */
export function Help(): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  const open = (): void => { if (box.current?.open === false) box.current.showModal(); };
  useHeard(null, 'keydown', (event) => {
    const isWritten = event.target instanceof Element && event.target.closest('input,select,textarea') !== null;
    if (event.key !== '?' || isWritten || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    open();
  });
  return (
    <>
      <button type="button" onClick={open} aria-label="Keys" title="Keys (?)">?</button>
      <dialog ref={box} aria-labelledby="keys">
        <h2 id="keys">Keys</h2>
        {KEYS.map(([where, keys]) => (
          <section key={where} aria-label={where}>
            <h3>{where}</h3>
            <dl>{keys.flatMap(([key, does]) => [<dt key={key}><kbd>{key}</kbd></dt>, <dd key={does}>{does}</dd>])}</dl>
          </section>
        ))}
        <form method="dialog"><button type="submit">Close</button></form>
      </dialog>
    </>
  );
}
