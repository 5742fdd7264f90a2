// What a filter finds, which jobs are worst, their groups, and their silences.

import { expect, test } from 'vitest';
import type { Alert, Job, Report, Silence } from '../api/types';
import { glanceOf } from './glance';
import { fits, grouped, groupings, quiet, stateOf, valueOf, worseFirst, worst } from './rows';

const JOB = {
  id: 'gpt2-ft',
  state: 'running',
  tenant: 'vision',
  labels: { team: 'nlp' },
  verdict: { severity: 'warning', finding: 'eval_graph', title: 'Live memory grows 49.6 MiB per epoch', findings: 1, inconclusive: null },
} as unknown as Job;

test('a filter finds all its words, also in what kind of finding is the worst', () => {
  for (const wanted of ['gpt2 running', 'team=nlp', 'warning', 'eval graph', '49.6 VISION', '']) expect(fits(JOB, wanted), wanted).toBe(true);
  for (const missing of ['gpt3', 'gpt2 finished', 'eval_oom']) expect(fits(JOB, missing), missing).toBe(false);
  expect(fits({ ...JOB, verdict: null }, 'gpt2')).toBe(true);
  // `leak` matches what `no-leak` asserts, for all kinds of leaks; one alternative is enough.
  for (const wanted of ['leak', 'team=nlp leak', 'warning|critical', 'vision nothing|warning']) expect(fits(JOB, wanted), wanted).toBe(true);
  for (const missing of ['critical|info', 'warning|critical gpt3']) expect(fits(JOB, missing), missing).toBe(false);
});

test('of a long list the critical ones come first, those that run before those that are over', () => {
  const job = (id: string, state: string, severity: string | null): Job => ({ ...JOB, id, state, verdict: { ...JOB.verdict, severity } }) as unknown as Job;
  const hurt = [job('a', 'finished', 'warning'), job('b', 'finished', 'critical'), job('c', 'running', 'critical'), job('d', 'running', 'info')];
  const sound = Array.from({ length: 30 }, (_, at) => job(`s${at}`, 'finished', null));
  expect(worst([...hurt, ...sound]).map((one) => one.id)).toEqual(['c', 'b', 'a']);
  expect(worst(hurt)).toEqual([]);
});

const grownBy = (id: string, grown_bytes: number, seconds: number, more: Partial<Job> = {}): Job => ({ ...JOB, id, name: id, state: 'finished', verdict: { ...JOB.verdict, kind: 'growing', cause: 'known', grown_bytes, seconds }, ...more }) as unknown as Job;

test('of equally severe jobs the one that grows most is worse, of running ones the one that grows fastest', () => {
  const ended = [grownBy('small', 1, 1), grownBy('large', 9, 900)];
  const running = [grownBy('slow', 90, 900, { state: 'running' }), grownBy('fast', 9, 1, { state: 'running' })];
  expect([...ended, ...running].sort(worseFirst).map((job) => job.id)).toEqual(['fast', 'slow', 'large', 'small']);
  const sound = Array.from({ length: 30 }, (_, at) => ({ ...JOB, id: `s${at}`, verdict: null }));
  expect(worst([...ended, ...running, ...sound], (job) => job.id === 'fast').map((job) => job.id)).toEqual(['slow', 'large', 'small']);
});

test('out of memory is a state, and can be filtered by', () => {
  const job = grownBy('o', 1, 1, { verdict: { kind: 'out_of_memory', severity: 'critical', finding: 'oom', title: null, findings: 1, inconclusive: null } });
  expect(stateOf(job)).toEqual({ text: 'out of memory', colour: 'failed', also: '' });
  expect(stateOf({ ...job, state: 'running' }).also).toBe('still running');
  expect(fits(job, 'out of memory')).toBe(true);
});

test('groups by what differs, the group with the worst job first', () => {
  const jobs = [grownBy('a', 1, 1, { labels: { team: 'nlp' } }), grownBy('b', 5, 1, { labels: { team: 'vision' } }), grownBy('c', 2, 1, { labels: {} })];
  expect(groupings(jobs)).toEqual(['name', 'label:team']);
  expect(grouped(jobs, 'label:team').map((group) => [group.name, group.jobs.map((job) => job.id).join('')])).toEqual([['vision', 'b'], ['no team', 'c'], ['nlp', 'a']]);
  expect([valueOf(grownBy('a', 1, 1), 'grown', 0), valueOf({ ...JOB, verdict: null }, 'grown', 0)]).toEqual([1, null]);
});

test('a silence is one that the daemon names, or one about this job and its finding', () => {
  const job = grownBy('a', 1, 1, { run: 1 });
  const silence = (more: Partial<Silence>): Silence => ({ id: 's', job: 'a', kind: null, rule: null, ranks: [], labels: {}, ends_at: '1970-01-01T01:00:00Z', author: 'me', comment: 'known', tenant: 'vision', ...more }) as unknown as Silence;
  expect(quiet(job, [], [silence({})])).toEqual({ until: 3_600_000, by: 'me: known' });
  expect(quiet(job, [], [silence({ kind: 'eval_graph' })])).not.toBeNull();
  // (A silence for all tenants.)
  expect(quiet(job, [], [silence({ tenant: '*' })])).not.toBeNull();
  for (const other of [{ kind: 'oom' }, { job: 'b' }, { ranks: [1] }, { tenant: 'other' }, { labels: { team: 'x' } }]) expect(quiet(job, [], [silence(other)])).toBeNull();
  const alert = { job: 'a', run: 1, state: 'firing', silenced_by: 's', tenant: 'vision' } as unknown as Alert;
  expect(quiet(job, [alert], [silence({ job: null, labels: { team: 'x' } })])?.until).toBe(3_600_000);
});

test('the figures of a line are those of the rank for which they are worst', () => {
  const rank = (more: object): object => ({ epochs: 1, steps: 10, device_used_bytes: null, reserved_bytes: 5, device_total_bytes: null, host: 'h1', ...more });
  const of = {
    ranks: [rank({ epochs: 2 }), rank({ device_total_bytes: 10 }), rank({ device_used_bytes: 8, device_total_bytes: 10, steps: 12, host: 'h2' })],
    findings: [{ time_to_oom_seconds: 7200, epochs_to_oom: 17, bytes_per_epoch: 4, bytes_per_step: 1, bytes_per_minute: null }],
  } as unknown as Report;
  expect(glanceOf(of)).toEqual({ epochs: 2, steps: 12, used: 8, total: 10, horizon: '2 h 0 min', rate: 4, per: 'epoch', hosts: ['h1', 'h2'] });
});
