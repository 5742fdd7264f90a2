// The ledger as one bar, from the first part to the end of the device's memory.
//
// Guarantees: the parts add up to the sum below them. Unmeasured memory is a part of its own and is never left out.

import type { Failed, Listed } from '../api/types';

/** The classes in display order. A class's index is the number of its colour. */
export const CLASSES = ['parameters', 'gradients', 'optimizer_state', 'activations', 'temporaries', 'workspace', 'unknown'];

/** The colour of a class. */
export function colourOf(name: string | null): string {
  const at = name === null ? -1 : CLASSES.indexOf(name);
  return at < 0 ? 'c6' : `c${at}`;
}

/** A part of the device. */
export interface Part {
  name: string;
  colour: string;
  bytes: number;
}

/** The parts in the order of the bar. */
export function parts(rank: Listed): Part[] {
  const found: Part[] = rank.classes.map((share) => ({
    name: share.class.replaceAll('_', ' '),
    colour: colourOf(share.class),
    bytes: share.live_bytes,
  }));
  const add = (name: string, colour: string, value: number | null): void => {
    if (value !== null && value > 0) found.push({ name, colour, bytes: value });
  };
  add('allocated, of no class', 'unknown', rank.allocated_bytes - sum(found));
  add('cached by the allocator', 'cached', rank.cached_bytes);
  add('NCCL', 'context', rank.nccl_bytes);
  add('context and libraries', 'context', rank.context_bytes);
  add('other processes', 'others', rank.others_bytes);
  add('not measured', 'unknown', rank.unmeasured_bytes);
  add('unexplained', 'unknown', rank.unexplained_bytes);
  const rest = rank.device_total_bytes === null ? null : rank.device_total_bytes - sum(found);
  if (rank.device_used_bytes !== null) add('free', 'free', rest);
  else add('free, or used by what was not measured', 'unknown', rest);
  return found;
}

/** The sum of all parts. */
export function sum(of: Part[]): number {
  return of.reduce((all, part) => all + part.bytes, 0);
}

/** Notes below the bar. */
export function notes(rank: Listed): string[] {
  const said: string[] = [];
  const known = sum(parts(rank));
  const total = rank.device_total_bytes;
  if (total === null) said.push("The device's size was not recorded: the bar ends with what is known.");
  else if (known > total) said.push('The parts, measured at different moments, exceed the device.');
  if (rank.measured_at === null) {
    said.push('The device was not measured around this moment: its use outside the allocator is unknown.');
  }
  if (!rank.exact) said.push("NOT EXACT: events are missing, so the allocator's part may be wrong.");
  return said;
}

/** A failed request on the bar: the memory that was held, and the request as a part that does not fit. */
export interface NoRoom {
  /** The memory that was held when the request failed. Free memory is not among it. */
  held: Part[];
  request: Part;
  /** The maximum memory of the process: its own limit, or what it held and the free memory of the device. The request ends to the right of it. */
  limit: number;
  /** The right end of the bar. */
  end: number;
  /** The largest free block in the cache that could have served the request. */
  hole: number;
  /** The largest request that could have been served, from this block or with a new segment. */
  fits: number;
}

/** The allocator's part of a ledger at a failure, followed by the failed request. */
export function noRoom(rank: Listed, failed: Failed): NoRoom {
  const isHeld = (part: Part): boolean => part.colour.startsWith('c') && part.colour !== 'context';
  const held = parts({ ...rank, device_total_bytes: null, device_used_bytes: null }).filter((part) => isHeld(part) || part.name === 'allocated, of no class');
  const reserved = sum(held);
  const limit = Math.max(failed.limit_at_least_bytes ?? reserved + failed.device_free_bytes, reserved);
  return {
    held,
    request: { name: 'requested', colour: 'request', bytes: failed.asked_bytes },
    limit,
    end: Math.max(limit, reserved + failed.asked_bytes),
    hole: failed.largest_usable_bytes,
    fits: Math.max(failed.largest_usable_bytes, limit - reserved),
  };
}
