// The memory within one step: every block as a shape over time, the largest ones exact and the others as one band.
//
// Guarantees: the address contains device, step, colours, axis and visible range. The previous step stays visible until the
// next one is there. A step with too many events is shown in parts.

import type { JSX } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Rank, Report, StepMemory } from '../api/types';
import { shapes, wholeOf, type Axis, type Range } from '../draw/step';
import { DeviceChoice } from '../parts/DeviceChoice';
import { useDark } from '../parts/Pixels';
import { Link, Waiting } from '../parts/parts';
import { useFollowed, useSettled } from '../parts/settled';
import { go, question, type Route } from '../route';
import { bytes, count, duration, exactly, plural } from '../words/numbers';
import { addressIn, chosen as chosenDevice, isSame, labelOf, missing, selectionOf } from '../words/devices';
import { BY, meaning, type By } from './colours';
import { Picture } from './Picture';
import { Said, type What } from './Said';

type Address = Extract<Route, { view: 'step' }>;

const AXES: [axis: Axis, text: string][] = [['events', 'events'], ['time', 'time']];

/** The step in words, such as `Step 12 of epoch 1`. */
function nameOf({ of }: StepMemory): string {
  if (of.kind === 'events') return `Events ${count(of.first_event)} to ${count(of.last_event)}`;
  return `${of.kind === 'window' ? 'Window' : 'Step'} ${count(of.step)} of epoch ${of.epoch}`;
}

function levelsSaid(of: StepMemory): string {
  const { start, peak, end } = of;
  const kept = end.allocated_bytes - start.allocated_bytes;
  const change = kept === 0 ? 'the same as at the begin' : `${bytes(Math.abs(kept))} ${kept > 0 ? 'more' : 'less'} than at the begin`;
  return `${plural(of.last_event - of.first_event, 'event')} in ${duration(of.duration_ns / 1e6)}. ${bytes(start.allocated_bytes)} allocated at the begin, ${bytes(peak.allocated_bytes)} at the peak (event ${count(peak.event - of.of.first_event)}), ${bytes(end.allocated_bytes)} at the end: ${change}.`;
}

/** A step whose answer has arrived. */
function StepPicture({ of, at, limit, walk }: { of: StepMemory; at: Address; limit: number | null; walk: (by: 1 | -1) => void }): JSX.Element {
  const dark = useDark();
  const shaped = useMemo(() => shapes(of, at.axis), [of, at.axis]);
  const colours = useMemo(() => meaning(of, at.by, dark), [of, at.by, dark]);
  const all = wholeOf(shaped);
  const asked = (): Range | null => (at.from === null || at.to === null ? null : { from: at.from, to: at.to });
  const [closer, setCloser] = useState(asked);
  const key = [at.from, at.to, at.axis].join();
  const written = useFollowed(key, () => { setCloser(asked()); });
  // (A chosen block is valid only for its answer, because the next step has other blocks. The picture itself stays, so
  // it keeps the focus.)
  const [kept, setKept] = useState<{ of: StepMemory; block: number | null }>({ of, block: null });
  const [over, setOver] = useState<{ of: StepMemory; what: What | null }>({ of, what: null });
  const chosen = kept.of === of ? kept.block : null;
  const hovered = over.of === of ? over.what : null;
  const within = { from: Math.max(closer?.from ?? all.from, all.from), to: Math.min(closer?.to ?? all.to, all.to) };
  const isIn = closer !== null && within.from < within.to;
  const view = isIn ? within : all;
  const look = (to: Range): void => { setCloser(to.from <= all.from && to.to >= all.to ? null : to); };
  const [from, to] = isIn ? [Math.floor(closer.from), Math.ceil(closer.to)] : [null, null];
  useSettled(from === at.from && to === at.to, () => {
    written([from, to, at.axis].join());
    go({ ...at, from, to }, true);
  }, [from, to, key]);
  const what = hovered ?? (chosen === null ? null : { block: chosen });
  return (
    <>
      <figcaption class="tools">
        <label>
          Colour by{' '}
          <select value={at.by} onChange={(change) => { go({ ...at, by: change.currentTarget.value as By }, true); }}>
            {BY.map((by) => <option key={by} value={by}>{by}</option>)}
          </select>
        </label>
        <label>
          Across{' '}
          <select value={at.axis} onChange={(change) => { go({ ...at, axis: change.currentTarget.value as Axis, from: null, to: null }, true); }}>
            {AXES.map(([axis, text]) => <option key={axis} value={axis}>{text}</option>)}
          </select>
        </label>
        <button type="button" disabled={!isIn} onClick={() => { look(all); }}>Whole</button>
        <ul class="legend">
          <li class="faint">At the peak:</li>
          {colours.legend.map((entry) => (
            <li key={entry.text}>
              <svg class="key-of" width="12" height="12" aria-hidden="true"><rect width="12" height="12" fill={entry.colour} /></svg>
              {entry.text}
            </li>
          ))}
        </ul>
      </figcaption>
      <Picture of={shaped} colours={colours} limit={limit} view={view} look={look} chosen={chosen} choose={(block) => { setKept({ of, block }); }} hover={(what) => { setOver({ of, what }); }} walk={walk} />
      <p>{levelsSaid(of)}</p>
      <p class="faint">
        {of.rest_blocks === 0
          ? `All ${plural(of.blocks.bytes.length, 'block')} are drawn.`
          : `The ${plural(of.blocks.bytes.length, 'largest block')} are drawn each for itself; ${plural(of.rest_blocks, 'smaller block')} are one band on top, of at most ${bytes(of.points.rest_bytes.reduce((most, one) => Math.max(most, one), 0))}.`}
        {of.events_per_point > 1 && ` A point stands for ${count(of.events_per_point)} events and shows the highest of them.`}
        {!of.of.ended && ' The end of this step was not recorded.'}
        {!of.exact && <strong class="inexact"> NOT EXACT: events are missing.</strong>}
        {' Drag to zoom in, Ctrl and the wheel to zoom, Shift and the wheel to pan. Click a block to keep it.'}
      </p>
      <div id="step-said" class="said block-said" role={hovered === null ? 'status' : undefined}>
        {what === null ? <p class="faint">Point at a block, or walk to one by the arrow keys, for its stack.</p> : <Said of={of} what={what} />}
      </div>
    </>
  );
}

/** Links to the previous and the next step, and to the other parts of a long step. */
function Ways({ of, to }: { of: StepMemory; to: (more: Partial<Address>) => Address }): JSX.Element {
  const span = of.of;
  const shown = of.last_event - of.first_event;
  // (Events outside a step have no step number. An address without a step and a moment means the moment of the peak.)
  const itself = span.kind === 'events' ? { step: null } : { step: span.step };
  const noun = span.kind === 'window' ? 'window' : 'step';
  return (
    <>
      {of.previous !== null && <Link to={to({ step: of.previous.step })}>{`Previous ${noun}`}</Link>}
      {of.next !== null && <Link to={to({ step: of.next.step })}>{`Next ${noun}`}</Link>}
      {of.first_event > span.first_event && <Link to={to({ ...itself, first: Math.max(span.first_event, of.first_event - shown) })}>Earlier events</Link>}
      {of.last_event < span.last_event && <Link to={to({ ...itself, first: of.last_event })}>Later events</Link>}
    </>
  );
}

/** Whether an answer is the one that an address asks for. */
function isMeant(answer: StepMemory | null, at: Address, rank: Rank | null): boolean {
  return isSame(answer, rank) && at.step !== null && answer?.of.step === at.step && answer.of.kind !== 'events' && (at.first === null ? answer.first_event === answer.of.first_event : answer.first_event === at.first);
}

/** See the module. */
export function Step({ at }: { at: Address }): JSX.Element {
  const { job } = at;
  const report = useAsked<Report>(question(job, 'query'));
  const ranks = report.answer?.ranks ?? [];
  const rank = report.answer === null ? null : chosenDevice(report.answer, job);
  const here = rank === null ? job : addressIn(job, rank, ranks);
  const kept = useRef<StepMemory | null>(null);
  // (A step that was found by a moment is not asked for again by its number.)
  const known = isMeant(kept.current, at, rank) ? kept.current : null;
  const asked = useAsked<StepMemory>(
    rank === null || known !== null
      ? null
      : question(job, 'step', {
          ...selectionOf(rank, ranks),
          step: at.step === null ? null : String(at.step),
          at: at.step === null && at.event === null ? (at.at ?? 'peak') : null,
          event: at.step === null && at.event !== null ? String(at.event) : null,
          first: at.first === null ? null : String(at.first),
        }),
  );
  if (asked.answer !== null) kept.current = asked.answer;
  const answer = known ?? asked.answer ?? (isSame(kept.current, rank) ? kept.current : null);
  const trouble = report.answer !== null && rank === null ? missing(ranks, job) : (report.trouble ?? asked.trouble);
  const to = (more: Partial<Address>): Address => ({ ...at, job: here, at: null, event: null, first: null, from: null, to: null, ...more });
  // The address names the step, also if it was found by a moment.
  const found = asked.answer !== null && asked.answer.of.kind !== 'events' && at.step === null ? asked.answer.of.step : null;
  const part = asked.answer === null || asked.answer.first_event === asked.answer.of.first_event ? null : asked.answer.first_event;
  useSettled(found === null, () => { if (found !== null) go({ ...at, job: here, step: found, at: null, event: null, first: part }, true); }, [found, part]);
  const walk = (by: 1 | -1): void => {
    const beside = by > 0 ? answer?.next : answer?.previous;
    if (beside) go(to({ step: beside.step }), true);
  };
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {' › '}
        <Link to={{ view: 'job', job: here, since: null, until: null }}>{job.name}</Link>
      </p>
      <h1 tabIndex={-1}>{`Memory within a step of ${rank === null ? 'a rank' : labelOf(rank, ranks)}`}</h1>
      {rank !== null && (
        <div class="tools">
          {ranks.length > 1 && <DeviceChoice ranks={ranks} chosen={rank} to={(device) => { go({ ...to({}), job: addressIn(job, device, ranks), step: answer === null || answer.of.kind === 'events' ? at.step : answer.of.step }, true); }} />}
          {answer !== null && <Ways of={answer} to={to} />}
          {answer !== null && <Link to={{ view: 'blocks', job: here, at: 'peak', event: answer.peak.event }}>Blocks at this step's peak</Link>}
        </div>
      )}
      {answer === null ? (
        <Waiting trouble={trouble} what="the step" />
      ) : (
        <figure class="course-of">
          {asked.trouble !== null && <Waiting trouble={asked.trouble} what="that step" />}
          <h2 title={exactly(answer.peak.allocated_bytes)}>{nameOf(answer)}</h2>
          <StepPicture of={answer} at={at} limit={rank?.device_total_bytes ?? null} walk={walk} />
        </figure>
      )}
    </main>
  );
}
