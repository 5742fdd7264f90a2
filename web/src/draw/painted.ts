// Allocated memory over time, painted: each point is a column of pixels from its lowest to its highest value, with lines
// on top.
//
// Guarantees: pure, and allocates nothing per frame; pixels without a point stay clear.

import { share, type Sample, type Stretch } from './course';

/** Paints the points in view into `out`, which has `width` times `height` clear pixels; `top` is the height in bytes. */
export function paintEnvelope(of: Sample[], view: Stretch, top: number, colour: number, width: number, height: number, out: Uint32Array): void {
  const y = (value: number): number => Math.round(height * (1 - Math.min(Math.max(value / top, 0), 1)));
  for (const point of of) {
    if (point.to < view.from || point.from > view.to) continue;
    const left = Math.max(Math.floor(width * share(view, point.from)), 0);
    const right = Math.min(Math.max(Math.floor(width * share(view, point.to)), left + 1), width);
    if (left >= right) continue;
    const from = y(point.max);
    // At least a pixel.
    const to = Math.max(y(point.min), from + 1);
    for (let row = from; row < to; row += 1) out.fill(colour, row * width + left, row * width + right);
  }
}

/** The methods that draw a line. */
export type Pen = Pick<CanvasRenderingContext2D, 'moveTo' | 'lineTo'>;

/** One value of the points in view as a stepped line. */
export function trace(of: Sample[], view: Stretch, top: number, value: 'min' | 'max' | 'reserved', width: number, height: number, pen: Pen): void {
  let isBegun = false;
  for (const point of of) {
    if (point.to < view.from || point.from > view.to) continue;
    const y = height * (1 - point[value] / top);
    const left = width * Math.max(share(view, point.from), -1);
    if (isBegun) pen.lineTo(left, y);
    else pen.moveTo(left, y);
    pen.lineTo(width * Math.min(share(view, point.to), 2), y);
    isBegun = true;
  }
}
