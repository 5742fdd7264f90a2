// The cells of the heat map: their colours, their quantities, their names and their axis.

import { expect, test } from 'vitest';
import type { Heat, Rank } from '../api/types';
import { arranged, distance, fieldOf, names, paintCells, ticks } from './heat';

const row = (rank: number, allocated_bytes: (number | null)[]) => ({
  rank, process: `rank ${rank}`, device: 0, host: null, failure: null, stands_out: [], diverges_at: null, allocated_bytes,
});

test('a cell says how far its rank is from the median', () => {
  const MIB = 1 << 20;
  const heat = { epochs: [0, 1], median_bytes: [4 * MIB, null], limit_bytes: [4 * MIB, null], ranks: [row(7, [12 * MIB, 1]), row(0, [4 * MIB, null]), row(1, [2 * MIB, null])] } as unknown as Heat;
  const field = fieldOf(heat, [], 'allocated_bytes');
  expect(field?.far).toBe(8 * MIB);
  const pixels = new Uint32Array(6);
  if (field) paintCells(field, heat.ranks, (step) => 100 + step, pixels);
  expect([...pixels]).toEqual([104, 0, 100, 0, 99, 0]);
});

test('a small difference is never bright', () => {
  const MIB = 1 << 20;
  const heat = { epochs: [0], median_bytes: [186 * MIB], limit_bytes: [6.5 * MIB], ranks: [row(0, [187 * MIB]), row(1, [186 * MIB]), row(2, [186 * MIB])] } as unknown as Heat;
  const field = fieldOf(heat, [], 'allocated_bytes');
  const pixels = new Uint32Array(3);
  if (field) paintCells(field, heat.ranks, (step) => 100 + step, pixels);
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

test('another quantity comes from the ends of epochs, with the median of the ranks', () => {
  const rows = [row(0, [1, 1]), row(1, [1, 1]), row(2, [1, 1])];
  const heat = { epochs: [3, 4], median_bytes: [1, 1], limit_bytes: [null, null], ranks: rows } as unknown as Heat;
  const rank = (at: number, ends: [number, number | null][]): Rank => ({ rank: at, process: `rank ${at}`, device: 0, epoch_ends: ends.map(([epoch, reserved_bytes]) => ({ epoch, reserved_bytes, inactive_split_bytes: null })) }) as unknown as Rank;
  const ranks = [rank(0, [[3, 10], [4, 20]]), rank(1, [[3, 12], [4, null]]), rank(2, [[4, 30]])];
  const field = fieldOf(heat, ranks, 'reserved_bytes');
  expect(rows.map((one) => field?.values.get(one))).toEqual([[10, 20], [12, null], [null, 30]]);
  expect(field?.median).toEqual([11, 25]);
  expect(fieldOf(heat, ranks, 'inactive_split_bytes')).toBeNull();
});

test('an axis names round epochs', () => {
  const of = (count: number, from = 0): number[] => ticks(Array.from({ length: count }, (_, at) => from + at), 10);
  expect(of(6)).toEqual([0, 1, 2, 3, 4, 5]);
  expect(of(25, 1)).toEqual([4, 9, 14, 19, 24]);
  expect(of(300)).toEqual([0, 50, 100, 150, 200, 250]);
  expect([ticks([7], 10), ticks([], 10)]).toEqual([[0], []]);
});

test('every row has a name if it is high enough, or else the first of several', () => {
  expect(names(3, [], 16, 14)).toEqual([{ at: 0, count: 1, host: null }, { at: 1, count: 1, host: null }, { at: 2, count: 1, host: null }]);
  const hosts = [{ host: 'a', first: 0, count: 4 }, { host: 'b', first: 4, count: 1 }];
  expect(names(5, hosts, 5, 14)).toEqual([{ at: 0, count: 3, host: 'a' }, { at: 3, count: 1, host: null }, { at: 4, count: 1, host: 'b' }]);
});
