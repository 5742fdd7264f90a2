// The first screen: is anything wrong?
//
// Guarantees: above a long list the worst jobs are shown with their own sentence, and a cut list says so. Jobs with new
// data are requested again. Rows do not move while the page is open, except for new jobs.

import type { JSX } from 'preact';
import { useAsked } from '../api/ask';
import type { Job, Jobs as Answer } from '../api/types';
import { Bytes, Link, Table, Waiting, Word } from '../parts/parts';
import { useSlash } from '../parts/slash';
import { addressOf, go, type JobAddress } from '../route';
import { ago, count, date, duration, moment, plural } from '../words/numbers';
import { inShort, ranksOf } from '../words/verdict';
import { Spark } from './Spark';

const HEADS = [
  { text: 'Job' },
  { text: 'State' },
  { text: 'Memory' },
  { text: 'Worst finding' },
  { text: 'Ranks', number: true },
  { text: 'Started' },
  { text: 'Lasted', number: true },
  { text: 'Events', number: true },
  { text: 'Stored', number: true },
];

/** The most jobs requested: beyond that the command line is the better list. */
const ASKED = 500;
/** This many jobs can be seen at a glance; above a longer list the worst are shown. */
const GLANCE = 20;
/** How many of the worst jobs are shown. */
const WORST = 5;

/** The jobs that most need attention, if there are too many to see it: critical ones first, running ones before ended ones. */
export function worst(of: Job[]): Job[] {
  if (of.length <= GLANCE) return [];
  const rank = (job: Job): number => (job.verdict?.severity === 'critical' ? 0 : 2) + (job.state === 'running' ? 0 : 1);
  return of.filter(isHurt).sort((a, b) => rank(a) - rank(b)).slice(0, WORST);
}

/** Kinds that fill the device until they are fixed: what `leak` finds, as `no-leak` asserts it. */
const LEAKS = new Set(['leak', 'eval_graph', 'graph_kept', 'hidden_chain', 'private_pools']);

/** The filter for jobs that need attention. */
const HURT = 'warning|critical';

const isHurt = (job: Job): boolean => ['critical', 'warning'].includes(inShort(job.verdict).colour);

/** Whether a job's row contains all words of a filter; one alternative of `one|other` is enough. */
export function fits(job: Job, filter: string): boolean {
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
  const { word, sentence } = inShort(job.verdict);
  const kind = job.verdict?.finding?.replaceAll('_', ' ') ?? '';
  const leak = LEAKS.has(job.verdict?.finding ?? '') ? 'leak' : '';
  const text = [job.id, job.state, job.tenant, word, kind, leak, sentence, ...labels].join(' ').toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((wanted) => wanted.split('|').some((one) => text.includes(one)));
}

function addressFor(job: Job, all: Job[]): JobAddress {
  const hasNamesake = all.some((other) => other.name === job.name && other.tenant !== job.tenant);
  const hasLater = all.some((other) => other.id === job.id && other.tenant === job.tenant && other.attempt > job.attempt);
  return {
    name: job.id,
    attempt: hasLater ? String(job.attempt) : null,
    rank: null,
    tenant: hasNamesake ? job.tenant : null,
  };
}

function Row({ job, all, now }: { job: Job; all: Job[]; now: number }): JSX.Element {
  const started = moment(job.started_at);
  const ended = job.ended_at === null ? null : moment(job.ended_at);
  const verdict = inShort(job.verdict);
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
  return (
    <tr>
      <th scope="row" class="name">
        <Link to={{ view: 'job', job: addressFor(job, all), since: null, until: null }}>{job.id}</Link>
        {(job.attempts > 1 || job.attempt > 0) && <span class="faint"> attempt {job.attempt}</span>}
        {labels.length > 0 && <span class="faint labels"> {labels.join(' ')}</span>}
      </th>
      <td class={`state ${job.state}`}>{job.state}</td>
      <td>
        <Spark job={addressFor(job, all)} runs={job.state === 'running'} />
      </td>
      <td class="sentence">
        <Word of={verdict} /> {verdict.sentence}
      </td>
      <td class="number">{ranksOf(job).replace(/ ranks?$/, '')}</td>
      <td title={date(started)}>{ago(started, now)}</td>
      <td class="number">{duration((ended ?? now) - started)}</td>
      <td class="number">{count(job.events)}</td>
      <td class="number">
        <Bytes of={job.stored_bytes} />
      </td>
    </tr>
  );
}

/** See the module. */
export function Jobs({ filter, tenant }: { filter: string; tenant: string | null }): JSX.Element {
  const path = `jobs?limit=${ASKED}${tenant === null ? '' : `&tenant=${encodeURIComponent(tenant)}`}`;
  // New jobs begin at any time.
  const { answer, trouble } = useAsked<Answer>(path, () => true);
  const search = useSlash();
  const now = Date.now();
  const all = answer?.jobs ?? [];
  const shown = all.filter((job) => fits(job, filter));
  const hurt = shown.filter(isHurt).length;
  // A job that could not be judged does not count as healthy.
  const open = shown.filter((job) => job.verdict === null || job.verdict.kind === 'not_enough_data').length;
  const also = open === 0 ? '' : `, ${count(open)} of which nothing is known: not judged, or inconclusive`;
  const first = worst(shown);
  return (
    <main>
      <h1 tabIndex={-1}>Jobs</h1>
      <form
        class="tools"
        role="search"
        onSubmit={(event) => {
          event.preventDefault();
          const [only] = shown;
          if (only) go({ view: 'job', job: addressFor(only, all), since: null, until: null });
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
              go({ view: 'jobs', filter: event.currentTarget.value, tenant }, true);
            }}
          />
        </label>
        <span class="faint">Press / to filter, Enter opens the first.</span>
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
                  <Link to={{ view: 'jobs', filter: `${filter} ${HURT}`.trim(), tenant }}>{`${count(hurt)} with a warning or worse`}</Link>
                )}
                {`${also}.`}
              </>
            )}
            {all.length < ASKED ? '' : ` These are the newest ${count(ASKED)}: \`memctl jobs --limit N\` lists more.`}
          </p>
          {first.length > 0 && (
            <ul class="worst" aria-label="The worst of them">
              {first.map((job) => (
                <li key={addressOf({ view: 'job', job: addressFor(job, all), since: null, until: null })}>
                  <Word of={inShort(job.verdict)} />{' '}
                  <Link to={{ view: 'job', job: addressFor(job, all), since: null, until: null }}>{job.id}</Link>
                  {` ${inShort(job.verdict).sentence} `}
                  <span class="faint">{job.state === 'running' ? 'running' : ago(moment(job.ended_at ?? job.started_at), now)}</span>
                </li>
              ))}
            </ul>
          )}
          {shown.length > 0 && (
            <Table caption="Jobs, newest first" class="jobs" heads={HEADS}>
              {shown.map((job) => (
                <Row key={addressOf({ view: 'job', job: addressFor(job, all), since: null, until: null })} job={job} all={all} now={now} />
              ))}
            </Table>
          )}
        </>
      )}
    </main>
  );
}
