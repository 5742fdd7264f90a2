// The holders of a finding's blocks: the daemon's sentence, and each holder as a chain of links from a root to the
// tensor.

import type { JSX } from 'preact';
import type { FindingHolders } from '../api/types';
import { asked, share, step } from '../words/holders';

function Chain({ steps }: { steps: string[] }): JSX.Element {
  return (
    <ol class="chain" aria-label="from the root to the tensor">
      {steps.map((text, at) => {
        const { before, name, behind } = step(text);
        return (
          <li key={at}>
            {before}
            {name !== '' && <code>{name}</code>}
            {behind}
          </li>
        );
      })}
    </ol>
  );
}

/** See the module; nothing if no process was asked. */
export function Held({ of }: { of: FindingHolders | null }): JSX.Element | null {
  if (of === null) return null;
  return (
    <>
      <dt>held by</dt>
      <dd>
        <p class="prose">{of.sentence}</p>
        {of.holders.map((holder, at) => (
          <div key={at}>
            {holder.chain.length > 0 && <Chain steps={holder.chain} />}
            <p class="faint">{share(holder, of)}</p>
          </div>
        ))}
        {of.holders.length > 0 && of.not_looked_at.length > 0 && <p class="prose faint">Not looked at: {of.not_looked_at.join(' ')}</p>}
        <p class="faint">{asked(of)}</p>
      </dd>
    </>
  );
}
