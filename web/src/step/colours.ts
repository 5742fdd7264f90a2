// The colour of a block of a step: by class or by site.
//
// Guarantees: neighbours of one colour differ a little in brightness, so that each block is seen. The legend names every
// colour that is drawn.

import type { StepMemory } from '../api/types';
import { place } from '../draw/flame';
import { CLASS_COLOURS, OTHER, PALETTE } from '../draw/palette';
import { pixel } from '../draw/raster';
import type { Paint } from '../draw/step';
import { bytes as inUnits, plural } from '../words/numbers';

/** The meaning of colours. */
export type By = 'class' | 'site';
export const BY: By[] = ['class', 'site'];

/** Blocks whose site is not known. */
const [NONE, UNKNOWN] = ['without a recorded stack', '#b4bac1'];
/** The most sites of the legend; all others are grey. */
const LISTED = 8;
/** Every other block has this share of its colour's brightness, and an edge has less. */
const [DIM, EDGE] = [0.86, 0.6];

/** The colours, and their meaning. */
export interface Meaning {
  paint: Paint;
  legend: { colour: string; text: string }[];
}

/** A colour with a share of its brightness. */
export function dimmed(colour: string, by: number): string {
  const parts = [1, 3, 5].map((at) => Math.round(Number.parseInt(colour.slice(at, at + 2), 16) * by));
  return `#${parts.map((part) => part.toString(16).padStart(2, '0')).join('')}`;
}

/** The name of a block's class. */
export function classOf(of: StepMemory, block: number): string {
  return (of.classes[of.blocks.class[block] ?? -1] ?? 'unknown').replaceAll('_', ' ');
}

/** The line of a stack that is the user's own, or else its innermost one. */
export function lineOf(of: StepMemory, stack: number | undefined): string | null {
  const frame = of.frames[of.sites[stack ?? 0] ?? of.stacks[stack ?? 0]?.[0] ?? -1];
  return frame ? place(frame) : null;
}

/** See the module. */
export function meaning(of: StepMemory, by: By, dark: boolean): Meaning {
  const { bytes } = of.blocks;
  const name = (block: number): string =>
    by === 'class' ? (of.classes[of.blocks.class[block] ?? -1] ?? 'unknown') : (lineOf(of, of.blocks.stack[block]) ?? NONE);
  const names = bytes.map((_, block) => name(block));
  const sums = new Map<string, number>();
  const atPeak = new Map<string, number>();
  names.forEach((known, block) => {
    sums.set(known, (sums.get(known) ?? 0) + (bytes[block] ?? 0));
    const isLive = (of.blocks.from_event[block] ?? 0) <= of.peak.event && of.peak.event < (of.blocks.to_event[block] ?? Infinity);
    if (isLive) atPeak.set(known, (atPeak.get(known) ?? 0) + (bytes[block] ?? 0));
  });
  // (By what they have at the peak, which the legend says.)
  const order = [...sums].sort((a, b) => (atPeak.get(b[0]) ?? 0) - (atPeak.get(a[0]) ?? 0) || b[1] - a[1]).map(([known]) => known);
  const sites = order.filter((known) => known !== NONE).slice(0, LISTED);
  const ofSite = (known: string): string => (known === NONE ? UNKNOWN : (PALETTE[sites.indexOf(known)] ?? OTHER));
  const colours = new Map(order.map((known) => [known, by === 'class' ? (CLASS_COLOURS[known] ?? OTHER) : ofSite(known)]));
  const tones = (share: number): Map<string, number> => new Map([...colours].map(([known, colour]) => [known, pixel(dimmed(colour, share))]));
  const [plain, dim, edge] = [tones(1), tones(DIM), tones(EDGE)];
  const painted = Uint32Array.from(names, (known, block) => (block % 2 === 0 ? plain : dim).get(known) ?? 0);
  const edges = Uint32Array.from(names, (known) => edge.get(known) ?? 0);
  const peak = (known: string[]): string => inUnits(known.reduce((sum, one) => sum + (atPeak.get(one) ?? 0), 0));
  const listed = order.filter((known) => by === 'class' || colours.get(known) !== OTHER);
  const others = order.filter((known) => !listed.includes(known));
  const legend = listed.map((known) => ({ colour: colours.get(known) ?? OTHER, text: `${by === 'class' ? known.replaceAll('_', ' ') : known}, ${peak([known])}` }));
  if (others.length > 0) legend.push({ colour: OTHER, text: `${plural(others.length, 'other site')}, ${peak(others)}` });
  // (The peak is a point, whatever the number of events of a point.)
  const restAtPeak = of.points.rest_bytes[of.points.event.indexOf(of.peak.event)] ?? 0;
  const rest = dark ? '#3a4149' : '#d5dbe1';
  return {
    paint: {
      block: (block) => painted[block] ?? 0,
      edge: (block) => edges[block] ?? 0,
      rest: pixel(rest),
      restEdge: pixel(dimmed(rest, dark ? 1.6 : 0.75)),
    },
    legend: of.rest_blocks > 0 ? [...legend, { colour: rest, text: `all smaller blocks, ${inUnits(restAtPeak)}` }] : legend,
  };
}
