// The memory of a step as stacked shapes: from columns of block lifetimes to pixels, outlines and the block at a place.
//
// Guarantees: pure. A column of pixels shows one moment: the highest of the events that it covers. So no peak is lost at
// any zoom, and in every column the blocks and the rest end where the allocated memory ends. A frame costs its pixels
// and blocks, whatever the number of events.

import type { StepMemory } from '../api/types';

/** What the horizontal axis counts: events from the step's begin, or nanoseconds from the first event. */
export type Axis = 'events' | 'time';

/** A stretch of the axis. */
export interface Range {
  from: number;
  to: number;
}

/** The shapes of a step, ready to be drawn in any range. */
export interface Shapes {
  of: StepMemory;
  axis: Axis;
  /** Where each point begins, and where the last one ends. */
  edges: Float64Array;
  /** Of each block: the events behind which it is allocated and freed. */
  from: Float64Array;
  to: Float64Array;
}

/** See the module. */
export function shapes(of: StepMemory, axis: Axis): Shapes {
  const { event, elapsed_ns } = of.points;
  const edges = new Float64Array(event.length + 1);
  if (axis === 'events') {
    const begin = of.first_event - of.of.first_event;
    for (let at = 0; at < event.length; at += 1) edges[at] = begin + at * of.events_per_point;
    edges[event.length] = of.last_event - of.of.first_event + 1;
  } else {
    let last = 0;
    // (Times of several threads may run backwards.)
    for (let at = 0; at < event.length; at += 1) edges[at] = last = Math.max(elapsed_ns[at] ?? 0, last);
    edges[event.length] = Math.max(of.duration_ns, last + 1);
  }
  return {
    of,
    axis,
    edges,
    from: Float64Array.from(of.blocks.from_event, (at) => at ?? -Infinity),
    to: Float64Array.from(of.blocks.to_event, (at) => at ?? Infinity),
  };
}

/** All of the axis. */
export function wholeOf({ edges }: Shapes): Range {
  return { from: edges[0] ?? 0, to: Math.max(edges.at(-1) ?? 1, (edges[0] ?? 0) + 1) };
}

/** The point at a place of the axis. */
export function pointAt({ edges }: Shapes, at: number): number {
  let [low, high] = [0, edges.length - 2];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((edges[middle] ?? 0) <= at) low = middle;
    else high = middle - 1;
  }
  return Math.max(low, 0);
}

/** The place of an event on the axis: where its point begins. */
export function placeOf(of: Shapes, event: number): number {
  const offset = event - of.of.of.first_event;
  if (of.axis === 'events') return offset;
  const point = Math.floor((event - of.of.first_event) / of.of.events_per_point);
  return of.edges[Math.min(Math.max(point, 0), of.edges.length - 1)] ?? 0;
}

/** The point that each column of pixels shows: the highest of those that it covers. */
export function columns(of: Shapes, view: Range, width: number): Int32Array {
  const { allocated_bytes } = of.of.points;
  const found = new Int32Array(width).fill(-1);
  const all = wholeOf(of);
  const unit = (view.to - view.from) / width;
  let point = pointAt(of, view.from);
  for (let x = 0; x < width; x += 1) {
    const [left, right] = [view.from + x * unit, view.from + (x + 1) * unit];
    if (left >= all.to || right <= all.from) continue;
    while (point + 1 < allocated_bytes.length && (of.edges[point + 1] ?? 0) <= left) point += 1;
    let best = point;
    for (let at = point + 1; at < allocated_bytes.length && (of.edges[at] ?? 0) < right; at += 1) {
      if ((allocated_bytes[at] ?? 0) > (allocated_bytes[best] ?? 0)) best = at;
    }
    found[x] = best;
  }
  return found;
}

/** Whether a block is allocated at a point. */
function isLive(of: Shapes, block: number, point: number): boolean {
  const event = of.of.points.event[point] ?? 0;
  return (of.from[block] ?? 0) <= event && event < (of.to[block] ?? 0);
}

/** The blocks that are allocated at a point, from the bottom, each with the bytes below it; the rest ends at `top`. */
export function stackAt(of: Shapes, point: number): { blocks: number[]; below: number[]; drawn: number; top: number } {
  const { bytes } = of.of.blocks;
  const [blocks, below]: [number[], number[]] = [[], []];
  let sum = 0;
  for (let block = 0; block < bytes.length; block += 1) {
    if (!isLive(of, block, point)) continue;
    blocks.push(block);
    below.push(sum);
    sum += bytes[block] ?? 0;
  }
  return { blocks, below, drawn: sum, top: sum + (of.of.points.rest_bytes[point] ?? 0) };
}

/** What is at a place: a block, the rest, or nothing. */
export function hit(of: Shapes, at: number, level: number): number | 'rest' | null {
  const { blocks, below, drawn, top } = stackAt(of, pointAt(of, at));
  if (level < 0 || level >= top) return null;
  if (level >= drawn) return 'rest';
  return blocks[below.findLastIndex((bottom) => bottom <= level)] ?? null;
}

/** The place of a block in a column: its point, and its lower and upper edge in bytes. `null` outside of its life. */
export function sideAt(of: Shapes, block: number, point: number): [number, number] | null {
  if (point < 0 || !isLive(of, block, point)) return null;
  let sum = 0;
  for (let other = 0; other < block; other += 1) if (isLive(of, other, point)) sum += of.of.blocks.bytes[other] ?? 0;
  return [sum, sum + (of.of.blocks.bytes[block] ?? 0)];
}

/** Colours as pixels. */
export interface Paint {
  block: (index: number) => number;
  /** The upper edge of a block. */
  edge: (index: number) => number;
  rest: number;
  restEdge: number;
}

/** A shape that has fewer pixels than this has no edge: it would hide the shape. */
const EDGED = 4;

/** Paints the columns into `out`, which has `width` times `height` clear pixels; `top` is the height in bytes. */
export function paintShapes(of: Shapes, shown: Int32Array, top: number, paint: Paint, height: number, out: Uint32Array): void {
  const width = shown.length;
  const y = (level: number): number => Math.round(height * (1 - Math.min(level / top, 1)));
  const fill = (x: number, from: number, to: number, colour: number, edge: number): void => {
    for (let row = from; row < to; row += 1) out[row * width + x] = colour;
    if (to - from >= EDGED) out[from * width + x] = edge;
  };
  for (let x = 0; x < width; x += 1) {
    const point = shown[x] ?? -1;
    if (point < 0) continue;
    if (x > 0 && shown[x - 1] === point) {
      for (let row = 0; row < height; row += 1) out[row * width + x] = out[row * width + x - 1] ?? 0;
      continue;
    }
    const { blocks, below, drawn, top: end } = stackAt(of, point);
    blocks.forEach((block, at) => {
      fill(x, y(below[at + 1] ?? drawn), y(below[at] ?? 0), paint.block(block), paint.edge(block));
    });
    fill(x, y(end), y(drawn), paint.rest, paint.restEdge);
  }
}

/** The outline of a block over the columns, as points of a closed path: the upper edge forth, the lower edge back. */
export function outline(of: Shapes, block: number, shown: Int32Array): { x: number; level: number }[][] {
  const found: { x: number; level: number }[][] = [];
  let [upper, lower]: [{ x: number; level: number }[], { x: number; level: number }[]] = [[], []];
  const close = (): void => {
    if (upper.length > 0) found.push([...upper, ...lower.reverse()]);
    [upper, lower] = [[], []];
  };
  for (let x = 0; x < shown.length; x += 1) {
    const side = sideAt(of, block, shown[x] ?? -1);
    if (side === null) {
      close();
      continue;
    }
    upper.push({ x, level: side[1] }, { x: x + 1, level: side[1] });
    lower.push({ x, level: side[0] }, { x: x + 1, level: side[0] });
  }
  close();
  return found;
}

/** Round levels for the vertical axis: powers of two, at most `most` of them below the top. */
export function byteTicks(top: number, most: number): number[] {
  let unit = 1;
  while (top / unit > most) unit *= 2;
  return Array.from({ length: Math.floor(top / unit) }, (_, at) => (at + 1) * unit);
}

/** Round numbers for the horizontal axis: 1, 2 or 5 times a power of ten. */
export function ticks(view: Range, most: number): number[] {
  const length = view.to - view.from;
  const rough = 10 ** Math.floor(Math.log10(Math.max(length / most, 1e-9)));
  const unit = [1, 2, 5, 10].map((times) => times * rough).find((step) => length / step <= most) ?? 10 * rough;
  const first = Math.ceil(view.from / unit);
  return Array.from({ length: Math.max(Math.floor(view.to / unit) - first + 1, 0) }, (_, at) => (first + at) * unit);
}

/** The height of the picture in bytes, and whether a limit is in it. A limit far above would flatten the shapes. */
export function heightOf(peak: number, limit: number | null): { top: number; showsLimit: boolean } {
  const showsLimit = limit !== null && limit <= peak * 1.6;
  return { top: Math.max(showsLimit ? Math.max(limit, peak) * 1.08 : peak * 1.12, 1), showsLimit };
}

/** The next block in the order of allocation (`by` is 1 or -1), or the first or last one. */
export function beside(of: Shapes, block: number | null, by: 1 | -1): number | null {
  const count = of.from.length;
  if (count === 0) return null;
  if (block === null) return by > 0 ? 0 : count - 1;
  return Math.min(Math.max(block + by, 0), count - 1);
}

/** The block above or below another one at a point. */
export function above(of: Shapes, block: number | null, point: number, by: 1 | -1): number | null {
  const { blocks } = stackAt(of, point);
  if (block === null) return blocks.at(by > 0 ? 0 : -1) ?? null;
  const at = by > 0 ? blocks.findIndex((other) => other > block) : blocks.findLastIndex((other) => other < block);
  return at < 0 ? block : (blocks[at] ?? block);
}

/** The point of a block's life that is nearest to another point. */
export function within(of: Shapes, block: number, point: number): number {
  const { event } = of.of.points;
  const [from, to] = [of.from[block] ?? -Infinity, of.to[block] ?? Infinity];
  const first = event.findIndex((at) => from <= at && at < to);
  if (first < 0) return point;
  const last = event.findLastIndex((at) => from <= at && at < to);
  return Math.min(Math.max(point, first), last);
}
