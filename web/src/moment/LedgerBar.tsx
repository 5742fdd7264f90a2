// The ledger: one bar that ends where the device ends, and the same parts as a table that adds up to it. At a failure the
// request is drawn as the piece that does not fit.

import type { JSX } from 'preact';
import type { Failed, Listed } from '../api/types';
import { noRoom, notes, parts, sum, type NoRoom } from '../draw/ledger';
import { Bytes, Table } from '../parts/parts';
import { bytes, count, percent } from '../words/numbers';

/** The failed request beside what was held. */
function Failure({ of, failed }: { of: NoRoom; failed: Failed }): JSX.Element {
  let left = 0;
  const share = (value: number): string => `${(100 * value) / Math.max(of.end, 1)}%`;
  const isShare = failed.limit_at_least_bytes !== null;
  return (
    <>
      <p class="failed-request">
        <strong>{`${bytes(failed.asked_bytes)} did not fit. `}</strong>
        {`The process held ${bytes(sum(of.held))} of ${isShare ? 'at least ' : ''}${bytes(of.limit)}; the largest usable hole has ${bytes(of.hole)}. Up to ${bytes(of.fits)} would have fitted.`}
      </p>
      <svg class="bar no-room" width="100%" height="44" role="img" aria-label={`${bytes(failed.asked_bytes)} behind ${bytes(sum(of.held))}, with a limit of ${bytes(of.limit)}`}>
        {[...of.held, of.request].map((part) => {
          const x = left;
          left += part.bytes;
          return (
            <rect key={part.name} class={part.colour} x={share(x)} y="0" width={share(part.bytes)} height="30">
              <title>{`${part.name}: ${bytes(part.bytes)}`}</title>
            </rect>
          );
        })}
        <line class="limit" x1={share(of.limit)} x2={share(of.limit)} y1="0" y2="44" />
      </svg>
      <ul class="legend">
        <li><i class="key request" />{`requested: ${bytes(failed.asked_bytes)}`}</li>
        <li><i class="key limit" />{`the limit: ${isShare ? 'at least ' : ''}${bytes(of.limit)}`}</li>
      </ul>
    </>
  );
}

/** See the module; `failed` is the request that failed at this moment. */
export function LedgerBar({ rank, failed }: { rank: Listed | null; failed: Failed | null }): JSX.Element {
  if (rank === null) return <p class="prose">Not shown: no event of this rank is stored.</p>;
  const of = parts(rank);
  const all = sum(of);
  let left = 0;
  const wholeName = rank.device_total_bytes === all ? 'the device' : rank.device_total_bytes === null ? 'known in all' : 'in all';
  return (
    <>
      {failed !== null && <Failure of={noRoom(rank, failed)} failed={failed} />}
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
