// Live memory by site: the line, its live bytes, and with two moments their change; linked with the flame graph.
//
// Guarantees: the address has the order and the selected site. A site under the pointer here is outlined in the flame graph,
// and the other way round.

import type { JSX } from 'preact';
import type { RankSites } from '../api/types';
import { fileName, siteId } from '../draw/flame';
import { Bytes, Change, Table, type HeadCell } from '../parts/parts';
import type { FlameKept, FlameMove } from '../route';
import { bytes, count, percent } from '../words/numbers';
import { direction, orderOf, pressed, sorted } from '../words/order';
import { rows, type SiteRow } from '../words/sites';
import { lit } from './lit';

/** Rows of the table. */
const SHOWN = 40;

const valueOf = (row: SiteRow, by: string): number | string | null => {
  switch (by) {
    case 'site':
      return row.site === null ? null : `${row.site.function} ${fileName(row.site.file)} ${row.site.line ?? ''}`;
    case 'change':
      return row.live - row.before;
    case 'blocks':
      return row.blocks;
    default:
      return row.live;
  }
};

/** See the module. */
export function SiteTable({ late, early, compares, kept, move }: { late: RankSites | null; early: RankSites | null; compares: boolean; kept: FlameKept; move: (to: FlameMove) => void }): JSX.Element {
  if (late === null) return <p class="prose">Not shown: no table of live memory is stored of this rank.</p>;
  const all = rows(late, compares ? early : null);
  const live = all.reduce((sum, row) => sum + row.live, 0);
  const columns: [by: string, text: string][] = [['site', 'Site'], ...(compares ? [['change', 'Change'] as [string, string]] : []), ['live', 'Live'], ...(compares ? [] : [['share', 'Share'] as [string, string]]), ['blocks', 'Blocks']];
  const order = orderOf(kept.sort, columns.map(([by]) => by), null);
  const heads = columns.map(([by, text]): HeadCell => ({
    text,
    number: by !== 'site',
    sort: () => { move({ sort: pressed(order, by, by !== 'site', false) }); },
    sorted: direction(order, by),
  }));
  const inOrder = sorted(all, order, valueOf);
  const shown = inOrder.slice(0, SHOWN);
  const rest = inOrder.slice(SHOWN).reduce((sum, row) => sum + row.live, 0);
  const usual = compares ? 'Sites, what changed most first' : 'Sites, most bytes first';
  const caption = order === null ? usual : `Sites, by ${columns.find(([by]) => by === order.by)?.[1].toLowerCase() ?? ''}`;
  return (
    <div class="sites" onPointerLeave={() => { lit.value = null; }}>
      <Table caption={caption} heads={heads}>
        {shown.map((row) => {
          const id = siteId(row.site);
          const isChosen = kept.site === id;
          const [name, file] = row.site === null ? ['no stack recorded', ''] : [row.site.function, `${fileName(row.site.file)}${row.site.line === null ? '' : `:${row.site.line}`}`];
          return (
            <tr key={row.key} class={isChosen ? 'chosen' : lit.value === id ? 'lit' : undefined} onPointerEnter={() => { lit.value = id; }}>
              <th scope="row">
                <button type="button" class="row code" aria-pressed={isChosen} title={row.site === null ? undefined : `${name} ${row.site.file}:${row.site.line ?? ''}`} onClick={() => { move({ site: isChosen ? undefined : id }); }}>
                  {name}{file !== '' && <span class="faint"> {file}</span>}
                </button>
              </th>
              {compares && <td class={`number ${row.live > row.before ? 'more' : row.live < row.before ? 'less' : ''}`}><Change of={row.live - row.before} /></td>}
              <td class="number"><Bytes of={row.live} /></td>
              {!compares && <td class="number">{percent(row.live, live)}</td>}
              <td class="number">{count(row.blocks)}</td>
            </tr>
          );
        })}
      </Table>
      {all.length > SHOWN && <p class="faint">{`And ${count(all.length - SHOWN)} more sites with ${bytes(rest)}.`}</p>}
    </div>
  );
}
