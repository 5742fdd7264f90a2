// A request beside the free memory that could serve it: one piece that has to fit into one hole.
//
// Guarantees: both have one scale; each hole is one that the allocator had after the event.

import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { roomOf, type Stretch } from '../draw/blocks';
import { bytes, plural } from '../words/numbers';

/** Units of the picture's width. */
const WIDE = 1000;

/** See the module. */
export function Room({ of, event, request, failed }: { of: Stretch; event: number; request: { bytes: number; small: boolean; stream: string }; failed: boolean }): JSX.Element {
  const room = useMemo(() => roomOf(of, event, request), [of, event, request]);
  const width = (size: number): number => (WIDE * size) / room.scale;
  const [largest] = room.holes;
  const last = room.holes.at(-1);
  const fits = largest !== undefined && largest.bytes >= request.bytes;
  const free = room.holes.reduce((sum, hole) => sum + hole.bytes, room.rest.bytes);
  const count = room.holes.length + room.rest.count;
  return (
    <div class="room">
      <span>{failed ? 'Failed request' : 'Request'}</span>
      <svg class="bar" viewBox={`0 0 ${WIDE} 14`} preserveAspectRatio="none" width="100%" height="14" role="img" aria-label={`A request for ${bytes(request.bytes)}`}>
        <rect class="request" width={width(request.bytes)} height="14" />
      </svg>
      <span class="number">{bytes(request.bytes)}</span>
      <span>{plural(count, 'hole')}, largest first</span>
      <svg class="bar" viewBox={`0 0 ${WIDE} 14`} preserveAspectRatio="none" width="100%" height="14" role="img" aria-label={`${plural(count, 'hole')} with ${bytes(free)}, the largest ${bytes(largest?.bytes ?? 0)}`}>
        {room.holes.map((hole) => <rect key={hole.from} class={hole.bytes >= request.bytes ? 'fits' : 'hole'} x={width(hole.from)} width={width(hole.bytes)} height="14"><title>{bytes(hole.bytes)}</title></rect>)}
        {room.rest.count > 0 && <rect class="hole" x={width((last?.from ?? 0) + (last?.bytes ?? 0))} width={width(room.rest.bytes)} height="14"><title>{`${plural(room.rest.count, 'smaller hole')}, ${bytes(room.rest.bytes)}`}</title></rect>}
        {largest !== undefined && !fits && <line class="limit" x1={width(largest.bytes)} x2={width(largest.bytes)} y1="0" y2="14" />}
      </svg>
      <span class="number">{bytes(free)}</span>
    </div>
  );
}
