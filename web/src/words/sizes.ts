// Forecasts of other sizes in words, and the size that a job was recorded at.
//
// Guarantees: pure; a size fits only if the response says so.
// Refuses: numbers that `memctl fit` refuses.

import type { Fit, Scaled } from '../api/types';
import { bytes, count, plural } from './numbers';

/** The largest batch, sequence or number of layers. */
export const SIZE_MAX = 2 ** 24;

/** The number of `8`; `null` if it is not one. */
export function sizeOf(text: string): number | null {
  const size = /^\s*\d{1,8}\s*$/.test(text) ? Number(text) : 0;
  return size >= 1 && size <= SIZE_MAX ? size : null;
}

/** The largest size that fits, or why none is named; `isAsked` says whether the user gave the memory. */
export function largestSaid(of: Fit, isAsked: boolean): string {
  const memory = of.device_memory_bytes;
  if (memory === null) return 'What the process may have is not known, so no size is said to fit.';
  const sentence = isAsked ? '' : `A request of this process failed, which tells that it may have ${bytes(memory)}. `;
  if (of.largest_that_fits === null) return `${sentence}No size fits in ${bytes(memory)}.`;
  return `${sentence}The largest size that fits in ${bytes(memory)} is ${count(of.largest_that_fits)}.`;
}

/** Why a size fits although its figures are above the memory; empty if there is none. */
export function aboveSaid(of: Fit): string {
  const memory = of.device_memory_bytes;
  if (memory === null || !of.at.some((point) => point.fits === true && point.high > memory)) return '';
  return `Figures are those without a limit. Under one, memory that is cached goes back to the device before a request fails: so a size may fit although its figures are above ${bytes(memory)}.`;
}

/** How the requests were scaled. */
export function scaledSaid(of: Scaled): string {
  const [all, fixed, grows, doubt] = [plural(of.requests, 'request'), count(of.fixed), count(of.proportional), count(of.doubtful)];
  return `One recording only, which is weaker than two: of ${all} ${fixed} are taken to stay the same (${bytes(of.fixed_bytes)}), ${grows} to grow in proportion (${bytes(of.proportional_bytes)}); ${doubt} of them are in doubt (${bytes(of.doubtful_bytes)}).`;
}
