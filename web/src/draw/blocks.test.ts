// Rows, holes and what a request finds, without a browser.

import { describe, expect, test } from 'vitest';
import type { Blocks, Segment } from '../api/types';
import { blockBy, blockId, fit, headOf, holes, levels, linesOf, living, onOneScale, roomOf, sizeOf, stretch } from './blocks';
import { pixel, raster, type Paint } from './raster';

const MIB = 1 << 20;
const segment = (address: number, bytes: number, more: Partial<Segment> = {}): Segment => ({
  address,
  bytes,
  stream: '0',
  pool: null,
  owner: null,
  small: false,
  expandable: false,
  from_event: null,
  to_event: null,
  ...more,
});

type Life = [address: number, bytes: number, from: number | null, to: number | null];

function made(segments: Segment[], lives: Life[]): Blocks {
  const column = <T>(of: (life: Life) => T): T[] => lives.map(of);
  return {
    rank: 0,
    process: 'rank 0',
    device: 0,
    exact: true,
    at_event: 10,
    first_event: 0,
    last_event: 100,
    stored_from_event: 0,
    stored_to_event: 100,
    course: { first_at: '2026-01-01T00:00:00Z', event: [], elapsed_ns: [], epoch: [], step: [], allocated_bytes: [], reserved_bytes: [] },
    segments,
    blocks: {
      address: column((life) => life[0]),
      bytes: column((life) => life[1]),
      requested_bytes: column((life) => life[1]),
      stack: column(() => 0),
      class: column(() => 0),
      birth_epoch: column(() => 0),
      birth_step: column(() => 0),
      from_event: column((life) => life[2]),
      freed_event: column((life) => life[3]),
      to_event: column((life) => life[3]),
    },
    blocks_left_out: 0,
    classes: ['parameters'],
    frames: [],
    stacks: [[]],
    sites: [null],
    owners: [null],
    failures: [],
    rules: { round_bytes: 512, small_bytes_max: MIB },
  } as unknown as Blocks;
}

describe('rows', () => {
  test('adjoining mapped ranges are one row, adjoining segments are two', () => {
    const mapped = { expandable: true };
    const of = stretch(made([segment(0, 20), segment(20, 20), segment(100, 5, mapped), segment(105, 5, { ...mapped, from_event: 3 })], []));
    expect(of.rows.map((row) => [row.address, row.bytes, row.segments.length])).toEqual([[0, 20, 1], [20, 20, 1], [100, 10, 2]]);
  });

  test('blocks lie in their rows, and live from their first event to their last', () => {
    const of = stretch(made([segment(100, 50), segment(0, 50)], [[0, 10, null, 5], [0, 10, 7, null], [60, 1, null, null], [100, 20, 3, 9]]));
    const [low, high] = of.rows;
    expect(of.loose).toBe(1);
    expect([4, 5, 6, 7].map((event) => (low ? living(of, low, event) : []))).toEqual([[0], [], [], [1]]);
    expect([2, 3, 8, 9].map((event) => (high ? living(of, high, event).length : 0))).toEqual([0, 1, 1, 0]);
  });
});

describe('holes', () => {
  test('free memory beside a block is pinned by it, a segment without one is not', () => {
    const of = stretch(made([segment(0, 50), segment(100, 50)], [[10, 10, null, null], [30, 20, null, 4]]));
    const listed = (event: number): [number, number, boolean][] => holes(of, event).map((hole) => [hole.from, hole.bytes, hole.pinned]);
    expect(listed(0)).toEqual([[0, 10, true], [20, 10, true], [100, 50, false]]);
    expect(listed(4)).toEqual([[0, 10, true], [20, 30, true], [100, 50, false]]);
  });

  test('a segment that is given back is no free memory', () => {
    const of = stretch(made([segment(0, 50, { to_event: 5 })], []));
    expect([holes(of, 4).length, holes(of, 5).length]).toEqual([1, 0]);
  });

  test('a request finds a place only where its kind and its stream are', () => {
    const segments = [segment(0, 20 * MIB), segment(100 * MIB, 64 * MIB, { stream: '7' }), segment(300 * MIB, 2 * MIB, { small: true })];
    const of = stretch(made(segments, [[4 * MIB, 8 * MIB, null, null]]));
    expect(fit(of, 0, 9 * MIB - 100, '0')).toEqual({ rounded: 9 * MIB, small: false, fits: 0, largest: 8 * MIB, usable: 12 * MIB, free: 78 * MIB });
    expect(fit(of, 0, 8 * MIB, '0').fits).toBe(1);
    expect(fit(of, 0, 9 * MIB, '7').fits).toBe(1);
    expect(fit(of, 0, 1, '0')).toMatchObject({ rounded: 512, small: true, fits: 1, largest: 2 * MIB });
  });
});

test('levels are those of the very event', () => {
  const of = stretch(made([segment(0, 4 * MIB), segment(8 * MIB, 2 * MIB, { from_event: 7 })], [[0, MIB, null, 5], [MIB, MIB, 6, null], [8 * MIB, MIB, 7, null]]));
  const at = (event: number): (number | undefined)[] => [levels(of, event)?.allocated, levels(of, event)?.reserved].map((bytes) => (bytes ?? 0) / MIB);
  expect([4, 5, 6, 7].map(at)).toEqual([[1, 4], [0, 4], [1, 4], [2, 6]]);
  expect(levels({ ...of, of: { ...of.of, blocks_left_out: 1 } }, 7)).toBeNull();
});

test('sizes as people write them', () => {
  expect(['4096', '64 MiB', '1.5g', '2kb', '0', 'x', '1e9', '9999999t'].map(sizeOf)).toEqual([4096, 64 * MIB, 1.5 * 1024 ** 3, 2048, null, null, null, null]);
});

test('every living block has a pixel', () => {
  const of = stretch(made([segment(0, 1000)], [[0, 500, null, null], [900, 1, null, 5]]));
  const paint: Paint = { block: (at) => 10 + at, ground: 1, free: 2, pinned: 3, edge: 4, chosen: 5, tooSmall: 6, fits: 7 };
  const out = new Uint32Array(10 * 20);
  const scene = { of, lines: linesOf(of.rows), event: 0, first: 1, from: 0, to: 1, chosen: null, request: null };
  raster(scene, paint, 10, 20, out);
  // (The second line: hatching and edges do not affect it.)
  expect([...out.slice(10, 20)]).toEqual([4, 10, 10, 10, 10, 3, 3, 4, 3, 11]);
  raster({ ...scene, event: 5, request: { bytes: 501, small: false, stream: '0' } }, paint, 10, 20, out);
  expect(out[19]).toBe(6);
  expect(pixel('#123456')).toBe(0xff563412);
});

test('each group has a head that says its scale, and a changed one', () => {
  const of = stretch(made([segment(0, 64 * MIB), segment(100 * MIB, 20 * MIB), segment(300 * MIB, 2 * MIB, { small: true })], []));
  expect(linesOf(of.rows).map((line) => line.row)).toEqual([null, 0, 1, null, 2]);
  const heads = (stretched: typeof of): string[] => linesOf(stretched.rows).flatMap((line) => (line.row === null ? [headOf(stretched, line.first, 0)] : []));
  expect(heads(of)).toEqual([
    'default stream, larger blocks · 2 segments, 84.0 MiB · the width is 64.0 MiB',
    'default stream, blocks up to 1 MiB · 1 segment, 2.00 MiB · the width is 2.00 MiB, 32 times the zoom above',
  ]);
  expect(heads(onOneScale(of))[1]).toBe('default stream, blocks up to 1 MiB · 1 segment, 2.00 MiB · the width is 64.0 MiB');
});

test('a request beside the holes that may serve it', () => {
  const of = stretch(made([segment(0, 20 * MIB), segment(100 * MIB, 8 * MIB), segment(300 * MIB, 2 * MIB, { small: true })], [[4 * MIB, 8 * MIB, null, null]]));
  expect(roomOf(of, 0, { bytes: 30 * MIB, small: false, stream: '0' })).toEqual({
    scale: 30 * MIB,
    holes: [{ from: 0, bytes: 8 * MIB }, { from: 8 * MIB, bytes: 8 * MIB }, { from: 16 * MIB, bytes: 4 * MIB }],
    rest: { count: 0, bytes: 0 },
  });
  expect(roomOf(of, 0, { bytes: MIB, small: false, stream: '0' }).scale).toBe(20 * MIB);
});

test('a block is found by its id', () => {
  const of = stretch(made([segment(0, 1000)], [[0, 500, null, 4], [0, 500, 5, null]]));
  expect([0, 1].map((block) => blockBy(of, blockId(of, block)))).toEqual([0, 1]);
  expect([blockBy(of, 'ff'), blockBy(of, null)]).toEqual([null, null]);
});

test('the chosen block has a frame and keeps its colour', () => {
  const of = stretch(made([segment(0, 1000)], [[0, 1000, null, null]]));
  const paint: Paint = { block: () => 10, ground: 1, free: 2, pinned: 3, edge: 4, chosen: 5, tooSmall: 6, fits: 7 };
  const out = new Uint32Array(10 * 14);
  raster({ of, lines: linesOf(of.rows), event: 0, first: 1, from: 0, to: 1, chosen: 0, request: null }, paint, 10, 14, out);
  expect([...out.slice(0, 10)]).toEqual(Array.from({ length: 10 }, () => 5));
  expect([...out.slice(50, 60)]).toEqual([5, 5, 10, 10, 10, 10, 10, 10, 5, 5]);
});
