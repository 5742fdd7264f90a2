// Rows of blocks as pixels, painted into memory so that a frame costs what is in view and not the whole.
//
// Guarantees: pure; every live block has at least a pixel; rows outside the view cost nothing.

import { holesOf, living, mayServe, type Line, type Row, type Stretch } from './blocks';

/** Height of a row in pixels, with the gap below it. */
export const ROW = 14;
const GAP = 3;
/** The width of the frame around the chosen block. */
const FRAME = 2;

/** Colours in pixel format: alpha, blue, green, red. */
export interface Paint {
  /** The colour of a block. */
  block: (index: number) => number;
  ground: number;
  free: number;
  pinned: number;
  edge: number;
  chosen: number;
  tooSmall: number;
  fits: number;
}

/** What to draw. */
export interface Scene {
  of: Stretch;
  event: number;
  /** The lines, the first one in view, and the visible part of the rows' width, 0 to 1. */
  lines: Line[];
  first: number;
  from: number;
  to: number;
  chosen: number | null;
  /** A request that looks for a place. */
  request: { bytes: number; small: boolean; stream: string } | null;
}

/** `#rrggbb` as a pixel. */
export function pixel(colour: string): number {
  const value = Number.parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Paints the rows in view into `out`, which has `width` times `height` pixels. */
export function raster(scene: Scene, paint: Paint, width: number, height: number, out: Uint32Array): void {
  out.fill(paint.ground);
  const shown = Math.ceil(height / ROW);
  const line = new Uint32Array(width);
  const hatch = new Uint8Array(width);
  for (let at = 0; at < shown; at += 1) {
    const here = scene.lines[scene.first + at];
    if (!here) break;
    const row = here.row === null ? undefined : scene.of.rows[here.row];
    if (!row || here.row === null) continue;
    line.fill(paint.ground);
    hatch.fill(0);
    const chosen = paintRow(scene, paint, row, here.row, line, hatch);
    for (let y = 0; y < ROW - GAP; y += 1) {
      const top = at * ROW + y;
      if (top >= height) break;
      out.set(line, top * width);
      for (let x = 0; x < width; x += 1) if (hatch[x] === 1 && (x + y) % 4 === 0) out[top * width + x] = paint.edge;
      if (chosen === null) continue;
      // (A frame: the chosen block keeps its colour.)
      const [a, b] = [top * width + chosen[0], top * width + chosen[1]];
      if (y < FRAME || y >= ROW - GAP - FRAME || b - a <= 2 * FRAME) out.fill(paint.chosen, a, b);
      else {
        out.fill(paint.chosen, a, a + FRAME);
        out.fill(paint.chosen, b - FRAME, b);
      }
    }
  }
}

function paintRow(scene: Scene, paint: Paint, row: Row, at: number, line: Uint32Array, hatch: Uint8Array): [number, number] | null {
  const { of, event } = scene;
  const width = line.length;
  const scale = width / Math.max(row.scale * (scene.to - scene.from), 1);
  const left = row.address + row.scale * scene.from;
  const x = (address: number): number => Math.floor((address - left) * scale);
  const span = (from: number, bytes: number): [number, number] => {
    const [a, b] = [x(from), x(from + bytes)];
    return [Math.max(a, 0), Math.min(Math.max(b, a + 1), width)];
  };
  for (const hole of holesOf(of, row, at, event)) {
    const [a, b] = span(hole.from, hole.bytes);
    if (a >= b) continue;
    const { request } = scene;
    const serves = request !== null && mayServe(row, request.small, request.stream);
    const colour = !serves ? (hole.pinned ? paint.pinned : paint.free) : hole.bytes >= request.bytes ? paint.fits : paint.tooSmall;
    line.fill(colour, a, b);
    if (hole.pinned) hatch.fill(1, a, b);
  }
  const { address, bytes } = of.of.blocks;
  let chosen: [number, number] | null = null;
  for (const block of living(of, row, event)) {
    const [a, b] = span(address[block] ?? 0, bytes[block] ?? 0);
    if (a >= b) continue;
    line.fill(paint.block(block), a, b);
    if (block === scene.chosen) chosen = [a, b];
    hatch.fill(0, a, b);
    if (b - a >= 4) line[a] = paint.edge;
  }
  return chosen;
}
