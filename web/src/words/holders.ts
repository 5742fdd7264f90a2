// The holders of a finding's blocks, in words in addition to the daemon's sentence.
//
// Guarantees: an unknown figure is left out.
// Refuses: to say that nothing holds the blocks: the sentence says what was searched.

import type { FindingHolders, GrowingHolder } from '../api/types';
import { plural } from './numbers';

/** A step of a chain: its description, and the name in it, which is shown as code. */
export interface Step {
  before: string;
  name: string;
  behind: string;
}

/** Splits `global `KEPT`` into three parts; a step without a name is one part. */
export function step(text: string): Step {
  const parts = /^([^`]*)`([^`]*)`(.*)$/.exec(text);
  return parts === null ? { before: text, name: '', behind: '' } : { before: parts[1] ?? '', name: parts[2] ?? '', behind: parts[3] ?? '' };
}

/** `200 of 256 blocks, 480 tensors in epoch 3`. */
export function share(holder: GrowingHolder, of: FindingHolders): string {
  const blocks = of.asked_blocks === null ? plural(holder.blocks, 'block') : `${holder.blocks} of ${plural(of.asked_blocks, 'block')}`;
  if (holder.tensors_before === null || holder.since_epoch === null || holder.tensors_before === holder.tensors) return blocks;
  return `${blocks}, ${plural(holder.tensors_before, 'tensor')} in epoch ${holder.since_epoch}`;
}

/** `Asked by the daemon; the process stood still for 81 ms.` */
export function asked(of: FindingHolders): string {
  const who = of.unasked ? 'Asked by the daemon' : 'Asked with `memctl holders`';
  if (of.took_seconds === null) return `${who}.`;
  return `${who}; the process stood still for ${(of.took_seconds * 1e3).toFixed(0)} ms.`;
}
