// Allocator settings in words, and the groups in which they are compared.
//
// Guarantees: pure; settings are compared with the recorded one under the same limit, and never across limits.

import type { Setting } from '../api/types';

/** The settings under one limit. */
export interface Group {
  limit: number | null;
  /** The recorded setting, which is the first one. */
  recorded: Setting;
  settings: Setting[];
  /** The right end of their bars. */
  most: number;
  /** Whether the recommendation is about this limit. */
  isFirst: boolean;
}

/** Settings by their limits, in the order of the response. */
export function groups(of: Setting[]): Group[] {
  const found = new Map<number | null, Setting[]>();
  for (const setting of of) found.set(setting.limit_bytes, [...(found.get(setting.limit_bytes) ?? []), setting]);
  const highest = Math.max(0, ...of.map((setting) => Math.max(setting.peak_reserved_bytes, setting.limit_bytes ?? 0)));
  return [...found].flatMap(([limit, settings], at) => {
    const [recorded] = settings;
    return recorded === undefined ? [] : [{ limit, recorded, settings, most: highest, isFirst: at === 0 }];
  });
}

/** The displayed name of a setting. */
export function nameOfSetting(of: Setting): string {
  return of.allocator_conf === '' ? 'the default' : of.allocator_conf;
}

const UNITS: Record<string, number> = { '': 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** Bytes of `40GiB`; `null` if it is not a size. */
export function limitOf(text: string): number | null {
  const [, number = '', unit = ''] = /^\s*(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]iB|B|)\s*$/.exec(text) ?? [];
  const bytes = Math.floor(Number(number) * (UNITS[unit] ?? NaN));
  return number === '' || !Number.isSafeInteger(bytes) || bytes <= 0 ? null : bytes;
}
