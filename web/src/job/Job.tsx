// One job: the verdict on top, its memory timeline and the growth lane, then the findings and the ranks.
//
// Guarantees: the verdict is that of `memctl diagnose`; if nothing was found, what was not judged is shown next to it.

import type { JSX } from 'preact';
import { useAsked } from '../api/ask';
import { isOf } from '../api/live';
import type { Diagnosis, Heat, Oom, Report, Timeline } from '../api/types';
import { runBefore } from '../compare/Compare';
import { Link, Waiting } from '../parts/parts';
import { file } from '../report/file';
import { question, type JobAddress } from '../route';
import { date, duration, moment, plural } from '../words/numbers';
import { chosen, isSame, keyOf, labelOf, missing } from '../words/devices';
import { ranksOf } from '../words/verdict';
import { Course } from './Course';
import { GrowthLane } from './GrowthLane';
import { HeatMap } from './HeatMap';
import { Ranks } from './Ranks';
import { Findings, Verdict } from './Verdict';

/** See the module. */
export function Job({ job, since, until, over, classes, heat: quantity }: { job: JobAddress; since: string | null; until: string | null; over: string; classes: 'on' | 'off' | null; heat: string | null }): JSX.Element {
  const runs = (answer: { job: { state: string } }): boolean => answer.job.state === 'running';
  const own = (news: { job: string; run: number }): boolean => isOf(news, job.name);
  const note = useAsked<Diagnosis>(question(job, 'diagnose'), runs, own);
  const report = useAsked<Report>(question(job, 'query'), runs, own);
  // A rank in the address is requested at once, before the job's ranks are known.
  const ranks = report.answer?.ranks ?? [];
  const shown = report.answer === null ? null : chosen(report.answer, job);
  const rank = report.answer === null ? job.rank : (shown?.rank ?? null);
  const of = rank === null ? null : { rank: String(rank) };
  const course = useAsked<Timeline>(of && question(job, 'timeline', { ...of, points: '600', floor: 'true' }), runs, own);
  const failures = useAsked<Oom>(question(job, 'oom'));
  const heat = useAsked<Heat>(report.answer !== null && report.answer.ranks.length > 1 ? question(job, 'heat') : null);
  const of_job = report.answer?.job ?? note.answer?.job ?? null;
  const line = course.answer?.ranks.find((known) => isSame(known, shown));
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {file === null && <>{' · '}<Link to={{ view: 'compare', job, before: runBefore(of_job?.id ?? job.name) ?? '' }}>Compare with another run</Link></>}
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
        <h2 id="verdict" class="unseen">Verdict</h2>
        {note.answer === null ? (
          <Waiting trouble={note.trouble} what="the verdict" />
        ) : (
          <Verdict note={note.answer} report={report.answer} failures={failures.answer?.failures ?? []} job={job} />
        )}
      </section>
      <section class="stays" aria-labelledby="course">
        <h2 id="course">Memory over time</h2>
        {report.answer !== null && shown === null ? (
          <p class="prose trouble" role="alert">{missing(ranks, job)}</p>
        ) : line === undefined || report.answer === null || shown === null ? (
          <Waiting trouble={report.trouble ?? course.trouble} what="the course" />
        ) : (
          <>
            <Course
              key={keyOf(line)}
              job={job}
              rank={shown}
              name={labelOf(shown, ranks)}
              line={line}
              ranks={report.answer.ranks}
              findings={report.answer.findings}
              failures={failures.answer?.failures.filter((failure) => isSame(failure, shown)) ?? []}
              since={since}
              until={until}
              over={over}
              classes={classes}
              diverges={heat.answer?.ranks.find((row) => isSame(row, line))?.diverges_at ?? null}
            />
            <GrowthLane key={`lane ${keyOf(line)}`} job={job} rank={shown} findings={report.answer.findings} runs={of_job?.state === 'running'} />
          </>
        )}
      </section>
      {note.answer !== null && (
        <section aria-labelledby="findings">
          <h2 id="findings">Findings</h2>
          <Findings note={note.answer} report={report.answer} failures={failures.answer?.failures ?? []} job={job} />
        </section>
      )}
      <section aria-labelledby="ranks">
        <h2 id="ranks">Ranks</h2>
        {report.answer === null ? (
          <Waiting trouble={report.trouble} what="the ranks" />
        ) : (
          <>
            {heat.answer !== null && <HeatMap heat={heat.answer} ranks={ranks} job={job} quantity={quantity} />}
            <Ranks report={report.answer} job={job} chosen={shown} />
          </>
        )}
      </section>
    </main>
  );
}
