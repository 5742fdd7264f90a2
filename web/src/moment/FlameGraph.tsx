// A flame graph that is arranged by callers, by callees, around one function or by module; searched, zoomed and walked.
//
// Guarantees: the address has the arrangement, the focus, the search, the unfolded calls and the selected site, and Back
// undoes the last of these moves. A click, Enter or Space zooms, or unfolds a library call; arrows walk, Escape goes back.
// The focused box is described in full below, with its stack. The user's own lines are bold; colour is never the only sign.

import type { JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Anatomy, Finding, Flame, Frame } from '../api/types';
import { boxes, drawn, functionId, grownThrough, hits, label, place, shareOf, siteId, siteOf, stackOf, type Box, type Call } from '../draw/flame';
import { CLASSES, colourOf } from '../draw/ledger';
import { byModule, calleesFirst, callersFirst, functionBy, leaves, sandwich, unfoldedOf } from '../draw/stacks';
import { useSlash } from '../parts/slash';
import type { FlameKept, FlameMove } from '../route';
import { bytes, change, count, exactly, percent, plural } from '../words/numbers';
import { FlameSaid, copied } from './FlameSaid';
import { FlameTree, spoken, type Placed } from './FlameTree';
import { lit } from './lit';

/** The arrangements, as an address has them. */
const MODES = [['callers', 'Callers first'], ['callees', 'Callees first'], ['sandwich', 'Function'], ['modules', 'Modules']] as const;
type Mode = (typeof MODES)[number][0];
const NO_STACK = siteId(null);

function figures(call: Call, whole: number, isChange: boolean): string {
  const blocks = plural(call.live_blocks, 'block');
  if (isChange) return `${bytes(call.grown_bytes)} more, ${bytes(call.shrunk_bytes)} less, ${blocks} now in ${call.kind === 'all' ? 'all stacks' : 'stacks of it'} that changed`;
  const mostly = call.class === null ? (call.mixed ? ', of several classes' : '') : `, mostly ${call.class.replaceAll('_', ' ')}`;
  return `${bytes(call.bytes)}, ${percent(call.bytes, whole)}, ${blocks}${mostly}`;
}

/** `258 MiB to 478 MiB allocated, `, if both are known. */
function totals({ from, at }: Flame): string {
  return from?.allocated_bytes == null || at.allocated_bytes === null ? '' : `${bytes(from.allocated_bytes)} to ${bytes(at.allocated_bytes)} allocated, `;
}

function colour(call: Call, isChange: boolean): string {
  if (!isChange) return call.mixed ? 'mixed' : colourOf(call.class);
  return call.grown_bytes > call.shrunk_bytes ? 'grown' : call.grown_bytes < call.shrunk_bytes ? 'shrunk' : 'same';
}

/** The width of the picture. */
function useWidth(): [number, { current: HTMLDivElement | null }] {
  const of = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(1000);
  useEffect(() => {
    const here = of.current;
    if (!here) return undefined;
    const watch = new ResizeObserver(() => {
      setWidth(Math.max(here.clientWidth, 1));
    });
    watch.observe(here);
    return () => {
      watch.disconnect();
    };
  }, []);
  return [width, of];
}

interface Arranged {
  mode: Mode;
  /** The tree; of a sandwich the callees. */
  below: Box[];
  /** Of a sandwich the callers. */
  above: Box[];
  /** Of a sandwich its function. */
  around: Frame | null;
}

/** The function that a sandwich shows first: that of the selected site, of the finding, or the one whose own lines allocated most. */
function usual(calls: Call[], finding: Finding | null, site: string | undefined): string | null {
  const own = calls.flatMap((call) => (call.own ? call.frames : []));
  const known = own.find((one) => siteId(one) === site) ?? own.find((one) => one.function === finding?.site?.function && one.file === finding.site.file);
  if (known !== undefined) return functionId(known);
  const sums = new Map<string, number>();
  for (const { items, weight } of leaves(calls, new Set())) {
    const frame = items.findLast((item) => item.own)?.frames.at(-1) ?? items[0]?.frames[0];
    if (frame !== undefined) sums.set(functionId(frame), (sums.get(functionId(frame)) ?? 0) + weight.bytes);
  }
  return [...sums].sort((one, other) => other[1] - one[1])[0]?.[0] ?? null;
}

function arranged(flame: Flame, anatomy: Anatomy | null, kept: FlameKept, finding: Finding | null): Arranged {
  const unfolded = unfoldedOf(kept.open ?? '');
  const alone = (mode: Mode, calls: Call[]): Arranged => ({ mode, below: boxes(calls), above: [], around: null });
  if (kept.mode === 'modules' && anatomy !== null) return alone('modules', byModule(anatomy));
  if (kept.mode === 'callees') return alone('callees', calleesFirst(leaves(flame.calls, unfolded)));
  if (kept.mode === 'sandwich') {
    const asked = kept.focus !== undefined && functionBy(flame.calls, kept.focus) !== null ? kept.focus : usual(flame.calls, finding, kept.site);
    const found = asked === null ? null : sandwich(leaves(flame.calls, unfolded), asked);
    if (found !== null) return { mode: 'sandwich', below: boxes(found.callees), above: boxes(found.callers), around: found.callees[0]?.frames[0] ?? null };
  }
  return alone('callers', kept.open === undefined ? flame.calls : callersFirst(leaves(flame.calls, unfolded)));
}

/** Places the boxes of both trees; callers grow upwards. */
function placedOf({ above, below }: Arranged, zoom: number, width: number): Placed[] {
  const callers = drawn(above, 0, width).slice(1);
  const top = callers.reduce((deepest, one) => Math.max(deepest, one.box.call.depth), 0);
  const up = callers.map(({ box, x, width: wide }): Placed => ({ box, key: `^${box.id}`, x, width: wide, row: top - box.call.depth }));
  const down = drawn(below, zoom, width).map(({ box, x, width: wide }): Placed => ({ box, key: box.id, x, width: wide, row: top + box.call.depth }));
  return [...up.sort((a, b) => a.row - b.row), ...down];
}

interface Of {
  flame: Flame;
  /** The peak by module, if it is shown and the recording has modules. */
  anatomy: Anatomy | null;
  title: string;
  finding: Finding | null;
  kept: FlameKept;
  /** Changes the address; `quietly` without a step for Back. */
  move: (to: FlameMove, quietly?: boolean) => void;
}

/** See the module. In a comparison, the calls of `finding` have one colour and all other calls have none. */
export function FlameGraph({ flame, anatomy, title, finding, kept, move }: Of): JSX.Element {
  const { mode, below, above, around } = useMemo(() => arranged(flame, anatomy, kept, finding), [flame, anatomy, kept.mode, kept.open, modeFocus(kept), finding]);
  const site = finding?.site ?? null;
  const through = useMemo(() => (site === null ? null : grownThrough(boxes(flame.calls), site)), [flame, site]);
  const marked = useMemo(() => (site === null ? null : [grownThrough(below, site), grownThrough(above, site)]), [below, above, site]);
  const [rested, setRested] = useState<string | null>(null);
  const [hover, setHover] = useState<string | null>(null);
  const [said, setSaid] = useState('');
  const [width, holder] = useWidth();
  const search = useSlash();
  useEffect(() => () => { lit.value = null; }, []);
  const isChange = flame.from !== null && mode !== 'modules';
  const zoom = mode === 'sandwich' || kept.focus === undefined ? 0 : Math.max(below.findIndex((box) => box.id === kept.focus), 0);
  const placed = useMemo(() => placedOf({ mode, above, below, around }, zoom, width), [above, below, zoom, width]);
  const wanted = kept.search ?? '';
  const found = useMemo(() => [hits(below, wanted), hits(above, wanted)], [below, above, wanted]);
  const [root] = flame.calls;
  const whole = root?.bytes ?? 0;
  const sums =
    root === undefined
      ? ''
      : flame.from !== null
        ? `${totals(flame)}${change(root.grown_bytes - root.shrunk_bytes)}: ${bytes(root.grown_bytes)} more, ${bytes(root.shrunk_bytes)} less, ${bytes(flame.unchanged_bytes)} in stacks that did not change.`
        : `${bytes(root.bytes)} in ${plural(root.live_blocks, 'block')}.`;
  if (root === undefined || whole === 0) {
    return <p>{sums} {flame.from !== null ? 'No stack holds more or less than before.' : 'Nothing was live.'}</p>;
  }
  const treeOf = (one: Placed): Box[] => (one.key.startsWith('^') ? above : below);
  const of = <T,>(one: Placed, pair: [T, T]): T => pair[one.key.startsWith('^') ? 1 : 0];
  // A caller of a sandwich leads to its function, so its stack is read from the box outwards.
  const stackAt = (one: Placed): Frame[] => {
    const frames = stackOf(treeOf(one), one.box.at);
    return mode === 'callees' || one.key.startsWith('^') ? frames.toReversed() : frames;
  };
  const siteAt = (one: Placed): Frame | null => (mode === 'callees' ? siteOfCallees(below, one.box.at) : siteOf(treeOf(one), one.box.at));
  const functionAt = (one: Placed | undefined): string | null => {
    const frame = one?.box.call.frames.at(-1);
    return frame === undefined ? null : functionId(frame);
  };
  const selected = kept.site;
  const target = lit.value ?? selected ?? null;
  const isOfSite = (one: Placed): boolean => target !== null && target !== NO_STACK && one.box.call.own && one.box.call.frames.some((frame) => siteId(frame) === target);
  const act = (one: Placed): void => {
    const { call, id } = one.box;
    setRested(one.key);
    const own = siteAt(one);
    const site_of = own === null ? {} : { site: siteId(own) };
    if (call.kind === 'library' && mode !== 'callees' && !one.key.startsWith('^')) {
      move({ ...site_of, open: [...(kept.open ?? '').split(',').filter((known) => known !== ''), id].join(',') });
      return;
    }
    const other = functionAt(one);
    if (mode === 'sandwich' && other !== null) move({ ...site_of, focus: other });
    else if (mode !== 'sandwich') move({ ...site_of, focus: zoom === one.box.at || one.box.at === 0 ? undefined : id });
  };
  const to = (next: Mode): void => {
    const at = placed.find((one) => one.key === (hover ?? rested));
    const focus = next === 'sandwich' ? (functionAt(at) ?? usual(flame.calls, finding, selected)) : null;
    setRested(null);
    move({ mode: next === 'callers' ? undefined : next, focus: focus ?? undefined });
  };
  const ofSite = placed.filter(isOfSite).reduce<Placed | undefined>((widest, one) => (widest === undefined || one.width > widest.width ? one : widest), undefined);
  const resting = placed.find((one) => one.key === rested);
  // (A row of the table was selected since then.)
  const isPassed = selected !== undefined && resting !== undefined && siteId(siteAt(resting)) !== selected;
  const described = placed.find((one) => one.key === hover)
    ?? (lit.value === null ? undefined : ofSite)
    ?? (isPassed ? ofSite : undefined)
    ?? resting
    ?? ofSite
    ?? placed.find((one) => through?.outermost.includes(one.box.at) && mode === 'callers' && kept.open === undefined)
    ?? placed.find((one) => one.box.at === zoom && one.key === one.box.id)
    ?? placed[0];
  const copy = (stack: Frame[], text: string): void => { void copied(stack, text).then(setSaid); };
  const key = (pressed: string, one: Placed | undefined): boolean => {
    const acts: Record<string, () => void> = {
      Escape: () => { move({ focus: undefined }); },
      c: () => { if (one) copy(stackAt(one), figures(one.box.call, whole, isChange)); },
      i: () => { to(mode === 'callees' ? 'callers' : 'callees'); },
      s: () => { to(mode === 'sandwich' ? 'callers' : 'sandwich'); },
      u: () => { move({ open: kept.open === 'all' ? undefined : 'all' }); },
    };
    acts[pressed]?.();
    return pressed in acts;
  };
  const classOf = (one: Placed): string => {
    const mark = marked === null ? null : of(one, marked as [typeof marked[number], typeof marked[number]]);
    const kind = mark === null ? [colour(one.box.call, isChange)] : mark.boxes.has(one.box.at) ? ['leak', ...(mark.outermost.includes(one.box.at) ? ['outer'] : [])] : ['other'];
    const isHit = of(one, found as [Set<number>, Set<number>]).has(one.box.at);
    return [...kind, one.box.call.own ? 'own' : one.box.call.kind === 'library' ? 'lib folded' : 'lib', ...(isHit ? ['hit'] : wanted === '' ? [] : ['dim']), ...(isOfSite(one) ? ['picked'] : [])].join(' ');
  };
  const shown = placed.map((one) => one.box.call);
  const classes = CLASSES.filter((name) => shown.some((call) => !call.mixed && (call.class === name || (name === 'unknown' && call.class === null))));
  const legend: [string, string][] = isChange
    ? (marked === null ? [['grown', 'holds more'], ['shrunk', 'holds less']] : [['leak', "the finding's calls"], ['other', 'everything else that changed']])
    : [...classes.map((name): [string, string] => [colourOf(name), name.replaceAll('_', ' ')]), ...(shown.some((call) => call.mixed) ? [['mixed', 'several classes'] as [string, string]] : [])];
  const hint = { callers: 'Callers above, what they call below', callees: 'What allocated is on top, its callers below', sandwich: 'Callers above the function, what it calls below', modules: 'Modules, then the lines that allocated in them' }[mode];
  const modes = MODES.filter(([name]) => name !== 'modules' || anatomy !== null);
  return (
    <figure class="flame">
      <figcaption>
        {through !== null && site !== null && (
          <p>
            <strong class="code">{place(site)}</strong>
            {through.boxes.size === 0 ? ' is in no stack that changed between these moments.' : <>{' '}<strong>{change(through.bytes)}</strong>{` in ${plural(through.blocks, 'block')} of its stacks: outlined below.`}</>}
          </p>
        )}
        <strong>{sums}</strong>{' '}
        <span class="faint">
          {`${hint}; width is bytes; your own code is bold.`}
          {flame.calls_left_out > 0 && ` ${plural(flame.calls_left_out, 'call')} too narrow to be shown.`}
        </span>
      </figcaption>
      <div class="tools">
        <span role="group" aria-label="Arrangement" class="choice">
          {modes.map(([name, text]) => <button key={name} type="button" aria-pressed={mode === name} onClick={() => { to(name); }}>{text}</button>)}
        </span>
        <button type="button" aria-pressed={kept.open === 'all'} disabled={mode === 'modules'} onClick={() => { move({ open: kept.open === undefined ? 'all' : undefined }); }}>
          {kept.open === undefined ? 'Unfold libraries' : 'Fold libraries'}
        </button>
        <label>
          Search{' '}
          <input
            ref={search}
            type="search"
            class="mid"
            value={wanted}
            onInput={(event) => {
              const { value } = event.currentTarget;
              move({ search: value === '' ? undefined : value }, wanted !== '' && value !== '');
            }}
          />
        </label>
        <button type="button" disabled={kept.focus === undefined || mode === 'sandwich'} onClick={() => { move({ focus: undefined }); }}>Whole graph</button>
        <span class="faint" role="status">
          {wanted.trim() === ''
            ? ''
            : `${plural(found[0]?.size ?? 0, 'call')} with this text, ${percent(shareOf(below, found[0] ?? new Set()), 1)} of what is shown.`}
        </span>
      </div>
      <ul class="legend">
        {legend.map(([name, text]) => <li key={name}><i class={`key ${name}`} />{text}</li>)}
      </ul>
      <div ref={holder}>
        <FlameTree
          title={title}
          placed={placed}
          focus={rested ?? below[zoom]?.id ?? ''}
          zoom={mode === 'sandwich' ? (below[0]?.id ?? null) : (below[zoom]?.id ?? null)}
          classOf={classOf}
          says={(one) => spoken(one.box, figures(one.box.call, whole, isChange))}
          hover={(one) => {
            setHover(one?.key ?? null);
            const own = one === null ? null : siteAt(one);
            lit.value = own === null ? null : siteId(own);
          }}
          rest={(one) => {
            setHover(null);
            setRested(one.key);
          }}
          act={act}
          key={`${mode} ${kept.open ?? ''}`}
          keys={key}
        />
      </div>
      {described && (
        <FlameSaid
          name={label(described.box.call)}
          own={described.box.call.own}
          file={described.box.call.frames.length === 1 ? (described.box.call.frames[0]?.file ?? null) : null}
          figures={figures(described.box.call, whole, isChange)}
          exact={isChange ? `${count(described.box.call.grown_bytes)} bytes more, ${count(described.box.call.shrunk_bytes)} less` : exactly(described.box.call.bytes)}
          stack={stackAt(described)}
          copy={copy}
          said={said}
          sandwich={mode === 'sandwich' || mode === 'modules' ? null : () => { setRested(described.key); to('sandwich'); }}
        />
      )}
    </figure>
  );
}

/** The focus matters to the arrangement of a sandwich alone. */
function modeFocus(kept: FlameKept): string {
  return kept.mode === 'sandwich' ? `${kept.focus ?? ''} ${kept.focus === undefined ? (kept.site ?? '') : ''}` : '';
}

/** With callees first, the site is the outermost own line of the path, which is the innermost of the stack. */
function siteOfCallees(of: Box[], at: number): Frame | null {
  let found: Frame | null = null;
  for (let box = of[at]; box; box = of[box.parent]) if (box.call.own) found = box.call.frames.at(-1) ?? found;
  return found;
}
