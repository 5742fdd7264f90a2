// What was found, and what was not judged, in sentences.
//
// Guarantees: "no finding" appears as healthy only if the job was judged; gaps are named with their reasons; the sentence
// of a finding is the daemon's.

import type { Completeness, Diagnosis, Job, JobVerdict, NotJudged, Severity, Verdict } from '../api/types';
import { plural } from './numbers';

/** A severity: sign, word and the name of its colour. */
export interface Grade {
  sign: string;
  word: string;
  colour: Severity | 'none' | 'inconclusive' | 'unknown';
}

/** The grade of a severity. */
export function grade(severity: Severity | 'none' | 'inconclusive'): Grade {
  switch (severity) {
    case 'critical':
      return { sign: '▲', word: 'Critical', colour: 'critical' };
    case 'warning':
      return { sign: '●', word: 'Warning', colour: 'warning' };
    case 'info':
      return { sign: 'i', word: 'Info', colour: 'info' };
    case 'inconclusive':
      return { sign: '?', word: 'Inconclusive', colour: 'inconclusive' };
    case 'none':
      return { sign: '✓', word: 'No finding', colour: 'none' };
  }
}

/** The grade of a verdict; `severity` is that of the worst finding. */
export function gradeOf(memory: Partial<Verdict>, severity: Severity | 'none' | 'inconclusive'): Grade {
  const hurt = severity === 'critical' || severity === 'warning' ? grade(severity) : null;
  switch (memory.kind) {
    case 'out_of_memory':
      return { ...grade('critical'), word: 'Out of memory' };
    case 'growing':
      if (memory.cause === 'known') return { ...(hurt ?? grade('warning')), word: 'Leak' };
      return { ...grade('warning'), word: 'Growing, cause open' };
    case 'filling':
      return memory.fits === false ? { ...grade('warning'), word: 'Fills, no room' } : { ...grade('info'), word: 'Filling' };
    case 'not_enough_data':
      return hurt ?? grade('inconclusive');
    case 'released':
      return hurt ?? { ...grade('none'), word: 'Released' };
    case 'levelled_off':
      return hurt ?? { ...grade('none'), word: 'Levelled off' };
    case 'steady':
      return hurt ?? { ...grade('none'), word: 'Steady' };
    default:
      return grade(severity);
  }
}

/** A job's verdict in the list: its grade, and its sentence. */
export function inShort(verdict: JobVerdict | null): Grade & { sentence: string } {
  if (verdict === null) return { sign: '…', word: 'Not judged yet', colour: 'unknown', sentence: '' };
  const more = verdict.findings > 1 ? ` (and ${plural(verdict.findings - 1, 'more finding')})` : '';
  if (verdict.sentence !== undefined) return { ...gradeOf(verdict, verdict.severity ?? 'none'), sentence: verdict.sentence + more };
  if (verdict.severity !== null) {
    const open = verdict.inconclusive !== null && verdict.severity === 'info' ? ', inconclusive' : '';
    const sentence = (verdict.title ?? verdict.finding?.replaceAll('_', ' ') ?? 'finding') + more;
    const of = grade(verdict.severity);
    return { ...of, word: of.word + open, sentence };
  }
  if (verdict.inconclusive !== null) return { ...grade('inconclusive'), sentence: verdict.inconclusive };
  return { ...grade('none'), sentence: '' };
}

/** The subject of each kind of finding, for kinds that were not judged. */
const SUBJECTS: Record<string, string> = {
  leak: 'leaks',
  eval_graph: 'leaks',
  graph_kept: 'leaks',
  hidden_chain: 'leaks',
  private_pools: 'growth of private pools',
  fragmentation_growth: 'growth of unused reserved memory',
  rank_skew: 'differences between ranks',
  rank_lost: 'ranks',
  foreign_process: 'other processes on the device',
  oom: 'out of memory',
  near_oom: 'room on the device',
  outside_allocator: 'device memory outside the allocator',
  churn: 'device allocations in steady state',
  host_growth: 'host memory',
  wrong_device: "allocations on another rank's device",
};

/** `memory growth (needs 3 epoch ends); …`: what could not be judged, grouped by reason; empty if all was judged. */
export function notJudged(gaps: NotJudged[]): string {
  const reasons = new Map<string, Set<string>>();
  for (const gap of gaps) {
    const kinds = reasons.get(gap.reason) ?? new Set<string>();
    if (gap.gap === 'whole') kinds.add(SUBJECTS[gap.kind] ?? gap.kind.replaceAll('_', ' '));
    reasons.set(gap.reason, kinds);
  }
  const phrases = [...reasons].map(([reason, kinds]) => (kinds.size === 0 ? reason : `${[...kinds].join(', ')} (${reason})`));
  return phrases.join('; ');
}

/** `4 ranks, 8 epoch ends, 120 steps`. */
export function lookedAt(note: Pick<Diagnosis, 'judged'>): string {
  const { ranks, epoch_ends, steps, windows } = note.judged;
  const parts = [plural(ranks.length, 'rank')];
  if (epoch_ends > 0) parts.push(plural(epoch_ends, 'epoch end'));
  if (steps > 0) parts.push(plural(steps, 'step'));
  if (windows > 0) parts.push(plural(windows, 'window'));
  return parts.join(', ');
}

/** How complete the data behind the figures is. */
export function completeness(of: Completeness, running: boolean): string {
  if (of.exact && of.events_stored === 0) return 'No allocator event is stored.';
  if (of.exact) return `Exact: all ${plural(of.events_stored, 'event')}${running ? ' so far' : ''} stored, none lost.`;
  const missing: string[] = [];
  if (of.events_dropped > 0) missing.push(`${plural(of.events_dropped, 'event')} dropped by agents`);
  if (of.gaps > 0) missing.push(`${plural(of.gaps, 'item')} missing`);
  if (of.events_expired > 0) missing.push(`${plural(of.events_expired, 'event')} expired`);
  const damaged = of.items_damaged === 1 ? 'is damaged and' : 'are damaged and';
  if (of.items_damaged > 0) missing.push(`${plural(of.items_damaged, 'item')} ${damaged} left out`);
  if (missing.length === 0) missing.push('a session has not delivered everything that it recorded');
  return `NOT EXACT: ${missing.join(', ')}; ${plural(of.events_stored, 'event')} stored.`;
}

/** `4 of 8 ranks`. */
export function ranksOf(job: Job): string {
  const lacks = job.world_size !== null && job.world_size > job.ranks;
  return lacks ? `${job.ranks} of ${plural(job.world_size ?? 0, 'rank')}` : plural(job.ranks, 'rank');
}

/** `rank 3`, or the process's own name if a rank has several. */
export function nameOf(process: string, rank: number): string {
  return process === '' || process === `rank${rank}` || /^rank[ -]?\d+$/.test(process) ? `rank ${rank}` : process;
}
