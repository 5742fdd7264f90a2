// Ranks by epochs as a picture, odd ranks on top: where one leaves the others, and which.
//
// Guarantees: thousands of ranks are one picture that is drawn once; the ranks that left the others are told in words beside
// it; arrows walk over it, Enter shows the rank.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Heat, HeatRow } from '../api/types';
import { STEPS, cells, furthest } from '../draw/heat';
import { pixel } from '../draw/raster';
import { Link } from '../parts/parts';
import { go, type JobAddress } from '../route';
import { bytes, change, plural } from '../words/numbers';
import { nameOf } from '../words/verdict';

/** The least and the most pixels of a row, and the height of the whole. */
const ROW_MOST = 18;
const HEIGHT = 480;
/** Ranks that are told in words. */
const TOLD = 6;
/** Below the median in blue, above in orange: as less and more are everywhere. */
const BELOW = ['#deebf7', '#9ecae1', '#56b4e9', '#0072b2'];
const ABOVE = ['#fee8c8', '#fdbb84', '#e69f00', '#d55e00'];
const MIDDLE = '#f0f0f0';

/** Why a rank is on top. */
function why(row: HeatRow): string {
  const said = [
    ...(row.failure === null ? [] : [row.failure]),
    ...(row.diverges_at === null ? [] : [`left the others at the end of epoch ${row.diverges_at}`]),
    ...(row.stands_out.length === 0 ? [] : [`stands out by ${row.stands_out.map((name) => name.replaceAll('_', ' ')).join(', ')}`]),
  ];
  return said.join('; ');
}

/** See the module. */
export function HeatMap({ heat, job }: { heat: Heat; job: JobAddress }): JSX.Element | null {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<{ x: number; y: number } | null>(null);
  const [epochs, ranks] = [heat.epochs.length, heat.ranks.length];
  useEffect(() => {
    const brush = canvas.current?.getContext('2d');
    if (!brush) return;
    const of = (step: number): number => pixel((step < 0 ? BELOW[-step - 1] : step > 0 ? ABOVE[step - 1] : MIDDLE) ?? MIDDLE);
    const { width, height, pixels } = cells(heat, { of, none: 0 });
    const image = brush.createImageData(width, height);
    new Uint32Array(image.data.buffer).set(pixels);
    brush.putImageData(image, 0, 0);
  }, [heat]);
  if (epochs === 0 || ranks < 2) return null;
  const height = Math.min(HEIGHT, ranks * ROW_MOST);
  const odd = heat.ranks.filter((row) => why(row) !== '');
  const told = at === null ? null : heat.ranks[at.y];
  const place = (pointer: MouseEvent): { x: number; y: number } | null => {
    const box = canvas.current?.getBoundingClientRect();
    if (!box) return null;
    const part = (share: number, of: number): number => Math.min(Math.max(Math.floor(share * of), 0), of - 1);
    return { x: part((pointer.clientX - box.left) / box.width, epochs), y: part((pointer.clientY - box.top) / box.height, ranks) };
  };
  const open = (row: HeatRow | null | undefined): void => {
    if (row) go({ view: 'job', job: { ...job, rank: row.rank }, since: null, until: null });
  };
  const key = (event: KeyboardEvent): void => {
    const here = at ?? { x: epochs - 1, y: -1 };
    const by: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -50], PageDown: [0, 50],
    };
    const step = by[event.key];
    if (event.key === 'Enter') open(told);
    else if (step === undefined || event.ctrlKey || event.altKey) return;
    else setAt({ x: Math.min(Math.max(here.x + step[0], 0), epochs - 1), y: Math.min(Math.max(here.y + step[1], 0), ranks - 1) });
    event.preventDefault();
  };
  const value = told && at ? told.allocated_bytes[at.x] : null;
  const median = at === null ? null : heat.median_bytes[at.x];
  return (
    <figure>
      <figcaption>
        <p>
          {`${plural(ranks, 'rank')} by ${plural(epochs, 'epoch')}, odd ranks on top: allocated at each epoch's end, against the median of all ranks.`}
          {odd.length === 0 && ' No rank leaves the others.'}
        </p>
        {odd.length > 0 && (
          <ul>
            {odd.slice(0, TOLD).map((row) => (
              <li key={`${row.rank} ${row.process} ${row.device}`}>
                <Link to={{ view: 'job', job: { ...job, rank: row.rank }, since: null, until: null }}>{nameOf(row.process, row.rank)}</Link>
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
        <canvas
          ref={canvas}
          class="heat"
          width={epochs}
          height={ranks}
          style={{ height: `${height}px` }}
          onPointerMove={(event) => { setAt(place(event)); }}
          onClick={() => { open(told); }}
        />
      </div>
      <p id="heat-said" class="said" role="status">
        {told && at
          ? `${nameOf(told.process, told.rank)}${told.host === null ? '' : ` on ${told.host}`}, end of epoch ${heat.epochs[at.x] ?? 0}: ${bytes(value)}${
              value != null && median != null ? `, ${change(value - median)} against the median` : ''
            }. ${why(told)}`
          : `Epochs ${heat.epochs[0] ?? 0} to ${heat.epochs.at(-1) ?? 0} from left to right.`}
      </p>
    </figure>
  );
}
