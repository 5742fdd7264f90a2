// Two runs compared: what it comes to, their courses on one axis, then what changed, the largest change first.
//
// Guarantees: sentence and figures are those of `memctl diff`; the address names both runs.

import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Diff, FigureChange, NameChange, SiteChange, Timeline } from '../api/types';
import { UNITS, compared } from '../draw/compared';
import { samples } from '../draw/course';
import { fileName } from '../draw/flame';
import { Bytes, Change, Link, Table, Waiting } from '../parts/parts';
import { go, question, type JobAddress } from '../route';
import { bytes, count, duration } from '../words/numbers';

/** Points of a course: more than one a pixel shows nothing. */
const POINTS = '600';
/** Rows of a table before the rest is folded. */
const SHOWN = 12;

const FIGURES: Record<string, string> = {
  peak_allocated_bytes: 'peak allocated',
  peak_reserved_bytes: 'peak reserved',
  growth_bytes_per_epoch: 'growth per epoch',
  events_per_step: 'allocator events per step',
};

/** The run before this one, if its name has a number: `gpt2#3` follows `gpt2#2`. */
export function runBefore(name: string): string | null {
  const [, series, run] = /^(.*)#(\d+)$/.exec(name) ?? [];
  return series === undefined || Number(run) < 2 ? null : `${series}#${Number(run) - 1}`;
}

/** Asks for the run to compare with. */
export function CompareWith({ job, before }: { job: JobAddress; before: string }): JSX.Element {
  const [typed, setTyped] = useState(before);
  const open = (event: SubmitEvent): void => {
    event.preventDefault();
    if (typed.trim() !== '') go({ view: 'compare', job, before: typed.trim() });
  };
  return (
    <form class="tools" onSubmit={open}>
      <label>
        Compare with run <input type="search" value={typed} placeholder="JOB or JOB#RUN" onInput={(event) => { setTyped(event.currentTarget.value); }} />
      </label>
      <button type="submit" disabled={typed.trim() === ''}>Compare</button>
    </form>
  );
}

/** See the module. */
export function Compare({ job, before }: { job: JobAddress; before: string }): JSX.Element {
  const diff = useAsked<Diff>(before === '' ? null : question(job, 'diff', { before }));
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {' › '}
        <Link to={{ view: 'job', job, since: null, until: null }}>{job.name}</Link>
      </p>
      <h1 tabIndex={-1}>{before === '' ? `${job.name}, compared` : `${job.name} compared with ${before}`}</h1>
      <CompareWith key={before} job={job} before={before === '' ? (runBefore(job.name) ?? '') : before} />
      {before !== '' && (diff.answer === null ? <Waiting trouble={diff.trouble} what="the comparison" /> : <Changes of={diff.answer} job={job} />)}
    </main>
  );
}

/** A finding's sentence, marked if it is suspected. */
function marked(finding: { suspected: boolean; title: string }): string {
  return finding.suspected ? `suspected: ${finding.title}` : finding.title;
}

function Changes({ of, job }: { of: Diff; job: JobAddress }): JSX.Element {
  const grade = ['higher', 'new_finding', 'not_comparable'].includes(of.conclusion) ? 'warning' : of.conclusion === 'lower' || of.conclusion === 'same' ? 'none' : 'info';
  return (
    <>
      <section aria-labelledby="verdict">
        <h2 id="verdict" class="unseen">What it comes to</h2>
        <div class={`verdict ${grade}`}>
          <p class="headline">{of.sentence}</p>
          {of.new_findings.map((finding) => <p key={finding.title}>{`New: ${marked(finding)}`}</p>)}
          {of.gone_findings.map((finding) => <p key={finding.title} class="faint">{`Gone: ${marked(finding)}`}</p>)}
          {of.not_judged_findings.map((finding) => <p key={finding.title} class="faint">{`${finding.reason}: ${marked(finding)}`}</p>)}
        </div>
      </section>
      <Courses of={of} job={job} />
      <section aria-labelledby="figures">
        <h2 id="figures">Figures</h2>
        <Table caption="The highest values among all devices" heads={[{ text: 'Figure' }, { text: 'Before', number: true }, { text: 'After', number: true }, { text: 'Change', number: true }]}>
          {of.figures.map((figure) => <Figure key={figure.figure} of={figure} />)}
        </Table>
      </section>
      <Sites of={of.sites} job={job} ignored={of.ignored_bytes} />
      <Names id="classes" title="Classes at the peak" of={of.classes} />
      <Names id="modules" title="Modules at the peak" of={of.modules} />
      {of.settings.length > 0 && (
        <section aria-labelledby="settings">
          <h2 id="settings">Settings that differ</h2>
          <Table caption="Settings and versions" heads={[{ text: 'Setting' }, { text: 'Before' }, { text: 'After' }]}>
            {of.settings.map((setting) => (
              <tr key={setting.name}>
                <th scope="row">{setting.name}</th>
                <td>{setting.before ?? 'none'}</td>
                <td>{setting.after ?? 'none'}</td>
              </tr>
            ))}
          </Table>
        </section>
      )}
      {of.notes.map((note) => <p key={note} class="faint">{note}</p>)}
    </>
  );
}

/** The courses of one rank of both runs. */
function Courses({ of, job }: { of: Diff; job: JobAddress }): JSX.Element {
  const rank = String(job.rank ?? 0);
  const [first, second] = [of.before, of.after].map((name) =>
    useAsked<Timeline>(question({ ...job, name, attempt: null }, 'timeline', { rank, points: POINTS })),
  );
  const line = (timeline: Timeline | null | undefined): ReturnType<typeof samples> => {
    const known = timeline?.ranks[0];
    return known === undefined ? [] : samples(known);
  };
  const both = useMemo(() => compared(line(first?.answer), line(second?.answer)), [first?.answer, second?.answer]);
  const trouble = first?.trouble ?? second?.trouble ?? null;
  return (
    <section aria-labelledby="courses">
      <h2 id="courses">{`Allocated memory of rank ${rank}, highest in each stretch`}</h2>
      {both === null ? (
        <Waiting trouble={trouble} what="the courses" />
      ) : (
        <figure>
          <figcaption>
            <ul class="legend">
              <li><i class="key over1" />{`before: ${of.before}`}</li>
              <li><i class="key over0" />{`after: ${of.after}`}</li>
            </ul>
          </figcaption>
          <svg class="course" width="100%" height="240" role="img" aria-label={`Both courses by ${both.by}, up to ${bytes(both.top)}`}>
            <svg width="100%" height="220" viewBox={`0 0 ${UNITS} ${UNITS}`} preserveAspectRatio="none">
              <path class="over over1" d={both.before} />
              <path class="over over0" d={both.after} />
            </svg>
            <text class="scale" x="4" y="14">{bytes(both.top)}</text>
            <text class="scale" x="4" y="216">0 B</text>
            <text class="tick" x="0" y="236">{both.by === 'step' ? 'step 0' : 'start'}</text>
            <text class="tick" x="100%" y="236" text-anchor="end">{both.by === 'step' ? `step ${count(both.end)}` : duration(both.end)}</text>
          </svg>
        </figure>
      )}
    </section>
  );
}

function Figure({ of }: { of: FigureChange }): JSX.Element {
  const isBytes = of.figure.includes('bytes');
  const shown = (value: number | null): JSX.Element => <>{value === null ? 'not known' : isBytes ? <Bytes of={value} /> : count(value)}</>;
  const by = of.before === null || of.after === null ? null : of.after - of.before;
  return (
    <tr>
      <th scope="row">{FIGURES[of.figure] ?? of.figure}</th>
      <td class="number">{shown(of.before)}</td>
      <td class="number">{shown(of.after)}</td>
      <td class={`number ${by === null || by === 0 ? '' : by > 0 ? 'more' : 'less'}`}>{by === null ? '' : isBytes ? <Change of={by} /> : count(by)}</td>
    </tr>
  );
}

function Sites({ of, job, ignored }: { of: SiteChange[]; job: JobAddress; ignored: number }): JSX.Element {
  const row = (site: SiteChange): JSX.Element => {
    const by = site.after_bytes - site.before_bytes;
    const frame = site.site;
    return (
      <tr key={`${frame?.file ?? ''} ${frame?.function ?? ''} ${frame?.line ?? ''} ${site.class}`}>
        <th scope="row" class="code name">{frame === null ? 'no stack recorded' : `${frame.function} (${fileName(frame.file)}:${frame.line ?? '?'})`}{site.line_before !== null && <small>{`was line ${site.line_before}`}</small>}</th>
        <td>{site.class.replaceAll('_', ' ')}</td>
        <td class="number"><Bytes of={site.before_bytes} /></td>
        <td class="number"><Bytes of={site.after_bytes} /></td>
        <td class={`number ${by > 0 ? 'more' : 'less'}`}><Change of={by} /></td>
      </tr>
    );
  };
  const heads = [{ text: 'Site' }, { text: 'Class' }, { text: 'Before', number: true }, { text: 'After', number: true }, { text: 'Change', number: true }];
  return (
    <section aria-labelledby="sites">
      <h2 id="sites">Sites at the peak</h2>
      {of.length === 0 ? (
        <p class="faint">{`No site differs by more than ${bytes(ignored)}.`}</p>
      ) : (
        <>
          <Table caption="Live memory at the peak of the device with the highest peak" heads={heads}>{of.slice(0, SHOWN).map(row)}</Table>
          {of.length > SHOWN && (
            <details>
              <summary>{`${of.length - SHOWN} more`}</summary>
              <Table caption="Smaller changes" heads={heads}>{of.slice(SHOWN).map(row)}</Table>
            </details>
          )}
          <p class="tools"><Link to={{ view: 'moment', job, at: 'peak', from: null }}>The peak of this run</Link></p>
        </>
      )}
    </section>
  );
}

function Names({ id, title, of }: { id: string; title: string; of: NameChange[] }): JSX.Element | null {
  if (of.length === 0) return null;
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      <Table caption={title} heads={[{ text: 'Name' }, { text: 'Before', number: true }, { text: 'After', number: true }, { text: 'Change', number: true }]}>
        {of.slice(0, SHOWN).map((one) => {
          const by = one.after_bytes - one.before_bytes;
          return (
            <tr key={one.name ?? ''}>
              <th scope="row">{one.name === null ? 'no module' : one.name.replaceAll('_', ' ')}</th>
              <td class="number"><Bytes of={one.before_bytes} /></td>
              <td class="number"><Bytes of={one.after_bytes} /></td>
              <td class={`number ${by > 0 ? 'more' : 'less'}`}><Change of={by} /></td>
            </tr>
          );
        })}
      </Table>
    </section>
  );
}
