// Settings: compared under one limit each; a limit is read or refused.

import { expect, test } from 'vitest';
import type { Setting } from '../api/types';
import { groups, limitOf, nameOfSetting } from './settings';

const setting = (allocator_conf: string, limit_bytes: number | null, peak_reserved_bytes: number): Setting => ({
  allocator_conf, limit_bytes, peak_reserved_bytes, peak_allocated_bytes: 1, device_allocs: 1, device_frees: 0, retries: 0, out_of_memory: null, cautions: [], bounds: null,
});

test('settings are compared under one limit each, with one scale for all', () => {
  const found = groups([setting('', 8, 8), setting('a:1', 8, 4), setting('', 9, 9), setting('a:1', 9, 4)]);
  expect(found.map((group) => [group.limit, group.settings.length, group.most, group.isFirst])).toEqual([[8, 2, 9, true], [9, 2, 9, false]]);
  expect(found[1]?.recorded.peak_reserved_bytes).toBe(9);
  expect(groups([])).toEqual([]);
  expect(nameOfSetting(setting('', null, 1))).toBe('the default');
});

test('a limit is a size and nothing else', () => {
  expect(limitOf('40GiB')).toBe(40 * 2 ** 30);
  expect(limitOf(' 1.5 MiB ')).toBe(1.5 * 2 ** 20);
  expect(limitOf('512')).toBe(512);
  for (const text of ['', '40GB', '-1', '0', '1e9', 'GiB', '9999999999999TiB']) expect(limitOf(text), text).toBeNull();
});
