// An all-clear needs something that was judged.

import { describe, expect, test } from 'vitest';
import type { JobVerdict, NotJudged } from '../api/types';
import { completeness, inShort, notJudged } from './verdict';

const verdict = (of: Partial<JobVerdict>): JobVerdict => ({ severity: null, finding: null, title: null, findings: 0, inconclusive: null, ...of });
const gap = (kind: string, reason: string, of: 'whole' | 'part' = 'whole'): NotJudged => ({ kind, reason, remedy: null, gap: of, decides: false });

describe('a job in short', () => {
  test.each([
    [null, 'Not judged yet', ''],
    [verdict({}), 'No finding', ''],
    [verdict({ kind: 'growing', cause: 'open', sentence: 'It has grown.' }), 'Growing, cause open', 'It has grown.'],
    [verdict({ kind: 'growing', cause: 'known', sentence: 'It leaks.', severity: 'critical', findings: 1 }), 'Leak', 'It leaks.'],
    [verdict({ kind: 'steady', sentence: 'A rank was lost.', severity: 'warning', findings: 1 }), 'Warning', 'A rank was lost.'],
    [verdict({ kind: 'levelled_off', sentence: 'It grew.' }), 'Levelled off', 'It grew.'],
    [verdict({ inconclusive: 'needs 3 epoch ends' }), 'Inconclusive', 'needs 3 epoch ends'],
    [verdict({ severity: 'critical', title: 'It grows', findings: 3 }), 'Critical', 'It grows (and 2 more findings)'],
    [verdict({ severity: 'info', finding: 'near_oom', findings: 1, inconclusive: 'x' }), 'Info, inconclusive', 'near oom'],
  ])('%o', (of, word, sentence) => {
    expect(inShort(of)).toMatchObject({ word, sentence });
  });
});

test('what was not judged is said once a reason', () => {
  const gaps = [gap('leak', 'no stacks'), gap('churn', 'no steps'), gap('eval_graph', 'no stacks'), gap('oom', 'rank 3 came late', 'part')];
  expect(notJudged(gaps)).toBe('leaks (no stacks); device allocations in steady state (no steps); rank 3 came late');
  expect(notJudged([])).toBe('');
});

test('how complete it is', () => {
  const all = { exact: true, events_stored: 1, events_dropped: 0, gaps: 0, events_expired: 0, items_damaged: 0 };
  expect(completeness(all, false)).toBe('Exact: all 1 event stored, none lost.');
  expect(completeness({ ...all, events_stored: 0 }, true)).toBe('No allocator event is stored.');
  expect(completeness({ ...all, exact: false, gaps: 2 }, false)).toBe('NOT EXACT: 2 items missing; 1 event stored.');
  expect(completeness({ ...all, exact: false }, false)).toContain('has not delivered');
  expect(completeness({ ...all, exact: false, items_damaged: 1 }, false)).toContain('1 item is damaged and left out');
});
