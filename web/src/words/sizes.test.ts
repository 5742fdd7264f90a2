// Sizes: a number is read or refused, and a size fits only if the response says so.

import { expect, test } from 'vitest';
import type { Fit } from '../api/types';
import { aboveSaid, largestSaid, scaledSaid, sizeOf } from './sizes';

const fit = (device_memory_bytes: number | null, largest_that_fits: number | null) => ({ recordings: [], scaled: null, device_memory_bytes, at: [], largest_that_fits, not_looked_at: [] }) as unknown as Fit;

test('a size is a whole number above 0 and nothing else', () => {
  expect(sizeOf('8')).toBe(8);
  expect(sizeOf(' 4096 ')).toBe(4096);
  expect(sizeOf('16777216')).toBe(2 ** 24);
  for (const text of ['', '0', '-1', '4.5', '1e3', '4k', '16777217', '999999999']) expect(sizeOf(text), text).toBeNull();
});

test('what fits is said, and from where the memory is known', () => {
  expect(largestSaid(fit(null, null), false)).toBe('What the process may have is not known, so no size is said to fit.');
  expect(largestSaid(fit(2 ** 30, null), true)).toBe('No size fits in 1.00 GiB.');
  expect(largestSaid(fit(2 ** 30, 1200), true)).toBe('The largest size that fits in 1.00 GiB is 1,200.');
  expect(largestSaid(fit(2 ** 30, 12), false)).toBe('A request of this process failed, which tells that it may have 1.00 GiB. The largest size that fits in 1.00 GiB is 12.');
});

test('a size that fits although its figures are above the memory is explained', () => {
  const point = { size: 4, peak_allocated_bytes: 90, peak_reserved_bytes: 100, low: 90, high: 110, fits: true };
  expect(aboveSaid({ ...fit(110, 4), at: [point] })).toBe('');
  expect(aboveSaid({ ...fit(109, 4), at: [point] })).toMatch(/above 109 B\.$/);
  expect(aboveSaid({ ...fit(109, null), at: [{ ...point, fits: false }] })).toBe('');
});

test('how requests scale is counted', () => {
  const scaled = { requests: 1234, fixed: 200, fixed_bytes: 1024, proportional: 1034, proportional_bytes: 2048, doubtful: 7, doubtful_bytes: 512 };
  expect(scaledSaid(scaled)).toBe('One recording only, which is weaker than two: of 1,234 requests 200 are taken to stay the same (1.00 KiB), 1,034 to grow in proportion (2.00 KiB); 7 of them are in doubt (512 B).');
});
