// The colour of a block: by class, site, age or stream.
//
// Guarantees: colours that colour-blind people can distinguish; a site has the same colour at every event.

import { living, type Stretch } from '../draw/blocks';
import { pixel, type Paint } from '../draw/raster';
import { place } from '../draw/flame';
import { CLASS_COLOURS, OTHER, PALETTE } from '../draw/palette';

/** The meaning of colours. */
export type By = 'class' | 'site' | 'age' | 'stream';
export const BY: By[] = ['class', 'site', 'age', 'stream'];

/** From the oldest to the youngest. */
const AGES = ['#5c2d86', '#4b4a96', '#365c8d', '#277f8e', '#1fa187', '#4ac16d', '#a0da39', '#d8c21a'];
/** The most entries of a legend. */
const LISTED = 8;

/** The colours of a stretch, and their meaning. */
export interface Meaning {
  block: (index: number) => number;
  legend: { colour: string; text: string }[];
}

/** See the module. */
export function meaning(of: Stretch, by: By): Meaning {
  const { blocks, classes, frames, sites } = of.of;
  const keys: (index: number) => string = {
    class: (index: number) => classes[blocks.class[index] ?? -1] ?? 'unknown',
    site: (index: number) => {
      const frame = frames[sites[blocks.stack[index] ?? 0] ?? -1];
      return frame ? place(frame) : 'without a recorded stack';
    },
    age: () => '',
    stream: () => '',
  }[by];
  if (by === 'age') return ages(of);
  const bytes = new Map<string, number>();
  const key = by === 'stream' ? streams(of) : keys;
  blocks.bytes.forEach((size, index) => bytes.set(key(index), (bytes.get(key(index)) ?? 0) + size));
  const order = [...bytes].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const colours = new Map(order.map((name, at) => [name, by === 'class' ? (CLASS_COLOURS[name] ?? OTHER) : (PALETTE[at] ?? OTHER)]));
  const pixels = new Map([...colours].map(([name, colour]) => [name, pixel(colour)]));
  const named = order.filter((name) => by === 'class' || colours.get(name) !== OTHER).slice(0, LISTED);
  const legend = named.map((name) => ({ colour: colours.get(name) ?? OTHER, text: by === 'class' ? name.replaceAll('_', ' ') : name }));
  if (named.length < order.length) legend.push({ colour: OTHER, text: `${order.length - named.length} others` });
  const other = pixel(OTHER);
  const painted = Uint32Array.from(blocks.bytes, (_, index) => pixels.get(key(index)) ?? other);
  return { block: (index) => painted[index] ?? other, legend };
}

function streams(of: Stretch): (index: number) => string {
  const names: string[] = [];
  for (const row of of.rows) for (const block of row.blocks) names[block] = row.stream === '0' ? 'default stream' : `stream ${row.stream}`;
  return (index) => names[index] ?? 'in no known segment';
}

function ages(of: Stretch): Meaning {
  const { birth_epoch: epochs } = of.of.blocks;
  const known = [...new Set(epochs)].sort((a, b) => a - b);
  const at = (epoch: number): string => AGES[known.length < 2 ? 0 : Math.floor((known.indexOf(epoch) * (AGES.length - 1)) / (known.length - 1))] ?? OTHER;
  const colours = new Map(known.map((epoch) => [epoch, at(epoch)]));
  const painted = Uint32Array.from(epochs, (epoch) => pixel(colours.get(epoch) ?? OTHER));
  const step = Math.max(1, Math.ceil(known.length / LISTED));
  const legend = known.filter((_, index) => index % step === 0 || index === known.length - 1).map((epoch) => ({ colour: at(epoch), text: `born in epoch ${epoch}` }));
  return { block: (index) => painted[index] ?? 0, legend };
}

/** All other colours, in light and in dark. */
export function surroundings(dark: boolean, block: Paint['block']): Paint {
  return {
    block,
    ground: pixel(dark ? '#14171a' : '#ffffff'),
    free: pixel(dark ? '#2b3138' : '#e4e8ec'),
    pinned: pixel(dark ? '#3a4149' : '#d5dbe1'),
    edge: pixel(dark ? '#14171a' : '#ffffff'),
    chosen: pixel(dark ? '#ffffff' : '#000000'),
    tooSmall: pixel('#d55e00'),
    fits: pixel(dark ? '#6fcf85' : '#116329'),
  };
}

/** The block at an address of a row. */
export function blockAt(of: Stretch, row: number, address: number, event: number): number | null {
  const here = of.rows[row];
  if (!here) return null;
  const { address: first, bytes } = of.of.blocks;
  const found = living(of, here, event).find((block) => (first[block] ?? 0) <= address && address < (first[block] ?? 0) + (bytes[block] ?? 0));
  return found ?? null;
}
