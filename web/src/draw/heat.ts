// Ranks by epochs as pixels: each cell by how far its rank is from the ranks' median at that epoch's end.
//
// Guarantees: pure; a rank has a row of at least one pixel, so that thousands have room; what is not known has no colour.

import type { Heat } from '../api/types';

/** Steps of a scale to each side of the median. */
export const STEPS = 4;

/** How far a value is from the median, -STEPS to STEPS; `far` is the distance that has the last colour. */
export function distance(value: number | null, median: number | null, far: number): number | null {
  if (value === null || median === null) return null;
  const steps = Math.round(((value - median) / Math.max(far, 1)) * STEPS);
  return Math.max(-STEPS, Math.min(STEPS, steps));
}

/** The distance that has the last colour: that of the cell that is furthest from its median, and a MiB at least. */
export function furthest(heat: Heat): number {
  let far = 1 << 20;
  for (const row of heat.ranks) {
    row.allocated_bytes.forEach((value, at) => {
      const median = heat.median_bytes[at] ?? null;
      if (value !== null && median !== null) far = Math.max(far, Math.abs(value - median));
    });
  }
  return far;
}

/** One cell a pixel, row by row; the picture is stretched by whoever shows it. */
export function cells(heat: Heat, colours: { of: (step: number) => number; none: number }): { width: number; height: number; pixels: Uint32Array } {
  const [width, height] = [Math.max(heat.epochs.length, 1), Math.max(heat.ranks.length, 1)];
  const pixels = new Uint32Array(width * height).fill(colours.none);
  const far = furthest(heat);
  heat.ranks.forEach((row, y) => {
    row.allocated_bytes.forEach((value, x) => {
      const step = distance(value, heat.median_bytes[x] ?? null, far);
      if (step !== null) pixels[y * width + x] = colours.of(step);
    });
  });
  return { width, height, pixels };
}
