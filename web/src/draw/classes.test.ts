// Classes as areas: they are stacked, move with the view, and are requested by stretches that contain it.

import { expect, test } from 'vitest';
import type { Classes } from '../api/types';
import type { ClassPoint } from './classes';
import { around, ceiling, classSlots, corners, placed, stacked, stretchOf } from './classes';

const points: ClassPoint[] = [
  { time: 1000, name: 'end of step 0', bytes: [100, 0, 100] },
  { time: 2000, name: 'end of step 1', bytes: [100, 0, 300] },
];

test('an area lies on the ones before it, and a class that never lives has none', () => {
  expect(stacked(points, 400)).toEqual([
    'M0.000 750.0L1000.000 750.0L1000.000 1000.0L0.000 1000.0Z',
    '',
    'M0.000 500.0L1000.000 0.0L1000.000 750.0L0.000 750.0Z',
  ]);
  expect(stacked([], 1)).toEqual([]);
});

test('areas from events are level within a slot, and jump between two', () => {
  const at = (ms: number): string => new Date(ms).toISOString();
  const slots = classSlots({ slots: [{ from: at(0), until: at(10), bytes: [1, 2] }, { from: at(10), until: at(20), bytes: [3, 0] }] } as Classes);
  expect(stacked(corners(slots), 4)[1]).toBe('M0.000 250.0L500.000 250.0L500.000 250.0L1000.000 250.0L1000.000 250.0L500.000 250.0L500.000 750.0L0.000 750.0Z');
});

test('areas between boundaries are cut at what was allocated', () => {
  const sample = (from: number, max: number) => ({ from, to: from + 500, max, min: 0, last: 0, epoch: 0, step: 0, reserved: 0, peakReserved: 0 });
  const roof = ceiling([sample(1000, 200), sample(1500, 50)], { from: 1000, to: 2000 }, 400);
  expect(roof).toBe('M0.000 1000L0.000 500.0L500.000 500.0L500.000 875.0L1000.000 875.0L1000.000 1000Z');
  expect(ceiling([], { from: 0, to: 1 }, 1)).toBe('');
});

test('one boundary alone is no area', () => {
  expect(stacked(points.slice(0, 1), 400)).toEqual(['', '', '']);
});

test('an area moves with the view and is not made again', () => {
  const within = stretchOf(points);
  expect(placed(within, within)).toBe('translate(0.000 0) scale(1.000000000 1)');
  expect(placed(within, { from: 1000, to: 1500 })).toBe('translate(0.000 0) scale(2.000000000 1)');
  expect(placed(within, { from: 500, to: 2500 })).toBe('translate(250.000 0) scale(0.500000000 1)');
});

test('what is asked for holds the view, and is the whole where that is no more', () => {
  const all = { from: 0, to: 100_000 };
  const asked = around({ from: 40_000, to: 41_000 }, all);
  expect(asked?.from).toBeLessThanOrEqual(40_000);
  expect(asked?.to).toBeGreaterThanOrEqual(41_000);
  expect(around({ from: 40_100, to: 40_900 }, all)).toEqual(asked);
  expect(around(all, all)).toBeNull();
});
