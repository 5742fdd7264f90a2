// A flame graph that can be searched, zoomed and walked.
//
// Guarantees: a click, Enter or Space zooms, arrows walk, Escape goes back. The focused box is described in full below,
// with its stack. The user's own lines are bold; colour is never the only sign.

import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Finding, Flame, FlameCall } from '../api/types';
import { boxes, drawn, grownThrough, hits, label, place, shareOf, stackOf, type Drawn } from '../draw/flame';
import { CLASSES, colourOf } from '../draw/ledger';
import { useSlash } from '../parts/slash';
import { bytes, change, count, exactly, percent, plural } from '../words/numbers';

/** Height of a row, and pixels a letter. */
const ROW = 20;
const LETTER = 7;

function figures(call: FlameCall, whole: number, isChange: boolean): string {
  const blocks = plural(call.live_blocks, 'block');
  if (isChange) return `${bytes(call.grown_bytes)} more, ${bytes(call.shrunk_bytes)} less, ${blocks} now in ${call.kind === 'all' ? 'all stacks' : 'stacks of it'} that changed`;
  const mostly = call.class === null ? '' : `, mostly ${call.class.replaceAll('_', ' ')}`;
  return `${bytes(call.bytes)}, ${percent(call.bytes, whole)}, ${blocks}${mostly}`;
}

/** `258 MiB to 478 MiB, `, if both are known. */
function totals({ from, at }: Flame): string {
  return from?.allocated_bytes == null || at.allocated_bytes === null ? '' : `${bytes(from.allocated_bytes)} to ${bytes(at.allocated_bytes)} allocated, `;
}

function colour(call: FlameCall, isChange: boolean): string {
  if (!isChange) return colourOf(call.class);
  return call.grown_bytes > call.shrunk_bytes ? 'grown' : call.grown_bytes < call.shrunk_bytes ? 'shrunk' : 'same';
}

/** The width of the picture. */
function useWidth(): [number, { current: HTMLDivElement | null }] {
  const of = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(1000);
  useEffect(() => {
    const here = of.current;
    if (!here) return undefined;
    const watch = new ResizeObserver(() => {
      setWidth(Math.max(here.clientWidth, 1));
    });
    watch.observe(here);
    return () => {
      watch.disconnect();
    };
  }, []);
  return [width, of];
}

/** See the module. In a comparison, the calls of `finding` have one colour and all other calls have none. */
export function FlameGraph({ flame, title, finding }: { flame: Flame; title: string; finding: Finding | null }): JSX.Element {
  const of = useMemo(() => boxes(flame.calls), [flame]);
  const site = finding?.site ?? null;
  const grown = useMemo(() => (site === null ? null : grownThrough(of, site)), [of, site]);
  const [zoom, setZoom] = useState(0);
  const [focus, setFocus] = useState(0);
  const [hover, setHover] = useState<number | null>(null);
  const [wanted, setWanted] = useState('');
  const [width, holder] = useWidth();
  const search = useSlash();
  const isChange = flame.from !== null;
  const shown = useMemo(() => drawn(of, zoom, width), [of, zoom, width]);
  const found = useMemo(() => hits(of, wanted), [of, wanted]);
  const [root] = flame.calls;
  const whole = root?.bytes ?? 0;
  const sums =
    root === undefined
      ? ''
      : isChange
        ? `${totals(flame)}${change(root.grown_bytes - root.shrunk_bytes)}: ${bytes(root.grown_bytes)} more, ${bytes(root.shrunk_bytes)} less, ${bytes(flame.unchanged_bytes)} in stacks that did not change.`
        : `${bytes(root.bytes)} in ${plural(root.live_blocks, 'block')}.`;
  if (root === undefined || whole === 0) {
    return <p>{sums} {isChange ? 'No stack holds more or less than before.' : 'Nothing was live.'}</p>;
  }
  const rows = 1 + shown.reduce((deepest, one) => Math.max(deepest, one.box.call.depth), 0);
  const byAt = new Map(shown.map((one) => [one.box.at, one]));
  const walk = (to: Drawn | undefined): void => {
    if (!to) return;
    setFocus(to.box.at);
    setHover(null);
    requestAnimationFrame(() => holder.current?.querySelector<SVGElement>(`[data-at="${to.box.at}"]`)?.focus());
  };
  const beside = (by: number): Drawn | undefined => {
    const here = byAt.get(focus);
    const row = shown.filter((one) => one.box.call.depth === here?.box.call.depth);
    return row[row.findIndex((one) => one.box.at === focus) + by];
  };
  const zoomTo = (at: number): void => {
    setZoom(at);
    setFocus(at);
  };
  const key = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const acts: Record<string, () => void> = {
      ArrowDown: () => { walk(shown.find((one) => one.box.parent === focus)); },
      ArrowUp: () => { walk(byAt.get(of[focus]?.parent ?? -1)); },
      ArrowRight: () => { walk(beside(1)); },
      ArrowLeft: () => { walk(beside(-1)); },
      Home: () => { walk(shown[0]); },
      Enter: () => { zoomTo(focus); },
      ' ': () => { zoomTo(focus); },
      Escape: () => { zoomTo(0); },
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  // (At first, the outermost call of the finding is described.)
  const told = of[hover ?? (focus === 0 ? (grown?.outermost[0] ?? 0) : focus)] ?? of[0];
  const classes = CLASSES.filter((name) => flame.calls.some((call) => call.class === name));
  const reachable = byAt.has(focus) ? focus : (shown[0]?.box.at ?? 0);
  return (
    <figure class="flame">
      <figcaption>
        {grown !== null && site !== null && (
          <p>
            <strong class="code">{place(site)}</strong>
            {grown.boxes.size === 0 ? ' is in no stack that changed between these moments.' : <>{' '}<strong>{change(grown.bytes)}</strong>{` in ${plural(grown.blocks, 'block')} of its stacks: outlined below.`}</>}
          </p>
        )}
        <strong>{sums}</strong>{' '}
        <span class="faint">
          Callers above, what they call below; width is bytes; your own code is bold.
          {flame.calls_left_out > 0 && ` ${plural(flame.calls_left_out, 'call')} too narrow to be shown.`}
        </span>
        <ul class="legend">
          {isChange
            ? (grown === null ? [['grown', 'holds more'], ['shrunk', 'holds less']] : [['leak', "the finding's calls"], ['other', 'everything else that changed']]).map(([name, text]) => (
                <li key={name}><i class={`key ${name ?? ''}`} />{text}</li>
              ))
            : classes.map((name) => (
                <li key={name}><i class={`key ${colourOf(name)}`} />{name.replaceAll('_', ' ')}</li>
              ))}
        </ul>
      </figcaption>
      <div class="tools">
        <label>
          Search{' '}
          <input ref={search} type="search" value={wanted} onInput={(event) => { setWanted(event.currentTarget.value); }} />
        </label>
        <button type="button" disabled={zoom === 0} onClick={() => { zoomTo(0); }}>Whole graph</button>
        <span class="faint" role="status">
          {wanted.trim() === ''
            ? 'Click or Enter zooms, arrows move, Esc goes back.'
            : `${plural(found.size, 'call')} with this text, ${percent(shareOf(of, found), 1)} of what is shown.`}
        </span>
      </div>
      <div ref={holder}>
        <svg
          class="tree"
          role="tree"
          aria-label={title}
          width="100%"
          height={rows * ROW}
          onKeyDown={key}
          onPointerLeave={() => { setHover(null); }}
        >
          {shown.map(({ box, x, width: wide }) => {
            const classNames = [...(grown === null ? [colour(box.call, isChange)] : grown.boxes.has(box.at) ? ['leak', ...(grown.outermost.includes(box.at) ? ['outer'] : [])] : ['other']), box.call.own ? 'own' : 'lib', ...(found.has(box.at) ? ['hit'] : wanted.trim() === '' ? [] : ['dim'])];
            // (A pointer that rests where a box appears has not chosen it.)
            return (
              <g
                key={box.at}
                class={classNames.join(' ')}
                role="treeitem"
                aria-level={box.call.depth + 1}
                aria-label={`${label(box.call)}: ${figures(box.call, whole, isChange)}`}
                aria-selected={box.at === zoom}
                tabindex={box.at === reachable ? 0 : -1}
                data-at={box.at}
                onClick={() => { zoomTo(box.at); }}
                onPointerMove={() => { setHover(box.at); }}
                onFocus={() => { setFocus(box.at); }}
              >
                <rect x={x} y={box.call.depth * ROW} width={wide} height={ROW - 1} />
              </g>
            );
          })}
          <g class="names" aria-hidden="true">
            {shown.map(({ box, x, width: wide }) => {
              const [text, room] = [label(box.call), Math.floor((wide - 6) / LETTER)];
              return room < 3 ? null : (
                <text key={box.at} class={box.call.own ? 'own' : undefined} x={x + 4} y={box.call.depth * ROW + 14}>
                  {text.length > room ? `${text.slice(0, room - 1)}…` : text}
                </text>
              );
            })}
          </g>
        </svg>
      </div>
      {told && (
        <div class="said">
          <p>
            <strong class={told.call.own ? 'code' : undefined}>{label(told.call)}</strong>
            {told.call.frames.length === 1 && <span class="faint code"> {told.call.frames[0]?.file}</span>}
          </p>
          <p title={exactly(told.call.bytes)}>
            {figures(told.call, whole, isChange)}
            {isChange ? ` (${count(told.call.grown_bytes)} bytes more, ${count(told.call.shrunk_bytes)} less)` : ` (${count(told.call.bytes)} bytes)`}
          </p>
          {told.at > 0 && (
            <details>
              <summary>The stack that leads here</summary>
              <ol class="stack code">
                {stackOf(of, told.at).map((frame, at) => (
                  <li key={at} title={frame.file}>{place(frame)}</li>
                ))}
              </ol>
            </details>
          )}
        </div>
      )}
    </figure>
  );
}
