// Ranks by epochs as pixels: the colour of a cell is the distance of its rank from the ranks' median at that epoch's end.
//
// Guarantees: pure; a rank has a row of at least one pixel, so that thousands fit; an unknown value has no colour.

import type { EpochEnd, Heat, HeatRow, Rank } from '../api/types';

/** Steps of the scale on each side of the median. */
export const STEPS = 4;

/** The quantities that an epoch's end has, and their names. */
export const QUANTITIES = [
  ['allocated_bytes', 'allocated'],
  ['epoch_peak_allocated_bytes', 'peak within the epoch'],
  ['reserved_bytes', 'reserved'],
  ['inactive_split_bytes', 'free beside live blocks'],
] as const satisfies readonly (readonly [keyof EpochEnd, string])[];
export type Quantity = (typeof QUANTITIES)[number][0];

/** One quantity of all ranks. */
export interface Field {
  /** The values of a row, by epoch; rows as in `Heat`. */
  values: Map<HeatRow, (number | null)[]>;
  median: (number | null)[];
  /** The distance of the last colour. */
  far: number;
}

function medianOf(values: (number | null | undefined)[]): number | null {
  const known = values.filter((value) => value != null).sort((a, b) => a - b);
  const middle = Math.floor(known.length / 2);
  const [low, high] = [known[known.length % 2 === 0 ? middle - 1 : middle], known[middle]];
  return low === undefined || high === undefined ? null : Math.round((low + high) / 2);
}

/** The values of a quantity; `null` if no rank has one. Allocated bytes come with their median and limit, others with their ranks. */
export function fieldOf(heat: Heat, ranks: Rank[], quantity: Quantity): Field | null {
  const known = new Map(ranks.map((rank) => [`${rank.rank} ${rank.process} ${rank.device}`, rank]));
  const ofRank = (row: HeatRow): (number | null)[] => {
    const ends = new Map(known.get(`${row.rank} ${row.process} ${row.device}`)?.epoch_ends.map((end) => [end.epoch, end[quantity]]));
    return heat.epochs.map((epoch) => ends.get(epoch) ?? null);
  };
  const isOwn = quantity === 'allocated_bytes';
  const values = new Map(heat.ranks.map((row) => [row, isOwn ? row.allocated_bytes : ofRank(row)]));
  if (![...values.values()].some((row) => row.some((value) => value !== null))) return null;
  const median = isOwn ? heat.median_bytes : heat.epochs.map((_, at) => medianOf([...values.values()].map((row) => row[at])));
  return { values, median, far: furthest([...values.values()], median, isOwn ? heat.limit_bytes : []) };
}

/** The distance of a value from the median, -STEPS to STEPS; `far` is the distance of the last colour. */
export function distance(value: number | null, median: number | null, far: number): number | null {
  if (value === null || median === null) return null;
  const steps = Math.round(((value - median) / Math.max(far, 1)) * STEPS);
  return Math.max(-STEPS, Math.min(STEPS, steps));
}

/** The distance of the last colour: the largest distance of a cell from its median, but at least the limit for outliers,
 * so that small differences are not bright. */
function furthest(rows: (number | null)[][], medians: (number | null)[], limits: (number | null)[]): number {
  let far = Math.max(1 << 20, ...limits.map((limit) => limit ?? 0));
  for (const row of rows) {
    row.forEach((value, at) => {
      const median = medians[at] ?? null;
      if (value !== null && median !== null) far = Math.max(far, Math.abs(value - median));
    });
  }
  return far;
}

/** Paints one cell per pixel, row by row, for some of the rows; the caller stretches the picture. */
export function paintCells(field: Field, rows: HeatRow[], colour: (step: number) => number, out: Uint32Array): void {
  const width = Math.max(field.median.length, 1);
  rows.forEach((row, y) => {
    field.values.get(row)?.forEach((value, x) => {
      const step = distance(value, field.median[x] ?? null, field.far);
      if (step !== null) out[y * width + x] = colour(step);
    });
  });
}

/** The epochs that an axis names, by index: evenly apart, at most `most`. */
export function ticks(epochs: number[], most: number): number[] {
  const apart = [1, 2, 5].flatMap((one) => [1, 10, 100, 1000, 10_000, 100_000].map((ten) => one * ten)).sort((a, b) => a - b);
  const step = apart.find((one) => epochs.length / one <= most) ?? epochs.length;
  const named = epochs.flatMap((epoch, at) => (epoch % step === 0 ? [at] : []));
  return named.length > 0 ? named : epochs.length === 0 ? [] : [0];
}

/** Consecutive rows of one host. */
export interface HostRows {
  host: string | null;
  first: number;
  count: number;
}

/** The outliers on top, at most `most`, then the others by host, hosts in the order of their worst outlier. */
export function arranged(rows: HeatRow[], isOdd: (row: HeatRow) => boolean, most: number): { pinned: HeatRow[]; others: HeatRow[]; hosts: HostRows[] } {
  const pinned = rows.filter(isOdd).slice(0, most);
  const byHost = new Map<string | null, HeatRow[]>();
  for (const row of rows) {
    if (pinned.includes(row)) continue;
    const known = byHost.get(row.host);
    if (known) known.push(row);
    else byHost.set(row.host, [row]);
  }
  const hosts: HostRows[] = [];
  let first = 0;
  for (const [host, of] of byHost) {
    hosts.push({ host, first, count: of.length });
    first += of.length;
  }
  return { pinned, others: [...byHost.values()].flat(), hosts };
}

/** The names beside rows of a height: every row's, or the first one's of as many rows as a name is high. A host is named at
 * its first row. */
export function names(rows: number, hosts: HostRows[], tall: number, high: number): { at: number; count: number; host: string | null }[] {
  const each = Math.max(1, Math.ceil(high / tall));
  const starts = hosts.length === 0 ? [{ host: null, first: 0, count: rows }] : hosts;
  return starts.flatMap(({ host, first, count }) =>
    Array.from({ length: Math.ceil(count / each) }, (_, at) => ({ at: first + at * each, count: Math.min(each, count - at * each), host: at === 0 ? host : null })),
  );
}
