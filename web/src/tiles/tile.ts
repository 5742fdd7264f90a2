// Tiles of a timeline: which ones a view needs, how their bytes are decoded, and the points of several tiles.
//
// Guarantees: pure; a view needs at most three tiles, regardless of the job's length; a missing tile is replaced by a
// coarser one, or else by the points of the timeline.
// Refuses: bytes that are not a tile.

import type { Mark, TileHead } from '../api/types';
import { clamp, type Sample, type Stretch } from '../draw/course';
import { moment } from '../words/numbers';

/** Slots of a tile, as in the daemon. */
export const SLOTS = 512;
/** The most slots of a view: more than one per pixel shows nothing. */
const COLUMNS = 1024;
/** Slots of a microsecond: times in milliseconds since 1970 are no more precise. */
const LEVEL_MIN = 10;
const LEVEL_MAX = 50;
/** How much coarser a replacement tile may be. */
const COARSER = 12;
const NS_PER_MS = 1e6;

/** A tile's position. */
export interface Place {
  level: number;
  index: number;
}

/** A tile as the page uses it. */
export interface Tile extends Place, Stretch {
  session: string;
  first: number;
  count: number;
  isFinal: boolean;
  /** Chunks that a repeated request would refine. */
  coarse: number;
  marks: Mark[];
  min: Float64Array;
  max: Float64Array;
  last: Float64Array;
  reservedMax: Float64Array;
  reserved: Float64Array;
}

const slotMs = (level: number): number => 2 ** level / NS_PER_MS;

/** The stretch of a tile. */
export function stretchOf({ level, index }: Place): Stretch {
  const length = SLOTS * slotMs(level);
  return { from: index * length, to: (index + 1) * length };
}

/** The tiles that a view needs, of the finest level whose slots it can show. */
export function placesIn(view: Stretch): Place[] {
  const level = clamp(Math.ceil(Math.log2(((view.to - view.from) * NS_PER_MS) / COLUMNS)), LEVEL_MIN, LEVEL_MAX);
  const length = SLOTS * slotMs(level);
  const [first, last] = [Math.floor(view.from / length), Math.floor(view.to / length)];
  return Array.from({ length: last - first + 1 }, (_, at) => ({ level, index: first + at }));
}

/** Decodes a tile. */
export function opened(bytes: ArrayBuffer): Tile {
  const end = new Uint8Array(bytes).indexOf(10) + 1;
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 0, end))) as TileHead;
  const { level, index, count, columns } = head;
  if (end % 8 !== 0 || bytes.byteLength !== end + columns.length * count * 8) throw new Error('these bytes are no tile');
  // (All machines that run browsers have this byte order.)
  const column = (name: string): Float64Array => {
    const at = columns.indexOf(name);
    if (at < 0) throw new Error(`a tile has no column ${name}`);
    return new Float64Array(bytes, end + at * count * 8, count);
  };
  return {
    ...stretchOf({ level, index }),
    level,
    index,
    session: head.session,
    first: head.first_slot,
    count,
    isFinal: head.is_final,
    coarse: head.coarse_chunks,
    marks: head.marks,
    min: column('allocated_min_bytes'),
    max: column('allocated_max_bytes'),
    last: column('allocated_bytes'),
    reservedMax: column('reserved_max_bytes'),
    reserved: column('reserved_bytes'),
  };
}

/** How many tiles' points are cached: those of a view, and of adjacent views. */
const MADE = 8;

interface TilePoints {
  points: Sample[];
  course: Sample[];
}

const made = new Map<Tile, TilePoints>();

/** The named points of a tile within a stretch. Computed once per tile, so that a moving view allocates nothing. */
function pointsOf(tile: Tile, within: Stretch, course: Sample[]): Sample[] {
  let known = made.get(tile);
  made.delete(tile);
  if (known?.course !== course) known = { course, points: named(allOf(tile), course, tile.marks) };
  made.set(tile, known);
  for (const oldest of made.keys()) {
    if (made.size <= MADE) break;
    made.delete(oldest);
  }
  const slot = slotMs(tile.level);
  const begin = Math.max(0, Math.round((within.from - tile.from) / slot) - tile.first);
  const end = Math.round((within.to - tile.from) / slot) - tile.first;
  return known.points.slice(begin, Math.max(begin, end));
}

function allOf(tile: Tile): Sample[] {
  const slot = slotMs(tile.level);
  const found: Sample[] = [];
  for (let at = 0; at < tile.count; at += 1) {
    const from = tile.from + (tile.first + at) * slot;
    found.push({
      from,
      to: from + slot,
      epoch: 0,
      step: 0,
      min: tile.min[at] ?? 0,
      max: tile.max[at] ?? 0,
      last: tile.last[at] ?? 0,
      reserved: tile.reserved[at] ?? 0,
      peakReserved: tile.reservedMax[at] ?? 0,
    });
  }
  return found;
}

/** The points of consecutive positions, from the tiles in `known`, and elsewhere from `course`. */
export function pointsIn(places: Place[], known: (place: Place) => Tile | undefined, course: Sample[]): Sample[] {
  return places.flatMap((place) => {
    const within = stretchOf(place);
    for (let up = 0; up <= COARSER; up += 1) {
      const tile = known({ level: place.level + up, index: Math.floor(place.index / 2 ** up) });
      if (tile) return pointsOf(tile, within, course);
    }
    return course.filter((sample) => sample.from < within.to && sample.to > within.from);
  });
}

/** Sets the current epoch and step of points: from the marks, or else from the nearest point of `course`. (They are changed in
 * place: a moving picture would leave thousands of copies behind.) */
export function named(points: Sample[], course: Sample[], marks: Mark[]): Sample[] {
  let [near, next] = [0, 0];
  let [epoch, step]: (number | null)[] = [null, null];
  const times = marks.map((mark) => moment(mark.at));
  for (const point of points) {
    for (; near + 1 < course.length && (course[near]?.to ?? Infinity) < point.to; near += 1);
    for (; (times[next] ?? Infinity) < point.to; next += 1) {
      const mark = marks[next];
      if (mark?.kind.startsWith('epoch_')) epoch = mark.value;
      if (mark?.kind.startsWith('step_')) step = mark.value;
    }
    point.epoch = epoch ?? course[near]?.epoch ?? 0;
    point.step = step ?? course[near]?.step ?? 0;
  }
  return points;
}
