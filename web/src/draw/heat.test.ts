import { expect, test } from 'vitest';
import { cells, distance, furthest } from './heat';

const row = (rank: number, allocated_bytes: (number | null)[]) => ({
  rank, process: `rank ${rank}`, device: 0, host: null, failure: null, stands_out: [], diverges_at: null, allocated_bytes,
});

test('a cell says how far its rank is from the median', () => {
  const MIB = 1 << 20;
  const heat = { epochs: [0, 1], median_bytes: [4 * MIB, null], ranks: [row(7, [12 * MIB, 1]), row(0, [4 * MIB, null]), row(1, [2 * MIB, null])] };
  expect(furthest(heat)).toBe(8 * MIB);
  const { width, height, pixels } = cells(heat, { of: (step) => 100 + step, none: 1 });
  expect([width, height, ...pixels]).toEqual([2, 3, 104, 1, 100, 1, 99, 1]);
});

test('what is not known is no distance', () => {
  expect([distance(null, 1, 1), distance(1, null, 1), distance(9, 1, 2), distance(-9, 1, 2)]).toEqual([null, null, 4, -4]);
});
