// Sites of two moments in one table.

import { expect, test } from 'vitest';
import type { Frame, RankSites } from '../api/types';
import { rows } from './sites';

const frame = (line: number): Frame => ({ function: 'f', file: '/a.py', line });
const sites = (of: [number | null, number][]) => ({
  rank: 0,
  process: '',
  device: 0,
  at: '',
  epoch: 0,
  step: 0,
  exact: true,
  allocated_bytes: null,
  sites: of.map(([line, live_bytes]) => ({
    live_bytes,
    live_blocks: 1,
    site: line === null ? null : frame(line),
    stack: line === null ? [] : [frame(live_bytes), frame(line)],
  })),
}) as RankSites;

test('every site has its row, what changed most first', () => {
  const late = sites([[1, 5], [2, 9], [1, 7], [null, 1]]);
  const short = (early: RankSites | null): (number | null)[][] =>
    rows(late, early).map((row) => [row.site?.line ?? null, row.before, row.live, row.blocks]);
  expect(short(null)).toEqual([[1, 0, 12, 2], [2, 0, 9, 1], [null, 0, 1, 1]]);
  expect(short(sites([[1, 11], [2, 9], [3, 30]]))).toEqual([[3, 30, 0, 0], [1, 11, 12, 2], [null, 0, 1, 1], [2, 9, 9, 1]]);
  expect(rows(late, null)[0]?.stack[0]?.line).toBe(7);
});
