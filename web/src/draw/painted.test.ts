// Columns of pixels and lines, without a browser.

import { expect, test } from 'vitest';
import type { Sample } from './course';
import { paintEnvelope, trace } from './painted';

const point = (from: number, min: number, max: number): Sample => ({ from, to: from + 10, epoch: 0, step: 0, min, max, last: max, reserved: max, peakReserved: max });

function painted(of: Sample[], width: number, height: number, top: number): number[][] {
  const out = new Uint32Array(width * height);
  paintEnvelope(of, { from: 0, to: 40 }, top, 9, width, height, out);
  // Columns of pixels, from the bottom up.
  return Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => out[(height - 1 - y) * width + x] ?? 0));
}

test('a column goes from the lowest to the highest, a pixel at least', () => {
  const [none, column] = painted([point(10, 3, 6)], 4, 10, 10);
  expect(none).toEqual(new Array(10).fill(0));
  expect(column).toEqual([0, 0, 0, 9, 9, 9, 0, 0, 0, 0]);
  expect(painted([point(0, 6, 6)], 4, 10, 10)[0]).toEqual([0, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
});

test('what lies beyond the picture is cut', () => {
  const pixels = painted([point(-5, 0, 70), point(35, 0, 90), point(90, 0, 70)], 4, 4, 70);
  expect(pixels).toEqual([[9, 9, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0], [9, 9, 9, 9]]);
});

test('a line goes over the points in view', () => {
  const drawn: string[] = [];
  const pen = { moveTo: (x: number, y: number) => drawn.push(`M${x} ${y}`), lineTo: (x: number, y: number) => drawn.push(`L${x} ${y}`) };
  const of = [point(-30, 0, 9), point(0, 2, 5), point(10, 0, 0), point(60, 0, 9)];
  trace(of, { from: 0, to: 40 }, 10, 'max', 400, 10, pen);
  expect(drawn).toEqual(['M0 5', 'L100 5', 'L100 10', 'L200 10']);
});
