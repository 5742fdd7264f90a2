// Ranks by epochs as a picture, outliers on top: where a rank leaves the others, and which one.
//
// Guarantees: thousands of ranks are one picture that is painted once and scrolls, grouped by host. Outliers stay above
// it and are also named in words. Arrows walk over all of it, Enter shows the rank.

import type { JSX } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import type { Heat, HeatRow, Rank } from '../api/types';
import { STEPS, arranged, furthest, paintCells } from '../draw/heat';
import { pixel } from '../draw/raster';
import { Pixels, within } from '../parts/Pixels';
import { Link } from '../parts/parts';
import { go, type JobAddress } from '../route';
import { bytes, change, plural } from '../words/numbers';
import { addressIn, labelOf } from '../words/devices';

/** The least and the most pixels of a row, and the height of the scrolling part. */
const ROW_LEAST = 3;
const ROW_MOST = 18;
const HEIGHT = 420;
/** The most ranks on top, and the most of them that are named in words. */
const PINNED = 12;
const TOLD = 6;
/** A name needs this height. */
const NAMED = 14;
/** Below the median in blue, above in orange, as in all views. */
const BELOW = ['#deebf7', '#9ecae1', '#56b4e9', '#0072b2'];
const ABOVE = ['#fee8c8', '#fdbb84', '#e69f00', '#d55e00'];
const MIDDLE = '#f0f0f0';

/** Why a rank is on top. */
function why(row: HeatRow): string {
  const said = [
    ...(row.failure === null ? [] : [row.failure]),
    ...(row.diverges_at === null ? [] : [`above the others from the end of epoch ${row.diverges_at} on`]),
    ...(row.stands_out.length === 0 ? [] : [`stands out by ${row.stands_out.map((name) => name.replaceAll('_', ' ')).join(', ')}`]),
  ];
  return said.join('; ');
}

/** See the module. */
export function HeatMap({ heat, ranks: known, job }: { heat: Heat; ranks: Rank[]; job: JobAddress }): JSX.Element | null {
  const [upper, lower, scroller] = [useRef<HTMLCanvasElement>(null), useRef<HTMLCanvasElement>(null), useRef<HTMLDivElement>(null)];
  const [at, setAt] = useState<{ x: number; y: number } | null>(null);
  const [epochs, ranks] = [heat.epochs.length, heat.ranks.length];
  const { pinned, others, hosts } = useMemo(() => arranged(heat.ranks, (row) => why(row) !== '', PINNED), [heat]);
  const [paintPinned, paintOthers] = useMemo(() => {
    const far = furthest(heat);
    const of = (step: number): number => pixel((step < 0 ? BELOW[-step - 1] : step > 0 ? ABOVE[step - 1] : MIDDLE) ?? MIDDLE);
    return [pinned, others].map((rows) => (out: Uint32Array) => { paintCells(heat, rows, far, of, out); });
  }, [heat, pinned, others]);
  if (epochs === 0 || ranks < 2 || !paintPinned || !paintOthers) return null;
  const tall = Math.min(Math.max(Math.floor(HEIGHT / Math.max(others.length, 1)), ROW_LEAST), ROW_MOST);
  const odd = heat.ranks.filter((row) => why(row) !== '');
  const all = [...pinned, ...others];
  const told = at === null ? null : all[at.y];
  const place = (pointer: MouseEvent, canvas: HTMLCanvasElement | null, first: number, count: number): void => {
    const found = within(canvas, pointer);
    const part = (share: number, of: number): number => Math.min(Math.max(Math.floor(share * of), 0), of - 1);
    if (found) setAt({ x: part(found.x, epochs), y: first + part(found.y, count) });
  };
  const open = (row: HeatRow | null | undefined): void => {
    if (row) go({ view: 'job', job: addressIn(job, row, known), since: null, until: null });
  };
  const key = (event: KeyboardEvent): void => {
    const here = at ?? { x: epochs - 1, y: -1 };
    const by: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -50], PageDown: [0, 50],
    };
    const step = by[event.key];
    if (event.key === 'Enter') open(told);
    else if (step === undefined || event.ctrlKey || event.altKey) return;
    else {
      const to = { x: Math.min(Math.max(here.x + step[0], 0), epochs - 1), y: Math.min(Math.max(here.y + step[1], 0), ranks - 1) };
      setAt(to);
      const [top, box] = [(to.y - pinned.length) * tall, scroller.current];
      if (box && (top < box.scrollTop || top + tall > box.scrollTop + box.clientHeight)) box.scrollTop = top - box.clientHeight / 2;
    }
    event.preventDefault();
  };
  const value = told && at ? told.allocated_bytes[at.x] : null;
  const median = at === null ? null : heat.median_bytes[at.x];
  return (
    <figure>
      <figcaption>
        <p>
          {`${plural(ranks, 'rank')} by ${plural(epochs, 'epoch')}, odd ranks on top: allocated at each epoch's end, against the median of all ranks.`}
          {odd.length === 0 && ' No rank holds more than the others.'}
        </p>
        {odd.length > 0 && (
          <ul>
            {odd.slice(0, TOLD).map((row) => (
              <li key={`${row.rank} ${row.process} ${row.device}`}>
                <Link to={{ view: 'job', job: addressIn(job, row, known), since: null, until: null }}>{labelOf(row, known)}</Link>
                {` ${why(row)}`}
              </li>
            ))}
            {odd.length > TOLD && <li class="faint">{`and ${plural(odd.length - TOLD, 'more rank')}`}</li>}
          </ul>
        )}
        <ul class="legend">
          <li>{`${bytes(furthest(heat))} below the median`}</li>
          <li>
            <svg width={16 * (2 * STEPS + 1)} height="12" aria-hidden="true">
              {[...BELOW.toReversed(), MIDDLE, ...ABOVE].map((colour, step) => <rect key={colour} x={16 * step} width="16" height="12" fill={colour} />)}
            </svg>
          </li>
          <li>as far above it</li>
        </ul>
      </figcaption>
      <div
        class="plot"
        role="application"
        aria-roledescription="heat map"
        aria-label="Ranks by epochs. Arrows move from cell to cell, page keys by fifty ranks, Enter shows the rank."
        aria-describedby="heat-said"
        tabIndex={0}
        onKeyDown={key}
      >
        {pinned.length > 0 && (
          <div class="heat-rows">
            <div class="heat-names">{pinned.map((row) => <span key={`${row.rank} ${row.process} ${row.device}`} style={{ height: `${ROW_MOST}px` }}>{labelOf(row, known)}</span>)}</div>
            <Pixels
              canvas={upper}
              class="heat"
              width={epochs}
              height={pinned.length}
              tall={pinned.length * ROW_MOST}
              paint={paintPinned}
              onPointerMove={(event) => { place(event, upper.current, 0, pinned.length); }}
              onClick={() => { open(told); }}
            />
          </div>
        )}
        {others.length > 0 && (
          <div class="heat-rows heat-scroll" ref={scroller} style={{ maxHeight: `${HEIGHT}px` }}>
            <div class="heat-names">
              {hosts.map(({ host, first, count }) => (
                <span key={first} style={{ height: `${count * tall}px` }}>{count * tall >= NAMED ? (host ?? '') : ''}</span>
              ))}
            </div>
            <Pixels
              canvas={lower}
              class="heat"
              width={epochs}
              height={others.length}
              tall={others.length * tall}
              paint={paintOthers}
              onPointerMove={(event) => { place(event, lower.current, pinned.length, others.length); }}
              onClick={() => { open(told); }}
            />
          </div>
        )}
      </div>
      <p id="heat-said" class="said" role="status">
        {told && at
          ? `${labelOf(told, known)}${told.host === null ? '' : ` on ${told.host}`}, end of epoch ${heat.epochs[at.x] ?? 0}: ${bytes(value)}${
              value != null && median != null ? `, ${change(value - median)} against the median` : ''
            }. ${why(told)}`
          : epochs === 1 ? `Epoch ${heat.epochs[0] ?? 0}.` : `Epochs ${heat.epochs[0] ?? 0} to ${heat.epochs.at(-1) ?? 0} from left to right.`}
      </p>
    </figure>
  );
}
