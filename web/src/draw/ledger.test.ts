// The bar ends where the device ends, for any known parts.

import { expect, test } from 'vitest';
import type { Failed, Listed } from '../api/types';
import { noRoom, notes, parts, sum } from './ledger';

const rank = {
  rank: 0,
  process: 'rank0',
  device: 0,
  at: '2026-01-01T00:00:00Z',
  epoch: 1,
  step: 2,
  exact: true,
  allocated_bytes: 60,
  classes: [
    { class: 'parameters', live_bytes: 40, share: 0.7 },
    { class: 'optimizer_state', live_bytes: 15, share: 0.3 },
  ],
  cached_bytes: 10,
  nccl_bytes: null,
  context_bytes: 5,
  others_bytes: 0,
  unmeasured_bytes: null,
  unexplained_bytes: 2,
  device_used_bytes: 77,
  device_total_bytes: 100,
  measured_at: '2026-01-01T00:00:00Z',
} as Listed;

test('everything measured', () => {
  const found = parts(rank);
  expect(found.map((part) => [part.name, part.bytes])).toEqual([
    ['parameters', 40],
    ['optimizer state', 15],
    ['allocated, of no class', 5],
    ['cached by the allocator', 10],
    ['context and libraries', 5],
    ['unexplained', 2],
    ['free', 23],
  ]);
  expect(sum(found)).toBe(100);
  expect(notes(rank)).toEqual([]);
});

test('what was not measured is not called free', () => {
  const unmeasured = { ...rank, context_bytes: null, others_bytes: null, device_used_bytes: null, measured_at: null };
  expect(parts(unmeasured).at(-1)?.name).toBe('free, or used by what was not measured');
  expect(notes({ ...unmeasured, exact: false, device_total_bytes: null }).length).toBe(3);
  expect(notes({ ...rank, device_total_bytes: 50 })[0]).toContain('exceed');
});

test('a failed request is the piece that ends beyond the limit', () => {
  const failed = { asked_bytes: 30, largest_usable_bytes: 4, limit_at_least_bytes: 80, device_free_bytes: 0 } as unknown as Failed;
  const at = noRoom(rank, failed);
  expect(at.held.map((part) => part.bytes)).toEqual([40, 15, 5, 10]);
  expect([sum(at.held), at.request.bytes, at.limit, at.end, at.hole, at.fits]).toEqual([70, 30, 80, 100, 4, 10]);
  expect(sum(at.held) + at.request.bytes).toBeGreaterThan(at.limit);
  expect(noRoom(rank, { ...failed, limit_at_least_bytes: null, device_free_bytes: 2 }).limit).toBe(72);
});
