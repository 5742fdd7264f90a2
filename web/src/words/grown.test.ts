// Growth is shown between moments of the same phase, after warm-up.

import { expect, test } from 'vitest';
import type { Finding, Rank } from '../api/types';
import { compared, span } from './grown';

const rank = (...epochs: number[]): Rank => ({ epoch_ends: epochs.map((epoch) => ({ epoch })) }) as unknown as Rank;
const finding = (kind: string, epoch: number | null): Finding => ({ kind, first_seen: { epoch } }) as unknown as Finding;

test('the first epoch is warm-up wherever two later ones ended', () => {
  expect(span(rank(0, 1, 2, 7), 0)).toEqual({ early: 1, late: 7 });
  expect(span(rank(0, 1, 2, 7), 2)).toEqual({ early: 2, late: 7 });
  expect(span(rank(0, 1, 2, 7), 7)).toEqual({ early: 1, late: 7 });
  expect(span(rank(0, 1), 0)).toEqual({ early: 0, late: 1 });
  expect(span(rank(3), 0)).toBe(null);
});

test('memory that goes with its epoch is compared within one', () => {
  expect(compared(finding('hidden_chain', 0), rank(0, 1, 2))).toEqual({ from: 'epoch:2:first-step', at: 'epoch:2:last-step' });
  expect(compared(finding('hidden_chain', 0), rank())).toBe(null);
  expect(compared(finding('leak', null), rank(0, 1, 2))).toEqual({ from: 'epoch:1', at: 'epoch:2' });
});
