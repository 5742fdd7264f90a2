// An allocator's segments as rows and its blocks as rectangles: from columns of block lifetimes to rows to draw.
//
// Guarantees: pure. A stretch is a series of consecutive events. A row is a range of addresses. At some time of the
// stretch this range was one segment, or adjoining mapped ranges of one expandable segment.
// After the n-th event, the live items are those with `from <= n < to`.

import type { Blocks, Segment } from '../api/types';
import { bytes as inUnits } from '../words/numbers';

/** A range of addresses, and its contents. */
export interface Row {
  address: number;
  bytes: number;
  stream: string;
  pool: string | null;
  owner: string | null;
  small: boolean;
  expandable: boolean;
  /** Segments, by index. */
  segments: number[];
  /** Blocks, by index, in the order of their addresses. */
  blocks: number[];
  /** The longest row of its group: the rows of a group share a scale. */
  scale: number;
}

/** A stretch, ready to be drawn at any of its events. */
export interface Stretch {
  of: Blocks;
  rows: Row[];
  /** For blocks and segments: the event after which they exist, and the one after which they do not. */
  from: Float64Array;
  to: Float64Array;
  segmentFrom: Float64Array;
  segmentTo: Float64Array;
  /** Blocks outside all known segments. */
  loose: number;
}

const lives = (from: (number | null)[], to: (number | null)[]): [Float64Array, Float64Array] => [
  Float64Array.from(from, (event) => event ?? -Infinity),
  Float64Array.from(to, (event) => event ?? Infinity),
];

const group = (of: Segment | Row): string => `${of.pool ?? ''} ${of.stream} ${of.small ? 's' : 'l'} ${of.expandable ? 'x' : ''}`;

/** See the module. */
export function stretch(of: Blocks): Stretch {
  const rows = rowsOf(of.segments);
  const byAddress = rows.toSorted((a, b) => a.address - b.address);
  let [at, loose] = [0, 0];
  // Blocks are sorted by address.
  of.blocks.address.forEach((address, index) => {
    for (let row = byAddress[at]; row && row.address + row.bytes <= address; row = byAddress[at]) at += 1;
    const row = byAddress[at];
    if (row && row.address <= address) row.blocks.push(index);
    else loose += 1;
  });
  const [from, to] = lives(of.blocks.from_event, of.blocks.to_event);
  const [segmentFrom, segmentTo] = lives(
    of.segments.map((segment) => segment.from_event),
    of.segments.map((segment) => segment.to_event),
  );
  return { of, rows, from, to, segmentFrom, segmentTo, loose };
}

function rowsOf(segments: Segment[]): Row[] {
  const order = segments.map((_, index) => index).sort((a, b) => (segments[a]?.address ?? 0) - (segments[b]?.address ?? 0));
  const rows: Row[] = [];
  for (const index of order) {
    const segment = segments[index];
    if (!segment) continue;
    const last = rows.at(-1);
    const end = last ? last.address + last.bytes : -1;
    // Adjoining ranges of expandable segments become one row. A range that begins inside the last row uses the same
    // addresses at another time, so it belongs to that row.
    const joins = last !== undefined && (segment.address < end || (segment.address === end && segment.expandable && group(last) === group(segment)));
    if (joins) {
      last.bytes = Math.max(last.bytes, segment.address + segment.bytes - last.address);
      last.segments.push(index);
    } else {
      const { address, bytes, stream, pool, owner, small, expandable } = segment;
      rows.push({ address, bytes, stream, pool, owner, small, expandable, segments: [index], blocks: [], scale: bytes });
    }
  }
  const longest = new Map<string, number>();
  for (const row of rows) longest.set(group(row), Math.max(longest.get(group(row)) ?? 0, row.bytes));
  for (const row of rows) row.scale = longest.get(group(row)) ?? row.bytes;
  return rows.sort((a, b) => (group(a) < group(b) ? -1 : group(a) > group(b) ? 1 : a.address - b.address));
}

/** A group of rows, in words. */
export function groupName(row: Row): string {
  const pool = row.pool === null ? '' : `private pool ${row.pool}${row.owner === null ? '' : ` of ${row.owner}`}, `;
  const stream = row.stream === '0' ? 'default stream' : `stream ${row.stream}`;
  return `${pool}${stream}, ${row.small ? 'blocks up to 1 MiB' : 'larger blocks'}${row.expandable ? ', expandable' : ''}`;
}

/** Whether a row begins another group than the previous one. */
export function beginsGroup(rows: Row[], at: number): boolean {
  const [here, before] = [rows[at], rows[at - 1]];
  return here !== undefined && (before === undefined || group(here) !== group(before));
}

/** A line of the picture: a row, or the head above the rows of a group. */
export interface Line {
  /** The row's index; `null` for a head. */
  row: number | null;
  /** The first row of its group. */
  first: Row;
}

/** The lines of all rows, each group below its head. */
export function linesOf(rows: Row[]): Line[] {
  let first = rows[0];
  return rows.flatMap((row, at): Line[] => {
    if (!beginsGroup(rows, at)) return [{ row: at, first: first ?? row }];
    first = row;
    return [{ row: null, first: row }, { row: at, first: row }];
  });
}

/** The same stretch with one scale for all rows. */
export function onOneScale(of: Stretch): Stretch {
  const longest = of.rows.reduce((most, row) => Math.max(most, row.bytes), 0);
  return { ...of, rows: of.rows.map((row) => ({ ...row, scale: longest })) };
}

/** What a group's head says: its name, its segments after an event, and the bytes that the full width stands for, compared
 * with the group above. */
export function headOf(of: Stretch, first: Row, event: number): string {
  const own = of.rows.filter((row) => group(row) === group(first));
  const at = of.rows.indexOf(first);
  const before = of.rows[at - 1];
  const sizes = own.map((row) => held(of, row, event).reduce((sum, range) => sum + range.to - range.from, 0)).filter((size) => size > 0);
  const times = before === undefined ? 1 : before.scale / first.scale;
  const changed = times === 1 ? '' : times > 1 ? `, ${Number(times.toPrecision(3))} times the zoom above` : `, 1/${Number((1 / times).toPrecision(3))} of the zoom above`;
  const reserved = sizes.reduce((sum, size) => sum + size, 0);
  return `${groupName(first)} · ${sizes.length === 1 ? '1 segment' : `${sizes.length} segments`}, ${inUnits(reserved)} · the width is ${inUnits(first.scale)}${changed}`;
}

/** Allocated and reserved bytes after an event; `null` if blocks of the stretch are missing. */
export function levels(of: Stretch, event: number): { allocated: number; reserved: number } | null {
  if (of.of.blocks_left_out > 0 || of.loose > 0) return null;
  const { bytes, freed_event } = of.of.blocks;
  let allocated = 0;
  for (let block = 0; block < bytes.length; block += 1) {
    const isHeld = (of.from[block] ?? 0) <= event && event < Math.min(of.to[block] ?? 0, freed_event[block] ?? Infinity);
    if (isHeld) allocated += bytes[block] ?? 0;
  }
  const reserved = of.of.segments.reduce((sum, segment, at) => sum + ((of.segmentFrom[at] ?? 0) <= event && event < (of.segmentTo[at] ?? 0) ? segment.bytes : 0), 0);
  return { allocated, reserved };
}

/** The live blocks of a row after an event. */
export function living(of: Stretch, row: Row, event: number): number[] {
  return row.blocks.filter((block) => (of.from[block] ?? 0) <= event && event < (of.to[block] ?? 0));
}

/** Mapped memory of a row after an event, as ranges of addresses. */
export function held(of: Stretch, row: Row, event: number): { from: number; to: number }[] {
  const found: { from: number; to: number }[] = [];
  for (const index of row.segments) {
    const segment = of.of.segments[index];
    if (!segment || (of.segmentFrom[index] ?? 0) > event || event >= (of.segmentTo[index] ?? 0)) continue;
    const last = found.at(-1);
    if (last?.to === segment.address) last.to += segment.bytes;
    else found.push({ from: segment.address, to: segment.address + segment.bytes });
  }
  return found;
}

/** A hole: free memory between blocks. `pinned` if live blocks in the same range prevent its release. */
export interface Hole {
  row: number;
  from: number;
  bytes: number;
  pinned: boolean;
}

/** The free memory after an event. */
export function holes(of: Stretch, event: number): Hole[] {
  return of.rows.flatMap((row, at) => holesOf(of, row, at, event));
}

/** The same for one row. */
export function holesOf(of: Stretch, row: Row, at: number, event: number): Hole[] {
  const found: Hole[] = [];
  const blocks = living(of, row, event);
  let next = 0;
  for (const range of held(of, row, event)) {
    const begun = found.length;
    let [reached, pinned] = [range.from, false];
    for (let block = blocks[next]; block !== undefined; block = blocks[next]) {
      const address = of.of.blocks.address[block] ?? 0;
      if (address >= range.to) break;
      if (address > reached) found.push({ row: at, from: reached, bytes: address - reached, pinned });
      reached = Math.max(reached, address + (of.of.blocks.bytes[block] ?? 0));
      pinned = true;
      next += 1;
    }
    if (reached < range.to) found.push({ row: at, from: reached, bytes: range.to - reached, pinned });
    if (pinned) for (const hole of found.slice(begun)) hole.pinned = true;
  }
  return found;
}

/** Whether a request would find a place, and why. */
export interface Fit {
  rounded: number;
  small: boolean;
  /** Holes of the right kind, stream and pool: the number of large enough ones, and the largest. */
  fits: number;
  largest: number;
  /** Free memory of the right kind, and all free memory. */
  usable: number;
  free: number;
}

/** Whether a hole may serve requests on a stream, regardless of size. */
export function mayServe(row: Row, small: boolean, stream: string): boolean {
  return row.small === small && row.stream === stream && row.pool === null;
}

/** Looks for a place for `bytes` bytes on a stream. */
export function fit(of: Stretch, event: number, bytes: number, stream: string): Fit {
  const { round_bytes: unit, small_bytes_max: most } = of.of.rules;
  const rounded = Math.max(unit, Math.ceil(bytes / unit) * unit);
  const found: Fit = { rounded, small: rounded <= most, fits: 0, largest: 0, usable: 0, free: 0 };
  for (const hole of holes(of, event)) {
    const row = of.rows[hole.row];
    found.free += hole.bytes;
    if (!row || !mayServe(row, found.small, stream)) continue;
    found.usable += hole.bytes;
    found.largest = Math.max(found.largest, hole.bytes);
    if (hole.bytes >= rounded) found.fits += 1;
  }
  return found;
}

/** A request beside the holes that may serve it, all on one scale. */
export interface Room {
  /** The bytes of the full width. */
  scale: number;
  /** The largest holes first, one beside the other. */
  holes: { from: number; bytes: number }[];
  /** Smaller ones that are not drawn one by one. */
  rest: { count: number; bytes: number };
}

/** The most holes that are drawn one by one. */
const HOLES = 400;

/** See `Room`. */
export function roomOf(of: Stretch, event: number, request: { bytes: number; small: boolean; stream: string }): Room {
  const sizes = of.rows.flatMap((row, at) => (mayServe(row, request.small, request.stream) ? holesOf(of, row, at, event).map((hole) => hole.bytes) : [])).sort((a, b) => b - a);
  let from = 0;
  const holes = sizes.slice(0, HOLES).map((bytes) => {
    from += bytes;
    return { from: from - bytes, bytes };
  });
  const rest = sizes.slice(HOLES);
  const bytes = rest.reduce((sum, size) => sum + size, 0);
  return { scale: Math.max(request.bytes, from + bytes, 1), holes, rest: { count: rest.length, bytes } };
}

/** The id of a block in the page's URL: its memory address, and the event since which it exists. */
export function blockId(of: Stretch, block: number): string {
  const since = of.of.blocks.from_event[block] ?? null;
  return `${(of.of.blocks.address[block] ?? 0).toString(16)}${since === null ? '' : `@${since}`}`;
}

/** The block with an id; `null` if the stretch has none. */
export function blockBy(of: Stretch, id: string | null): number | null {
  if (id === null) return null;
  const [place = '', since] = id.split('@');
  const { address, from_event } = of.of.blocks;
  const wanted = Number.parseInt(place, 16);
  const found = address.findIndex((one, at) => one === wanted && (since === undefined ? from_event[at] === null : from_event[at] === Number(since)));
  return found < 0 ? null : found;
}

/** Parses sizes such as `64 MiB`, `1.5g`, `4096`; `null` if it is not a size. */
export function sizeOf(text: string): number | null {
  const [, number, unit = ''] = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$/i.exec(text) ?? [];
  if (number === undefined) return null;
  const bytes = Math.round(Number(number) * 1024 ** ' kmgt'.indexOf(unit.toLowerCase() || ' '));
  return bytes > 0 && Number.isSafeInteger(bytes) ? bytes : null;
}

/** A size as text that `sizeOf` reads back exactly: with a unit if possible, otherwise in bytes. */
export function sizeText(size: number): string {
  const text = inUnits(size);
  return sizeOf(text) === size ? text : String(size);
}
