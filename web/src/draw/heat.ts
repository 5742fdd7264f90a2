// Ranks by epochs as pixels: the colour of a cell is the distance of its rank from the ranks' median at that epoch's end.
//
// Guarantees: pure; a rank has a row of at least one pixel, so that thousands fit; an unknown value has no colour.

import type { Heat, HeatRow } from '../api/types';

/** Steps of the scale on each side of the median. */
export const STEPS = 4;

/** The distance of a value from the median, -STEPS to STEPS; `far` is the distance of the last colour. */
export function distance(value: number | null, median: number | null, far: number): number | null {
  if (value === null || median === null) return null;
  const steps = Math.round(((value - median) / Math.max(far, 1)) * STEPS);
  return Math.max(-STEPS, Math.min(STEPS, steps));
}

/** The distance of the last colour: the largest distance of a cell from its median, but at least the limit for outliers,
 * so that small differences are not bright. */
export function furthest(heat: Heat): number {
  let far = Math.max(1 << 20, ...heat.limit_bytes.map((limit) => limit ?? 0));
  for (const row of heat.ranks) {
    row.allocated_bytes.forEach((value, at) => {
      const median = heat.median_bytes[at] ?? null;
      if (value !== null && median !== null) far = Math.max(far, Math.abs(value - median));
    });
  }
  return far;
}

/** Paints one cell per pixel, row by row, for some of the rows; the caller stretches the picture. */
export function paintCells(heat: Heat, rows: HeatRow[], far: number, colour: (step: number) => number, out: Uint32Array): void {
  const width = Math.max(heat.epochs.length, 1);
  rows.forEach((row, y) => {
    row.allocated_bytes.forEach((value, x) => {
      const step = distance(value, heat.median_bytes[x] ?? null, far);
      if (step !== null) out[y * width + x] = colour(step);
    });
  });
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
