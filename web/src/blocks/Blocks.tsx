// The allocator of one rank, block by block, at any event: played forwards and back, with a choice of colours, and why a
// request of some size finds no place.
//
// Guarantees: the address contains rank, event, colours, scale, request and selected block. One stretch of events is requested at a time, and the next one when it
// is reached. Blocks are described in words, too.

import type { JSX } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Blocks as Answer, Report } from '../api/types';
import { blockBy, blockId, fit, holes, levels, onOneScale, sizeOf, sizeText, stretch, type Stretch } from '../draw/blocks';
import { place } from '../draw/flame';
import { DeviceChoice } from '../parts/DeviceChoice';
import { Link, Waiting } from '../parts/parts';
import { useFollowed, useSettled } from '../parts/settled';
import { go, moved, question, step as stepTo, type BlocksKept, type BlocksMove, type JobAddress } from '../route';
import { bytes, count, duration, exactly, plural } from '../words/numbers';
import { addressIn, chosen as chosenDevice, isSame, keyOf, labelOf, missing, selectionOf } from '../words/devices';
import { BY, meaning, type By } from './paint';
import { Picture } from './Picture';
import { Room } from './Room';

/** Kinds of findings whose memory grows block by block. */
const GROW = new Set(['leak', 'eval_graph', 'graph_kept', 'hidden_chain', 'private_pools']);

/** Events per second in playback. */
const SPEEDS = [100, 1000, 10_000];

/** The timeline's point at or before an event. */
function pointAt(of: Answer, event: number): number {
  const found = of.course.event.findLastIndex((at) => at <= event);
  return Math.max(found, 0);
}

function sentence(of: Stretch, event: number): string {
  const { course } = of.of;
  const at = pointAt(of.of, event);
  const free = holes(of, event);
  const pinned = free.filter((hole) => hole.pinned).reduce((sum, hole) => sum + hole.bytes, 0);
  const all = free.reduce((sum, hole) => sum + hole.bytes, 0);
  const when = `epoch ${course.epoch[at] ?? 0}, step ${count(course.step[at] ?? 0)}`;
  // (The timeline only has a point every few events.)
  const level = levels(of, event) ?? { allocated: course.allocated_bytes[at], reserved: course.reserved_bytes[at] };
  return `Event ${count(event)}, ${when}: ${bytes(level.allocated)} allocated, ${bytes(level.reserved)} reserved, ${bytes(all)} free, ${bytes(pinned)} of it pinned by blocks in the same segment.`;
}

function BlockSaid({ of, block, event }: { of: Stretch; block: number; event: number }): JSX.Element {
  const { blocks, classes, frames, stacks, sites, owners } = of.of;
  const stack = blocks.stack[block] ?? 0;
  const owner = owners[stack] ?? null;
  const site = frames[sites[stack] ?? -1];
  const [from, freed, to] = [blocks.from_event[block], blocks.freed_event[block], blocks.to_event[block]];
  const life = [
    `allocated in epoch ${blocks.birth_epoch[block] ?? 0}, step ${count(blocks.birth_step[block] ?? 0)}${from == null ? '' : ` (event ${count(from)})`}`,
    ...(freed == null ? [] : [`given back by event ${count(freed)}`]),
    to == null ? `still there at event ${count(of.of.last_event)}` : `freed at event ${count(to)}`,
    ...(from != null && to != null ? [`${plural(to - from, 'event')} long`] : []),
  ];
  const pending = freed != null && freed <= event ? '; it waits for another stream' : '';
  return (
    <>
      <p>
        <strong title={exactly(blocks.bytes[block])}>{bytes(blocks.bytes[block])}</strong>
        {` (${bytes(blocks.requested_bytes[block])} requested), ${(classes[blocks.class[block] ?? -1] ?? 'unknown').replaceAll('_', ' ')}, `}
        <span class="code">{site ? place(site) : 'without a recorded stack'}</span>
        {owner !== null && `, ${owner}`}
      </p>
      <p>{life.join(', ')}{pending}. <span class="faint">Address 0x{(blocks.address[block] ?? 0).toString(16)}.</span></p>
      <ol class="stack code">
        {(stacks[stack] ?? []).map((index, at) => {
          const frame = frames[index];
          return frame ? <li key={at} title={frame.file}>{place(frame)}</li> : null;
        })}
      </ol>
    </>
  );
}

function FitSaid({ of, event, asked, stream }: { of: Stretch; event: number; asked: number; stream: string }): JSX.Element {
  const found = fit(of, event, asked, stream);
  const kind = found.small ? 'segments of small blocks' : 'segments of larger blocks';
  const where = `${kind} of ${stream === '0' ? 'the default stream' : `stream ${stream}`}`;
  return (
    <p role="status">
      {found.fits > 0
        ? `${bytes(found.rounded)} fits into ${plural(found.fits, 'hole')} of ${where}.`
        : `${bytes(found.rounded)} does not fit: the largest hole in ${where} has ${bytes(found.largest)}, ${bytes(found.rounded - found.largest)} too few. ${bytes(found.usable)} are free there, ${bytes(found.free)} in all.`}
    </p>
  );
}

interface Of {
  answer: Answer;
  event: number;
  /** Whether the stretch is at the moment of the address. */
  isAt: boolean;
  /** Whether memory of this device grew: then the age of blocks says most. */
  grows: boolean;
  look: BlocksKept;
  move: (to: BlocksMove, quietly?: boolean) => void;
  block: string | null;
  choose: (block: string | null) => void;
  go: (event: number) => void;
  load: (event: number) => void;
}

/** A request's text in an address, if there is to be none. */
const NO_REQUEST = 'none';

/** The stretch under the scrubber. */
function Scrubbed({ answer, event, isAt, grows, look, move, block, choose, go: to, load }: Of): JSX.Element {
  const one = look.scale === 'one';
  const of = useMemo(() => (one ? onOneScale(stretch(answer)) : stretch(answer)), [answer, one]);
  const usual: By[] = grows ? ['age', ...BY.filter((name) => name !== 'age')] : BY;
  const by = usual.find((name) => name === look.by) ?? usual[0] ?? 'class';
  const chosen = useMemo(() => blockBy(of, block), [of, block]);
  const setChosen = (to_block: number | null): void => { choose(to_block === null ? null : blockId(of, to_block)); };
  const [hovered, setHovered] = useState<number | null>(null);
  const [speed, setSpeed] = useState(1000);
  const [plays, setPlays] = useState<0 | 1 | -1>(0);
  // (A stretch with a failure opens with the request that failed: the one at the moment of the address, or the first.)
  const failure = answer.failures.find((each) => isAt && answer.at_event - each.event >= 0 && answer.at_event - each.event <= 1) ?? answer.failures[0];
  const wanted = look.fit === NO_REQUEST ? '' : (look.fit ?? (failure === undefined ? '' : sizeText(failure.bytes)));
  const stream = look.stream ?? failure?.stream ?? '0';
  const colours = useMemo(() => meaning(of, by), [of, by]);
  const streams = useMemo(() => [...new Set(['0', ...of.rows.map((row) => row.stream)])], [of]);
  const asked = sizeOf(wanted);
  const request = useMemo(() => {
    if (asked === null) return null;
    const { rounded, small } = fit(of, event, asked, stream);
    return { bytes: rounded, small, stream };
    // (The rounding depends on neither event nor holes.)
  }, [of, asked, stream]);
  const now = useRef(event);
  now.current = event;
  const step = (by_events: number): void => {
    const next = now.current + by_events;
    if (next > answer.last_event && answer.last_event < answer.stored_to_event) load(next);
    else if (next < answer.first_event && answer.first_event > answer.stored_from_event) load(next);
    else to(Math.min(Math.max(next, answer.first_event), answer.last_event));
  };
  // (A layout effect: it ends in the frame in which the button is up, so no frame follows after that.)
  useLayoutEffect(() => {
    if (plays === 0) return undefined;
    let frame = 0;
    let [last, owed] = [performance.now(), 0];
    const turn = (time: number): void => {
      owed += ((time - last) * speed) / 1000;
      last = time;
      const whole = Math.floor(owed);
      owed -= whole;
      const ends = plays > 0 ? answer.stored_to_event : answer.stored_from_event;
      if (now.current === ends) {
        setPlays(0);
        return;
      }
      if (whole > 0) step(plays * whole);
      frame = requestAnimationFrame(turn);
    };
    frame = requestAnimationFrame(turn);
    return () => { cancelAnimationFrame(frame); };
  }, [plays, speed, answer]);
  const isFailed = answer.failures.some((each) => asked === each.bytes && stream === each.stream);
  const pointed = hovered ?? chosen;
  const at = pointAt(answer, event);
  return (
    <figure>
      <figcaption class="tools">
        <label>
          Colour by{' '}
          <select value={by} onChange={(change) => { move({ by: change.currentTarget.value }); }}>
            {usual.map((name) => <option key={name} value={name}>{name === 'age' && grows ? 'age (memory grew)' : name}</option>)}
          </select>
        </label>
        <label>
          Width{' '}
          <select value={one ? 'one' : ''} onChange={(change) => { move({ scale: change.currentTarget.value }); }}>
            <option value="">each kind has its own scale</option>
            <option value="one">one scale for all</option>
          </select>
        </label>
        <label>
          Would fit{' '}
          <input class="mid" type="search" placeholder="64 MiB" value={wanted} onInput={(change) => { move({ fit: change.currentTarget.value === '' ? NO_REQUEST : change.currentTarget.value }, true); }} />
        </label>
        {streams.length > 1 && (
          <label>
            on{' '}
            <select value={stream} onChange={(change) => { move({ stream: change.currentTarget.value }); }}>
              {streams.map((name) => <option key={name} value={name}>{name === '0' ? 'the default stream' : `stream ${name}`}</option>)}
            </select>
          </label>
        )}
        {answer.failures.slice(0, 4).map((failure) => (
          <button key={failure.event} type="button" onClick={() => { to(failure.event); move({ stream: failure.stream, fit: sizeText(failure.bytes) }); }}>
            {`Failed: ${bytes(failure.bytes)} at event ${count(failure.event)}`}
          </button>
        ))}
        <ul class="legend">
          {colours.legend.map((entry) => <li key={entry.text}><Key of={entry.colour} />{entry.text}</li>)}
          <li><i class="key pinned" />free, pinned by blocks beside it</li>
          <li><i class="key free" />free segment</li>
          {request !== null && <li><Key of="#d55e00" />too small</li>}
          {request !== null && <li><Key of="#116329" />large enough</li>}
        </ul>
      </figcaption>
      {request !== null && <Room of={of} event={event} request={request} failed={isFailed} />}
      {asked !== null && <FitSaid of={of} event={event} asked={asked} stream={stream} />}
      {wanted.trim() !== '' && asked === null && <p class="trouble" role="status">A size is written like 64 MiB, 1.5 GiB or 4096.</p>}
      <Picture of={of} event={event} colours={colours} chosen={chosen} request={request} choose={setChosen} hover={setHovered} step={step} />
      <div class="scrubber">
        <button type="button" onClick={() => { setPlays(plays === -1 ? 0 : -1); }} aria-pressed={plays === -1} aria-label="Play backwards">◀</button>
        <input
          type="range"
          aria-label="Event"
          aria-valuetext={`event ${count(event)}, step ${count(answer.course.step[at] ?? 0)}`}
          min={answer.first_event}
          max={answer.last_event}
          step={1}
          value={event}
          onInput={(change) => { to(Number(change.currentTarget.value)); }}
        />
        <button type="button" onClick={() => { setPlays(plays === 1 ? 0 : 1); }} aria-pressed={plays === 1} aria-label="Play">▶</button>
        <label>
          <span class="unseen">Speed </span>
          <select value={String(speed)} onChange={(change) => { setSpeed(Number(change.currentTarget.value)); }}>
            {SPEEDS.map((each) => <option key={each} value={String(each)}>{`${count(each)} events/s`}</option>)}
          </select>
        </label>
        <button type="button" disabled={answer.first_event <= answer.stored_from_event} onClick={() => { load(answer.first_event); }}>Earlier</button>
        <button type="button" disabled={answer.last_event >= answer.stored_to_event} onClick={() => { load(answer.last_event); }}>Later</button>
        <button type="button" disabled={chosen === null || answer.blocks.from_event[chosen] == null} onClick={() => { to(answer.blocks.from_event[chosen ?? 0] ?? event); }}>Its birth</button>
        <button type="button" disabled={chosen === null || answer.blocks.to_event[chosen] == null} onClick={() => { to((answer.blocks.to_event[chosen ?? 0] ?? event + 1) - 1); }}>Its end</button>
      </div>
      <p>{sentence(of, event)}</p>
      <p class="faint">
        {`Events ${count(answer.first_event)} to ${count(answer.last_event)} of ${count(answer.stored_from_event)} to ${count(answer.stored_to_event)}, ${duration((answer.course.elapsed_ns.at(-1) ?? 0) / 1e6)}.`}
        {of.loose > 0 && ` ${plural(of.loose, 'block')} in no recorded segment.`}
        {answer.blocks_left_out > 0 && ` ${plural(answer.blocks_left_out, 'smaller block')} not shown.`}
        {!answer.exact && <strong class="inexact"> NOT EXACT: events are missing.</strong>}
      </p>
      <div id="block-said" class="said block-said" role={hovered === null ? 'status' : undefined}>
        {pointed === null ? <p class="faint">Point at a block, or walk to one by the arrow keys, for its stack; click it for its life.</p> : <BlockSaid of={of} block={pointed} event={event} />}
      </div>
    </figure>
  );
}

/** A colour of the legend. (The page's policy forbids style attributes, but not a shape's own.) */
function Key({ of }: { of: string }): JSX.Element {
  return (
    <svg class="key-of" width="12" height="12" aria-hidden="true">
      <rect width="12" height="12" fill={of} />
    </svg>
  );
}

/** See the module. */
export function Blocks({ job, at, event: addressed, look }: { job: JobAddress; at: string; event: number | null; look: BlocksKept }): JSX.Element {
  const [event, setEvent] = useState(addressed);
  const [block, setBlock] = useState(look.block ?? null);
  const known = look.block ?? null;
  const written = useFollowed(`${addressed} ${known}`, () => {
    setEvent(addressed);
    setBlock(known);
  });
  const report = useAsked<Report>(question(job, 'query'));
  const ranks = report.answer?.ranks ?? [];
  const rank = report.answer === null ? null : chosenDevice(report.answer, job);
  const here = rank === null ? job : addressIn(job, rank, ranks);
  const trouble = report.answer !== null && rank === null ? missing(ranks, job) : report.trouble;
  // The event around which a stretch is requested; `at` until one is chosen.
  const [around, setAround] = useState(event);
  const blocks = useAsked<Answer>(
    rank !== null
      ? question(job, 'blocks', {
          ...selectionOf(rank, ranks),
          at: around === null ? at : null,
          event: around === null ? null : String(around),
        })
      : null,
  );
  // The previous stretch stays until the next one is there.
  const kept = useRef<Answer | null>(null);
  if (blocks.answer !== null) kept.current = blocks.answer;
  const answer = blocks.answer ?? (isSame(kept.current, rank) ? kept.current : null);
  const inside = answer === null ? null : Math.min(Math.max(event ?? answer.at_event, answer.first_event), answer.last_event);
  const place = (by: BlocksMove): Parameters<typeof go>[0] => {
    written(`${event} ${block}`);
    return { view: 'blocks', job: here, at, event, look: moved(look, { ...by, block: block ?? undefined }) };
  };
  const move = (by: BlocksMove, quietly = false): void => {
    if (quietly) go(place(by), true);
    else stepTo(place(by));
  };
  useSettled(event === addressed && block === known, () => { go(place({}), true); }, [event, addressed, block, known]);
  const grows = report.answer?.findings.some((finding) => GROW.has(finding.kind) && rank !== null && finding.ranks.includes(rank.rank)) === true;
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {' › '}
        <Link to={{ view: 'job', job: here, since: null, until: null }}>{job.name}</Link>
      </p>
      <h1 tabIndex={-1}>{`Blocks of ${rank === null ? 'a rank' : labelOf(rank, ranks)}`}</h1>
      {ranks.length > 1 && (
        <p class="tools">
          <DeviceChoice
            ranks={ranks}
            chosen={rank}
            to={(device) => {
              setAround(null);
              setEvent(null);
              setBlock(null);
              stepTo({ view: 'blocks', job: addressIn(job, device, ranks), at, event: null, look: moved(look, { block: undefined, fit: undefined, stream: undefined }) });
            }}
          />
        </p>
      )}
      {answer !== null && blocks.trouble !== null && <Waiting trouble={blocks.trouble} what="the blocks around this event" />}
      {answer === null || inside === null ? (
        <Waiting trouble={trouble ?? blocks.trouble} what="the blocks" />
      ) : (
        <Scrubbed
          key={rank === null ? '' : keyOf(rank)}
          answer={answer}
          event={inside}
          isAt={around === null && !['peak', 'end'].includes(at)}
          grows={grows}
          look={look}
          move={move}
          block={block}
          choose={setBlock}
          go={setEvent}
          load={(to) => {
            setEvent(to);
            setAround(to);
          }}
        />
      )}
    </main>
  );
}
