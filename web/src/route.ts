// Addresses: every view has one, and it contains everything that is shown.
//
// Guarantees: an address shows the same view at any time and for any user; an invalid one shows the list of jobs.

import { signal } from '@preact/signals';
import { file } from './report/file';
import { site } from './site/place';

/** A view and its parameters. */
export type Route =
  | { view: 'jobs'; filter: string; tenant: string | null; list?: ViewParameters<'sort' | 'group'> }
  | { view: 'job'; job: JobAddress; since: string | null; until: string | null; over?: string; classes?: 'on' | 'off'; heat?: string }
  | { view: 'moment'; job: JobAddress; at: string; from: string | null; finding?: string; flame?: FlameKept }
  | { view: 'blocks'; job: JobAddress; at: string; event: number | null; look?: BlocksKept }
  | { view: 'step'; job: JobAddress; step: number | null; at: string | null; event: number | null; first: number | null; by: 'class' | 'site'; axis: 'events' | 'time'; from: number | null; to: number | null }
  | { view: 'compare'; job: JobAddress; before: string }
  | { view: 'settings'; job: JobAddress; limit: string; size?: string }
  | { view: 'alerts'; tenant: string | null }
  | { view: 'nowhere'; path: string };

/** Parameters that are kept if they are set. */
export type ViewParameters<Name extends string> = Partial<Record<Name, string>>;

/** The same after some of them were set, and those that are now undefined were removed. */
export function moved<Name extends string>(before: ViewParameters<Name> | undefined, by: Partial<Record<Name, string | undefined>>): ViewParameters<Name> {
  return Object.fromEntries(Object.entries({ ...before, ...by }).filter(([, value]) => value !== undefined && value !== '')) as ViewParameters<Name>;
}

/** How a flame graph is arranged (`mode`), what of it is in focus, searched for, unfolded and selected, and the sites' order. */
const FLAME = ['mode', 'focus', 'search', 'open', 'site', 'sort'] as const;
export type FlameKept = ViewParameters<(typeof FLAME)[number]>;
export type FlameMove = Partial<Record<(typeof FLAME)[number], string | undefined>>;

/** How blocks are coloured and scaled, the request that looks for a place and its stream, and the selected block. */
const BLOCKS = ['by', 'scale', 'fit', 'stream', 'block'] as const;
export type BlocksKept = ViewParameters<(typeof BLOCKS)[number]>;
export type BlocksMove = Partial<Record<(typeof BLOCKS)[number], string | undefined>>;

/** A job, and the selected rank. */
export interface JobAddress {
  name: string;
  attempt: string | null;
  rank: number | null;
  tenant: string | null;
  /** The process, if the rank has several; the device, if the process has several. */
  process?: string;
  device?: number;
}

/** The memory within the step at a moment. */
export function stepAt(job: JobAddress, at: string): Extract<Route, { view: 'step' }> {
  return { view: 'step', job, step: null, at, event: null, first: null, by: 'class', axis: 'events', from: null, to: null };
}

/** The view of an address. */
export function routeOf(path: string, query: string): Route {
  const asked = new URLSearchParams(query);
  const text = (name: string): string | null => {
    const value = asked.get(name)?.trim() ?? '';
    return value === '' ? null : value;
  };
  const parts = path.split('/').filter((part) => part !== '');
  const kept = <Name extends string>(names: readonly Name[]): ViewParameters<Name> | null => {
    const set = names.flatMap((name) => { const value = text(name); return value === null ? [] : [[name, value] as const]; });
    return set.length === 0 ? null : (Object.fromEntries(set) as ViewParameters<Name>);
  };
  if (parts.length === 0) {
    const list = kept(['sort', 'group']);
    return { view: 'jobs', filter: text('filter') ?? '', tenant: text('tenant'), ...(list === null ? {} : { list }) };
  }
  const [first, name, view] = parts;
  if (first === 'alerts' && parts.length === 1) return { view: 'alerts', tenant: text('tenant') };
  if (first !== 'jobs' || name === undefined || parts.length > 3) return { view: 'nowhere', path };
  const decoded = decodedName(name);
  if (decoded === null) return { view: 'nowhere', path };
  const whole = (name: string): number | null => {
    const value = text(name);
    return value !== null && /^\d{1,15}$/.test(value) ? Number(value) : null;
  };
  const [process, device] = [text('process'), whole('device')];
  const job: JobAddress = {
    name: decoded,
    attempt: text('attempt'),
    rank: whole('rank'),
    tenant: text('tenant'),
    ...(process === null ? {} : { process }),
    ...(device === null ? {} : { device }),
  };
  if (view === undefined) {
    const over = text('over');
    const classes = text('classes');
    const shown = classes === 'on' || classes === 'off' ? { classes } as const : {};
    const heat = text('heat');
    return { view: 'job', job, since: text('since'), until: text('until'), ...(over === null ? {} : { over }), ...shown, ...(heat === null ? {} : { heat }) };
  }
  if (view === 'moment') {
    const finding = text('finding');
    const flame = kept(FLAME);
    return { view: 'moment', job, at: text('at') ?? 'peak', from: text('from'), ...(finding === null ? {} : { finding }), ...(flame === null ? {} : { flame }) };
  }
  if (view === 'blocks') {
    const look = kept(BLOCKS);
    return { view: 'blocks', job, at: text('at') ?? 'peak', event: whole('event'), ...(look === null ? {} : { look }) };
  }
  if (view === 'step') {
    const [from, to] = [whole('from'), whole('to')];
    return {
      view: 'step',
      job,
      step: whole('step'),
      at: text('at'),
      event: whole('event'),
      first: whole('first'),
      by: text('colour') === 'site' ? 'site' : 'class',
      axis: text('across') === 'time' ? 'time' : 'events',
      ...(from === null || to === null ? { from: null, to: null } : { from, to }),
    };
  }
  if (view === 'compare') return { view: 'compare', job, before: text('before') ?? '' };
  if (view === 'settings') {
    const size = text('size');
    return { view: 'settings', job, limit: text('limit') ?? '', ...(size === null ? {} : { size }) };
  }
  return { view: 'nowhere', path };
}

function decodedName(name: string): string | null {
  try {
    return decodeURIComponent(name);
  } catch {
    return null;
  }
}

/** The address of a view. */
export function addressOf(route: Exclude<Route, { view: 'nowhere' }>): string {
  return BEFORE + pathOf(route);
}

function pathOf(route: Exclude<Route, { view: 'nowhere' }>): string {
  const asked: [string, string | null][] = [];
  if (route.view === 'jobs') {
    asked.push(['filter', route.filter || null], ['tenant', route.tenant], ['sort', route.list?.sort ?? null], ['group', route.list?.group ?? null]);
    return `/${behind(asked)}`;
  }
  if (route.view === 'alerts') return `/alerts${behind([['tenant', route.tenant]])}`;
  const { name, attempt, rank, tenant, process, device } = route.job;
  asked.push(['attempt', attempt], ['rank', rank === null ? null : String(rank)], ['tenant', tenant]);
  asked.push(['process', process ?? null], ['device', device === undefined ? null : String(device)]);
  const at = `/jobs/${encodeURIComponent(name)}`;
  if (route.view === 'job') return at + behind([...asked, ['since', route.since], ['until', route.until], ['over', route.over ?? null], ['classes', route.classes ?? null], ['heat', route.heat ?? null]]);
  if (route.view === 'compare') return `${at}/compare${behind([...asked, ['before', route.before || null]])}`;
  if (route.view === 'settings') return `${at}/settings${behind([...asked, ['limit', route.limit || null], ['size', route.size ?? null]])}`;
  if (route.view === 'step') {
    const number = (value: number | null): string | null => (value === null ? null : String(value));
    const isAt = route.step === null && route.event === null;
    const named: [string, string | null][] = [['step', number(route.step)], ['at', isAt ? route.at : null], ['event', route.step === null ? number(route.event) : null]];
    const shown: [string, string | null][] = [['colour', route.by === 'site' ? 'site' : null], ['across', route.axis === 'time' ? 'time' : null]];
    return `${at}/step${behind([...asked, ...named, ['first', number(route.first)], ...shown, ['from', number(route.from)], ['to', number(route.to)]])}`;
  }
  if (route.view === 'blocks') {
    const event = route.event === null ? null : String(route.event);
    return `${at}/blocks${behind([...asked, ['at', event === null && route.at !== 'peak' ? route.at : null], ['event', event], ...BLOCKS.map((name): [string, string | null] => [name, route.look?.[name] ?? null])])}`;
  }
  return `${at}/moment${behind([...asked, ['from', route.from], ['at', route.at], ['finding', route.finding ?? null], ...FLAME.map((name): [string, string | null] => [name, route.flame?.[name] ?? null])])}`;
}

function behind(asked: [string, string | null][]): string {
  const said = asked.filter((pair): pair is [string, string] => pair[1] !== null);
  return said.length === 0 ? '' : `?${said.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')}`;
}

/** The path below `/api/v1` of a request about a job. */
export function question(job: JobAddress, verb: string, more: Record<string, string | null> = {}): string {
  const asked: [string, string | null][] = [['attempt', job.attempt], ['tenant', job.tenant], ...Object.entries(more)];
  return `jobs/${encodeURIComponent(job.name)}/${verb}${behind(asked)}`;
}

/** The view of an address within a report, which is about one job. */
export function routeIn(job: string, rank: number | null, hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#/, '').split('?');
  const meant = routeOf(path, query);
  const of = { name: job, attempt: null, rank, tenant: null };
  if (!('job' in meant)) return { view: 'job', job: of, since: null, until: null };
  return { ...meant, job: { ...meant.job, ...of, rank: meant.job.rank ?? rank } };
}

function here(): Route {
  if (typeof location === 'undefined') return routeOf('/', '');
  if (file !== null) return routeIn(file.job, file.rank, location.hash);
  if (site === null) return routeOf(location.pathname, location.search);
  const [path = '', query = ''] = location.hash.replace(/^#/, '').split('?');
  return routeOf(path, query);
}

/** The prefix of every address: the views of a file and of a static folder are in the fragment. */
const BEFORE = file === null && site === null ? '' : '#';

/** The current view. */
export const route = signal<Route>(here());

/** Goes to a view; `quietly` without a step in the browser's history. */
export function go(to: Exclude<Route, { view: 'nowhere' }>, quietly = false): void {
  const address = addressOf(to);
  if (quietly) history.replaceState(history.state, '', address);
  else {
    // The scroll position, for the way back.
    history.replaceState({ y: scrollY }, '');
    history.pushState(null, '', address);
  }
  route.value = here();
  if (!quietly) {
    scrollTo(0, 0);
    // (Once the new view is there: the old heading disappears, and would take the focus with it.)
    requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector<HTMLElement>('main h1')?.focus()));
  }
}

/** Changes a view by a move that Back undoes; scroll position and focus stay. */
export function step(to: Exclude<Route, { view: 'nowhere' }>): void {
  const address = addressOf(to);
  if (address === addressOf(route.value.view === 'nowhere' ? to : route.value)) return;
  history.pushState(null, '', address);
  route.value = here();
}

/** Follows the browser's own steps. */
export function follow(): void {
  addEventListener('popstate', (event) => {
    route.value = here();
    const { y } = (event.state ?? {}) as { y?: unknown };
    if (typeof y === 'number' && y > 0) backTo(y, performance.now() + BACK_MS);
  });
}

/** How long a view may take to grow to its former height. */
const BACK_MS = 3_000;

/** Scrolls back once the view is high enough again, unless the user scrolls meanwhile. */
function backTo(y: number, until: number): void {
  const place = scrollY;
  requestAnimationFrame((now) => {
    if (scrollY !== place || now > until) return;
    if (document.documentElement.scrollHeight - innerHeight >= y) scrollTo(0, y);
    else backTo(y, until);
  });
}
