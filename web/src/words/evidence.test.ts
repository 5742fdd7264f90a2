import { expect, test } from 'vitest';
import type { FailedRequest, Finding, Rank } from '../api/types';
import { evidence } from './evidence';

const JOB = { name: 'j', attempt: null, rank: null, tenant: null };
const end = (epoch: number): unknown => ({ epoch });
const RANKS = [0, 1, 2].map((rank) => ({ rank, process: `rank ${rank}`, epoch_ends: [end(0), end(1), end(5)] }) as unknown as Rank);
const of = (kind: string, explanation = ''): Finding => ({ kind, explanation, ranks: [0, 1, 2], first_seen: { epoch: 1 } }) as unknown as Finding;
const texts = (shown: { text: string }[]): string[] => shown.map((one) => one.text);

test('growth is shown between the ends of epochs, what falls back with each of them at the peak', () => {
  expect(evidence(of('leak'), RANKS, [], JOB)).toEqual([{ to: { view: 'moment', job: { ...JOB, rank: 0 }, at: 'epoch:5', from: 'epoch:1' }, text: 'Show me what grew' }]);
  expect(evidence(of('hidden_chain'), RANKS, [], JOB)[0]?.to).toMatchObject({ at: 'peak', from: 'epoch:1' });
});

test('a request that failed is shown when it failed, on the rank that is spoken of', () => {
  const failures = [0, 2].map((rank) => ({ rank, at: `2026-01-01T00:00:0${rank}Z` }) as unknown as FailedRequest);
  const shown = evidence(of('oom', 'Rank 2 had 2.42 GiB reserved'), RANKS, failures, JOB);
  expect(texts(shown)).toEqual(['Show me what was live when it failed', 'Blocks at that moment', 'Under other settings']);
  expect(shown[0]?.to).toMatchObject({ job: { rank: 2 }, at: '2026-01-01T00:00:02Z', from: null });
  expect(texts(evidence(of('oom'), RANKS, [], JOB))).toEqual(['Show me what grew', 'Under other settings']);
});

test('fragmentation leads to settings and to the blocks', () => {
  const shown = evidence(of('fragmentation', 'On rank 2, 5.04 GiB were reserved'), RANKS, [], JOB);
  expect(texts(shown)).toEqual(['Under other settings', 'Blocks at the peak']);
  expect(shown.every((one) => one.to.job.rank === 2)).toBe(true);
  expect(evidence({ ...of('leak'), ranks: [7] }, RANKS, [], JOB)).toEqual([]);
});
