// Live memory by class at the boundaries of a device: from a response to stacked areas.
//
// Guarantees: pure. Areas are stacked. From events their top is the most that was allocated within each slot; from
// boundaries it is the live memory at each of them, with straight edges between two, which `ceiling` cuts where less was
// allocated. Coordinates are in a square of UNITS over a stretch that does not move with the view, so zooming creates no
// new text.

import type { Classes } from '../api/types';
import { moment } from '../words/numbers';
import { UNITS, share, type Sample, type Stretch } from './course';

/** A boundary whose time is a number. */
export interface ClassPoint {
  time: number;
  name: string;
  bytes: number[];
}

/** A stretch of time with the classes of its highest moment. */
export interface ClassSlot extends Stretch {
  bytes: number[];
}

/** The slots of a response: none where only boundaries are known. */
export function classSlots(of: Classes): ClassSlot[] {
  return (of.slots ?? []).map((slot) => ({ from: moment(slot.from), to: moment(slot.until), bytes: slot.bytes }));
}

/** The corners of slots: a point at both ends of each. */
export function corners(of: ClassSlot[]): ClassPoint[] {
  return of.flatMap(({ from, to, bytes }) => [from, to].map((time) => ({ time, name: '', bytes })));
}

/** The upper limit of areas between boundaries: the highest allocated level at each time, as a closed path. */
export function ceiling(course: Sample[], within: Stretch, top: number): string {
  const x = (time: number): string => (UNITS * share(within, time)).toFixed(3);
  const y = (value: number): string => (UNITS * (1 - value / top)).toFixed(1);
  const inside = course.filter((sample) => sample.to >= within.from && sample.from <= within.to);
  const [first, last] = [inside[0], inside.at(-1)];
  if (!first || !last) return '';
  const roof = inside.flatMap((sample) => [`${x(sample.from)} ${y(sample.max)}`, `${x(sample.to)} ${y(sample.max)}`]);
  return `M${x(first.from)} ${UNITS}L${roof.join('L')}L${x(last.to)} ${UNITS}Z`;
}

/** The boundaries of a response. */
export function classPoints(of: Classes): ClassPoint[] {
  return of.points.map((point) => ({
    time: moment(point.at),
    name: point.boundary === 'epoch' ? `end of epoch ${point.epoch}` : point.boundary === 'step' ? `end of step ${point.step}` : point.boundary === 'end' ? 'end of the recording' : 'end of a window',
    bytes: point.bytes,
  }));
}

/** From the first to the last boundary. */
export function stretchOf(of: ClassPoint[]): Stretch {
  const [first, last] = [of[0], of.at(-1)];
  return first && last ? { from: first.time, to: Math.max(last.time, first.time + 1e-3) } : { from: 0, to: 1 };
}

/** One area per class, the first one lowest; empty if the class never has live memory. */
export function stacked(of: ClassPoint[], top: number): string[] {
  const within = stretchOf(of);
  const x = of.map((point) => (UNITS * share(within, point.time)).toFixed(3));
  const y = (value: number): string => (UNITS * (1 - value / top)).toFixed(1);
  const below = of.map(() => 0);
  return (of[0]?.bytes ?? []).map((_, at) => {
    const floor = of.map((_, point) => `${x[point] ?? ''} ${y(below[point] ?? 0)}`).reverse();
    const lives = of.some((point) => (point.bytes[at] ?? 0) > 0);
    const roof = of.map((point, index) => {
      below[index] = (below[index] ?? 0) + (point.bytes[at] ?? 0);
      return `${x[index] ?? ''} ${y(below[index] ?? 0)}`;
    });
    return lives && of.length > 1 ? `M${roof.join('L')}L${floor.join('L')}Z` : '';
  });
}

/** The transform that places an area in a view. */
export function placed(within: Stretch, view: Stretch): string {
  const length = Math.max(view.to - view.from, 1e-6);
  return `translate(${(UNITS * share(view, within.from)).toFixed(3)} 0) scale(${((within.to - within.from) / length).toFixed(9)} 1)`;
}

/** The stretch to request for a view: the same for many views, so that not every turn of the wheel sends a request. */
export function around(view: Stretch, all: Stretch): Stretch | null {
  const length = 2 ** Math.ceil(Math.log2(Math.max(view.to - view.from, 1)));
  const from = Math.floor(view.from / length) * length - length / 2;
  const to = from + 3 * length;
  return from <= all.from && to >= all.to ? null : { from: Math.max(from, all.from), to: Math.min(to, all.to) };
}
