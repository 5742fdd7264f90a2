// Paths, floors and zooms, without a browser.

import { describe, expect, test } from 'vitest';
import { bands, floorOf, floorPath, height, labelled, nearest, overlay, panned, ranksIn, spansOf, zoomed, type Sample } from './course';

const sample = (at: number, epoch: number, min: number, max: number, last = min): Sample => ({
  from: at,
  to: at + 10,
  epoch,
  step: at,
  min,
  max,
  last,
  reserved: max + 5,
  peakReserved: max + 5,
});
const course = [sample(0, 0, 1, 9), sample(10, 0, 3, 8), sample(20, 1, 2, 9), sample(30, 1, 5, 9), sample(40, 1, 0, 1)];

test('the floor ends at the last boundary with the level there, even if the last drawn point has another level', () => {
  const at = (ms: number): string => new Date(ms).toISOString();
  const floor = floorOf({
    rank: 0,
    process: 'rank0',
    device: 0,
    points: [],
    marks: [],
    floor: [{ until: at(10), allocated_bytes: 1 }, { until: at(30), allocated_bytes: 2 }, { until: at(45), allocated_bytes: 5 }],
  });
  const whole = floorPath(floor, 0, { from: 0, to: 50 }, 10);
  expect(whole).toBe('M0.00 1000L0.00 900.0L200.00 900.0L200.00 800.0L600.00 800.0L600.00 500.0L900.00 500.0L900.00 1000Z');
  expect(floorOf({ rank: 0, process: '', device: 0, points: [], marks: [] })).toEqual([]);
});

test('epochs touch each other', () => {
  expect(bands(course)).toEqual([
    { epoch: 0, from: 0, to: 20 },
    { epoch: 1, from: 20, to: 50 },
  ]);
});

test('labels keep apart', () => {
  const many = Array.from({ length: 100 }, (_, epoch) => ({ epoch, from: epoch, to: epoch + 1 }));
  const shown = labelled(many, { from: 0, to: 100 }, 0.25).map((band) => band.epoch);
  expect(shown).toEqual([0, 25, 50, 75]);
  expect(labelled(many, { from: 50, to: 150 }, 0.4).map((band) => band.epoch)).toEqual([0, 90]);
});

test('a limit far above is not drawn', () => {
  expect(height(course, 20).showsLimit).toBe(true);
  expect(height(course, 1000)).toEqual({ top: 14 * 1.06, showsLimit: false });
  expect(height([], null).top).toBeGreaterThan(0);
});

test('only what is in view becomes a path', () => {
  const floor = [{ until: 10, bytes: 1 }, { until: 30, bytes: 2 }, { until: 40, bytes: 5 }];
  const drawn = floorPath(floor, 0, { from: 20, to: 40 }, 10);
  expect(drawn).toContain('500.00 500.0');
  expect(drawn.startsWith('M-500.00 1000L-500.00 800.0L500.00 800.0')).toBe(true);
  expect(floorPath([], 0, { from: 0, to: 50 }, 10)).toBe('');
});

describe('zooming', () => {
  const all = { from: 0, to: 100 };
  test('keeps the time under the cursor in place, and stays within the recording', () => {
    expect(zoomed(all, all, 0.5, 25)).toEqual({ from: 12.5, to: 62.5 });
    expect(zoomed({ from: 0, to: 50 }, all, 4, 10)).toEqual(all);
    const close = zoomed(all, all, 1e-9, 50);
    expect(close.to - close.from).toBeCloseTo(1);
  });

  test('panning stops at the ends', () => {
    expect(panned({ from: 0, to: 50 }, all, -0.5)).toEqual({ from: 0, to: 50 });
    expect(panned({ from: 0, to: 50 }, all, 0.5)).toEqual({ from: 25, to: 75 });
    expect(panned({ from: 40, to: 90 }, all, 5)).toEqual({ from: 50, to: 100 });
  });
});

test('the nearest point', () => {
  expect([-5, 12, 39.5, 1000].map((time) => nearest(course, time))).toEqual([0, 1, 3, 4]);
});

test('phases are what lies between their marks', () => {
  const at = (ms: number): string => new Date(ms).toISOString();
  const mark = (kind: string, ms: number, name: string | null = null, value: number | null = null) => ({ kind, at: at(ms), name, value });
  const marks = [
    mark('step_begin', 0, null, 7),
    mark('phase_begin', 1, 'forward'),
    mark('phase_end', 4, 'forward'),
    mark('phase_begin', 4, 'backward'),
    mark('step_end', 9, null, 7),
  ];
  expect(spansOf(marks, 'phase', 20)).toEqual([
    { name: 'forward', from: 1, to: 4 },
    { name: 'backward', from: 4, to: 20 },
  ]);
  expect(spansOf(marks, 'step', 20)).toEqual([{ name: 'step 7', from: 0, to: 9 }]);
});

test('other ranks are lines over the same time and height', () => {
  expect(overlay([sample(0, 0, 1, 50), sample(10, 0, 1, 100)], { from: 0, to: 20 }, 100)).toBe('M0.00 500.0L500.00 500.0L500.00 0.0L1000.00 0.0');
  expect(overlay([sample(0, 0, 1, 50)], { from: 100, to: 200 }, 100)).toBe('');
  expect(ranksIn('1, 7 7 x 9,-3', 2)).toEqual([1, 7]);
});
