// Figures as text; the same examples as in the tests of the terminal.

import { describe, expect, test } from 'vitest';
import { ago, bytes, change, duration, moment, percent, plural, rfc3339 } from './numbers';

describe('figures', () => {
  test.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1.00 KiB'],
    [3 * 2 ** 20, '3.00 MiB'],
    [-(49 * 2 ** 20) - 104_858, '-49.1 MiB'],
    [1023 * 2 ** 20, '1.00 GiB'],
    [2 ** 63, '8.00 EiB'],
    [null, '–'],
  ])('bytes of %s', (value, text) => {
    expect(bytes(value)).toBe(text);
  });

  test('signs, counts and shares', () => {
    expect([change(1024), change(-1024), change(0)]).toEqual(['+1.00 KiB', '-1.00 KiB', '0 B']);
    expect([plural(1, 'rank'), plural(12_345, 'event')]).toEqual(['1 rank', '12,345 events']);
    expect([percent(1, 3), percent(1, 100_000), percent(0, 0)]).toEqual(['33.3 %', '< 0.1 %', '0.0 %']);
  });
});

describe('times', () => {
  test('nanoseconds are kept to the microsecond and come back', () => {
    const ms = moment('2026-11-20T10:00:00.123456789Z');
    expect(ms).toBeCloseTo(Date.UTC(2026, 10, 20, 10) + 123.4568, 2);
    expect(rfc3339(Date.UTC(2026, 10, 20, 10) + 123.5)).toBe('2026-11-20T10:00:00.123500Z');
    expect(moment('2026-11-20T10:00:00Z')).toBe(Date.UTC(2026, 10, 20, 10));
  });

  test('lengths and distances', () => {
    expect([5, 1500, 61_000, 120_000, 7_500_000, 200_000_000].map(duration)).toEqual([
      '5 ms',
      '1.5 s',
      '1 min 1 s',
      '2 min',
      '2 h 5 min',
      '2 d 7 h',
    ]);
    expect([ago(0, 1), ago(0, 23 * 60_000), ago(0, 3 * 3_600_000), ago(0, 72 * 3_600_000)]).toEqual([
      'just now',
      '23 min ago',
      '3 h ago',
      '3 days ago',
    ]);
  });
});
