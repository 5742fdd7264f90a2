// A job in the list, as one line.
//
// Guarantees: each figure is the daemon's; what it does not deliver is a dash. Figures that only the job's report has are
// requested once the line is in sight, for jobs of at most LARGEST ranks.

import type { JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { ask } from '../api/ask';
import type { Job, Report } from '../api/types';
import { place } from '../draw/flame';
import { Bytes, Link, Word } from '../parts/parts';
import { question, type JobAddress } from '../route';
import { UNKNOWN, ago, bytes, change, count, date, duration, exactly, moment, percent, plural } from '../words/numbers';
import { inShort, ranksOf } from '../words/verdict';
import { glanceOf } from './glance';
import { quiet as quietOf, stateOf } from './rows';
import { useSeen } from './seen';
import { Spark } from './Spark';

/** The most ranks of a job whose report is requested for its line: a larger one is too much for a few figures. */
const LARGEST = 64;
/** The pause between two requests for one line. */
const REST_MS = 15_000;

/** The address of each job in a list. */
export function addressesOf(all: Job[]): Map<Job, JobAddress> {
  const tenants = new Map<string, Set<string>>();
  const last = new Map<string, number>();
  const key = (job: Job): string => `${job.tenant}\n${job.id}`;
  for (const job of all) {
    tenants.set(job.name, (tenants.get(job.name) ?? new Set()).add(job.tenant));
    last.set(key(job), Math.max(last.get(key(job)) ?? 0, job.attempt));
  }
  return new Map(all.map((job) => [job, {
    name: job.id,
    attempt: (last.get(key(job)) ?? 0) > job.attempt ? String(job.attempt) : null,
    rank: null,
    tenant: (tenants.get(job.name)?.size ?? 0) > 1 ? job.tenant : null,
  }]));
}

/** Two texts, one above the other. */
function Two({ above, below, title }: { above: string; below: string; title?: string | undefined }): JSX.Element {
  return (
    <td class="number two" title={title}>
      {above}
      <small>{below}</small>
    </td>
  );
}

/** A verdict's word and sentence; a sentence that begins with the word says it once. */
export function Says({ of }: { of: ReturnType<typeof inShort> }): JSX.Element {
  const { word, sentence } = of;
  return <><Word of={of} />{sentence.toLowerCase().startsWith(word.toLowerCase()) ? sentence.slice(word.length) : ` ${sentence}`}</>;
}

/** See the module. */
export function Row({ job, address, now, quiet, fires }: { job: Job; address: JobAddress; now: number; quiet: ReturnType<typeof quietOf>; fires: number }): JSX.Element {
  const here = useRef<HTMLTableRowElement>(null);
  const runs = job.state === 'running';
  const report = useSeen(here, address, job.ranks <= LARGEST ? question(address, 'query') : null, runs, REST_MS, ask<Report>);
  const known = report === null ? null : glanceOf(report);
  const started = moment(job.started_at);
  const lasted = (job.ended_at === null ? now : moment(job.ended_at)) - started;
  const verdict = inShort(job.verdict);
  const state = stateOf(job);
  const site = job.verdict?.site ?? null;
  const labels = Object.entries(job.labels).map(([key, value]) => `${key}=${value}`);
  const { grown_bytes: grown = null, seconds = null } = job.verdict ?? {};
  const rate = known?.rate == null ? (seconds === null || grown === null ? '' : `in ${duration(1000 * seconds)}`) : `${change(known.rate)}/${known.per ?? ''}`;
  return (
    <tr ref={here}>
      <th scope="row" class="two" title={[job.id, ...labels].join(' ')}>
        <Link to={{ view: 'job', job: address, since: null, until: null }}>{job.id}</Link>
        <small>
          {job.attempts > 1 || job.attempt > 0 ? `attempt ${job.attempt} · ` : ''}
          {`${ranksOf(job)} · `}
          <Bytes of={job.stored_bytes} />
          {labels.length > 0 && ` · ${labels.join(' ')}`}
        </small>
      </th>
      <td class="two">
        <span class={`state ${state.colour}`}>{state.text}</span>
        {state.also !== '' && <small>{state.also}</small>}
        {quiet !== null && <small title={quiet.by === '' ? undefined : quiet.by}>{quiet.until === null ? 'silenced' : `silenced, ${duration(quiet.until - now)} more`}</small>}
        {quiet === null && fires > 0 && <small class="fires">{fires === 1 ? 'alert fires' : `${count(fires)} alerts fire`}</small>}
      </td>
      <td class="memory">
        <Spark job={address} runs={runs} />
      </td>
      <td class="finding" title={verdict.sentence === '' ? undefined : verdict.sentence}>
        <span class={site === null ? 'clamp' : 'clamp one'}><Says of={verdict} /></span>
        {site !== null && <small class="code">{place(site)}</small>}
      </td>
      <Two above={grown === null ? UNKNOWN : change(grown)} below={rate} title={grown === null ? undefined : exactly(grown)} />
      <Two
        above={known?.used == null || known.total === null ? UNKNOWN : percent(known.used, known.total)}
        below={known?.total == null ? '' : `of ${bytes(known.total)}`}
        title={known?.used == null ? undefined : exactly(known.used)}
      />
      <Two above={known === null ? UNKNOWN : plural(known.epochs, 'epoch')} below={known === null ? '' : plural(known.steps, 'step')} />
      <td class="number">{known?.horizon ?? UNKNOWN}</td>
      <Two above={ago(started, now)} below={`for ${duration(lasted)}`} title={date(started)} />
    </tr>
  );
}
