// The two pins of a job, A and B: times that the user set on its timeline, and that every view of the job knows by name.
//
// Guarantees: they last as long as the page; an address that is shared contains the times themselves.

import { signal } from '@preact/signals';
import type { JobAddress } from '../route';

/** Times, as addresses have them. */
export interface Pins {
  a: string | null;
  b: string | null;
}

const NONE: Pins = { a: null, b: null };

const kept = signal<Record<string, Pins>>({});

const key = (job: JobAddress): string => JSON.stringify([job.tenant, job.name, job.attempt]);

/** The pins of a job. */
export function pinsOf(job: JobAddress): Pins {
  return kept.value[key(job)] ?? NONE;
}

/** Sets one of them. */
export function pin(job: JobAddress, which: keyof Pins, at: string): void {
  kept.value = { ...kept.value, [key(job)]: { ...pinsOf(job), [which]: at } };
}

/** `pin A`, if a time is one. */
export function pinName(pins: Pins, at: string): string | null {
  return at === pins.a ? 'pin A' : at === pins.b ? 'pin B' : null;
}
