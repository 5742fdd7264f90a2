// The picture of other sizes: what is drawn, its height, and which labels fit.

import { expect, test } from 'vitest';
import type { Fit, FitSize } from '../api/types';
import { curve, labels } from './sizes';

const point = (size: number): FitSize => ({ size, peak_allocated_bytes: 90 * size, peak_reserved_bytes: 100 * size, low: 95 * size, high: 110 * size, fits: null });
const fit = (sizes: number[], device_memory_bytes: number | null) => ({
  recordings: [{ size: 4, peak_reserved_bytes: 400, peak_allocated_bytes: 360, exact: true }],
  scaled: null, device_memory_bytes, at: sizes.map(point), largest_that_fits: null, not_looked_at: [],
}) as unknown as Fit;

test('what grows in proportion is a straight line within its interval', () => {
  const drawn = curve(fit([2, 4, 8], null));
  expect(drawn?.points).toHaveLength(3);
  const numbers = (path: string): number[] => path.match(/[\d.]+/g)?.map(Number) ?? [];
  const [x0, y0, x1, y1, x2, y2] = numbers(drawn?.peak ?? '') as [number, number, number, number, number, number];
  expect((y1 - y0) / (x1 - x0)).toBeCloseTo((y2 - y1) / (x2 - x1), 2);
  expect(numbers(drawn?.range ?? '')).toHaveLength(12);
  expect(Math.min(...numbers(drawn?.range ?? ''))).toBeGreaterThan(0);
});

test('a limit is drawn where it presses nothing flat, and a size far away is not', () => {
  expect(curve(fit([2, 4, 8], 1000))?.showsLimit).toBe(true);
  expect(curve(fit([2, 4, 8], 10_000))?.showsLimit).toBe(false);
  expect(curve(fit([2, 4, 8], 1200))?.top).toBeCloseTo(1272);
  expect(curve(fit([4, 8, 64, 65], null))?.points.map((one) => one.size)).toEqual([4, 8, 64]);
  expect(curve(fit([], 1000))).toBeNull();
});

test('labels have room, those that matter first', () => {
  const drawn = curve(fit([2, 3, 4, 5, 6, 8, 16, 32], null));
  expect(drawn && labels(drawn, [null, 5], 0.1)).toEqual([5, 16, 32]);
  expect(drawn && labels(drawn, [7, 4], 0.01)).toEqual([2, 3, 4, 5, 6, 8, 16, 32]);
});
