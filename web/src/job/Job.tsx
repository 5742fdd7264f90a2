// One job: the verdict on top, its memory timeline in the middle, the ranks below.
//
// Guarantees: the verdict is that of `memctl diagnose`; if nothing was found, what was not judged is shown next to it.

import type { JSX } from 'preact';
import { useAsked } from '../api/ask';
import { isOf } from '../api/live';
import type { Diagnosis, Heat, Oom, Report, Timeline } from '../api/types';
import { Link, Waiting } from '../parts/parts';
import { question, type JobAddress } from '../route';
import { date, duration, moment, plural } from '../words/numbers';
import { nameOf, ranksOf } from '../words/verdict';
import { Course } from './Course';
import { HeatMap } from './HeatMap';
import { Ranks } from './Ranks';
import { Verdict } from './Verdict';

/** The rank to show if none is chosen: one of the worst finding, or else the first. */
export function chosenRank(report: Report, asked: number | null): number {
  const has = (rank: number): boolean => report.ranks.some((known) => known.rank === rank);
  const [worst] = report.findings;
  const wanted = asked ?? worst?.ranks.find(has) ?? 0;
  return has(wanted) ? wanted : (report.ranks[0]?.rank ?? 0);
}

/** See the module. */
export function Job({ job, since, until, over, classes }: { job: JobAddress; since: string | null; until: string | null; over: string; classes: 'on' | 'off' | null }): JSX.Element {
  const runs = (answer: { job: { state: string } }): boolean => answer.job.state === 'running';
  const own = (news: { job: string; run: number }): boolean => isOf(news, job.name);
  const note = useAsked<Diagnosis>(question(job, 'diagnose'), runs, own);
  const report = useAsked<Report>(question(job, 'query'), runs, own);
  // A rank in the address is requested at once, before the job's ranks are known.
  const rank = report.answer === null ? job.rank : chosenRank(report.answer, job.rank);
  const of = rank === null || report.answer?.ranks.length === 0 ? null : { rank: String(rank) };
  const course = useAsked<Timeline>(of && question(job, 'timeline', { ...of, points: '600', floor: 'true' }), runs, own);
  const failures = useAsked<Oom>(question(job, 'oom'));
  const heat = useAsked<Heat>(report.answer !== null && report.answer.ranks.length > 1 ? question(job, 'heat') : null);
  const of_job = report.answer?.job ?? note.answer?.job ?? null;
  const shown = report.answer?.ranks.find((known) => known.rank === rank) ?? null;
  const line = course.answer?.ranks.find((known) => shown === null || known.process === shown.process) ?? course.answer?.ranks[0];
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
      </p>
      <h1 tabIndex={-1}>{job.name}</h1>
      {of_job !== null && (
        <p class="faint">
          {[
            of_job.state,
            ranksOf(of_job),
            ...(of_job.attempts > 1 || of_job.attempt > 0 ? [`attempt ${of_job.attempt}`] : []),
            date(moment(of_job.started_at)),
            ...(of_job.ended_at === null ? [] : [duration(moment(of_job.ended_at) - moment(of_job.started_at))]),
            plural(of_job.events, 'event'),
            ...Object.entries(of_job.labels).map(([key, value]) => `${key}=${value}`),
          ].join(' · ')}
        </p>
      )}
      <section aria-labelledby="verdict">
        <h2 id="verdict">Verdict</h2>
        {note.answer === null ? (
          <Waiting trouble={note.trouble} what="the verdict" />
        ) : (
          <Verdict note={note.answer} report={report.answer} failures={failures.answer?.failures ?? []} job={job} />
        )}
      </section>
      <section class="stays" aria-labelledby="course">
        <h2 id="course">Memory over time</h2>
        {line === undefined || report.answer === null || rank === null ? (
          <Waiting trouble={report.trouble ?? course.trouble} what="the course" />
        ) : (
          <Course
            key={`${rank} ${line.process}`}
            job={job}
            rank={shown}
            name={nameOf(line.process, line.rank)}
            line={line}
            ranks={report.answer.ranks}
            findings={report.answer.findings}
            failures={failures.answer?.failures.filter((failure) => failure.rank === rank) ?? []}
            since={since}
            until={until}
            over={over}
            classes={classes}
            diverges={heat.answer?.ranks.find((row) => row.rank === rank && row.process === line.process)?.diverges_at ?? null}
          />
        )}
      </section>
      <section aria-labelledby="ranks">
        <h2 id="ranks">Ranks</h2>
        {report.answer === null ? (
          <Waiting trouble={report.trouble} what="the ranks" />
        ) : (
          <>
            {heat.answer !== null && <HeatMap heat={heat.answer} job={job} />}
            <Ranks report={report.answer} job={job} chosen={rank ?? 0} />
          </>
        )}
      </section>
    </main>
  );
}
