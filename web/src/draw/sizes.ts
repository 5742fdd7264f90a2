// Peak memory by size as a picture: the interval of each forecast as an area, the forecasts as a line, the limit across.
//
// Guarantees: pure. Both axes begin at 0 and are linear, so proportional growth is a straight line. Paths are in a square
// of UNITS, which the picture stretches. A size far beyond the others is only in the table, because it would flatten
// them.

import type { Fit, FitSize } from '../api/types';

/** Width and height of the drawing. */
export const UNITS = 1000;
/** Sizes that are more than this many times the recorded one are not drawn. */
const SIZE_TIMES = 16;
/** A limit that is further above the rest than this is not drawn, because it would flatten the rest. */
const LIMIT_TIMES = 1.6;

/** See the module. */
export interface Curve {
  /** The sizes that are drawn. */
  points: FitSize[];
  range: string;
  peak: string;
  /** The height of the picture in bytes. */
  top: number;
  showsLimit: boolean;
  /** The position of a size, 0 to 1. */
  x: (size: number) => number;
  /** The position of bytes, 0 (top) to 1. */
  y: (bytes: number) => number;
}

/** The picture of a forecast; `null` if there is nothing to draw. */
export function curve(of: Fit): Curve | null {
  const recorded = of.recordings.at(-1)?.size ?? Infinity;
  const points = of.at.filter((point) => point.size <= recorded * SIZE_TIMES);
  const last = points.at(-1)?.size;
  const highest = Math.max(0, ...points.map((point) => point.high));
  if (last === undefined || highest === 0) return null;
  const limit = of.device_memory_bytes;
  const showsLimit = limit !== null && limit <= highest * LIMIT_TIMES;
  const top = Math.max(highest, showsLimit ? limit : 0) * 1.06;
  const x = (size: number): number => size / (last * 1.04);
  const y = (bytes: number): number => 1 - bytes / top;
  const place = (size: number, bytes: number): string => `${(UNITS * x(size)).toFixed(1)} ${(UNITS * y(bytes)).toFixed(1)}`;
  const [above, below] = [points.map((point) => place(point.size, point.high)), points.map((point) => place(point.size, point.low))];
  return {
    points,
    range: `M${above.join('L')}L${below.reverse().join('L')}Z`,
    peak: `M${points.map((point) => place(point.size, point.peak_reserved_bytes)).join('L')}`,
    top,
    showsLimit,
    x,
    y,
  };
}

/** The sizes whose labels fit, at least `apart` of the picture from each other; those in `first` are preferred. */
export function labels(of: Curve, first: (number | null)[], apart: number): number[] {
  const found: number[] = [];
  const drawn = new Set(of.points.map((point) => point.size));
  const wanted = [...first.filter((size) => size !== null && drawn.has(size)), ...[...drawn].reverse()] as number[];
  for (const size of wanted) {
    if (found.every((known) => Math.abs(of.x(known) - of.x(size)) >= apart)) found.push(size);
  }
  return found.sort((one, other) => one - other);
}
