// The ledger: one bar that ends where the device ends, and the same parts as a table that adds up to it.

import type { JSX } from 'preact';
import type { LedgerRank } from '../api/types';
import { notes, parts, sum } from '../draw/ledger';
import { Bytes, Table } from '../parts/parts';
import { bytes, count, percent } from '../words/numbers';

/** See the module. */
export function LedgerBar({ rank }: { rank: LedgerRank | null }): JSX.Element {
  if (rank === null) return <p class="prose">Not shown: no event of this rank is stored.</p>;
  const of = parts(rank);
  const all = sum(of);
  let left = 0;
  const wholeName = rank.device_total_bytes === all ? 'the device' : rank.device_total_bytes === null ? 'known in all' : 'in all';
  return (
    <>
      <p class="faint">{`Epoch ${rank.epoch}, step ${count(rank.step)}: ${bytes(all)} ${wholeName}.`}</p>
      <svg class="bar" width="100%" height="30" role="img" aria-label="The parts of the table below as one bar">
        {of.map((part) => {
          const x = left;
          left += part.bytes;
          return (
            <rect key={part.name} class={part.colour} x={`${(100 * x) / Math.max(all, 1)}%`} y="0" width={`${(100 * part.bytes) / Math.max(all, 1)}%`} height="30">
              <title>{`${part.name}: ${bytes(part.bytes)}, ${percent(part.bytes, all)}`}</title>
            </rect>
          );
        })}
      </svg>
      <Table caption="Who uses the device's memory" heads={[{ text: 'Part' }, { text: 'Bytes', number: true }, { text: 'Share', number: true }]}>
        {of.map((part) => (
          <tr key={part.name}>
            <th scope="row">
              <i class={`key ${part.colour}`} />
              {part.name}
            </th>
            <td class="number">
              <Bytes of={part.bytes} />
            </td>
            <td class="number">{percent(part.bytes, all)}</td>
          </tr>
        ))}
        <tr class="total">
          <th scope="row">{wholeName}</th>
          <td class="number">
            <Bytes of={all} />
          </td>
          <td class="number">{percent(all, all)}</td>
        </tr>
      </Table>
      {notes(rank).map((note) => (
        <p key={note} class="prose faint">
          {note}
        </p>
      ))}
    </>
  );
}
