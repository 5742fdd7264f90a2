// The figures of a job that its line shows and the list of jobs does not deliver: step and epoch, the share of the device, and the
// time until it is full.
//
// Guarantees: pure; each figure is one that the report of the job has, of the rank for which it is the worst.

import type { Report } from '../api/types';
import { duration } from '../words/numbers';

/** See the module; `null` is not known. */
export interface Glance {
  epochs: number;
  steps: number;
  /** Bytes in use on the fullest device, and its size. */
  used: number | null;
  total: number | null;
  /** The horizon in words, and in seconds or epochs to compare. */
  horizon: string | null;
  /** Its rate, as the worst finding has it. */
  rate: number | null;
  per: 'epoch' | 'step' | 'minute' | null;
  hosts: string[];
}

/** See the module. */
export function glanceOf({ ranks, findings }: Report): Glance {
  const found: Glance = { epochs: 0, steps: 0, used: null, total: null, horizon: null, rate: null, per: null, hosts: [...new Set(ranks.flatMap((rank) => (rank.host === null ? [] : [rank.host])))] };
  for (const rank of ranks) {
    found.epochs = Math.max(found.epochs, rank.epochs);
    found.steps = Math.max(found.steps, rank.steps);
    const used = rank.device_used_bytes ?? rank.reserved_bytes;
    const total = rank.device_total_bytes;
    if (used === null || total === null || total <= 0) continue;
    if (found.total === null || found.used === null || used / total > found.used / found.total) {
      found.used = used;
      found.total = total;
    }
  }
  const seconds = findings.flatMap((finding) => (finding.time_to_oom_seconds === null ? [] : [finding.time_to_oom_seconds]));
  const epochs = findings.flatMap((finding) => (finding.epochs_to_oom === null ? [] : [finding.epochs_to_oom]));
  if (seconds.length > 0) found.horizon = duration(1000 * Math.min(...seconds));
  else if (epochs.length > 0) found.horizon = `${Math.round(Math.min(...epochs))} epochs`;
  for (const { bytes_per_epoch, bytes_per_step, bytes_per_minute } of findings) {
    const [rate, per] = bytes_per_epoch !== null ? [bytes_per_epoch, 'epoch' as const] : bytes_per_step !== null ? [bytes_per_step, 'step' as const] : [bytes_per_minute, 'minute' as const];
    if (rate === null) continue;
    found.rate = rate;
    found.per = per;
    break;
  }
  return found;
}
