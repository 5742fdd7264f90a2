// A block of a step in words: exact bytes, class, where and when it was allocated and freed.

import type { JSX } from 'preact';
import type { StepMemory } from '../api/types';
import { place } from '../draw/flame';
import { bytes, count, exactly } from '../words/numbers';
import { classOf, lineOf } from './colours';

/** What is described: a block, or the rest at a point. */
export type What = { block: number } | { rest: number };

const eventOf = (of: StepMemory, event: number): string => `event ${count(event - of.of.first_event)}`;

/** When and where a block was allocated. */
function birth(of: StepMemory, block: number): string {
  const from = of.blocks.from_event[block];
  const step = count(of.blocks.birth_step[block] ?? 0);
  const when = from == null ? `before this part, in epoch ${of.blocks.birth_epoch[block] ?? 0}, step ${step}` : `at ${eventOf(of, from)}`;
  return `${lineOf(of, of.blocks.stack[block]) ?? 'no recorded stack'}, ${when}`;
}

/** When and where a block was freed. */
function end(of: StepMemory, block: number): string {
  const to = of.blocks.to_event[block];
  if (to == null) return 'not in this part';
  return `${lineOf(of, of.blocks.free_stack[block]) ?? 'line not recorded'}, at ${eventOf(of, to)}`;
}

/** The rest, in one sentence. */
function restSaid(of: StepMemory, point: number): string {
  return `${count(of.rest_blocks)} smaller blocks lived in this part. Here they have ${exactly(of.points.rest_bytes[point])}.`;
}

/** A few lines beside the pointer. */
export function Tip({ of, what, x, y }: { of: StepMemory; what: What; x: number; y: number }): JSX.Element {
  // (Beside the pointer, on the side that has room.)
  const side = { [x > 0.5 ? 'right' : 'left']: `calc(${(100 * (x > 0.5 ? 1 - x : x)).toFixed(2)}% + 12px)`, top: `${Math.round(y)}px` };
  return (
    <div class="tip" style={side} aria-hidden="true">
      {'rest' in what ? <p>{restSaid(of, what.rest)}</p> : (
        <>
          <p><strong>{exactly(of.blocks.bytes[what.block])}</strong>{`, ${classOf(of, what.block)}`}</p>
          <p>{`Allocated: ${birth(of, what.block)}`}</p>
          <p>{`Freed: ${end(of, what.block)}`}</p>
        </>
      )}
    </div>
  );
}

function Stack({ of, stack, title }: { of: StepMemory; stack: number; title: string }): JSX.Element | null {
  const frames = of.stacks[stack] ?? [];
  if (frames.length === 0) return null;
  return (
    <div>
      <h3>{title}</h3>
      <ol class="stack code">
        {frames.map((index, at) => {
          const frame = of.frames[index];
          return frame ? <li key={at} title={frame.file}>{place(frame)}</li> : null;
        })}
      </ol>
    </div>
  );
}

/** All that is known of it, below the picture. */
export function Said({ of, what }: { of: StepMemory; what: What }): JSX.Element {
  if ('rest' in what) return <p>{restSaid(of, what.rest)}</p>;
  const { block } = what;
  const [from, to] = [of.blocks.from_event[block], of.blocks.to_event[block]];
  const owner = of.owners[of.blocks.stack[block] ?? 0] ?? null;
  const lasts = from != null && to != null ? `, ${count(to - from)} events long` : '';
  return (
    <>
      <p>
        <strong title={exactly(of.blocks.bytes[block])}>{bytes(of.blocks.bytes[block])}</strong>
        {` (${exactly(of.blocks.bytes[block])}, ${exactly(of.blocks.requested_bytes[block])} requested), ${classOf(of, block)}${owner === null ? '' : `, ${owner}`}${lasts}`}
      </p>
      <dl>
        <dt>Allocated</dt>
        <dd class="code">{birth(of, block)}</dd>
        <dt>Freed</dt>
        <dd class="code">{end(of, block)}</dd>
      </dl>
      <div class="stacks">
        <Stack of={of} stack={of.blocks.stack[block] ?? 0} title="Stack of the allocation" />
        <Stack of={of} stack={of.blocks.free_stack[block] ?? 0} title="Stack of the free" />
      </div>
    </>
  );
}
