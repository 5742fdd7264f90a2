// A chain is shown as in the daemon's response, without figures that it does not contain.

import { describe, expect, test } from 'vitest';
import type { FindingHolders, GrowingHolder } from '../api/types';
import { asked, share, step } from './holders';

const holder = (of: Partial<GrowingHolder>) => ({
  kind: 'list',
  sentence: 'list `KEPT` of module `__main__`, 1,440 tensors',
  chain: ['module `__main__`', 'global `KEPT`', 'list, 1,440 items', 'Tensor'],
  blocks: 200,
  tensors: 1440,
  tensors_before: null,
  since_epoch: null,
  ...of,
}) as GrowingHolder;
const found = (of: Partial<FindingHolders>) => ({
  sentence: '',
  unasked: true,
  failure: null,
  asked_blocks: 256,
  holders: [],
  took_seconds: 0.08125,
  not_looked_at: [],
  ...of,
}) as FindingHolders;

describe('a step of a chain', () => {
  test.each([
    ['global `KEPT`', ['global ', 'KEPT', '']],
    ['cell `acts` of function `hook`', ['cell ', 'acts', ' of function `hook`']],
    ['list, 1,440 items', ['list, 1,440 items', '', '']],
    ['`Trainer` object', ['', 'Trainer', ' object']],
    ['a lone ` stays', ['a lone ` stays', '', '']],
  ])('%s', (text, [before, name, behind]) => {
    expect(step(text)).toEqual({ before, name, behind });
  });
});

test('how much a holder holds, and how it grows where that was measured', () => {
  expect(share(holder({}), found({}))).toBe('200 of 256 blocks');
  expect(share(holder({ blocks: 1 }), found({ asked_blocks: null }))).toBe('1 block');
  expect(share(holder({ tensors_before: 480, since_epoch: 3 }), found({}))).toBe('200 of 256 blocks, 480 tensors in epoch 3');
  expect(share(holder({ tensors_before: 1, since_epoch: 3 }), found({}))).toBe('200 of 256 blocks, 1 tensor in epoch 3');
});

test('who asked, and what it cost', () => {
  expect(asked(found({}))).toBe('Asked by the daemon; the process stood still for 81 ms.');
  expect(asked(found({ unasked: false, took_seconds: null }))).toBe('Asked with `memctl holders`.');
});
