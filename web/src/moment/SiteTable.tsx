// Live memory by site: the line, its live bytes, and with two moments their change.

import type { JSX } from 'preact';
import type { RankSites } from '../api/types';
import { fileName, place } from '../draw/flame';
import { Bytes, Change, Table } from '../parts/parts';
import { bytes, count, percent } from '../words/numbers';
import { rows } from '../words/sites';

/** Rows of the table. */
const SHOWN = 40;

/** See the module. */
export function SiteTable({ late, early, compares }: { late: RankSites | null; early: RankSites | null; compares: boolean }): JSX.Element {
  if (late === null) return <p class="prose">Not shown: no table of live memory is stored of this rank.</p>;
  const all = rows(late, compares ? early : null);
  const live = all.reduce((sum, row) => sum + row.live, 0);
  const shown = all.slice(0, SHOWN);
  const rest = all.slice(SHOWN).reduce((sum, row) => sum + row.live, 0);
  const heads = [
    { text: 'Site' },
    ...(compares ? [{ text: 'Before', number: true }, { text: 'Change', number: true }] : []),
    { text: 'Live', number: true },
    { text: 'Share', number: true },
    { text: 'Blocks', number: true },
  ];
  return (
    <>
      <Table caption={compares ? 'Sites, what changed most first' : 'Sites, most bytes first'} heads={heads}>
        {shown.map((row) => (
          <tr key={row.key}>
            <th scope="row" class="name">
              {row.site === null ? (
                'without a recorded stack'
              ) : (
                <details>
                  <summary title={row.site.file}>
                    <span class="code">{row.site.function}</span>{' '}
                    <span class="faint code">{`${fileName(row.site.file)}${row.site.line === null ? '' : `:${row.site.line}`}`}</span>
                  </summary>
                  <ol class="stack code">
                    {row.stack.map((frame, at) => (
                      <li key={at} title={frame.file}>{place(frame)}</li>
                    ))}
                  </ol>
                </details>
              )}
            </th>
            {compares && (
              <>
                <td class="number"><Bytes of={row.before} /></td>
                <td class={`number ${row.live > row.before ? 'more' : row.live < row.before ? 'less' : ''}`}><Change of={row.live - row.before} /></td>
              </>
            )}
            <td class="number"><Bytes of={row.live} /></td>
            <td class="number">{percent(row.live, live)}</td>
            <td class="number">{count(row.blocks)}</td>
          </tr>
        ))}
      </Table>
      {all.length > SHOWN && <p class="faint">{`And ${count(all.length - SHOWN)} more sites with ${bytes(rest)}.`}</p>}
    </>
  );
}
