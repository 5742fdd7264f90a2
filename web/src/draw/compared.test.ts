import { expect, test } from 'vitest';
import { compared } from './compared';
import type { Sample } from './course';

const sample = (step: number, at: number, max: number): Sample => ({ from: at, to: at, epoch: 0, step, min: 0, max, last: max, reserved: max, peakReserved: max });

test('two runs lie over each other by step, on one scale', () => {
  const of = compared([sample(1, 100, 50), sample(2, 110, 100)], [sample(1, 9000, 100), sample(4, 9900, 200)]);
  expect(of).toEqual({ by: 'step', end: 4, top: 200, before: 'M250.0 750.0L500.0 500.0', after: 'M250.0 500.0L1000.0 0.0' });
});

test('without steps of both, the time since the start is the axis', () => {
  const of = compared([sample(0, 100, 50), sample(0, 200, 50)], [sample(1, 5000, 50), sample(2, 5050, 100)]);
  expect(of).toEqual({ by: 'time', end: 100, top: 100, before: 'M0.0 500.0L1000.0 500.0', after: 'M0.0 500.0L500.0 0.0' });
});

test('a run without points is not compared', () => {
  expect(compared([], [sample(1, 1, 1)])).toBeNull();
});
