// The ranks as a table, outliers first.

import type { JSX } from 'preact';
import type { Rank, Report } from '../api/types';
import { Bytes, Change, Link, Table } from '../parts/parts';
import type { JobAddress } from '../route';
import { count, percent, plural } from '../words/numbers';
import { addressIn, keyOf, labelOf } from '../words/devices';

/** Rows of the table. */
const SHOWN = 200;

const HEADS = [
  { text: 'Rank' },
  { text: 'State' },
  { text: 'Device' },
  { text: 'Epochs', number: true },
  { text: 'Steps', number: true },
  { text: 'Allocated', number: true },
  { text: 'Peak', number: true },
  { text: 'Reserved', number: true },
  { text: 'Growth an epoch', number: true },
  { text: 'Fragmented', number: true },
  { text: 'Stands out by' },
];

/** The order of outliers: failures, then figures that stand out, then findings of its own. */
function oddness(rank: Rank): number {
  return (rank.failure !== null || rank.ooms > 0 ? 4 : 0) + (rank.stands_out.length > 0 ? 2 : 0) + (rank.findings.length > 0 ? 1 : 0);
}

/** See the module. */
export function Ranks({ report, job, chosen }: { report: Report; job: JobAddress; chosen: Rank | null }): JSX.Element {
  const rows = report.ranks.toSorted((a, b) => oddness(b) - oddness(a)).slice(0, SHOWN);
  const more = report.ranks.length - rows.length;
  return (
    <>
      <Table caption="Ranks, those that are odd first" heads={HEADS}>
        {rows.map((rank) => (
          <tr key={keyOf(rank)} class={rank === chosen ? 'chosen' : undefined}>
            <th scope="row">
              <Link
                to={{ view: 'job', job: addressIn(job, rank, report.ranks), since: null, until: null }}
                current={rank === chosen}
                label={`Show ${labelOf(rank, report.ranks)} over time`}
              >
                {labelOf(rank, report.ranks)}
              </Link>
            </th>
            <td class={`state ${rank.state}`}>
              {rank.failure ?? rank.state}
              {rank.ooms > 0 && `, ${plural(rank.ooms, 'failed request')}`}
            </td>
            <td>
              {[rank.host, rank.gpu_name ?? `device ${rank.device}`].filter((text) => text !== null).join(' · ')}
            </td>
            <td class="number">{count(rank.epochs)}</td>
            <td class="number">{count(rank.steps)}</td>
            <td class="number">
              <Bytes of={rank.allocated_bytes} />
            </td>
            <td class="number">
              <Bytes of={rank.peak_allocated_bytes} />
            </td>
            <td class="number">
              <Bytes of={rank.reserved_bytes} />
            </td>
            <td class="number">
              <Change of={rank.growth_bytes_per_epoch} />
            </td>
            <td class="number">{rank.fragmentation_ratio === null ? '–' : percent(rank.fragmentation_ratio, 1)}</td>
            <td>
              {rank.stands_out.map((name) => name.replaceAll('_', ' ')).join(', ')}
              {!rank.completeness.exact && <strong class="inexact"> NOT EXACT</strong>}
            </td>
          </tr>
        ))}
      </Table>
      {more > 0 && <p class="faint">And {more} more, of which none is odder: `memctl ranks` lists all.</p>}
    </>
  );
}
