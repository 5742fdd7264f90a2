// Live memory at the peak: by class, by module, and each class by module and site.
//
// Guarantees: the bars of a list have one scale, and their figures are the daemon's; omitted parts are counted with their
// bytes.

import type { JSX } from 'preact';
import type { Anatomy as Answer } from '../api/types';
import { fileName } from '../draw/flame';
import { colourOf } from '../draw/ledger';
import { Bytes, Table } from '../parts/parts';
import { count, percent, plural } from '../words/numbers';

/** The most parts of a class, and modules, that are shown. */
const SHOWN = 12;

function Bar({ part, whole, colour }: { part: number; whole: number; colour: string }): JSX.Element {
  return (
    <svg class="setting" viewBox="0 0 1000 14" preserveAspectRatio="none" width="100%" height="14" aria-hidden="true">
      <rect class={colour} width={(1000 * part) / Math.max(whole, 1)} height="14" />
    </svg>
  );
}

const words = (name: string): string => name.replaceAll('_', ' ');

/** See the module. */
export function Anatomy({ of }: { of: Answer }): JSX.Element {
  const rest = of.modules.slice(SHOWN);
  const heads = (first: string, of: string): { text: string; number?: boolean }[] => [{ text: first }, { text: of }, { text: 'Live', number: true }, { text: 'Share', number: true }, { text: 'Blocks', number: true }];
  return (
    <>
      <p class="faint">
        <Bytes of={of.allocated_bytes} />{` allocated in epoch ${of.epoch}, step ${count(of.step)}${of.exact ? '' : ', NOT EXACT'}.`}
      </p>
      {of.classes.map((one) => {
        const parts = of.parts.filter((part) => part.class === one.class);
        const shownBytes = parts.slice(0, SHOWN).reduce((sum, part) => sum + part.live_bytes, 0);
        return (
          <details key={one.class} open={one === of.classes.reduce((most, next) => (next.live_bytes > most.live_bytes ? next : most))}>
            <summary>
              <i class={`key ${colourOf(one.class)}`} />
              {`${words(one.class)} `}<Bytes of={one.live_bytes} />{`, ${percent(one.live_bytes, of.allocated_bytes)}`}
              <Bar part={one.live_bytes} whole={of.allocated_bytes} colour={colourOf(one.class)} />
            </summary>
            <Table caption={`${words(one.class)} by module and site, most first`} heads={heads('Module and site', 'Of this class')}>
              {parts.slice(0, SHOWN).map((part, at) => (
                <tr key={at}>
                  <th scope="row" class="name">
                    {part.module !== null && <code>{part.module}</code>}
                    {part.module !== null && ' · '}
                    {part.site === null ? 'no stack recorded' : <span title={part.site.file}>{`${part.site.function} ${fileName(part.site.file)}${part.site.line === null ? '' : `:${part.site.line}`}`}</span>}
                  </th>
                  <td class="bar-cell"><Bar part={part.live_bytes} whole={one.live_bytes} colour={colourOf(one.class)} /></td>
                  <td class="number"><Bytes of={part.live_bytes} /></td>
                  <td class="number">{percent(part.live_bytes, of.allocated_bytes)}</td>
                  <td class="number">{count(part.live_blocks)}</td>
                </tr>
              ))}
            </Table>
            {shownBytes < one.live_bytes && <p class="faint">And <Bytes of={one.live_bytes - shownBytes} /> at other sites.</p>}
          </details>
        );
      })}
      {of.modules.length > 1 && (
        <Table caption="By module, most first" heads={heads('Module', 'Of what is allocated')}>
          {of.modules.slice(0, SHOWN).map((held, at) => (
            <tr key={at}>
              <th scope="row" class="name">{held.module === null ? 'in no module' : <code>{held.module}</code>}</th>
              <td class="bar-cell"><Bar part={held.live_bytes} whole={of.allocated_bytes} colour="c6" /></td>
              <td class="number"><Bytes of={held.live_bytes} /></td>
              <td class="number">{percent(held.live_bytes, of.allocated_bytes)}</td>
              <td class="number">{count(held.live_blocks)}</td>
            </tr>
          ))}
        </Table>
      )}
      {rest.length + of.modules_left_out > 0 && <p class="faint">{`And ${plural(rest.length + of.modules_left_out, 'other module')}.`}</p>}
    </>
  );
}
