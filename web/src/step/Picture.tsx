// The stacked blocks of a step as a picture that can be hovered, clicked, zoomed and walked by keys.
//
// Guarantees: a frame costs its pixels, and moving the pointer paints no block again. Every action of the mouse has a key.
// The chosen block is described outside the picture, in words.

import type { JSX } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { clamp } from '../draw/course';
import { above, beside, byteTicks, columns, heightOf, hit, outline, paintShapes, placeOf, pointAt, ticks, wholeOf, within, type Range, type Shapes } from '../draw/step';
import { useHeard } from '../parts/heard';
import { Pixels, within as placeIn } from '../parts/Pixels';
import { bytes, count, duration } from '../words/numbers';
import type { Meaning } from './colours';
import { Tip, type What } from './Said';

/** The height of the shapes, and of the axis below them. */
const [HEIGHT, BELOW] = [400, 22];
/** A number further to the right would be cut off. */
const FITS = 0.92;
/** The height of the line with the names of phases. */
const CAPTION = 30;
/** The zoom factor of a key or a turn of the wheel, and the part of the view that a key pans by. */
const [CLOSER, PART] = [0.6, 0.25];
/** The shortest view: a few events, or a microsecond. */
const SHORTEST = { events: 4, time: 1_000 };
/** The pointer moved at least this share of the width: it drags. */
const DRAGGED = 0.008;

interface Of {
  of: Shapes;
  colours: Meaning;
  limit: number | null;
  view: Range;
  look: (view: Range) => void;
  chosen: number | null;
  choose: (block: number | null) => void;
  hover: (what: What | null) => void;
  walk: (by: 1 | -1) => void;
}

/** A place under the pointer, in shares of the picture. */
interface Pointed {
  of: Shapes;
  x: number;
  y: number;
  what: What | null;
}

const percent = (share: number): string => `${(100 * share).toFixed(3)}%`;

/** A number of the horizontal axis in words. */
function along(of: Shapes, at: number, unit: number): string {
  if (of.axis === 'events') return count(at);
  const ms = at / 1e6;
  return unit >= 1e9 ? duration(ms) : unit >= 1e6 ? `${Math.round(ms)} ms` : `${ms.toFixed(unit >= 1e5 ? 1 : 3)} ms`;
}

/** A view of another length around a place, within all of it. */
function zoomed(of: Shapes, view: Range, factor: number, around: number): Range {
  const all = wholeOf(of);
  const length = clamp((view.to - view.from) * factor, Math.min(SHORTEST[of.axis], all.to - all.from), all.to - all.from);
  const from = clamp(around - ((around - view.from) / (view.to - view.from)) * length, all.from, all.to - length);
  return { from, to: from + length };
}

function panned(of: Shapes, view: Range, by: number): Range {
  const all = wholeOf(of);
  const length = view.to - view.from;
  const from = clamp(view.from + by * length, all.from, all.to - length);
  return { from, to: from + length };
}

/** See the module. */
export function Picture({ of, colours, limit, view, look, chosen, choose, hover, walk }: Of): JSX.Element {
  const plot = useRef<SVGSVGElement>(null);
  const [last, setPointed] = useState<Pointed | null>(null);
  const pointed = last?.of === of ? last : null;
  const [drag, setDrag] = useState<Range | null>(null);
  const { peak } = of.of;
  const { top, showsLimit } = heightOf(peak.allocated_bytes, limit);
  const shareOf = (at: number): number => (at - view.from) / (view.to - view.from);
  const paint = useMemo(() => {
    // (A frame that only draws another outline takes the pixels of the last one.)
    let known: Uint32Array | null = null;
    let size = '';
    return (out: Uint32Array, width: number, height: number): void => {
      if (known === null || size !== `${width} ${height}`) {
        paintShapes(of, columns(of, view, width), top, colours.paint, height, out);
        [known, size] = [out.slice(), `${width} ${height}`];
      } else out.set(known);
    };
  }, [of, view.from, view.to, top, colours]);
  const over = pointed?.what != null && 'block' in pointed.what ? pointed.what.block : null;
  const draw = useMemo(
    () => (brush: CanvasRenderingContext2D, width: number, height: number): void => {
      const shown = columns(of, view, width);
      const ink = getComputedStyle(brush.canvas).getPropertyValue('--ink');
      for (const [block, wide] of [[over, 1.5], [chosen, 2.5]] as const) {
        if (block === null) continue;
        brush.beginPath();
        for (const path of outline(of, block, shown)) {
          path.forEach((corner, at) => { brush[at === 0 ? 'moveTo' : 'lineTo'](corner.x, height * (1 - corner.level / top)); });
          brush.closePath();
        }
        brush.strokeStyle = ink;
        brush.lineWidth = (wide * height) / HEIGHT;
        brush.stroke();
      }
    },
    [of, view.from, view.to, top, over, chosen, colours],
  );

  const pointAtPointer = (event: MouseEvent): Pointed | null => {
    const place = placeIn(plot.current, event);
    if (!place) return null;
    const [x, y] = [clamp(place.x, 0, 1), place.y * (HEIGHT + BELOW)];
    const at = view.from + x * (view.to - view.from);
    const width = plot.current?.clientWidth ?? 1;
    // The column under the pointer shows the highest moment of its events.
    const point = columns(of, { from: at, to: at + (view.to - view.from) / width }, 1)[0] ?? pointAt(of, at);
    const found = y > HEIGHT || point < 0 ? null : hit(of, of.edges[point] ?? at, top * (1 - y / HEIGHT));
    return { of, x, y, what: found === null ? null : found === 'rest' ? { rest: point } : { block: found } };
  };
  const see = (block: number | null): void => {
    choose(block);
    if (block === null) return;
    const place = placeOf(of, of.of.points.event[within(of, block, pointAt(of, (view.from + view.to) / 2))] ?? 0);
    if (place < view.from || place > view.to) look(panned(of, view, shareOf(place) - 0.5));
  };
  const middle = (): number => {
    if (chosen === null) return (view.from + view.to) / 2;
    return clamp(placeOf(of, of.of.points.event[within(of, chosen, pointAt(of, (view.from + view.to) / 2))] ?? 0), view.from, view.to);
  };
  const peakPlace = placeOf(of, peak.event);
  const acts: Record<string, () => void> = {
    ArrowRight: () => { see(beside(of, chosen, 1)); },
    ArrowLeft: () => { see(beside(of, chosen, -1)); },
    ArrowUp: () => { see(above(of, chosen, pointAt(of, middle()), 1)); },
    ArrowDown: () => { see(above(of, chosen, pointAt(of, middle()), -1)); },
    '+': () => { look(zoomed(of, view, CLOSER, middle())); },
    '=': () => { look(zoomed(of, view, CLOSER, middle())); },
    '-': () => { look(zoomed(of, view, 1 / CLOSER, middle())); },
    '0': () => { look(wholeOf(of)); },
    ',': () => { look(panned(of, view, -PART)); },
    '.': () => { look(panned(of, view, PART)); },
    '<': () => { walk(-1); },
    '>': () => { walk(1); },
    p: () => { look(panned(of, view, shareOf(peakPlace) - 0.5)); },
    Escape: () => { choose(null); },
  };
  const key = (event: KeyboardEvent): void => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  useHeard(plot, 'wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const around = view.from + clamp(placeIn(plot.current, event)?.x ?? 0.5, 0, 1) * (view.to - view.from);
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : 0;
    if (sideways !== 0) look(panned(of, view, sideways > 0 ? 0.15 : -0.15));
    else look(zoomed(of, view, event.deltaY > 0 ? 1 / CLOSER : CLOSER, around));
  });
  const point = (event: PointerEvent): void => {
    const found = pointAtPointer(event);
    setPointed(found);
    hover(found?.what ?? null);
    if (drag !== null && found !== null) setDrag({ ...drag, to: found.x });
  };
  const release = (event: PointerEvent): void => {
    if (drag !== null && Math.abs(drag.to - drag.from) > DRAGGED) {
      const [from, to] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)].map((share) => view.from + share * (view.to - view.from));
      look(zoomed(of, { from: from ?? 0, to: to ?? 1 }, 1, from ?? 0));
    } else {
      const { what } = pointAtPointer(event) ?? { what: null };
      choose(what !== null && 'block' in what ? what.block : null);
    }
    setDrag(null);
  };
  const marks = [
    ...(peakPlace >= view.from && peakPlace <= view.to ? [{ kind: 'peak', at: peakPlace, text: `peak ${bytes(peak.allocated_bytes)}` }] : []),
    ...of.of.failures.map((failure) => ({ kind: 'failed', at: placeOf(of, failure.event), text: `✖ ${bytes(failure.bytes)} failed` })).filter((mark) => mark.at >= view.from && mark.at <= view.to),
  ];
  const across = ticks(view, 6);
  const unit = (across[1] ?? 0) - (across[0] ?? 0);
  const y = (level: number): number => HEIGHT * (1 - level / top);
  return (
    <div
      class="plot"
      role="application"
      aria-roledescription="plot"
      aria-label="Blocks of the step, stacked. Left and right walk in the order of allocation, up and down within a moment, plus and minus zoom, 0 shows all, comma and full stop pan, P goes to the peak, less and greater go to the previous and the next step, Escape lets go."
      aria-describedby="step-said"
      tabIndex={0}
      onKeyDown={key}
    >
      <Pixels class="painted" height={HEIGHT} sharp paint={paint} draw={draw} hidden />
      <svg
        ref={plot}
        class="course"
        width="100%"
        height={HEIGHT + BELOW}
        aria-hidden="true"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          const found = pointAtPointer(event);
          if (found !== null) setDrag({ from: found.x, to: found.x });
        }}
        onPointerMove={point}
        onPointerLeave={() => {
          setPointed(null);
          hover(null);
        }}
        onPointerUp={release}
        onPointerCancel={() => { setDrag(null); }}
      >
        {byteTicks(top, 6).map((level) => (
          <g key={level}>
            <line class="grid" x1="0" x2="100%" y1={y(level)} y2={y(level)} />
            {y(level) > CAPTION && <text class="scale" x="4" y={y(level) - 4}>{bytes(level)}</text>}
          </g>
        ))}
        {across.map((at) => (
          <g key={at}>
            <line class="grid" x1={percent(shareOf(at))} x2={percent(shareOf(at))} y1={HEIGHT} y2={HEIGHT + 5} />
            {shareOf(at) < FITS && <text class="tick" x={percent(shareOf(at))} y={HEIGHT + 17} dx="3">{along(of, at, unit)}</text>}
          </g>
        ))}
        <line class="grid" x1="0" x2="100%" y1={HEIGHT} y2={HEIGHT} />
        {of.of.phases.map((phase) => {
          const [from, to] = [phase.first_event, phase.last_event].map((event) => clamp(shareOf(placeOf(of, event)), 0, 1)) as [number, number];
          return from < to && (
            <g key={`${phase.phase} ${phase.first_event}`}>
              <line class="phase" x1={percent(from)} x2={percent(from)} y1="0" y2={HEIGHT} />
              {to - from > 0.05 && <text class="tick" x={percent(from)} y="12" dx="3">{phase.phase}</text>}
            </g>
          );
        })}
        {showsLimit && limit !== null && (
          <g>
            <line class="limit" x1="0" x2="100%" y1={y(limit)} y2={y(limit)} />
            <text class="scale" x="100%" dx="-4" y={y(limit) - 4} text-anchor="end">{`limit ${bytes(limit)}`}</text>
          </g>
        )}
        {marks.map((mark) => (
          <g key={`${mark.kind} ${mark.at}`} class={mark.kind === 'peak' ? 'high' : 'mark'}>
            <line x1={percent(shareOf(mark.at))} x2={percent(shareOf(mark.at))} y1={mark.kind === 'peak' ? y(peak.allocated_bytes) - 14 : 0} y2={mark.kind === 'peak' ? y(peak.allocated_bytes) : HEIGHT} />
            <text x={percent(shareOf(mark.at))} y={mark.kind === 'peak' ? Math.max(y(peak.allocated_bytes) - 5, 12) : 28} dx={shareOf(mark.at) > 0.8 ? -5 : 5} text-anchor={shareOf(mark.at) > 0.8 ? 'end' : 'start'}>{mark.text}</text>
          </g>
        ))}
        {pointed !== null && drag === null && <line class="cursor" x1={percent(pointed.x)} x2={percent(pointed.x)} y1="0" y2={HEIGHT} />}
        {drag !== null && <rect class="chosen" x={percent(Math.min(drag.from, drag.to))} y="0" width={percent(Math.abs(drag.to - drag.from))} height={HEIGHT} />}
      </svg>
      {pointed?.what != null && drag === null && <Tip of={of.of} what={pointed.what} x={pointed.x} y={pointed.y} />}
    </div>
  );
}
