// The timeline of one rank: envelope, floor, reserved and limit; epochs, steps and phases as bands; findings and failures
// as marks.
//
// Guarantees: the view is requested in tiles as fine as the screen can show and no finer. Every action of the mouse has a
// key. The address contains the view.

import type { JSX } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Failed, Finding, Rank, RankTimeline, Timeline } from '../api/types';
import { ceiling, placed, stacked, stretchOf } from '../draw/classes';
import { UNITS, bands, clamp, floorOf, floorPath, height, labelled, nearest, overlay, panned, ranksIn, samples, share, spansOf, whole, zoomed, type Stretch } from '../draw/course';
import { colourOf } from '../draw/ledger';
import { DeviceChoice } from '../parts/DeviceChoice';
import { Link } from '../parts/parts';
import { useHeard } from '../parts/heard';
import { pin, pinsOf } from '../parts/pins';
import { go, question, route, stepAt, type JobAddress } from '../route';
import { useFollowed, useSettled } from '../parts/settled';
import { useTiles } from '../tiles/use';
import { bytes, count, duration, moment, plural, rfc3339 } from '../words/numbers';
import { addressIn, labelOf, selectionOf } from '../words/devices';
import { Painted } from './Painted';
import { useClasses } from './classes';

/** Points requested for other ranks: more than one per pixel shows nothing. */
const POINTS = 600;
/** The zoom factor of a key or a turn of the wheel. */
const CLOSER = 0.6;
/** Labels of epochs are at least this part of the picture apart. */
const APART = 0.08;
/** A mark this near to the cursor, as a share of the picture, is described with it. */
const NEAR = 0.004;
/** The most steps whose boundaries are drawn; more would hide the rest. */
const STEPS = 120;
/** The shades of the phases, and the order in which they are named. (Colours are those of classes.) */
const PHASES: Record<string, string> = { forward: 'p0', backward: 'p1', optimizer: 'p2', train: 'p3', eval: 'p4' };
/** The meaning of the marks. */
const SIGNS: [sign: string, text: string][] = [['✖', 'out of memory'], ['▲', 'a finding was first seen'], ['≠', 'leaves the other ranks']];
/** The most ranks overlaid on this one, and their colours. */
const OVER_MOST = 6;
const OVER = ['over0', 'over1', 'over2', 'over3', 'over4', 'over5'];

interface Of {
  job: JobAddress;
  rank: Rank;
  name: string;
  line: RankTimeline;
  ranks: Rank[];
  findings: Finding[];
  failures: Failed[];
  since: string | null;
  until: string | null;
  /** The epoch at whose end this rank diverged from the others. */
  diverges: number | null;
  /** Ranks overlaid on this one, as typed. */
  over: string;
  /** Whether classes are shown, if the user chose. */
  classes: 'on' | 'off' | null;
}

const percentOf = (part: number): string => `${(100 * part).toFixed(3)}%`;

/** A zoomed stretch, and its form in the address: a time that is read and written again differs in its last digit. */
interface Closer extends Stretch {
  since: string;
  until: string;
}

/** The stretch of an address; `null` is all of it. */
function closerIn(since: string | null, until: string | null, all: Stretch): Closer | null {
  if (since === null || until === null) return null;
  const [from, to] = [clamp(moment(since), all.from, all.to), clamp(moment(until), all.from, all.to)];
  return from < to ? { from, to, since, until } : null;
}

/** See the module. */
export function Course(of: Of): JSX.Element {
  const course = useMemo(() => samples(of.line), [of.line]);
  const all = useMemo(() => whole(course), [course]);
  // (All of it until the user zooms, because a running job grows.)
  const [closer, setCloser] = useState(() => closerIn(of.since, of.until, all));
  const written = useFollowed([of.since, of.until].join(), () => { setCloser(closerIn(of.since, of.until, all)); });
  const view = closer ?? all;
  const [cursor, setCursor] = useState<number | null>(null);
  const pins = pinsOf(of.job);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const plot = useRef<SVGSVGElement>(null);

  const own = selectionOf(of.rank, of.ranks);
  const { points: fine, marks: tileMarks } = useTiles(of.job, of.line, own.process, course, view);
  const shown = useMemo(() => fine.filter((point) => point.to > view.from && point.from < view.to), [fine, view]);
  const floor = useMemo(() => floorOf(of.line), [of.line]);
  const limit = of.rank.device_total_bytes ?? null;
  const known = new Set(of.ranks.map((rank) => rank.rank));
  const wantedOver = ranksIn(of.over, OVER_MOST).filter((rank) => rank !== of.line.rank && known.has(rank));
  const unknownOver = ranksIn(of.over, OVER_MOST).filter((rank) => !known.has(rank));
  const others = useAsked<Timeline>(
    wantedOver.length === 0
      ? null
      : question(of.job, 'timeline', {
          rank: wantedOver.join(','),
          points: String(POINTS),
          ...(of.since === null ? {} : { since: of.since, until: of.until }),
        }),
  );
  const over = useMemo(
    () => (others.answer?.ranks ?? []).slice(0, OVER_MOST).map((rank, at) => ({ name: labelOf(rank, of.ranks), samples: samples(rank), colour: OVER[at] ?? '' })),
    [others.answer],
  );
  // (The picture is as high as the highest of them.)
  const { top, showsLimit } = useMemo(() => height([...course, ...over.flatMap((rank) => rank.samples)], limit), [course, over, limit]);
  const drawn = useMemo(() => floorPath(floor, all.from, view, top), [floor, all, view, top]);
  const epochs = useMemo(() => bands(course), [course]);
  const spans = epochs.filter((band) => band.to > view.from && band.from < view.to);
  const marked = useMemo(() => {
    const isInView = (span: Stretch): boolean => span.to > view.from && span.from < view.to;
    const steps = spansOf(tileMarks, 'step', all.to).filter(isInView);
    return { phases: spansOf(tileMarks, 'phase', all.to).filter(isInView), steps: steps.length > STEPS ? [] : steps };
  }, [tileMarks, view.from, view.to, all]);
  const inDoubt = !of.rank.completeness.exact;
  const phases = Object.keys(PHASES).filter((name) => marked.phases.some((phase) => phase.name === name));

  const isWhole = view.from <= all.from && view.to >= all.to;
  // (Without zoom the envelope is enough.)
  const wantsClasses = of.classes === null ? !isWhole : of.classes === 'on';
  const classed = useClasses(of, own, wantsClasses, view, all);
  const areas = useMemo(() => stacked(classed.drawn, top), [classed.drawn, top]);
  const roof = useMemo(() => (classed.isFine ? '' : ceiling(course, stretchOf(classed.drawn), top)), [classed.isFine, classed.drawn, course, top]);
  const isNear = (point: { time: number }): boolean => point.time >= view.from && point.time <= view.to;
  const boundaries = classed.points.filter(isNear).length;
  const isStacked = wantsClasses && areas.some((area) => area !== '');

  const [since, upto] = closer === null ? [null, null] : [closer.since, closer.until];
  const show = (laid: string, classes = of.classes): void => {
    written([since, upto].join());
    // (What the heat map shows is no matter of the course, which keeps it.)
    const heat = route.value.view === 'job' ? route.value.heat : undefined;
    go({ view: 'job', job: of.job, since, until: upto, ...(laid === '' ? {} : { over: laid }), ...(classes === null ? {} : { classes }), ...(heat === undefined ? {} : { heat }) }, true);
  };
  const look = (to: Stretch): void => {
    const isAll = to.from <= all.from && to.to >= all.to;
    setCloser(isAll ? null : { from: to.from, to: to.to, since: rfc3339(to.from), until: rfc3339(to.to) });
  };
  useSettled(since === of.since && upto === of.until, () => { show(of.over); }, [since, upto, of.since, of.until, of.over, of.classes]);
  const timeAt = (event: MouseEvent): number => {
    const box = plot.current?.getBoundingClientRect();
    if (!box || box.width === 0) return view.from;
    return view.from + clamp((event.clientX - box.left) / box.width, 0, 1) * (view.to - view.from);
  };
  const at = cursor === null ? null : (fine[nearest(fine, cursor)] ?? null);
  const pinned = (time: number): string => rfc3339(time);

  // A wheel that also scrolls the page would lose the view.
  useHeard(plot, 'wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : 0;
    if (sideways !== 0) look(panned(view, all, sideways > 0 ? 0.15 : -0.15));
    else look(zoomed(view, all, event.deltaY > 0 ? 1 / CLOSER : CLOSER, timeAt(event)));
  });

  const epoch_left = of.rank.epoch_ends.find((end) => end.epoch === of.diverges);
  const every_mark = [
    ...of.failures.map((failure) => ({ time: moment(failure.at), text: `Out of memory: ${bytes(failure.asked_bytes)} requested`, sign: '✖' })),
    ...of.findings
      .filter((finding) => finding.ranks.includes(of.line.rank) && finding.first_seen.at !== null)
      .map((finding) => ({ time: moment(finding.first_seen.at ?? ''), text: finding.title, sign: '▲' })),
    ...(epoch_left === undefined ? [] : [{ time: moment(epoch_left.at), text: `Leaves the other ranks at the end of epoch ${epoch_left.epoch}`, sign: '≠' }]),
  ].sort((a, b) => a.time - b.time);
  const see = (time: number): void => {
    setCursor(time);
    if (time < view.from || time > view.to) look(panned(view, all, (time - (view.from + view.to) / 2) / (view.to - view.from)));
  };
  // The next one; after the last one the first.
  const finding = (): void => {
    const to = every_mark.find((mark) => cursor === null || mark.time > cursor) ?? every_mark[0];
    if (to) see(to.time);
  };
  const loop_step = (by: number): void => {
    const begins = tileMarks.filter((mark) => mark.kind === 'step_begin').map((mark) => moment(mark.at));
    const to = by > 0 ? begins.find((time) => cursor === null || time > cursor) : begins.findLast((time) => cursor === null || time < cursor);
    if (to === undefined) step(10 * by);
    else see(to);
  };
  const step = (by: number): void => {
    const here = cursor === null ? (by > 0 ? -1 : fine.length) : nearest(fine, cursor);
    const to = fine[clamp(here + by, 0, fine.length - 1)];
    if (!to) return;
    setCursor((to.from + to.to) / 2);
    if (to.to < view.from || to.from > view.to) look(panned(view, all, to.from > view.to ? 0.5 : -0.5));
  };
  const epoch = (by: number): void => {
    const here = epochs.findIndex((band) => cursor !== null && cursor >= band.from && cursor < band.to);
    const to = epochs[clamp((here < 0 ? (by > 0 ? -1 : epochs.length) : here) + by, 0, epochs.length - 1)];
    if (to) setCursor((to.from + to.to) / 2);
  };
  const peak = (): void => {
    const highest = shown.reduce<(typeof fine)[number] | null>((best, one) => (best === null || one.max > best.max ? one : best), null);
    if (highest) setCursor((highest.from + highest.to) / 2);
  };
  const middle = cursor ?? (view.from + view.to) / 2;
  const moments = addressIn(of.job, of.rank, of.ranks);
  // Keys that work everywhere, and keys of the plot.
  const everywhere: Record<string, () => void> = {
    '+': () => { look(zoomed(view, all, CLOSER, middle)); },
    '=': () => { look(zoomed(view, all, CLOSER, middle)); },
    '-': () => { look(zoomed(view, all, 1 / CLOSER, middle)); },
    '0': () => { look(all); },
    p: peak,
    f: finding,
    a: () => { pin(of.job, 'a', pinned(middle)); },
    b: () => { pin(of.job, 'b', pinned(middle)); },
  };
  const press = (event: KeyboardEvent, acts: Record<string, () => void>): void => {
    const act = event.ctrlKey || event.metaKey ? undefined : acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const key = (event: KeyboardEvent): void => {
    press(event, {
      ...everywhere,
      ArrowLeft: () => {
        if (event.altKey) epoch(-1);
        else if (event.shiftKey) loop_step(-1);
        else step(-1);
      },
      ArrowRight: () => {
        if (event.altKey) epoch(1);
        else if (event.shiftKey) loop_step(1);
        else step(1);
      },
      ',': () => { look(panned(view, all, -0.25)); },
      '.': () => { look(panned(view, all, 0.25)); },
      Enter: () => { go({ view: 'moment', job: moments, at: pinned(middle), from: null }); },
    });
  };
  useHeard(null, 'keydown', (event) => {
    const isTaken = event.altKey || (event.target instanceof Element && event.target.closest('input,select,textarea,dialog,[role=application]') !== null);
    if (!isTaken) press(event, everywhere);
  });
  const release = (): void => {
    if (drag !== null && Math.abs(share(view, drag.to) - share(view, drag.from)) > 0.01) {
      look({ from: Math.min(drag.from, drag.to), to: Math.max(drag.from, drag.to) });
    }
    setDrag(null);
  };
  const inView = (time: number): boolean => time >= view.from && time <= view.to;
  const marks = every_mark.filter((mark) => inView(mark.time));
  const signs = SIGNS.filter(([sign]) => marks.some((mark) => mark.sign === sign));
  const near = cursor === null ? undefined : marks.find((mark) => Math.abs(share(view, mark.time) - share(view, cursor)) < NEAR);
  const said =
    at === null
      ? `${plural(shown.length, 'point')} in view, ${duration(view.to - view.from)}. Highest ${bytes(shown.reduce((most, one) => Math.max(most, one.max), 0))} allocated.`
      : `Epoch ${at.epoch}, step ${count(at.step)}, ${duration(at.from - all.from)} after the start: ${bytes(at.last)} allocated (${bytes(at.min)} to ${bytes(at.max)} within this point), ${bytes(at.reserved)} reserved.${near === undefined ? '' : ` ${near.sign} ${near.text}.`}`;
  return (
    <figure class="course-of">
      <figcaption class="tools">
        <DeviceChoice ranks={of.ranks} chosen={of.rank} to={(device) => { go({ view: 'job', job: addressIn(of.job, device, of.ranks), since: null, until: null }, true); }} />
        {of.ranks.length > 1 && (
          <label>
            With ranks{' '}
            <input type="search" class="few" placeholder="1, 2" value={of.over} onInput={(event) => { show(event.currentTarget.value); }} />
          </label>
        )}
        {unknownOver.length > 0 && <span class="trouble" role="status">{`There is no rank ${unknownOver.join(', ')}.`}</span>}
        <button type="button" onClick={() => { look(zoomed(view, all, CLOSER, middle)); }} aria-label="Closer">+</button>
        <button type="button" onClick={() => { look(zoomed(view, all, 1 / CLOSER, middle)); }} aria-label="Further">−</button>
        <button type="button" onClick={() => { look(all); }}>Whole</button>
        <button type="button" onClick={peak}>Peak</button>
        <label>
          <input type="checkbox" checked={wantsClasses} onChange={(event) => { show(of.over, event.currentTarget.checked ? 'on' : 'off'); }} />{' '}
          Classes
        </label>
        <ul class="legend">
          <li><i class="key envelope" />allocated, lowest to highest</li>
          <li><i class="key floor" />lowest from here to the last epoch's end: what did not come back until then</li>
          <li><i class="key reserved" />reserved</li>
          {inDoubt && <li><i class="key doubt" />NOT EXACT: events are missing</li>}
          {showsLimit && <li><i class="key limit" />the device's limit</li>}
          {over.map((rank) => <li key={rank.name}><i class={`key ${rank.colour}`} />{rank.name}, highest</li>)}
          {signs.map(([sign, text]) => <li key={sign}>{`${sign} ${text}`}</li>)}
          {isStacked && classed.names.map((name, at) => areas[at] !== '' && <li key={name}><i class={`key ${colourOf(name)}`} />{name.replaceAll('_', ' ')}</li>)}
          {phases.map((name) => <li key={name}><i class={`key strip ${PHASES[name] ?? 'p3'}`} />{`${name} (phase)`}</li>)}
        </ul>
      </figcaption>
      <div
        class="plot"
        role="application"
        aria-roledescription="plot"
        aria-label={`Memory of ${of.name} over time. Arrows move the cursor, with Shift by steps, with Alt by epochs, plus and minus zoom, 0 shows all, comma and full stop pan, P goes to the peak, F to the next finding, A and B set pins, Enter opens the moment.`}
        aria-describedby="course-said"
        tabIndex={0}
        onKeyDown={key}
      >
        <Painted of={fine} view={view} top={top} height={240} />
        <svg
          ref={plot}
          class="course"
          width="100%"
          height="260"
          aria-hidden="true"
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            const time = timeAt(event);
            setDrag({ from: time, to: time });
          }}
          onPointerMove={(event) => {
            const time = timeAt(event);
            setCursor(time);
            if (drag !== null) setDrag({ ...drag, to: time });
          }}
          onPointerUp={release}
          onPointerCancel={() => { setDrag(null); }}
          onDblClick={(event) => { look(zoomed(view, all, CLOSER * CLOSER, timeAt(event))); }}
        >
          <defs>
            <pattern id="inexact" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
              <path class="hatch" d="M0 0V8" />
            </pattern>
            {roof !== '' && <clipPath id="ceiling"><path d={roof} /></clipPath>}
          </defs>
          <svg width="100%" height="240" viewBox={`0 0 ${UNITS} ${UNITS}`} preserveAspectRatio="none">
            {spans.filter((band) => band.epoch % 2 === 1).map((band) => (
              <rect key={band.from} class="band" x={UNITS * share(view, band.from)} y="0" width={UNITS * (share(view, band.to) - share(view, band.from))} height={UNITS} />
            ))}
            {marked.steps.map((step) => (
              <path key={step.from} class="step" d={`M${UNITS * share(view, step.from)} 0V${UNITS}`} />
            ))}
            {isStacked ? (
              <g transform={placed(stretchOf(classed.drawn), view)} clip-path={roof === '' ? undefined : 'url(#ceiling)'}>
                {areas.map((area, at) => area !== '' && <path key={at} class={`stacked ${colourOf(classed.names[at] ?? null)}`} d={area} />)}
              </g>
            ) : null}
            <path class={isStacked ? 'floor outline' : 'floor'} d={drawn} />
            {over.map((rank) => <path key={rank.name} class={`over ${rank.colour}`} d={overlay(rank.samples, view, top)} />)}
            {marked.phases.map((phase) => (
              <rect key={`${phase.name} ${phase.from}`} class={PHASES[phase.name] ?? 'p3'} x={UNITS * share(view, phase.from)} y="970" width={UNITS * (share(view, phase.to) - share(view, phase.from))} height="30">
                <title>{phase.name}</title>
              </rect>
            ))}
            {showsLimit && limit !== null && <path class="limit" d={`M0 ${UNITS * (1 - limit / top)}H${UNITS}`} />}
          </svg>
          {inDoubt && <rect class="inexact" fill="url(#inexact)" width="100%" height="240" />}
          <text class="scale" x="4" y="14">{bytes(top)}</text>
          <text class="scale" x="4" y="236">0 B</text>
          {labelled(spans, view, APART).map((band) => (
            <text key={band.from} class="tick" x={percentOf(clamp(share(view, band.from), 0, 1))} y="254" dx="3">
              {`epoch ${band.epoch}`}
            </text>
          ))}
          {marks.map((mark) => (
            <g key={`${mark.time} ${mark.text}`} class="mark">
              <title>{mark.text}</title>
              <line x1={percentOf(share(view, mark.time))} x2={percentOf(share(view, mark.time))} y1="0" y2="240" />
              <text x={percentOf(share(view, mark.time))} y="28" dx="3">{mark.sign}</text>
            </g>
          ))}
          {([['A', pins.a], ['B', pins.b]] as const).map(([letter, text]) =>
            text === null || !inView(moment(text)) ? null : (
              <g key={letter} class="pin">
                <line x1={percentOf(share(view, moment(text)))} x2={percentOf(share(view, moment(text)))} y1="0" y2="240" />
                <text x={percentOf(share(view, moment(text)))} y="14" dx="3">{letter}</text>
              </g>
            ),
          )}
          {cursor !== null && inView(cursor) && (
            <line class="cursor" x1={percentOf(share(view, cursor))} x2={percentOf(share(view, cursor))} y1="0" y2="240" />
          )}
          {drag !== null && (
            <rect class="chosen" x={percentOf(share(view, Math.min(drag.from, drag.to)))} y="0" width={percentOf(Math.abs(share(view, drag.to) - share(view, drag.from)))} height="240" />
          )}
        </svg>
      </div>
      <p id="course-said" class="said" role="status">{said}{isStacked && cursor !== null && ` ${classed.at(cursor)}`}</p>
      {wantsClasses && <p class="faint">{classed.words(boundaries)}</p>}
      <p class="tools">
        <button type="button" onClick={() => { pin(of.job, 'a', pinned(middle)); }} disabled={cursor === null}>Pin A here</button>
        <button type="button" onClick={() => { pin(of.job, 'b', pinned(middle)); }} disabled={cursor === null}>Pin B here</button>
        {cursor !== null && <Link to={{ view: 'moment', job: moments, at: pinned(cursor), from: null }}>This moment</Link>}
        {pins.a !== null && pins.b !== null && (
          <Link to={{ view: 'moment', job: moments, at: pins.b, from: pins.a }} class="act">What changed from A to B</Link>
        )}
        <Link to={{ view: 'moment', job: moments, at: 'peak', from: null }}>The peak</Link>
        <Link to={{ view: 'settings', job: moments, limit: '' }}>Under other settings</Link>
        <Link to={{ view: 'blocks', job: moments, at: cursor === null ? 'peak' : pinned(cursor), event: null }}>
          {cursor === null ? 'Blocks at the peak' : 'Blocks at this moment'}
        </Link>
        <Link to={stepAt(moments, cursor === null ? 'peak' : pinned(cursor))}>{cursor === null ? 'Step at the peak' : 'Step at this moment'}</Link>
        <span class="faint">Drag to zoom in, Ctrl and the wheel to zoom, Shift and the wheel to pan.</span>
      </p>
    </figure>
  );
}
