// The views that show a finding, the most relevant first.
//
// Guarantees: pure. Growth is shown between two moments between which it grew (`grown.ts`), a failed request at the moment
// of its failure, and findings that settings may change with a link to these. All of it is on the device that the finding
// is about.

import type { Failed, Finding, Rank } from '../api/types';
import type { JobAddress, Route } from '../route';
import { addressIn, deviceOf, isSame } from './devices';
import { compared } from './grown';

/** A view, and the text of its link. */
export interface EvidenceLink {
  to: Exclude<Route, { view: 'nowhere' | 'jobs' | 'alerts' }>;
  text: string;
}

/** Kinds that another allocator setting may fix. */
const SETTINGS = new Set(['oom', 'near_oom', 'fragmentation', 'fragmentation_growth', 'churn']);

/** See the module. */
export function evidence(finding: Finding, ranks: Rank[], failures: Failed[], job: JobAddress): EvidenceLink[] {
  const device = deviceOf(finding, ranks);
  if (device === null) return [];
  const of = addressIn(job, device, ranks);
  const settings: EvidenceLink[] = SETTINGS.has(finding.kind) ? [{ to: { view: 'settings', job: of, limit: '' }, text: 'Under other settings' }] : [];
  const failed = failures.find((failure) => isSame(failure, device));
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
  const moments = compared(finding, device);
  if (moments === null) return [{ to: { view: 'moment', job: of, at: 'peak', from: null }, text: 'Show me what was live' }, ...settings];
  return [{ to: { view: 'moment', job: of, ...moments, finding: finding.id }, text: 'Show me what grew' }, ...settings];
}
