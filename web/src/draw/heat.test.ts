import { expect, test } from 'vitest';
import type { Heat } from '../api/types';
import { arranged, distance, furthest, paintCells } from './heat';

const row = (rank: number, allocated_bytes: (number | null)[]) => ({
  rank, process: `rank ${rank}`, device: 0, host: null, failure: null, stands_out: [], diverges_at: null, allocated_bytes,
});

test('a cell says how far its rank is from the median', () => {
  const MIB = 1 << 20;
  const heat = { epochs: [0, 1], median_bytes: [4 * MIB, null], limit_bytes: [4 * MIB, null], ranks: [row(7, [12 * MIB, 1]), row(0, [4 * MIB, null]), row(1, [2 * MIB, null])] } as unknown as Heat;
  expect(furthest(heat)).toBe(8 * MIB);
  const pixels = new Uint32Array(6);
  paintCells(heat, heat.ranks, furthest(heat), (step) => 100 + step, pixels);
  expect([...pixels]).toEqual([104, 0, 100, 0, 99, 0]);
});

test('a small difference is never bright', () => {
  const MIB = 1 << 20;
  const heat = { epochs: [0], median_bytes: [186 * MIB], limit_bytes: [6.5 * MIB], ranks: [row(0, [187 * MIB]), row(1, [186 * MIB]), row(2, [186 * MIB])] } as unknown as Heat;
  const pixels = new Uint32Array(3);
  paintCells(heat, heat.ranks, furthest(heat), (step) => 100 + step, pixels);
  expect(pixels[0]).toBeLessThanOrEqual(101);
});

test('what is not known is no distance', () => {
  expect([distance(null, 1, 1), distance(1, null, 1), distance(9, 1, 2), distance(-9, 1, 2)]).toEqual([null, null, 4, -4]);
});

test('odd ranks are on top, the others with their hosts', () => {
  const on = (rank: number, host: string | null) => ({ ...row(rank, []), host });
  const rows = [on(5, 'b'), on(0, 'a'), on(1, 'b'), on(2, null), on(3, 'a')];
  const found = arranged(rows, (of) => of.rank === 5 || of.rank === 3, 1);
  expect(found.pinned.map((of) => of.rank)).toEqual([5]);
  expect(found.others.map((of) => of.rank)).toEqual([0, 3, 1, 2]);
  expect(found.hosts).toEqual([{ host: 'a', first: 0, count: 2 }, { host: 'b', first: 2, count: 1 }, { host: null, first: 3, count: 1 }]);
});
