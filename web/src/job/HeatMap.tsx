// Ranks by epochs as a picture, outliers on top: where a rank leaves the others, and which one.
//
// Guarantees: thousands of ranks are one picture that is painted once and scrolls, grouped by host. Outliers stay above
// it and are also named in words. Arrows walk over all of it, Enter shows the rank. The address has the quantity.

import type { JSX, RefObject } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import type { Heat, HeatRow, Rank } from '../api/types';
import { QUANTITIES, STEPS, arranged, fieldOf, names, paintCells, ticks, type HostRows } from '../draw/heat';
import { pixel } from '../draw/raster';
import { Pixels, useDark, within } from '../parts/Pixels';
import { Link } from '../parts/parts';
import { go, route, step as stepTo, type JobAddress } from '../route';
import { bytes, change, plural } from '../words/numbers';
import { addressIn, labelOf } from '../words/devices';

/** The least and the most pixels of a row, and the height of the scrolling part. */
const ROW_LEAST = 5;
const ROW_MOST = 18;
const HEIGHT = 420;
/** The most ranks on top, and the most of them that are named in words. */
const PINNED = 12;
const TOLD = 6;
/** A name needs this height; and the most names of epochs. */
const NAMED = 14;
const TICKS = 12;

/** Below the median, above it, and at it; from near to far. */
const LIGHT = { below: ['#dcd8f3', '#b4abe6', '#8577d3', '#5546b8'], above: ['#fde0cc', '#f7b48a', '#ea8442', '#d55e00'], middle: '#e9edf0' };
const DARK = { below: ['#35305c', '#544a94', '#7a6dcb', '#a99df5'], above: ['#54341f', '#8a4f24', '#c46a26', '#ff8a3d'], middle: '#262c33' };

/** Why a rank is on top. */
function why(row: HeatRow): string {
  const said = [
    ...(row.failure === null ? [] : [row.failure]),
    ...(row.diverges_at === null ? [] : [`above the others from the end of epoch ${row.diverges_at} on`]),
    ...(row.stands_out.length === 0 ? [] : [`stands out by ${row.stands_out.map((name) => name.replaceAll('_', ' ')).join(', ')}`]),
  ];
  return said.join('; ');
}

interface RowsOf {
  rows: HeatRow[];
  hosts: HostRows[];
  known: Rank[];
  tall: number;
  epochs: number;
  at: { x: number; y: number } | null;
  canvas: RefObject<HTMLCanvasElement | null>;
  paint: (out: Uint32Array) => void;
  point: (pointer: MouseEvent) => void;
  open: () => void;
}

/** Rows with their names, and the chosen cell. */
function Rows({ rows, hosts, known, tall, epochs, at, canvas, paint, point, open }: RowsOf): JSX.Element {
  return (
    <>
      <div class="heat-names">
        {names(rows.length, hosts, tall, NAMED).map(({ at: first, count, host }) => {
          const row = rows[first];
          const hasRoom = row !== undefined && (count * tall >= NAMED || host !== null);
          return <span key={first} style={{ height: `${count * tall}px` }}>{hasRoom ? <b>{`${host === null ? '' : `${host} · `}${labelOf(row, known)}`}</b> : ''}</span>;
        })}
      </div>
      <div class="heat-cells">
        <Pixels canvas={canvas} class="heat" width={epochs} height={rows.length} tall={rows.length * tall} paint={paint} onPointerMove={point} onClick={open} />
        {at !== null && <i class="heat-at" style={{ left: `${(100 * at.x) / epochs}%`, width: `${100 / epochs}%`, top: `${at.y * tall}px`, height: `${tall}px` }} />}
      </div>
    </>
  );
}

/** See the module. */
export function HeatMap({ heat, ranks: known, job, quantity: asked }: { heat: Heat; ranks: Rank[]; job: JobAddress; quantity: string | null }): JSX.Element | null {
  const [upper, lower, scroller] = [useRef<HTMLCanvasElement>(null), useRef<HTMLCanvasElement>(null), useRef<HTMLDivElement>(null)];
  const [at, setAt] = useState<{ x: number; y: number } | null>(null);
  const [epochs, ranks] = [heat.epochs.length, heat.ranks.length];
  const { pinned, others, hosts } = useMemo(() => arranged(heat.ranks, (row) => why(row) !== '', PINNED), [heat]);
  const fields = useMemo(() => QUANTITIES.flatMap(([name, text]) => {
    const field = fieldOf(heat, known, name);
    return field === null ? [] : [{ name, text, field }];
  }), [heat, known]);
  const shown = fields.find((one) => one.name === asked) ?? fields[0];
  const dark = useDark();
  const colours = dark ? DARK : LIGHT;
  const [paintPinned, paintOthers] = useMemo(() => {
    const of = (step: number): number => pixel((step < 0 ? colours.below[-step - 1] : step > 0 ? colours.above[step - 1] : colours.middle) ?? colours.middle);
    return [pinned, others].map((rows) => (out: Uint32Array) => { if (shown) paintCells(shown.field, rows, of, out); });
  }, [shown, pinned, others, colours]);
  if (epochs === 0 || ranks < 2 || !paintPinned || !paintOthers || !shown) return null;
  const { far, values, median: medians } = shown.field;
  const tall = Math.min(Math.max(Math.floor(HEIGHT / Math.max(others.length, 1)), ROW_LEAST), ROW_MOST);
  const odd = heat.ranks.filter((row) => why(row) !== '');
  const all = [...pinned, ...others];
  const pointed = at === null ? null : all[at.y];
  const place = (pointer: MouseEvent, canvas: HTMLCanvasElement | null, first: number, count: number): void => {
    const found = within(canvas, pointer);
    const part = (share: number, of: number): number => Math.min(Math.max(Math.floor(share * of), 0), of - 1);
    if (found) setAt({ x: part(found.x, epochs), y: first + part(found.y, count) });
  };
  const open = (row: HeatRow | null | undefined): void => {
    if (row) go({ view: 'job', job: addressIn(job, row, known), since: null, until: null, ...(asked === null ? {} : { heat: asked }) });
  };
  const key = (event: KeyboardEvent): void => {
    const here = at ?? { x: epochs - 1, y: -1 };
    const by: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -50], PageDown: [0, 50],
    };
    const step = by[event.key];
    if (event.key === 'Enter') open(pointed);
    else if (step === undefined || event.ctrlKey || event.altKey) return;
    else {
      const to = { x: Math.min(Math.max(here.x + step[0], 0), epochs - 1), y: Math.min(Math.max(here.y + step[1], 0), ranks - 1) };
      setAt(to);
      const [top, box] = [(to.y - pinned.length) * tall, scroller.current];
      if (box && (top < box.scrollTop || top + tall > box.scrollTop + box.clientHeight)) box.scrollTop = top - box.clientHeight / 2;
    }
    event.preventDefault();
  };
  const value = pointed && at ? values.get(pointed)?.[at.x] : null;
  const median = at === null ? null : medians[at.x];
  const [last, inPinned] = [medians.at(-1), at !== null && at.y < pinned.length];
  return (
    <figure>
      <figcaption>
        <p>
          {`${plural(ranks, 'rank')} by ${plural(epochs, 'epoch')}, odd ranks on top: `}
          <label>
            <span class="unseen">Quantity </span>
            <select
              value={shown.name}
              onChange={(change) => {
                const { value: to } = change.currentTarget;
                if (route.value.view !== 'job') return;
                const rest = { ...route.value };
                delete rest.heat;
                stepTo(to === fields[0]?.name ? rest : { ...rest, heat: to });
              }}
            >
              {fields.map(({ name, text }) => <option key={name} value={name}>{text}</option>)}
            </select>
          </label>
          {" at each epoch's end, against the median of all ranks."}
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
        <p class="heat-scale">
          <span class="faint">{`−${bytes(far)}`}</span>
          <svg width={18 * (2 * STEPS + 1)} height="12" aria-hidden="true">
            {[...colours.below.toReversed(), colours.middle, ...colours.above].map((colour, step) => <rect key={colour} x={18 * step} width="18" height="12" fill={colour} />)}
          </svg>
          <span class="faint">{`+${bytes(far)}`}</span>
          <span class="faint">{`the middle is the median${last == null ? '' : `, ${bytes(last)} at the end of epoch ${heat.epochs.at(-1) ?? 0}`}`}</span>
        </p>
      </figcaption>
      <div
        class={hosts.some(({ host }) => host !== null) ? 'plot hosts' : 'plot'}
        role="application"
        aria-roledescription="heat map"
        aria-label="Ranks by epochs. Arrows move from cell to cell, page keys by fifty ranks, Enter shows the rank."
        aria-describedby="heat-said"
        tabIndex={0}
        onKeyDown={key}
      >
        {pinned.length > 0 && (
          <div class="heat-rows">
            <Rows rows={pinned} hosts={[]} known={known} tall={ROW_MOST} epochs={epochs} at={inPinned ? at : null} canvas={upper} paint={paintPinned} point={(event) => { place(event, upper.current, 0, pinned.length); }} open={() => { open(pointed); }} />
          </div>
        )}
        {others.length > 0 && (
          <div class={`heat-rows heat-scroll${pinned.length > 0 ? ' below' : ''}`} ref={scroller} style={{ maxHeight: `${HEIGHT}px` }}>
            <Rows rows={others} hosts={hosts} known={known} tall={tall} epochs={epochs} at={at === null || inPinned ? null : { x: at.x, y: at.y - pinned.length }} canvas={lower} paint={paintOthers} point={(event) => { place(event, lower.current, pinned.length, others.length); }} open={() => { open(pointed); }} />
          </div>
        )}
        <div class="heat-rows heat-axis" aria-hidden="true">
          <div class="heat-names">epoch</div>
          <div class="heat-cells">
            {ticks(heat.epochs, TICKS).map((index) => <span key={index} style={{ left: `${(100 * (index + 0.5)) / epochs}%` }}>{heat.epochs[index]}</span>)}
          </div>
        </div>
      </div>
      <p id="heat-said" class="said" role="status">
        {pointed && at
          ? `${labelOf(pointed, known)}${pointed.host === null ? '' : ` on ${pointed.host}`}, end of epoch ${heat.epochs[at.x] ?? 0}: ${shown.name === 'allocated_bytes' ? '' : `${shown.text} `}${bytes(value)}${
              value != null && median != null ? `, ${change(value - median)} against the median` : ''
            }. ${why(pointed)}`
          : epochs === 1 ? `Epoch ${heat.epochs[0] ?? 0}.` : `Epochs ${heat.epochs[0] ?? 0} to ${heat.epochs.at(-1) ?? 0} from left to right.`}
      </p>
    </figure>
  );
}
