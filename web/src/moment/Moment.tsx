// One rank at one moment, or what changed between two: a flame graph, the sites as a table, the ledger as one bar.
//
// Guarantees: the address contains rank and moments; a part that cannot be shown says why, and the others are shown.

import type { JSX } from 'preact';
import { Anatomy } from '../anatomy/Anatomy';
import { useAsked } from '../api/ask';
import type { Anatomy as AnatomyAnswer, Flame, FlameMoment, Ledger, Oom, Rank, Report, Sites } from '../api/types';
import { DeviceChoice } from '../parts/DeviceChoice';
import { Link, Waiting } from '../parts/parts';
import { pinName, pinsOf, type Pins } from '../parts/pins';
import { go, moved, question, step, stepAt, type FlameKept, type FlameMove, type JobAddress } from '../route';
import { count } from '../words/numbers';
import { addressIn, chosen, isSame, keyOf, labelOf, missing, selectionOf } from '../words/devices';
import { span } from '../words/grown';
import { FlameGraph } from './FlameGraph';
import { LedgerBar } from './LedgerBar';
import { SiteTable } from './SiteTable';

/** The most epochs in the menus. */
const LISTED = 500;

function saysOf(asked: string, pins: Pins): string {
  const named = pinName(pins, asked);
  if (named !== null) return `at ${named}`;
  if (asked === 'peak') return 'when most was allocated';
  if (asked === 'end') return 'at the end of the recording';
  const epoch = /^epoch:(\d+)$/.exec(asked);
  const step = /^epoch:(\d+):(first|last)-step$/.exec(asked);
  if (step) return `at the end of the ${step[2] ?? ''} step of epoch ${step[1] ?? ''}`;
  return epoch ? `at the end of epoch ${epoch[1] ?? ''}` : `at ${asked.replace('T', ' ').replace(/(\.\d{3})\d*Z$/, '$1 UTC')}`;
}

function Choice(of: { label: string; value: string | null; none: string | null; epochs: number[]; pins: Pins; to: (value: string | null) => void }): JSX.Element {
  const set = [of.pins.a, of.pins.b].filter((time) => time !== null);
  const known = [...set, 'peak', 'end', ...of.epochs.map((epoch) => `epoch:${epoch}`)];
  const isOther = of.value !== null && !known.includes(of.value);
  return (
    <label>
      {of.label}{' '}
      <select
        value={of.value ?? ''}
        onChange={(event) => {
          of.to(event.currentTarget.value === '' ? null : event.currentTarget.value);
        }}
      >
        {of.none !== null && <option value="">{of.none}</option>}
        {isOther && <option value={of.value ?? ''}>{saysOf(of.value ?? '', of.pins)}</option>}
        {known.map((value) => (
          <option key={value} value={value}>
            {pinName(of.pins, value) !== null ? `${pinName(of.pins, value) ?? ''} (${saysOf(value, { a: null, b: null }).replace(/^at /, '')})` : value === 'peak' ? 'the peak' : value === 'end' ? 'the end of the recording' : `the end of ${value.replace(':', ' ')}`}
          </option>
        ))}
      </select>
    </label>
  );
}

function momentOf(of: FlameMoment): string {
  return `epoch ${of.epoch}, step ${count(of.step)}${of.exact ? '' : ', NOT EXACT'}`;
}

/** See the module. */
export function Moment({ job, at, from, finding, kept }: { job: JobAddress; at: string; from: string | null; finding: string | null; kept: FlameKept }): JSX.Element {
  const report = useAsked<Report>(question(job, 'query'));
  const ranks = report.answer?.ranks ?? [];
  const rank = report.answer === null ? null : chosen(report.answer, job);
  const here = rank === null ? job : addressIn(job, rank, ranks);
  const trouble = report.answer !== null && rank === null ? missing(ranks, job) : report.trouble;
  const more: Record<string, string | null> = rank === null ? {} : selectionOf(rank, ranks);
  const asks = rank !== null;
  const flame = useAsked<Flame>(asks ? question(job, 'flame', { ...more, from, at }) : null);
  const sites = useAsked<Sites>(asks ? question(job, 'sites', { ...more, at }) : null);
  const before = useAsked<Sites>(asks && from !== null ? question(job, 'sites', { ...more, at: from }) : null);
  const ledger = useAsked<Ledger>(asks ? question(job, 'ledger', { ...more, at }) : null);
  const failures = useAsked<Oom>(question(job, 'oom'));
  const failed = failures.answer?.failures.find((failure) => failure.at === at && isSame(failure, rank)) ?? null;
  const about = report.answer?.findings.find((known) => known.id === finding) ?? null;
  const isPeak = at === 'peak' && from === null;
  const anatomy = useAsked<AnatomyAnswer>(asks && isPeak ? question(job, 'anatomy', more) : null);
  const epochs = (rank?.epoch_ends ?? []).map((end) => end.epoch).slice(-LISTED);
  const here_at = { view: 'moment' as const, job: here, at, from, ...(finding === null ? {} : { finding }) };
  const show = (to: { at?: string; from?: string | null; device?: Rank }): void => {
    step({
      view: 'moment',
      job: to.device === undefined ? here : addressIn(job, to.device, ranks),
      at: to.at ?? at,
      from: to.from === undefined ? from : to.from,
      flame: kept,
    });
  };
  const move = (by: FlameMove, quietly = false): void => {
    const to = { ...here_at, flame: moved(kept, by) };
    if (quietly) go(to, true);
    else step(to);
  };
  const pins = pinsOf(job);
  const compared = rank === null ? null : span(rank, report.answer?.findings[0]?.first_seen.epoch ?? null);
  const name = rank === null ? 'this rank' : labelOf(rank, ranks);
  const what = from === null ? `${name} ${saysOf(at, pins)}` : `${name}: what changed, from ${saysOf(from, pins).replace(/^at /, '')} to ${saysOf(at, pins).replace(/^at /, '')}`;
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {' › '}
        <Link to={{ view: 'job', job: here, since: null, until: null }}>{job.name}</Link>
      </p>
      <h1 tabIndex={-1}>{what.charAt(0).toUpperCase() + what.slice(1)}</h1>
      {report.answer === null ? (
        <Waiting trouble={report.trouble} what="the job" />
      ) : (
        <div class="tools">
          <DeviceChoice ranks={ranks} chosen={rank} to={(device) => { show({ device }); }} />
          <Choice label="At" value={at} none={null} epochs={epochs} pins={pins} to={(value) => { show({ at: value ?? 'peak' }); }} />
          <Choice label="Compared with" value={from} none="nothing" epochs={epochs} pins={pins} to={(value) => { show({ from: value }); }} />
          <Link to={{ view: 'blocks', job: here, at, event: null }}>Blocks at this moment</Link>
          <Link to={stepAt(here, at)}>Step at this moment</Link>
          {isPeak && <Link to={{ view: 'settings', job: here, limit: '' }}>Under other settings</Link>}
          {from === null && compared !== null && (
            <Link to={{ view: 'moment', job: here, at: `epoch:${compared.late}`, from: `epoch:${compared.early}` }} class="act">
              What changed over the epochs
            </Link>
          )}
        </div>
      )}
      <div class="beside">
        <section aria-labelledby="flame">
          <h2 id="flame">{from === null ? 'Live memory by call' : 'What changed, by call'}</h2>
          {flame.answer === null ? (
            <Waiting trouble={trouble ?? flame.trouble} what="the flame graph" />
          ) : (
            <>
              <p class="faint">
                {flame.answer.from === null
                  ? momentOf(flame.answer.at)
                  : `From ${momentOf(flame.answer.from)} to ${momentOf(flame.answer.at)}`}
              </p>
              <FlameGraph
                key={`${rank === null ? '' : keyOf(rank)} ${at} ${from ?? ''}`}
                flame={flame.answer}
                anatomy={isPeak && anatomy.answer?.modules.some((one) => one.module !== null) ? anatomy.answer : null}
                title={what}
                finding={from === null ? null : about}
                kept={kept}
                move={move}
              />
            </>
          )}
        </section>
        <section aria-labelledby="sites">
          <h2 id="sites">Sites</h2>
          {sites.answer === null || (from !== null && before.answer === null) ? (
            <Waiting trouble={trouble ?? sites.trouble ?? before.trouble} what="the sites" />
          ) : (
            <SiteTable late={sites.answer.ranks[0] ?? null} early={before.answer?.ranks[0] ?? null} compares={from !== null} kept={kept} move={move} />
          )}
        </section>
      </div>
      {isPeak && (
        <section aria-labelledby="anatomy">
          <h2 id="anatomy">The peak by class, module and site</h2>
          {anatomy.answer === null ? <Waiting trouble={trouble ?? anatomy.trouble} what="the peak's anatomy" /> : <Anatomy of={anatomy.answer} />}
        </section>
      )}
      <section aria-labelledby="ledger">
        <h2 id="ledger">The device's memory</h2>
        {ledger.answer === null ? (
          <Waiting trouble={trouble ?? ledger.trouble} what="the ledger" />
        ) : (
          <>
            <LedgerBar rank={ledger.answer.ranks[0] ?? null} failed={failed} />
          </>
        )}
      </section>
    </main>
  );
}
