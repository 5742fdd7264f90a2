// The jobs as rows: what a filter finds, their order, their groups, and which are the worst.
//
// Guarantees: pure; "worst" is by consequence: severity, then whether the job still runs, then how fast or how far memory has
// grown. Only what the daemon delivers is compared: an unknown figure comes last.

import type { Alert, Job, Silence } from '../api/types';
import { moment } from '../words/numbers';
import { inShort } from '../words/verdict';

/** This many jobs can be seen at a glance; above a longer list the worst are shown. */
const GLANCE = 20;
/** How many of the worst jobs are shown. */
const WORST = 5;

/** Kinds that fill the device until they are fixed: what `leak` finds, as `no-leak` asserts it. */
const LEAKS = new Set(['leak', 'eval_graph', 'graph_kept', 'hidden_chain', 'private_pools']);

export const isHurt = (job: Job): boolean => ['critical', 'warning'].includes(inShort(job.verdict).colour);

/** The state, in which a job that ran out of memory is not merely over. */
export function stateOf(job: Job): { text: string; colour: string; also: string } {
  if (job.verdict?.kind !== 'out_of_memory') return { text: job.state, colour: job.state, also: '' };
  return { text: 'out of memory', colour: 'failed', also: job.state === 'running' ? 'still running' : '' };
}

const texts = new WeakMap<Job, string>();

function textOf(job: Job): string {
  const known = texts.get(job);
  if (known !== undefined) return known;
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
  const { word, sentence } = inShort(job.verdict);
  const kind = job.verdict?.finding?.replaceAll('_', ' ') ?? '';
  const leak = LEAKS.has(job.verdict?.finding ?? '') ? 'leak' : '';
  const text = [job.id, job.state, stateOf(job).text, job.tenant, word, kind, leak, sentence, ...labels].join(' ').toLowerCase();
  texts.set(job, text);
  return text;
}

/** Whether a job's row contains all words of a filter; one alternative of `one|other` is enough. */
export function fits(job: Job, filter: string): boolean {
  const text = textOf(job);
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((wanted) => wanted.split('|').some((one) => text.includes(one)));
}

/** Bytes a second by which memory has grown, as the verdict has both figures. */
export function paceOf(job: Job): number | null {
  const { grown_bytes, seconds } = job.verdict ?? {};
  return grown_bytes == null || seconds == null || seconds <= 0 ? null : grown_bytes / seconds;
}

const SEVERITY: Record<string, number> = { critical: 3, warning: 2, inconclusive: 1, info: 1 };

/** How bad it is: larger is worse. Severity counts most, then whether it runs, then bytes. */
export function consequence(job: Job): number[] {
  const grown = job.verdict?.grown_bytes ?? 0;
  return [SEVERITY[inShort(job.verdict).colour] ?? 0, job.state === 'running' ? 1 : 0, job.verdict?.kind === 'out_of_memory' ? 1 : 0, job.state === 'running' ? (paceOf(job) ?? 0) : grown, grown];
}

/** The order of two jobs, the worse one first. */
export function worseFirst(a: Job, b: Job): number {
  const [one, other] = [consequence(a), consequence(b)];
  const at = one.findIndex((value, index) => value !== other[index]);
  return at < 0 ? 0 : (other[at] ?? 0) - (one[at] ?? 0);
}

/** The jobs that most need attention, if there are too many to see it. A silenced one needs none. */
export function worst(of: Job[], isQuiet: (job: Job) => boolean = () => false): Job[] {
  if (of.length <= GLANCE) return [];
  return of.filter((job) => isHurt(job) && !isQuiet(job)).sort(worseFirst).slice(0, WORST);
}

/** The columns that can be sorted by, and whether a press first shows the largest. */
export const COLUMNS = { name: false, state: false, worst: true, grown: true, ranks: true, started: true, lasted: true, stored: true };

/** The value of a column. */
export function valueOf(job: Job, by: string, now: number): number | string | null {
  switch (by) {
    case 'name':
      return job.id;
    case 'state':
      return stateOf(job).text;
    case 'grown':
      return job.verdict?.grown_bytes ?? null;
    case 'ranks':
      return job.ranks;
    case 'lasted':
      return (job.ended_at === null ? now : moment(job.ended_at)) - moment(job.started_at);
    case 'stored':
      return job.stored_bytes;
    default:
      return moment(job.started_at);
  }
}

/** Jobs with something in common. */
export interface Group {
  name: string;
  jobs: Job[];
}

/** What a list can be grouped by: what at least two jobs differ in. */
export function groupings(of: Job[]): string[] {
  const keys = [...new Set(of.flatMap((job) => Object.keys(job.labels)))].sort();
  const differ = (by: string): boolean => new Set(of.map((job) => groupName(job, by))).size > 1;
  return ['finding', 'state', 'name', 'tenant', ...keys.map((key) => `label:${key}`)].filter(differ);
}

function groupName(job: Job, by: string): string {
  if (by.startsWith('label:')) return job.labels[by.slice(6)] ?? `no ${by.slice(6)}`;
  if (by === 'state') return stateOf(job).text;
  if (by === 'name') return job.name;
  if (by === 'tenant') return job.tenant;
  const finding = job.verdict?.finding;
  return finding == null ? inShort(job.verdict).word.toLowerCase() : finding.replaceAll('_', ' ');
}

/** Groups, those with the worst job first; jobs keep their order. */
export function grouped(of: Job[], by: string): Group[] {
  const found = new Map<string, Job[]>();
  for (const job of of) {
    const name = groupName(job, by);
    const known = found.get(name);
    if (known) known.push(job);
    else found.set(name, [job]);
  }
  const worstOf = (jobs: Job[]): Job => jobs.reduce((worse, job) => (worseFirst(job, worse) < 0 ? job : worse));
  return [...found].map(([name, jobs]) => ({ name, jobs })).sort((a, b) => worseFirst(worstOf(a.jobs), worstOf(b.jobs)) || b.jobs.length - a.jobs.length);
}

/** Whether a job is silenced, and until when: its alerts say so, or a silence that names it and nothing but its finding. */
export function quiet(job: Job, alerts: Alert[], silences: Silence[]): { until: number | null; by: string } | null {
  const isOf = (name: string, run: number | null): boolean => name === job.id || (name === job.name && (run === null || run === job.run));
  const alert = alerts.find((one) => isOf(one.job, one.run) && one.tenant === job.tenant && one.state !== 'resolved' && one.silenced_by !== null);
  const named = silences.find((one) => one.job !== null && isOf(one.job, null) && ['*', job.tenant].includes(one.tenant) && one.rule === null && one.ranks.length === 0
    && Object.keys(one.labels).length === 0 && (one.kind === null || one.kind === job.verdict?.finding));
  const by = silences.find((one) => one.id === alert?.silenced_by) ?? named;
  if (alert === undefined && by === undefined) return null;
  return { until: by === undefined ? null : moment(by.ends_at), by: by === undefined ? '' : [by.author, by.comment].filter((text) => text !== null).join(': ') };
}

/** The alerts of a job that fire and are not silenced. */
export const firing = (job: Job, alerts: Alert[]): number =>
  alerts.filter((one) => (one.job === job.id || (one.job === job.name && one.run === job.run)) && one.tenant === job.tenant && one.state === 'firing' && one.silenced_by === null).length;
