// Where a finding is seen: the views that show it, the nearest first.
//
// Guarantees: pure; growth is shown between two moments at which it is there (what falls back with each epoch is not at the ends of
// epochs), a request that failed at the moment when it failed, and what settings may change beside them; of the ranks of a
// finding it is the one that its own words are about.

import type { FailedRequest, Finding, Rank } from '../api/types';
import type { JobAddress, Route } from '../route';
import { span } from './verdict';

/** A view, and what its link says. */
export interface Shown {
  to: Exclude<Route, { view: 'nowhere' | 'jobs' | 'alerts' }>;
  text: string;
}

/** Kinds whose cure may be another setting of the allocator. */
const SETTINGS = new Set(['oom', 'near_oom', 'fragmentation', 'fragmentation_growth', 'churn']);

/** See the module. */
export function evidence(finding: Finding, ranks: Rank[], failures: FailedRequest[], job: JobAddress): Shown[] {
  const named = Number(/\brank (\d+)\b/i.exec(finding.explanation)?.[1] ?? NaN);
  const own = ranks.filter((known) => finding.ranks.includes(known.rank));
  const rank = own.find((known) => known.rank === named) ?? own[0];
  if (rank === undefined) return [];
  const of = { ...job, rank: rank.rank };
  const settings: Shown[] = SETTINGS.has(finding.kind) ? [{ to: { view: 'settings', job: of, limit: '' }, text: 'Under other settings' }] : [];
  const failed = failures.find((failure) => failure.rank === rank.rank);
  if (failed !== undefined && (finding.kind === 'oom' || finding.kind === 'fragmentation')) {
    return [
      { to: { view: 'moment', job: of, at: failed.at, from: null }, text: 'Show me what was live when it failed' },
      { to: { view: 'blocks', job: of, at: failed.at, event: null }, text: 'Blocks at that moment' },
      ...settings,
    ];
  }
  if (settings.length > 0 && finding.kind !== 'oom') {
    return [...settings, { to: { view: 'blocks', job: of, at: 'peak', event: null }, text: 'Blocks at the peak' }];
  }
  const compared = span(rank, finding.first_seen.epoch);
  if (compared === null) return [{ to: { view: 'moment', job: of, at: 'peak', from: null }, text: 'Show me what was live' }, ...settings];
  const [from, at] = [`epoch:${compared.early}`, finding.kind === 'hidden_chain' ? 'peak' : `epoch:${compared.late}`];
  return [{ to: { view: 'moment', job: of, at, from }, text: 'Show me what grew' }, ...settings];
}
