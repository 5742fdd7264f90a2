// Every device has an address, and an address without a device does not select another one.

import { expect, test } from 'vitest';
import type { Finding, Rank, Report } from '../api/types';
import { routeOf, addressOf, type JobAddress } from '../route';
import { addressIn, chosen, deviceOf, labelOf, missing, selectionOf } from './devices';

const JOB: JobAddress = { name: 'j', attempt: null, rank: null, tenant: null };
const rank = (number: number, process: string, device = 0): Rank => ({ rank: number, process, device }) as unknown as Rank;
const RANKS = [rank(0, 'rank0', 0), rank(0, 'rank0', 1), rank(1, 'trainer'), rank(1, 'loader'), rank(2, 'rank2')];
const finding = (ranks: number[], evidence: Record<string, unknown> = {}, processes: string[] = []): Finding => ({ ranks, evidence, processes }) as unknown as Finding;
const report = (findings: Finding[] = []): Report => ({ ranks: RANKS, findings }) as unknown as Report;

test('every device of every process is reached by its own address', () => {
  for (const device of RANKS) {
    const job = addressIn(JOB, device, RANKS);
    const read = routeOf('/jobs/j', addressOf({ view: 'job', job, since: null, until: null }).split('?')[1] ?? '');
    expect('job' in read && chosen(report(), read.job)).toBe(device);
  }
  expect(new Set(RANKS.map((device) => labelOf(device, RANKS))).size).toBe(RANKS.length);
  expect(selectionOf(rank(0, 'rank0', 1), RANKS)).toEqual({ rank: '0', process: null, device: '1' });
  expect(selectionOf(rank(1, 'loader'), RANKS)).toEqual({ rank: '1', process: 'loader', device: null });
  expect(addressIn(JOB, rank(2, 'rank2'), RANKS)).toEqual({ ...JOB, rank: 2 });
});

test('an address that names nothing that is there is an error', () => {
  expect(chosen(report(), { ...JOB, rank: 99 })).toBe(null);
  expect(chosen(report(), { ...JOB, rank: 0, device: 7 })).toBe(null);
  expect(missing(RANKS, { ...JOB, rank: 99 })).toBe('There is no rank 99 in this job; it has ranks 0-2.');
});

test('without a rank the one is shown that the worst finding is about', () => {
  const oom = finding([0, 1, 2], { rank: 2 });
  expect(chosen(report([oom]), JOB)?.rank).toBe(2);
  expect(chosen(report([finding([1], {}, ['loader'])]), JOB)?.process).toBe('loader');
  expect(chosen(report([oom]), { ...JOB, rank: 0 })?.rank).toBe(0);
  expect(deviceOf(finding([], {}), RANKS)).toBe(null);
  expect(chosen(report(), JOB)).toBe(RANKS[0]);
});
