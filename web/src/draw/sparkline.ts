// A sparkline in the list of jobs: allocated as a band from lowest to highest, reserved as a line above it.
//
// Guarantees: pure; coordinates are in a square of UNITS, from 0 bytes to the highest value.

import type { Sparkline } from '../api/types';

/** Width and height of the drawing. */
export const UNITS = 100;

/** The paths; `null` if there is nothing to draw. */
export function sparkline(of: Sparkline): { allocated: string; reserved: string; top: number } | null {
  const { peak_allocated_bytes: highest, min_allocated_bytes: lowest, reserved_bytes: reserved } = of;
  const top = Math.max(0, ...highest, ...reserved);
  if (highest.length === 0 || top === 0) return null;
  const x = (at: number): string => ((UNITS * at) / Math.max(highest.length - 1, 1)).toFixed(1);
  const y = (value: number): string => (UNITS * (1 - value / top)).toFixed(1);
  const points = (values: number[]): string[] => values.map((value, at) => `${x(at)} ${y(value)}`);
  return {
    allocated: `M${points(highest).join('L')}L${points(lowest).reverse().join('L')}Z`,
    reserved: `M${points(reserved).join('L')}`,
    top,
  };
}
