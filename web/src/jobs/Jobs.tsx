// The first screen: is anything wrong?
//
// Guarantees: above a long list the worst jobs are shown with their own sentence, and a cut list says so. Jobs with new
// data are requested again. Rows do not move while the page is open, except for new jobs and where an order was chosen. The
// address has the filter, the order and the groups. A name is never broken, and a row has two lines of text.

import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Alerts, Job, Jobs as Answer, Silences } from '../api/types';
import { Link, Table, Waiting, type HeadCell } from '../parts/parts';
import { useSlash } from '../parts/slash';
import { addressOf, go, moved, step, type JobAddress, type ViewParameters } from '../route';
import { ago, count, moment, plural } from '../words/numbers';
import { direction, orderOf, pressed, sorted } from '../words/order';
import { inShort } from '../words/verdict';
import { Row, Says, addressesOf } from './Row';
import { COLUMNS, firing, fits, grouped, groupings, isHurt, quiet, valueOf, worseFirst, worst } from './rows';

/** The heads of the columns; `by` is the order that a press on the head chooses. */
const HEADS: { text: string; by?: keyof typeof COLUMNS; number?: boolean; title?: string }[] = [
  { text: 'Job', by: 'name' },
  { text: 'State', by: 'state' },
  { text: 'Memory', title: 'Allocated (range) and reserved of one rank over time, and the highest of both' },
  { text: 'Worst finding', by: 'worst' },
  { text: 'Grown', by: 'grown', number: true, title: 'Bytes by which memory has grown, and its rate' },
  { text: 'Device', number: true, title: 'In use on the fullest device, and its size' },
  { text: 'At', number: true, title: 'Epochs and steps, of the rank that has most' },
  { text: 'Full in', number: true, title: 'Time until the device is full, at the present rate' },
  { text: 'Started', by: 'started', number: true },
];

/** The orders, with their names in the menu. */
const ORDERS: [by: keyof typeof COLUMNS, text: string][] = [
  ['started', 'start'], ['worst', 'severity'], ['grown', 'growth'], ['name', 'name'], ['state', 'state'], ['ranks', 'ranks'], ['lasted', 'duration'], ['stored', 'stored bytes'],
];

/** The most jobs requested: beyond that the command line is the better list. */
const ASKED = 500;

const MINUTE_MS = 60_000;

/** The filter for jobs that need attention. */
const HURT = 'warning|critical';

/** See the module. */
export function Jobs({ filter, tenant, list }: { filter: string; tenant: string | null; list: ViewParameters<'sort' | 'group'> }): JSX.Element {
  const of_tenant = tenant === null ? '' : `tenant=${encodeURIComponent(tenant)}`;
  // New jobs begin at any time.
  const always = (): boolean => true;
  const { answer, trouble } = useAsked<Answer>(`jobs?limit=${ASKED}${of_tenant === '' ? '' : `&${of_tenant}`}`, always);
  const heard = useAsked<Alerts>(`alerts${of_tenant === '' ? '' : `?${of_tenant}`}`, always);
  const silenced = useAsked<Silences>(`silences${of_tenant === '' ? '' : `?${of_tenant}`}`, always);
  const search = useSlash();
  // (Rounded down to the minute, so that an unchanged row is not drawn again within the same minute.)
  const now = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;
  const all = answer?.jobs ?? [];
  const alerts = heard.answer?.alerts ?? [];
  const silences = silenced.answer?.silences ?? [];
  const addresses = useMemo(() => addressesOf(all), [answer]);
  const addressFor = (job: Job): JobAddress => addresses.get(job) ?? { name: job.id, attempt: null, rank: null, tenant: null };
  // Each job's line as it was drawn: the same one again costs nothing.
  const drawn = useMemo(() => new WeakMap<Job, { of: string; row: JSX.Element }>(), []);
  const order = orderOf(list.sort, Object.keys(COLUMNS), null);
  const shown = useMemo(() => {
    const found = all.filter((job) => fits(job, filter));
    if (order?.by === 'worst') return found.toSorted((a, b) => (order.down ? 1 : -1) * worseFirst(a, b));
    return sorted(found, order, (job, by) => valueOf(job, by, now));
  }, [answer, filter, list.sort]);
  const by = useMemo(() => groupings(all), [answer]);
  const group = list.group !== undefined && by.includes(list.group) ? list.group : null;
  const groups = useMemo(() => (group === null ? [{ name: '', jobs: shown }] : grouped(shown, group)), [shown, group]);
  const hurt = shown.filter(isHurt).length;
  // A job that could not be judged does not count as healthy.
  const open = shown.filter((job) => job.verdict === null || job.verdict.kind === 'not_enough_data').length;
  const also = open === 0 ? '' : `, ${count(open)} without a clear verdict: not judged, or inconclusive`;
  const silentOf = new Map(silences.length === 0 && alerts.length === 0 ? [] : all.map((job) => [job, quiet(job, alerts, silences)]));
  const first = worst(shown, (job) => silentOf.get(job) != null);
  const at = { view: 'jobs' as const, filter, tenant, list };
  const sort = (to: string | undefined): void => { step({ ...at, list: moved(list, { sort: to }) }); };
  const heads = HEADS.map(({ by: column, ...head }): HeadCell => (column === undefined ? head : {
    ...head,
    sort: () => { sort(pressed(order, column, COLUMNS[column], false)); },
    sorted: direction(order, column),
  }));
  const row = (job: Job): JSX.Element => {
    const [silent, fires] = [silentOf.get(job) ?? null, alerts.length === 0 ? 0 : firing(job, alerts)];
    const of = `${now} ${silent?.until ?? ''} ${silent?.by ?? ''} ${silent !== null} ${fires}`;
    const before = drawn.get(job);
    if (before?.of === of) return before.row;
    const address = addressFor(job);
    const made = <Row key={addressOf({ view: 'job', job: address, since: null, until: null })} job={job} address={address} now={now} quiet={silent} fires={fires} />;
    drawn.set(job, { of, row: made });
    return made;
  };
  const caption = `Jobs, ${order === null ? 'newest first' : `by ${ORDERS.find(([name]) => name === order.by)?.[1] ?? ''}`}${group === null ? '' : `, by ${group.replace('label:', '')}`}`;
  return (
    <main>
      <h1 tabIndex={-1}>Jobs</h1>
      <form
        class="tools"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          const [only] = groups.flatMap((one) => one.jobs);
          if (only) go({ view: 'job', job: addressFor(only), since: null, until: null });
        }}
      >
        <label>
          Filter{' '}
          <input
            ref={search}
            type="search"
            value={filter}
            placeholder="name, state, finding, label"
            onInput={(event) => {
              go({ ...at, filter: event.currentTarget.value }, true);
            }}
          />
        </label>
        <label>
          Order{' '}
          <select
            value={list.sort ?? ''}
            onChange={(event) => { sort(event.currentTarget.value || undefined); }}
          >
            <option value="">newest first</option>
            {ORDERS.flatMap(([name, text]) => {
              const usual = COLUMNS[name] ? `-${name}` : name;
              return list.sort === (COLUMNS[name] ? name : `-${name}`)
                ? [<option key={name} value={usual}>{text}</option>, <option key={`${name}, turned`} value={list.sort}>{`${text}, reversed`}</option>]
                : [<option key={name} value={usual}>{text}</option>];
            })}
          </select>
        </label>
        {by.length > 0 && (
          <label>
            Groups{' '}
            <select value={group ?? ''} onChange={(event) => { step({ ...at, list: moved(list, { group: event.currentTarget.value }) }); }}>
              <option value="">none</option>
              {by.map((name) => <option key={name} value={name}>{name.replace('label:', '')}</option>)}
            </select>
          </label>
        )}
        <span class="faint">/ filters, Enter opens the first.</span>
      </form>
      {answer === null ? (
        <Waiting trouble={trouble} what="the list of jobs" />
      ) : (
        <>
          {trouble !== null && <p class="trouble" role="status">{trouble}</p>}
          <p role="status">
            {all.length === 0 ? (
              'No jobs yet: `memctl run -- python train.py` records one, `memctl import FOLDER --job NAME` reads snapshots.'
            ) : shown.length === 0 ? (
              `0 of ${plural(all.length, 'job')}: none has all these words in its name, state, tenant, labels or finding.`
            ) : (
              <>
                {`${shown.length === all.length ? '' : `${count(shown.length)} of `}${plural(all.length, 'job')}, `}
                {hurt === 0 || hurt === shown.length ? (
                  hurt === 0 ? 'none with a warning or worse' : `${count(hurt)} with a warning or worse`
                ) : (
                  <Link to={{ ...at, filter: `${filter} ${HURT}`.trim() }}>{`${count(hurt)} with a warning or worse`}</Link>
                )}
                {`${also}.`}
              </>
            )}
            {all.length < ASKED ? '' : ` These are the newest ${count(ASKED)}: \`memctl jobs --limit N\` lists more.`}
          </p>
          {first.length > 0 && (
            <ul class="worst" aria-label="The worst of them">
              {first.map((job) => (
                <li key={addressOf({ view: 'job', job: addressFor(job), since: null, until: null })}>
                  <Link to={{ view: 'job', job: addressFor(job), since: null, until: null }}>{job.id}</Link>{' '}
                  <span class="faint">{job.state === 'running' ? 'running' : ago(moment(job.ended_at ?? job.started_at), now)}</span>{' '}
                  <Says of={inShort(job.verdict)} />
                </li>
              ))}
            </ul>
          )}
          {shown.length > 0 && (
            <Table caption={caption} class="jobs" heads={heads} bodies>
              {groups.map(({ name, jobs }) => (
                <tbody key={name}>
                  {group !== null && (
                    <tr class="group">
                      <th scope="rowgroup" colSpan={HEADS.length}>
                        <strong>{name}</strong>
                        <span class="faint">{` ${plural(jobs.length, 'job')}${jobs.some(isHurt) ? `, ${count(jobs.filter(isHurt).length)} with a warning or worse` : ''}`}</span>
                      </th>
                    </tr>
                  )}
                  {jobs.map(row)}
                </tbody>
              ))}
            </Table>
          )}
        </>
      )}
    </main>
  );
}
