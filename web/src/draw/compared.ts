// The courses of two runs laid over each other: by step if both have steps, else by the time since the start.
//
// Guarantees: pure; both have one scale. A point is the highest level of its stretch, as the daemon delivered it.

import { whole, type Sample } from './course';

/** Width and height of the drawing. */
export const UNITS = 1000;

/** Two courses on one axis. */
export interface Compared {
  by: 'step' | 'time';
  /** The largest step, or the longest time in milliseconds. */
  end: number;
  /** The highest level of both, in bytes. */
  top: number;
  before: string;
  after: string;
}

/** Where a sample is on the axis. */
type Place = (sample: Sample, from: number) => number;
const PLACES: Record<'step' | 'time', Place> = { step: (sample) => sample.step, time: (sample, from) => sample.to - from };

/** Both courses; `null` if one of them has no points. */
export function compared(before: Sample[], after: Sample[]): Compared | null {
  if (before.length === 0 || after.length === 0) return null;
  const steps = (of: Sample[]): number => of.reduce((most, sample) => Math.max(most, sample.step), 0);
  const by = steps(before) > 0 && steps(after) > 0 ? 'step' : 'time';
  const placed = (of: Sample[]): { at: number; bytes: number }[] => {
    const { from } = whole(of);
    return of.map((sample) => ({ at: PLACES[by](sample, from), bytes: sample.max }));
  };
  const both = [placed(before), placed(after)] as const;
  const end = Math.max(1, ...both.flat().map((point) => point.at));
  const top = Math.max(1, ...both.flat().map((point) => point.bytes));
  const path = (points: { at: number; bytes: number }[]): string =>
    `M${points.map(({ at, bytes }) => `${((UNITS * at) / end).toFixed(1)} ${(UNITS * (1 - bytes / top)).toFixed(1)}`).join('L')}`;
  return { by, end, top, before: path(both[0]), after: path(both[1]) };
}
