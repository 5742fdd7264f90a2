import { expect, test } from 'vitest';
import type { Failed, Finding, Rank } from '../api/types';
import { evidence } from './evidence';

const JOB = { name: 'j', attempt: null, rank: null, tenant: null };
const end = (epoch: number): unknown => ({ epoch });
const RANKS = [0, 1, 2].map((rank) => ({ rank, process: `rank ${rank}`, device: 0, epoch_ends: [end(0), end(1), end(5)] }) as unknown as Rank);
const of = (kind: string, evidence: Record<string, unknown> = {}): Finding => ({ id: 'f', kind, evidence, ranks: [0, 1, 2], processes: [], first_seen: { epoch: 1 } }) as unknown as Finding;
const texts = (shown: { text: string }[]): string[] => shown.map((one) => one.text);

test('growth is shown between the ends of epochs, what goes with each of them between its steps', () => {
  expect(evidence(of('leak'), RANKS, [], JOB)).toEqual([{ to: { view: 'moment', job: { ...JOB, rank: 0 }, at: 'epoch:5', from: 'epoch:1', finding: 'f' }, text: 'Show me what grew' }]);
  expect(evidence(of('hidden_chain'), RANKS, [], JOB)[0]?.to).toMatchObject({ at: 'epoch:5:last-step', from: 'epoch:5:first-step' });
});

test('a request that failed is shown when it failed, on the rank that is spoken of', () => {
  const failures = [0, 2].map((rank) => ({ rank, process: `rank ${rank}`, device: 0, at: `2026-01-01T00:00:0${rank}Z` }) as unknown as Failed);
  const shown = evidence(of('oom', { rank: 2 }), RANKS, failures, JOB);
  expect(texts(shown)).toEqual(['Show me what was live when it failed', 'Blocks at that moment', 'Under other settings']);
  expect(shown[0]?.to).toMatchObject({ job: { rank: 2 }, at: '2026-01-01T00:00:02Z', from: null });
  expect(texts(evidence(of('oom'), RANKS, [], JOB))).toEqual(['Show me what grew', 'Under other settings']);
});

test('fragmentation leads to settings and to the blocks', () => {
  const shown = evidence(of('fragmentation', { rank: 2 }), RANKS, [], JOB);
  expect(texts(shown)).toEqual(['Under other settings', 'Blocks at the peak']);
  expect(shown.every((one) => one.to.job.rank === 2)).toBe(true);
  expect(evidence({ ...of('leak'), ranks: [7] }, RANKS, [], JOB)).toEqual([]);
});
