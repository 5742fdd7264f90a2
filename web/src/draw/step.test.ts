// Stacked shapes of a step, without a browser.

import { describe, expect, test } from 'vitest';
import type { StepMemory } from '../api/types';
import { above, beside, byteTicks, columns, heightOf, hit, outline, paintShapes, placeOf, pointAt, shapes, sideAt, stackAt, ticks, wholeOf, within } from './step';

type Life = [bytes: number, from: number | null, to: number | null];

/** Events 10 to 10 + levels, one level behind each; the rest is what the blocks leave. */
function made(lives: Life[], levels: number[], run = 1): StepMemory {
  const event = levels.map((_, at) => 10 + at);
  const is = ([, from, to]: Life, at: number): boolean => (from ?? 0) <= at && at < (to ?? Infinity);
  const drawn = (at: number): number => lives.filter((life) => is(life, at)).reduce((sum, life) => sum + life[0], 0);
  return {
    of: { kind: 'step', epoch: 0, step: 3, ended: true, first_event: 10, last_event: 9 + levels.length },
    first_event: 10,
    last_event: 9 + levels.length,
    duration_ns: 350,
    events_per_point: run,
    points: {
      event,
      elapsed_ns: event.map((at) => (at - 10) * 100),
      allocated_bytes: levels,
      reserved_bytes: levels,
      rest_bytes: levels.map((level, at) => level - drawn(10 + at)),
    },
    blocks: {
      bytes: lives.map((life) => life[0]),
      from_event: lives.map((life) => life[1]),
      to_event: lives.map((life) => life[2]),
    },
  } as unknown as StepMemory;
}

const LIVES: Life[] = [[4, null, null], [3, 11, 13], [2, 12, null]];
const of = shapes(made(LIVES, [5, 8, 10, 7]), 'events');
const paint = { block: (index: number) => index + 1, edge: (index: number) => 10 + index, rest: 9, restEdge: 19 };

describe('shapes', () => {
  test('the axis begins at 0, and a point has the events of its run', () => {
    expect([...of.edges]).toEqual([0, 1, 2, 3, 4]);
    expect(wholeOf(of)).toEqual({ from: 0, to: 4 });
    expect([pointAt(of, -1), pointAt(of, 1.5), pointAt(of, 99)]).toEqual([0, 1, 3]);
    const time = shapes(made(LIVES, [5, 8, 10, 7]), 'time');
    expect([...time.edges]).toEqual([0, 100, 200, 300, 350]);
    expect([placeOf(of, 12), placeOf(time, 12)]).toEqual([2, 200]);
  });

  test('at every point the blocks and the rest are what is allocated', () => {
    const tops = [0, 1, 2, 3].map((point) => stackAt(of, point).top);
    expect(tops).toEqual(of.of.points.allocated_bytes);
    expect(stackAt(of, 2)).toEqual({ blocks: [0, 1, 2], below: [0, 4, 7], drawn: 9, top: 10 });
    expect(stackAt(of, 3)).toEqual({ blocks: [0, 2], below: [0, 4], drawn: 6, top: 7 });
  });

  test('a column shows the highest of the events that it covers', () => {
    expect([...columns(of, { from: 0, to: 4 }, 2)]).toEqual([1, 2]);
    expect([...columns(of, { from: 0, to: 4 }, 1)]).toEqual([2]);
    expect([...columns(of, { from: 3, to: 5 }, 4)]).toEqual([3, 3, -1, -1]);
    expect([...columns(of, { from: 1, to: 3 }, 4)]).toEqual([1, 1, 2, 2]);
  });

  test('a column of pixels ends where the allocated memory ends', () => {
    const shown = columns(of, { from: 0, to: 4 }, 4);
    const out = new Uint32Array(40);
    paintShapes(of, shown, 10, paint, 10, out);
    const column = (x: number): number[] => Array.from({ length: 10 }, (_, row) => out[(9 - row) * 4 + x] ?? 0);
    // (A block of four pixels has an edge.)
    expect(column(0)).toEqual([1, 1, 1, 10, 9, 0, 0, 0, 0, 0]);
    expect(column(2)).toEqual([1, 1, 1, 10, 2, 2, 2, 3, 3, 9]);
    expect(column(3)).toEqual([1, 1, 1, 10, 3, 3, 9, 0, 0, 0]);
  });

  test('a place has a block, the rest or nothing', () => {
    expect([hit(of, 2.5, 0), hit(of, 2.5, 6.9), hit(of, 2.5, 7), hit(of, 2.5, 9.5), hit(of, 2.5, 10)]).toEqual([0, 1, 2, 'rest', null]);
    expect([hit(of, 3.5, 5), hit(of, 0, -1)]).toEqual([2, null]);
  });

  test('an outline follows a block that moves down when another one is freed', () => {
    const shown = columns(of, { from: 0, to: 4 }, 4);
    expect(outline(of, 2, shown)).toEqual([[
      { x: 2, level: 9 }, { x: 3, level: 9 }, { x: 3, level: 6 }, { x: 4, level: 6 },
      { x: 4, level: 4 }, { x: 3, level: 4 }, { x: 3, level: 7 }, { x: 2, level: 7 },
    ]]);
    expect(outline(of, 1, new Int32Array([0, 3]))).toEqual([]);
    expect(sideAt(of, 1, 0)).toBeNull();
  });

  test('keys walk in the order of allocation, and up and down within a moment', () => {
    expect([beside(of, null, 1), beside(of, null, -1), beside(of, 0, 1), beside(of, 2, 1), beside(of, 0, -1)]).toEqual([0, 2, 1, 2, 0]);
    expect([above(of, 0, 3, 1), above(of, 2, 3, -1), above(of, 2, 3, 1), above(of, null, 0, 1)]).toEqual([2, 0, 2, 0]);
    expect([within(of, 1, 0), within(of, 1, 3), within(of, 0, 2)]).toEqual([1, 2, 2]);
  });
});

test('ticks are round', () => {
  const MIB = 1 << 20;
  expect(byteTicks(5 * MIB, 6)).toEqual([MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB]);
  expect(byteTicks(100 * MIB, 6)).toEqual([32 * MIB, 64 * MIB, 96 * MIB]);
  expect(ticks({ from: 0, to: 1000 }, 5)).toEqual([0, 200, 400, 600, 800, 1000]);
  expect(ticks({ from: 120, to: 480 }, 6)).toEqual([200, 300, 400]);
  expect(heightOf(100, 150)).toEqual({ top: 162, showsLimit: true });
  expect(heightOf(100, 200).showsLimit).toBe(false);
});
