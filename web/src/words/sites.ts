// Live memory by site, and what changed between two moments.
//
// Guarantees: stacks that share the innermost line of the user's own code are one row; every site of either moment has a
// row.

import type { Frame, RankSites } from '../api/types';

/** A row. */
export interface SiteRow {
  key: string;
  site: Frame | null;
  live: number;
  blocks: number;
  before: number;
  stack: Frame[];
}

/** The rows: most live memory first, or most change first. */
export function rows(late: RankSites, early: RankSites | null): SiteRow[] {
  const found = new Map<string, SiteRow & { largest: number }>();
  const add = (of: RankSites, put: (row: SiteRow, bytes: number, blocks: number) => void): void => {
    for (const { site, stack, live_bytes, live_blocks } of of.sites) {
      const key = site === null ? '' : `${site.file}\n${site.line ?? ''}\n${site.function}`;
      const row = found.get(key) ?? { key, site, live: 0, blocks: 0, before: 0, stack, largest: 0 };
      if (live_bytes > row.largest) {
        row.largest = live_bytes;
        row.stack = stack;
      }
      put(row, live_bytes, live_blocks);
      found.set(key, row);
    }
  };
  if (early !== null) {
    add(early, (row, bytes) => {
      row.before += bytes;
    });
  }
  add(late, (row, bytes, blocks) => {
    row.live += bytes;
    row.blocks += blocks;
  });
  const weight = (row: SiteRow): number => (early === null ? row.live : Math.abs(row.live - row.before));
  return [...found.values()].sort((a, b) => weight(b) - weight(a) || b.live - a.live);
}
