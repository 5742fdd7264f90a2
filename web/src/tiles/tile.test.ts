// Which tiles a view needs, how bytes are decoded, and the combined points; without a browser.

import { describe, expect, test } from 'vitest';
import type { Mark } from '../api/types';
import type { Sample } from '../draw/course';
import { SLOTS, named, opened, placesIn, pointsIn, stretchOf, type Place } from './tile';

const DAY = 86_400_000;
const now = 1_780_000_000_000;
const COLUMNS = ['allocated_min_bytes', 'allocated_max_bytes', 'allocated_bytes', 'reserved_max_bytes', 'reserved_bytes'];

/** Bytes in the daemon's format: the n-th slot has n in its first column, and ten times as much in each further one. */
function bytes(place: Place, first: number, count: number, marks: Mark[] = []): ArrayBuffer {
  const head = { session: 's', ...place, first_slot: first, count, coarse_chunks: 0, is_final: true, columns: COLUMNS, marks };
  const text = JSON.stringify(head);
  const padded = new TextEncoder().encode(`${text.padEnd(Math.ceil((text.length + 1) / 8) * 8 - 1)}\n`);
  const numbers = Float64Array.from(COLUMNS.flatMap((_, column) => Array.from({ length: count }, (_, at) => at * 10 ** column)));
  const whole = new Uint8Array(padded.length + numbers.byteLength);
  whole.set(padded);
  whole.set(new Uint8Array(numbers.buffer), padded.length);
  return whole.buffer;
}

const sample = (from: number, to: number, epoch = 0, step = 0): Sample => ({ from, to, epoch, step, min: 1, max: 2, last: 1, reserved: 3, peakReserved: 3 });

describe('the tiles of a view', () => {
  test('are few, cover it, and are as fine as it can show', () => {
    for (let length = 1; length < 400 * DAY; length *= 1.7) {
      for (const from of [now, now + 0.37 * length]) {
        const places = placesIn({ from, to: from + length });
        const [first, last] = [places[0], places.at(-1)];
        if (!first || !last) throw new Error('there is none');
        expect(places.length).toBeLessThanOrEqual(3);
        expect(stretchOf(first).from).toBeLessThanOrEqual(from);
        expect(stretchOf(last).to).toBeGreaterThan(from + length);
        const slots = length / ((stretchOf(first).to - stretchOf(first).from) / SLOTS);
        expect(slots).toBeLessThanOrEqual(1024);
        expect(slots).toBeGreaterThan(510);
      }
    }
  });

  test('touch', () => {
    const place = { level: 30, index: 3_000 };
    expect(stretchOf(place).to).toBe(stretchOf({ level: 30, index: 3_001 }).from);
    expect(stretchOf({ level: 31, index: 1_500 }).from).toBe(stretchOf(place).from);
  });
});

test('bytes are opened where they are', () => {
  const mark = { at: new Date(now).toISOString(), kind: 'note', value: null, name: 'a "note"' };
  const tile = opened(bytes({ level: 20, index: 7 }, 3, 4, [mark]));
  expect([...tile.min]).toEqual([0, 1, 2, 3]);
  expect([...tile.reserved]).toEqual([0, 10_000, 20_000, 30_000]);
  expect({ first: tile.first, ...stretchOf(tile), marks: tile.marks }).toEqual({ first: 3, from: tile.from, to: tile.to, marks: [mark] });
  const cut = bytes({ level: 20, index: 7 }, 3, 4).slice(0, -8);
  expect(() => opened(cut)).toThrow('no tile');
});

describe('points', () => {
  const places = [{ level: 20, index: 8 }, { level: 20, index: 9 }];
  const [first, last] = places.map(stretchOf);
  if (!first || !last) throw new Error('there is none');

  test('stand where their slots are', () => {
    const tiles = new Map(places.map((place) => [place.index, opened(bytes(place, 0, SLOTS))]));
    const points = pointsIn(places, ({ level, index }) => (level === 20 ? tiles.get(index) : undefined), []);
    expect(points.length).toBe(2 * SLOTS);
    expect(points[0]?.from).toBe(first.from);
    expect(points.at(-1)?.to).toBeCloseTo(last.to, 6);
    expect(points[SLOTS]).toMatchObject({ from: last.from, min: 0 });
    expect(points[SLOTS + 5]).toMatchObject({ min: 5, max: 50, last: 500, peakReserved: 5_000, reserved: 50_000 });
  });

  test('of a coarser tile stand in, else those of the course', () => {
    const above = opened(bytes({ level: 22, index: 2 }, 0, SLOTS));
    const points = pointsIn(places, ({ level, index }) => (level === 22 && index === 2 ? above : undefined), []);
    expect(points.map((point) => point.min)).toEqual(Array.from({ length: SLOTS / 2 }, (_, at) => at));
    const course = [sample(first.from - 9, first.from - 1), sample(first.from - 1, first.from + 1), sample(last.from, last.to)];
    expect(pointsIn(places, () => undefined, course)).toEqual(course.slice(1));
  });

  test('have the epoch and step of the marks, else of the course', () => {
    const points = [0, 10, 20, 30].map((from) => sample(from, from + 10));
    const course = [sample(0, 15, 1, 11), sample(15, 40, 2, 22)];
    expect(named(points, course, []).map((point) => [point.epoch, point.step])).toEqual([[1, 11], [2, 22], [2, 22], [2, 22]]);
    const mark = (ms: number, kind: string, value: number): Mark => ({ at: new Date(ms).toISOString(), kind, value, name: null });
    const marks = [mark(5, 'step_begin', 70), mark(12, 'epoch_end', 6), mark(25, 'step_end', 71), mark(39, 'note', 3)];
    expect(named(points, course, marks).map((point) => [point.epoch, point.step])).toEqual([[1, 70], [6, 70], [6, 71], [6, 71]]);
  });
});
