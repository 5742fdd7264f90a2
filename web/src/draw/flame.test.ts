// Boxes, zooms and searches of flame graphs.

import { expect, test } from 'vitest';
import type { FlameCall, Frame } from '../api/types';
import { boxes, drawn, grownThrough, hits, label, shareOf, stackOf } from './flame';

const frame = (name: string, file = '/home/me/train.py'): Frame => ({ function: name, file, line: 7 });
const call = (depth: number, bytes: number, name: string): FlameCall => ({
  depth,
  kind: depth === 0 ? 'all' : 'frame',
  owner: null,
  frames: depth === 0 ? [] : [frame(name)],
  own: true,
  bytes,
  grown_bytes: bytes,
  shrunk_bytes: 0,
  live_blocks: 1,
  class: null,
});
// everything 10 > main 8 > (keep 6, step 1); other 2
const calls = [call(0, 10, ''), call(1, 8, 'main'), call(2, 6, 'keep'), call(2, 1, 'step'), call(1, 2, 'other')];

test('children stand side by side below their caller', () => {
  const at = boxes(calls).map((box) => [box.left, box.width, box.parent]);
  const expected = [[0, 1, -1], [0, 0.8, 0], [0, 0.6, 1], [0.6, 0.1, 1], [0.8, 0.2, 0]];
  at.forEach((box, index) => {
    box.forEach((value, part) => {
      expect(value).toBeCloseTo(expected[index]?.[part] ?? NaN);
    });
  });
  expect(boxes([])).toEqual([]);
});

test('a zoomed box fills the picture below its callers', () => {
  const of = boxes(calls);
  const shown = drawn(of, 1, 800).map((one) => [one.box.at, Math.round(one.x), Math.round(one.width)]);
  expect(shown).toEqual([[0, 0, 800], [1, 0, 800], [2, 0, 600], [3, 600, 100]]);
  expect(drawn(of, 0, 5).map((one) => one.box.at)).toEqual([0, 1, 2, 4]);
  expect(drawn([], 0, 800)).toEqual([]);
});

test('a search counts what lies in hits once', () => {
  const of = boxes(calls);
  const found = hits(of, 'E');
  expect([...found]).toEqual([0, 1, 2, 3, 4]);
  expect(shareOf(of, hits(of, 'keep'))).toBeCloseTo(0.6);
  expect(shareOf(of, new Set([1, 2]))).toBeCloseTo(0.8);
  expect(hits(of, '  ').size).toBe(0);
});

test('names', () => {
  expect(stackOf(boxes(calls), 2).map((one) => one.function)).toEqual(['main', 'keep']);
  const torch = '/usr/lib/python3/site-packages/torch/nn/modules.py';
  const folded: FlameCall = { ...call(1, 1, ''), kind: 'library', frames: [frame('a', torch), frame('b', torch)] };
  expect(label(folded)).toBe('…2 frames of torch');
  expect(label({ ...call(1, 1, ''), kind: 'no_stack', frames: [] })).toBe('without a recorded stack');
  expect(label({ ...call(1, 1, ''), kind: 'owner', owner: 'KV cache', frames: [] })).toBe('[KV cache]');
  expect(label(calls[1] ?? call(0, 0, ''))).toBe('main  train.py:7');
});

test("a finding's calls are those that pass through its site, whichever line allocates", () => {
  const through = grownThrough(boxes(calls), frame('main'));
  expect([[...through.boxes], through.outermost, through.bytes]).toEqual([[1, 2, 3], [1], 8]);
  expect(grownThrough(boxes(calls), { ...frame('main'), line: 8 }).bytes).toBe(0);
});
