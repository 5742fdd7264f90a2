// The stacks of a flame graph in other arrangements: library frames unfolded, callees first, the callers and callees of one
// function, and the peak by module.
//
// Guarantees: pure; every arrangement has each of the given bytes once. A box that is merged from several calls has a class
// only if all of them have that class.

import type { Anatomy, CallKind, Frame } from '../api/types';
import { boxes, fileName, frameKey, functionId, type Call } from './flame';

/** What a box stands for. */
interface Item {
  kind: CallKind;
  owner: string | null;
  frames: Frame[];
  own: boolean;
  name?: string;
}

/** The bytes that end in a stack. */
interface Weight {
  bytes: number;
  grown: number;
  shrunk: number;
  blocks: number;
  class: string | null;
}

/** A stack, outermost first, and what was allocated by it. */
export interface Leaf {
  items: Item[];
  weight: Weight;
}

/** The library calls that are unfolded: all of them, or some by their id. */
export type Unfolded = 'all' | Set<string>;

/** An address has it as a text. */
export const unfoldedOf = (text: string): Unfolded => (text === 'all' ? 'all' : new Set(text.split(',').filter((id) => id !== '')));

/** The stacks of a flame graph. What a call has beyond its callees ends in the call itself. */
export function leaves(calls: Call[], unfolded: Unfolded): Leaf[] {
  const of = boxes(calls);
  const own = calls.map((call) => ({ bytes: call.bytes, grown: call.grown_bytes, shrunk: call.shrunk_bytes, blocks: call.live_blocks, class: call.class }));
  for (const { call, parent } of of) {
    const above = own[parent];
    if (!above) continue;
    above.bytes -= call.bytes;
    above.grown -= call.grown_bytes;
    above.shrunk -= call.shrunk_bytes;
    above.blocks -= call.live_blocks;
  }
  const paths: Item[][] = [];
  return of.flatMap(({ call, id, at, parent }) => {
    const { kind, owner, frames, name } = call;
    const opens = kind === 'library' && (unfolded === 'all' || unfolded.has(id));
    const item: Item = { kind, owner, frames, own: call.own, ...(name === undefined ? {} : { name }) };
    const items = opens ? frames.map((frame): Item => ({ kind: 'frame', owner: null, frames: [frame], own: false })) : kind === 'all' ? [] : [item];
    const path = [...(paths[parent] ?? []), ...items];
    paths[at] = path;
    const weight = own[at];
    return weight !== undefined && (weight.bytes > 0 || weight.blocks > 0) ? [{ items: path, weight }] : [];
  });
}

interface Node extends Weight {
  item: Item;
  mixed: boolean;
  below: Map<string, Node>;
}

const ALL: Item = { kind: 'all', owner: null, frames: [], own: false };

const keyOf = (item: Item): string => `${item.kind} ${item.owner ?? ''} ${item.name ?? ''} ${item.frames.map(frameKey).join('\n')}`;

function into(node: Node, weight: Weight): void {
  const isFirst = node.bytes === 0 && node.blocks === 0;
  if (isFirst) node.class = weight.class;
  else if (node.class !== weight.class && weight.bytes > 0) node.mixed = true;
  node.bytes += weight.bytes;
  node.grown += weight.grown;
  node.shrunk += weight.shrunk;
  node.blocks += weight.blocks;
}

const empty = (item: Item): Node => ({ item, bytes: 0, grown: 0, shrunk: 0, blocks: 0, class: null, mixed: false, below: new Map() });

/** Merges stacks that begin alike, most bytes first. */
export function merged(of: Leaf[], root: Item = ALL): Call[] {
  const top = empty(root);
  for (const { items, weight } of of) {
    into(top, weight);
    let here = top;
    for (const item of items) {
      const key = keyOf(item);
      const next = here.below.get(key) ?? empty(item);
      here.below.set(key, next);
      into(next, weight);
      here = next;
    }
  }
  const calls: Call[] = [];
  const list = (node: Node, depth: number): void => {
    const { item, bytes, grown, shrunk, blocks, mixed } = node;
    calls.push({ ...item, depth, bytes, grown_bytes: grown, shrunk_bytes: shrunk, live_blocks: blocks, class: mixed ? null : node.class, ...(mixed ? { mixed } : {}) });
    for (const next of [...node.below.values()].sort((a, b) => b.bytes - a.bytes)) list(next, depth + 1);
  };
  list(top, 0);
  return calls;
}

/** Callers first, with library calls unfolded. */
export const callersFirst = (of: Leaf[]): Call[] => merged(of);

/** The call that allocated on top, its callers below. */
export const calleesFirst = (of: Leaf[]): Call[] => merged(of.map(({ items, weight }) => ({ items: items.toReversed(), weight })));

/** A function with its callers and its callees; both begin with the function. */
export interface Sandwich {
  callers: Call[];
  callees: Call[];
}

/** The first frame of a function that has this id. */
export function functionBy(calls: Call[], id: string): Frame | null {
  for (const { frames } of calls) for (const frame of frames) if (functionId(frame) === id) return frame;
  return null;
}

/** Splits the stacks that pass through a function where they enter it; a recursion counts once. */
export function sandwich(of: Leaf[], id: string): Sandwich | null {
  let root: Item | null = null;
  const [above, below]: [Leaf[], Leaf[]] = [[], []];
  for (const { items, weight } of of) {
    const at = items.findIndex((item) => item.frames.some((frame) => functionId(frame) === id));
    const item = items[at];
    if (!item) continue;
    const entry = item.frames.findIndex((frame) => functionId(frame) === id);
    const frame = item.frames[entry];
    if (!frame) continue;
    root ??= { kind: 'frame', owner: null, frames: [{ ...frame, line: null }], own: item.own };
    const part = (frames: Frame[]): Item[] => (frames.length === 0 ? [] : [{ ...item, frames }]);
    const callers = [...items.slice(0, at), ...part(item.frames.slice(0, entry))];
    above.push({ items: callers.toReversed(), weight });
    below.push({ items: [...part(item.frames.slice(entry + 1)), ...items.slice(at + 1)], weight });
  }
  return root === null ? null : { callers: merged(above, root), callees: merged(below, root) };
}

/** The levels of a module's name: a path has several, a class or the line of its call has one. */
export const moduleLevels = (name: string): string[] => (/:\d+$/.test(name) ? [name] : name.split('.'));

/** The peak by module, then by site: each part has one class. */
export function byModule(of: Anatomy): Call[] {
  const named = (name: string): Item => ({ kind: 'owner', owner: name, frames: [], own: false, name });
  const parts = of.parts.map(({ module, site, class: of_class, live_bytes, live_blocks }): Leaf => ({
    items: [
      ...(module === null ? [named('in no module')] : moduleLevels(module).map(named)),
      site === null ? { kind: 'no_stack', owner: null, frames: [], own: false } : { kind: 'frame', owner: null, frames: [site], own: true, name: `${site.function}  ${fileName(site.file)}${site.line === null ? '' : `:${site.line}`}` },
    ],
    weight: { bytes: live_bytes, grown: 0, shrunk: 0, blocks: live_blocks, class: of_class },
  }));
  // (Two classes of one site are two boxes: their items differ by class.)
  for (const [at, leaf] of parts.entries()) leaf.items = leaf.items.map((item, level) => (level === leaf.items.length - 1 ? { ...item, owner: of.parts[at]?.class ?? null } : item));
  if (of.left_out_bytes > 0) parts.push({ items: [{ kind: 'smaller', owner: null, frames: [], own: false }], weight: { bytes: of.left_out_bytes, grown: 0, shrunk: 0, blocks: 0, class: null } });
  return merged(parts);
}
