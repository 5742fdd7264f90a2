// Arrangements of stacks: each has every byte once.

import { expect, test } from 'vitest';
import type { Anatomy, FlameCall, Frame } from '../api/types';
import { boxes, digest, fitted, functionId, label, labels, siteOf } from './flame';
import { byModule, calleesFirst, callersFirst, functionBy, leaves, moduleLevels, sandwich, unfoldedOf } from './stacks';

const frame = (name: string, file = '/home/me/train.py'): Frame => ({ function: name, file, line: 7 });
const torch = (name: string): Frame => frame(name, '/usr/lib/python3/site-packages/torch/nn/modules.py');
const call = (depth: number, bytes: number, frames: Frame[], more: Partial<FlameCall> = {}): FlameCall => ({
  depth, kind: depth === 0 ? 'all' : 'frame', owner: null, frames, own: depth > 0, bytes, grown_bytes: bytes, shrunk_bytes: 0, live_blocks: bytes, class: 'activations', ...more,
});
const library = (depth: number, bytes: number, names: string[], more: Partial<FlameCall> = {}): FlameCall => call(depth, bytes, names.map(torch), { kind: 'library', own: false, ...more });
// everything 20 > main 17 > (torch call,linear 8 > act 5; torch call,norm 4; main itself 5), main 17 also as eval > main; no stack 3
const calls = [
  call(0, 20, []),
  call(1, 17, [frame('main')]),
  library(2, 8, ['call', 'linear']),
  call(3, 5, [frame('act')]),
  library(2, 4, ['call', 'norm'], { class: 'workspace' }),
  call(1, 3, [], { kind: 'no_stack', own: false, class: 'temporaries' }),
];
const shape = (of: FlameCall[]): string[] => of.map((one) => `${'-'.repeat(one.depth)}${label(one)} ${one.bytes}`);

test('library calls unfold, and stacks that begin alike are merged', () => {
  expect(shape(callersFirst(leaves(calls, new Set())))).toEqual(shape(calls));
  expect(shape(callersFirst(leaves(calls, 'all')))).toEqual([
    'everything 20', '-main  train.py:7 17', '--call  modules.py:7 12', '---linear  modules.py:7 8', '----act  train.py:7 5', '---norm  modules.py:7 4', '-without a recorded stack 3',
  ]);
  const [, , linear] = boxes(calls);
  const one = callersFirst(leaves(calls, unfoldedOf(linear?.id ?? '')));
  expect(shape(one)).toContain('---linear  modules.py:7 8');
  expect(shape(one)).toContain('--…2 frames of torch 4');
});

test('the id of a box stays when library calls are unfolded', () => {
  const act = (of: FlameCall[]): string | undefined => boxes(of).find((box) => label(box.call).startsWith('act'))?.id;
  expect(act(callersFirst(leaves(calls, 'all')))).toBe(act(calls));
  expect(digest('a')).not.toBe(digest('b'));
});

test('callees first: what allocated is on top, and a mixture has no class', () => {
  const turned = calleesFirst(leaves(calls, new Set()));
  expect(shape(turned)).toEqual([
    'everything 20', '-main  train.py:7 5', '-act  train.py:7 5', '--…2 frames of torch 5', '---main  train.py:7 5',
    '-…2 frames of torch 4', '--main  train.py:7 4', '-…2 frames of torch 3', '--main  train.py:7 3', '-without a recorded stack 3',
  ]);
  expect(turned[0]).toMatchObject({ mixed: true, class: null, live_blocks: 20, grown_bytes: 20 });
  expect(turned[1]?.class).toBe('activations');
});

test('a sandwich has the callers and the callees of a function, also inside a library call', () => {
  const id = functionId(torch('linear'));
  expect(functionBy(calls, id)?.function).toBe('linear');
  const both = sandwich(leaves(calls, new Set()), id);
  expect(shape(both?.callers ?? [])).toEqual(['linear  modules.py 8', '-…1 frame of torch 8', '--main  train.py:7 8']);
  expect(shape(both?.callees ?? [])).toEqual(['linear  modules.py 8', '-act  train.py:7 5']);
  expect(sandwich(leaves(calls, new Set()), 'nothing')).toBeNull();
  // A recursion counts once.
  const twice = [call(0, 4, []), call(1, 4, [frame('f')]), call(2, 4, [frame('f')])];
  expect(sandwich(leaves(twice, new Set()), functionId(frame('f')))?.callees.map((one) => one.bytes)).toEqual([4, 4]);
});

test('modules by their paths, each part with its class', () => {
  expect(moduleLevels('transformer.h.3.mlp')).toEqual(['transformer', 'h', '3', 'mlp']);
  expect(moduleLevels('common.py:52')).toEqual(['common.py:52']);
  const part = (module: string | null, name: string | null, of_class: string, live_bytes: number) => ({ class: of_class, module, site: name === null ? null : frame(name), live_bytes, live_blocks: 1 });
  const of = { parts: [part('h.0', 'f', 'activations', 6), part('h.0', 'f', 'workspace', 2), part('h.1', 'f', 'activations', 3), part(null, null, 'parameters', 4)], left_out_bytes: 1 } as unknown as Anatomy;
  const found = byModule(of);
  expect(shape(found)).toEqual(['everything 16', '-h 11', '--0 8', '---f  train.py:7 6', '---f  train.py:7 2', '--1 3', '---f  train.py:7 3', '-in no module 4', '--without a recorded stack 4', '-smaller stacks 1']);
  expect(found.slice(3, 5).map((one) => one.class)).toEqual(['activations', 'workspace']);
});

test('labels stay in their box', () => {
  const width = (text: string): number => 10 * text.length;
  const [, main, linear] = calls;
  expect(main && fitted(labels(main), 180, width)).toBe('main  train.py:7');
  expect(main && fitted(labels(main), 100, width)).toBe('main');
  expect(main && fitted(labels(main), 30, width)).toBe('ma…');
  expect(main && fitted(labels(main), 19, width)).toBe('');
  expect(linear && fitted(labels(linear), 60, width)).toBe('…2');
});

test('the site of a box is the innermost own line', () => {
  const of = boxes(calls);
  expect([2, 3, 5].map((at) => siteOf(of, at)?.function ?? null)).toEqual(['main', 'act', null]);
});
