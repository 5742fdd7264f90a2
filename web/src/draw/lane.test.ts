import { describe, expect, it } from 'vitest';
import type { Finding, RankSites, Site } from '../api/types';
import { BARS_MAX, lane } from './lane';

const MIB = 1 << 20;

const site = (line: number, births: [number, number][]): Site => ({
  live_bytes: births.reduce((sum, [, bytes]) => sum + bytes, 0),
  live_blocks: births.length,
  class: null,
  site: { function: 'keep', file: 'train.py', line },
  owner: null,
  stack: [],
  births: births.map(([epoch, live_bytes]) => ({ epoch, live_bytes, live_blocks: 1 })),
});

const rank = (epoch: number, sites: Site[]): RankSites => ({
  rank: 0,
  process: 'rank 0',
  device: 0,
  at: '2026-11-20T09:52:06Z',
  epoch,
  step: 0,
  exact: true,
  allocated_bytes: null,
  reserved_bytes: null,
  sites,
  further: null,
  merged: false,
});

const finding = (line: number, lines: number[] = []): Finding =>
  ({ site: { function: 'keep', file: 'train.py', line }, lines }) as unknown as Finding;

describe('lane', () => {
  it('has a scale of its own: 64 KiB beside 300 MiB', () => {
    const leak = site(7, [0, 1, 2, 3].map((epoch) => [epoch, 64 << 10]));
    const of = rank(3, [site(3, [[0, 300 * MIB]]), leak]);
    const drawn = lane(of, finding(7));
    expect(drawn?.bars.map((bar) => bar.height)).toEqual([1, 1, 1, 1]);
    expect(drawn?.bytes).toBe(4 * (64 << 10));
  });

  it('does not let the first epoch set the scale', () => {
    const drawn = lane(rank(3, [site(3, [[0, 300 * MIB], [1, MIB], [3, 2 * MIB]])]), null);
    expect(drawn?.top).toBe(2 * MIB);
    expect(drawn?.bars.map(({ height, cut, bytes }) => [height, cut, bytes])).toEqual([
      [1, true, 300 * MIB],
      [0.5, false, MIB],
      [0, false, 0],
      [1, false, 2 * MIB],
    ]);
    expect(drawn?.later).toEqual({ kept: 2, epochs: 3 });
  });

  it('has every line of a finding and no other', () => {
    const of = rank(2, [site(7, [[1, 1]]), site(8, [[1, 2]]), site(9, [[1, 4]])]);
    expect(lane(of, finding(7, [7, 9]))?.bytes).toBe(5);
    expect(lane(of, finding(11))).toBeNull();
  });

  it('has what a line reaches: the graph of an evaluation', () => {
    const held = { ...site(3, [[1, 16]]), stack: [{ function: 'forward', file: 'model.py', line: 3 }, { function: 'keep', file: 'train.py', line: 7 }] };
    expect(lane(rank(2, [held, site(9, [[1, 4]])]), finding(7))?.bytes).toBe(16);
  });

  it('loses no byte where epochs share a bar', () => {
    const births = Array.from({ length: 1001 }, (_, epoch): [number, number] => [epoch, epoch + 1]);
    const drawn = lane(rank(1000, [site(7, births)]), null);
    expect(drawn?.bars.length).toBeLessThanOrEqual(BARS_MAX);
    expect(drawn?.bytes).toBe((1001 * 1002) / 2);
    expect(drawn?.bars.at(-1)?.to).toBe(1000);
    expect(drawn?.later).toEqual({ kept: 1000, epochs: 1000 });
  });

  it('is not drawn without epochs', () => {
    expect(lane(rank(0, [site(7, [[0, MIB]])]), null)).toBeNull();
  });
});
