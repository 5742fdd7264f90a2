import { expect, test } from 'vitest';
import { pin, pinName, pinsOf } from './pins';

const job = { name: 'a', attempt: null, rank: 0, tenant: null };

test('the pins of a job are known by name on each of its ranks, and on no other job', () => {
  expect(pinsOf(job)).toEqual({ a: null, b: null });
  pin(job, 'a', '2026-01-01T00:00:00Z');
  pin({ ...job, rank: 3 }, 'b', '2026-01-01T00:00:01Z');
  const pins = pinsOf(job);
  expect(['2026-01-01T00:00:00Z', '2026-01-01T00:00:01Z', 'peak'].map((at) => pinName(pins, at))).toEqual(['pin A', 'pin B', null]);
  expect(pinsOf({ ...job, name: 'b' })).toEqual({ a: null, b: null });
});
