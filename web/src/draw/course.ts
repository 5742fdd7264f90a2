// The timeline of one rank's memory: from points and a stretch of time to paths.
//
// Guarantees: pure. Coordinates are in a square of UNITS, which the picture stretches. The floor is the daemon's: it is of
// the whole recording and not only of the view, and no point of a picture decides it.

import type { Mark, Point, RankTimeline } from '../api/types';
import { moment } from '../words/numbers';

/** Width and height of the drawing. */
export const UNITS = 1000;
/** A limit that is further above the rest than this is not drawn, because it would flatten the rest. */
const LIMIT_TIMES = 1.6;

/** A stretch of time in milliseconds. */
export interface Stretch {
  from: number;
  to: number;
}

/** A point with numeric times. */
export interface Sample extends Stretch {
  epoch: number;
  step: number;
  min: number;
  max: number;
  last: number;
  reserved: number;
  peakReserved: number;
}

/** An epoch as a band. */
export interface Band extends Stretch {
  epoch: number;
}

/** The points of a rank. */
export function samples(rank: RankTimeline): Sample[] {
  return rank.points.map((point: Point) => ({
    from: moment(point.first_at),
    to: moment(point.last_at),
    epoch: point.epoch,
    step: point.step,
    min: point.min_allocated_bytes,
    max: point.peak_allocated_bytes,
    last: point.allocated_bytes,
    reserved: point.reserved_bytes,
    peakReserved: point.peak_reserved_bytes,
  }));
}

/** From the first to the last point. */
export function whole(of: Sample[]): Stretch {
  const [first, last] = [of[0], of.at(-1)];
  return first && last ? { from: first.from, to: Math.max(last.to, first.from + 1) } : { from: 0, to: 1 };
}

/** A step of the floor with numeric times: it holds from the previous one's end to its own. */
export interface FloorLevel {
  until: number;
  bytes: number;
}

/** The floor of a rank: the memory that was not freed until the last boundary, where the last step ends. */
export function floorOf(rank: RankTimeline): FloorLevel[] {
  return (rank.floor ?? []).map((step) => ({ until: moment(step.until), bytes: step.allocated_bytes }));
}

/** Consecutive epochs. */
export function bands(of: Sample[]): Band[] {
  const found: Band[] = [];
  for (const sample of of) {
    const open = found.at(-1);
    if (open?.epoch === sample.epoch) open.to = sample.to;
    else {
      if (open) open.to = sample.from;
      found.push({ epoch: sample.epoch, from: sample.from, to: sample.to });
    }
  }
  return found;
}

/** The bands whose labels fit, each at least `apart` of the picture after the previous one. */
export function labelled(of: Band[], view: Stretch, apart: number): Band[] {
  let next = -Infinity;
  return of.filter((band) => {
    const at = clamp(share(view, band.from), 0, 1);
    if (at < next || at > 1 - apart) return false;
    next = at + apart;
    return true;
  });
}

/** The height of the picture in bytes, and whether it includes the limit. */
export function height(of: Sample[], limit: number | null): { top: number; showsLimit: boolean } {
  const highest = of.reduce((top, sample) => Math.max(top, sample.max, sample.reserved, sample.peakReserved), 1);
  const showsLimit = limit !== null && limit <= highest * LIMIT_TIMES;
  return { top: showsLimit ? Math.max(limit, highest) * 1.02 : highest * 1.06, showsLimit };
}

/** The position of a time, 0 to 1 within the stretch. */
export function share(view: Stretch, time: number): number {
  return (time - view.from) / Math.max(view.to - view.from, 1e-6);
}

/** The floor as a closed path, from a time on. */
export function floorPath(floor: FloorLevel[], begin: number, view: Stretch, top: number): string {
  const x = (time: number): string => (UNITS * clamp(share(view, time), -1, 2)).toFixed(2);
  const y = (value: number): string => (UNITS * (1 - value / top)).toFixed(1);
  const lowest: string[] = [];
  let [first, last, from] = ['', '', begin];
  for (const step of floor) {
    if (step.until >= view.from && from <= view.to) {
      first ||= x(from);
      last = x(step.until);
      lowest.push(`${x(from)} ${y(step.bytes)}`, `${last} ${y(step.bytes)}`);
    }
    from = step.until;
  }
  return lowest.length === 0 ? '' : `M${first} ${UNITS}L${lowest.join('L')}L${last} ${UNITS}Z`;
}

/** The highest allocated value of another rank, as a line. */
export function overlay(of: Sample[], view: Stretch, top: number): string {
  const shown = of.filter((sample) => sample.to >= view.from && sample.from <= view.to);
  const x = (time: number): string => (UNITS * clamp(share(view, time), -1, 2)).toFixed(2);
  const y = (value: number): string => (UNITS * (1 - value / top)).toFixed(1);
  const points = shown.flatMap((sample) => [`${x(sample.from)} ${y(sample.max)}`, `${x(sample.to)} ${y(sample.max)}`]);
  return points.length === 0 ? '' : `M${points.join('L')}`;
}

/** The ranks of a text such as `1, 7 9`: at most `most`, without duplicates. */
export function ranksIn(text: string, most: number): number[] {
  const found = text.split(/[\s,]+/).filter((part) => /^\d{1,9}$/.test(part)).map(Number);
  return [...new Set(found)].slice(0, most);
}

/** A number limited to a range. */
export function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}

/** Zooms around a time, never beyond the recording nor below a microsecond per unit. */
export function zoomed(view: Stretch, all: Stretch, factor: number, around: number): Stretch {
  const length = clamp((view.to - view.from) * factor, Math.min(UNITS / 1000, all.to - all.from), all.to - all.from);
  const left = around - share(view, around) * length;
  const from = clamp(left, all.from, all.to - length);
  return { from, to: from + length };
}

/** Pans by a part of the view's length, within the recording. */
export function panned(view: Stretch, all: Stretch, part: number): Stretch {
  const length = view.to - view.from;
  const from = clamp(view.from + part * length, all.from, Math.max(all.from, all.to - length));
  return { from, to: from + length };
}

/** The point at a time, or else the nearest. */
export function nearest(of: Sample[], time: number): number {
  let best = 0;
  let distance = Infinity;
  for (let at = 0; at < of.length; at += 1) {
    const sample = of[at];
    if (sample === undefined) break;
    const off = time < sample.from ? sample.from - time : Math.max(0, time - sample.to);
    if (off < distance) {
      best = at;
      distance = off;
    }
  }
  return best;
}

/** A phase or a region of the training loop, or a step. */
export interface Span extends Stretch {
  name: string;
}

/** Spans between the begin and end marks of one kind (`phase`, `step`); a span without an end extends to `end`. */
export function spansOf(marks: Mark[], kind: 'phase' | 'step', end: number): Span[] {
  const found: Span[] = [];
  const open = new Map<string, Span>();
  for (const mark of marks) {
    const name = mark.name ?? `step ${mark.value ?? ''}`;
    if (mark.kind === `${kind}_begin`) {
      const span = { name, from: moment(mark.at), to: end };
      open.set(name, span);
      found.push(span);
    } else if (mark.kind === `${kind}_end`) {
      const span = open.get(name);
      if (span) span.to = moment(mark.at);
      open.delete(name);
    }
  }
  return found;
}
