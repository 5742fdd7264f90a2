// A flame graph as an icicle: the total on top, callees below, width = bytes.
//
// Guarantees: pure; shares are of the whole, so zooming is arithmetic; a box is never wider than its caller; a box
// narrower than a pixel is not drawn. The id of a box depends on the frames that lead to it and on nothing else.

import type { FlameCall, Frame } from '../api/types';

/** A call of any arrangement (`stacks.ts`). */
export interface Call extends FlameCall {
  /** Its label, if it is no frame. */
  name?: string;
  /** Its parts have several classes. */
  mixed?: boolean;
}

/** A call with its position: `left` and `width` are shares of the whole. */
export interface Box {
  call: Call;
  at: number;
  id: string;
  parent: number;
  left: number;
  width: number;
}

/** Boxes of calls; each call comes after its caller. */
export function boxes(calls: Call[]): Box[] {
  const whole = Math.max(calls[0]?.bytes ?? 0, 1);
  const found: Box[] = [];
  const chains: string[] = [];
  const path: { at: number; used: number }[] = [];
  calls.forEach((call, at) => {
    path.length = Math.min(path.length, call.depth);
    const above = path.at(-1);
    const parent = above ? found[above.at] : undefined;
    const left = parent && above ? parent.left + above.used : 0;
    const width = call.bytes / whole;
    const chain = chainOf(chains[above?.at ?? -1] ?? '', call);
    chains.push(chain);
    found.push({ call, at, id: digest(`${chain} ${call.kind}`), parent: above?.at ?? -1, left, width });
    if (above) above.used += width;
    path.push({ at, used: 0 });
  });
  return found;
}

/** A short text for a longer one: the same in every browser, and different for different texts. (cyrb53) */
export function digest(text: string): string {
  let [high, low] = [0xdeadbeef, 0x41c6ce57];
  for (let at = 0; at < text.length; at += 1) {
    const letter = text.charCodeAt(at);
    high = Math.imul(high ^ letter, 2654435761);
    low = Math.imul(low ^ letter, 1597334677);
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909);
  return (4294967296 * (2097151 & low) + (high >>> 0)).toString(36);
}

/** Identifies a line of code. */
export const frameKey = (frame: Frame): string => `${frame.function}\n${frame.file}\n${frame.line ?? ''}`;

/** Identifies a site and a function in an address. */
export const siteId = (frame: Frame | null): string => digest(frame === null ? '' : frameKey(frame));
export const functionId = (frame: Frame): string => digest(`${frame.function}\n${frame.file}`);

/** The frames that lead to a box, however they are folded. */
function chainOf(above: string, call: Call): string {
  if (call.frames.length === 0 || call.name !== undefined) return digest(`${above} ${call.owner ?? ''} ${call.name ?? ''}`);
  return call.frames.reduce((chain, frame) => digest(`${chain} ${frameKey(frame)}`), above);
}

/** A box on the screen, in pixels. */
export interface Drawn {
  box: Box;
  x: number;
  width: number;
}

/** The visible boxes if one box fills the width: its callers at full width, its callees below. */
export function drawn(of: Box[], zoom: number, pixels: number): Drawn[] {
  const to = of[zoom] ?? of[0];
  if (!to || to.width === 0) return [];
  const callers = new Set<number>();
  for (let at = to.parent; at >= 0; at = of[at]?.parent ?? -1) callers.add(at);
  const shown: Drawn[] = [];
  for (const box of of) {
    if (callers.has(box.at)) {
      shown.push({ box, x: 0, width: pixels });
      continue;
    }
    // Callees follow their caller, so those of the zoomed box come before its next sibling.
    if (box.at < to.at || !isWithin(of, box, to)) continue;
    const width = (box.width / to.width) * pixels;
    if (width >= 1) shown.push({ box, x: ((box.left - to.left) / to.width) * pixels, width });
  }
  return shown;
}

function isWithin(of: Box[], box: Box, to: Box): boolean {
  for (let at = box.at; at >= to.at; at = of[at]?.parent ?? -1) if (at === to.at) return true;
  return false;
}

/** The file's name without its folders. */
export function fileName(path: string): string {
  const name = path.split(/[/\\]/).pop() ?? '';
  return name === '' ? path : name;
}

/** `train_step  train.py:26`. */
export function place(frame: Frame): string {
  const line = frame.line === null ? '' : `:${frame.line}`;
  return `${frame.function}  ${fileName(frame.file)}${line}`;
}

/** The library that a frame belongs to. */
export function library(frame: Frame): string {
  const [, inside] = /(?:site-packages|dist-packages)[/\\]([^/\\]+)/.exec(frame.file) ?? [];
  if (inside !== undefined) return inside.replace(/\.py$/, '');
  return /python3?(?:\.\d+)?[/\\]/.test(frame.file) ? 'python' : fileName(frame.file);
}

/** The label of a box. */
export function label(call: Call): string {
  const [only] = call.frames;
  if (call.name !== undefined) return call.name;
  switch (call.kind) {
    case 'all':
      return 'everything';
    case 'frame':
      return only ? place(only) : 'unknown';
    case 'library': {
      const names = [...new Set(call.frames.map(library))];
      const count = call.frames.length;
      return `…${count} ${count === 1 ? 'frame' : 'frames'} of ${names.slice(0, 2).join(', ')}`;
    }
    case 'owner':
      return `[${call.owner ?? ''}]`;
    case 'no_stack':
      return 'without a recorded stack';
    case 'smaller':
      return 'smaller stacks';
  }
}

/** The same in other lengths, the longest first: a narrow box has the function without its line. */
export function labels(call: Call): string[] {
  const [only] = call.frames;
  const long = label(call);
  if (call.name !== undefined || only === undefined) return [long];
  return call.kind === 'frame' ? [long, only.function] : [long, long.replace(/ frames? of .*/, '')];
}

/** The first of some texts that has room, or else the start of the last one; empty if not even that has room. */
export function fitted(texts: string[], room: number, width: (text: string) => number): string {
  const whole = texts.find((text) => width(text) <= room);
  if (whole !== undefined) return whole;
  const last = texts.at(-1) ?? '';
  let length = last.length - 1;
  while (length > 1 && width(`${last.slice(0, length)}…`) > room) length -= 1;
  return length > 1 ? `${last.slice(0, length)}…` : '';
}

/** The site of a box: the innermost own line that leads to it; `null` for memory without a stack. */
export function siteOf(of: Box[], at: number): Frame | null {
  for (let box = of[at]; box; box = of[box.parent]) {
    const own = box.call.own ? box.call.frames.at(-1) : undefined;
    if (own) return own;
  }
  return null;
}

/** Its callers and itself, outermost first. */
export function stackOf(of: Box[], at: number): Frame[] {
  const frames: Frame[] = [];
  for (let box = of[at]; box; box = of[box.parent]) frames.unshift(...box.call.frames);
  return frames;
}

/** The calls of a finding: those that pass through its site, and how much they grew. */
export interface Grown {
  boxes: Set<number>;
  /** The outermost of them. */
  outermost: number[];
  bytes: number;
  blocks: number;
}

/** See `Grown`. */
export function grownThrough(of: Box[], site: Frame): Grown {
  const found: Grown = { boxes: new Set(), outermost: [], bytes: 0, blocks: 0 };
  const isIt = (frame: Frame): boolean => frame.function === site.function && frame.file === site.file && frame.line === site.line;
  for (const box of of) {
    if (found.boxes.has(box.parent)) {
      found.boxes.add(box.at);
    } else if (box.call.frames.some(isIt)) {
      found.boxes.add(box.at);
      found.outermost.push(box.at);
      found.bytes += box.call.grown_bytes - box.call.shrunk_bytes;
      found.blocks += box.call.live_blocks;
    }
  }
  return found;
}

/** Boxes with a text in their frames. */
export function hits(of: Box[], wanted: string): Set<number> {
  const text = wanted.trim().toLowerCase();
  if (text === '') return new Set();
  const has = (call: Call): boolean =>
    label(call).toLowerCase().includes(text) ||
    call.frames.some((frame) => `${frame.function} ${frame.file}`.toLowerCase().includes(text));
  return new Set(of.filter((box) => has(box.call)).map((box) => box.at));
}

/** The share of the whole within hits, each counted once. */
export function shareOf(of: Box[], found: Set<number>): number {
  const inside = (box: Box): boolean => {
    for (let at = box.parent; at >= 0; at = of[at]?.parent ?? -1) if (found.has(at)) return true;
    return false;
  };
  return of.reduce((sum, box) => (found.has(box.at) && !inside(box) ? sum + box.width : sum), 0);
}
