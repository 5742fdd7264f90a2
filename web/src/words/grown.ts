// The moments between which a finding's growth is shown.
//
// Guarantees: pure. Both moments are of the same phase: two ends of epochs, or the ends of two steps of one epoch for
// memory that is freed with its epoch. The first epoch counts as warm-up (buffers, caches and optimizer state are
// allocated in it) if two later ones ended.

import type { Finding, Rank } from '../api/types';

/** The epochs at whose ends a rank is compared: the first one after warm-up that had the growth, and the last one. */
export function span(rank: Rank, since: number | null): { early: number; late: number } | null {
  const ends = rank.epoch_ends.map((end) => end.epoch);
  const late = ends.at(-1);
  const before = (ends.length > 2 ? ends.slice(1) : ends).filter((epoch) => late !== undefined && epoch < late);
  const early = before.find((epoch) => epoch >= (since ?? 0)) ?? before[0];
  return late === undefined || early === undefined ? null : { early, late };
}

/** Two moments as an address has them; `null` if no two can be compared. */
export function compared(finding: Finding, rank: Rank): { from: string; at: string } | null {
  const last = rank.epoch_ends.at(-1);
  if (finding.kind === 'hidden_chain') {
    return last === undefined ? null : { from: `epoch:${last.epoch}:first-step`, at: `epoch:${last.epoch}:last-step` };
  }
  const epochs = span(rank, finding.first_seen.epoch);
  return epochs === null ? null : { from: `epoch:${epochs.early}`, at: `epoch:${epochs.late}` };
}
