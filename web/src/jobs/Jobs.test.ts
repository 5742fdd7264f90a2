import { expect, test } from 'vitest';
import type { Job } from '../api/types';
import { fits, worst } from './Jobs';

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
