// The views that show a finding, the most relevant first.
//
// Guarantees: pure. Growth is shown between two moments at which it is visible (memory that is freed with each epoch is
// not visible at epoch ends), a failed request at the moment of its failure, and findings that settings may change with a
// link to these. Of a finding's ranks, the one that its text names is used.

import type { FailedRequest, Finding, Rank } from '../api/types';
import type { JobAddress, Route } from '../route';
import { span } from './verdict';

/** A view, and the text of its link. */
export interface Shown {
  to: Exclude<Route, { view: 'nowhere' | 'jobs' | 'alerts' }>;
  text: string;
}

/** Kinds that another allocator setting may fix. */
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
