// The verdict: one sentence and what was not judged. Below the pictures: the findings and the six answers.

import type { JSX } from 'preact';
import type { Diagnosis, Failed, Finding, Report } from '../api/types';
import { fileName } from '../draw/flame';
import { Held } from '../holders/Held';
import { Bytes, Link, Word } from '../parts/parts';
import type { JobAddress } from '../route';
import { evidence } from '../words/evidence';
import { completeness, grade, gradeOf, lookedAt, notJudged } from '../words/verdict';

/** Findings that are shown in full. */
const SHOWN = 20;
/** Kinds whose memory is not that of live tensors. */
const GROWS_BESIDE = new Set(['fragmentation_growth', 'outside_allocator', 'host_growth']);

function One({ finding, number, report, failures, job }: { finding: Finding; number: number; report: Report | null; failures: Failed[]; job: JobAddress }): JSX.Element {
  // The views of the first finding are linked with the verdict.
  const shown = report === null || number === 1 ? [] : evidence(finding, report.ranks, failures, job);
  const { site } = finding;
  const ranks = finding.all_ranks ? 'all ranks' : finding.ranks.length === 0 ? '–' : finding.ranks.join(', ');
  return (
    <details open={number === 1}>
      <summary>
        <Word of={grade(finding.severity)} /> {finding.title || finding.kind.replaceAll('_', ' ')}
      </summary>
      {shown.length > 0 && (
        <p class="tools">
          {shown.map(({ to, text }, at) => <Link key={text} to={to} {...(at === 0 ? { class: 'act' } : {})}>{text}</Link>)}
        </p>
      )}
      <dl>
        {site !== null && (
          <>
            <dt>where</dt>
            <dd class="code" title={site.file}>
              {site.function} <span class="faint">{fileName(site.file)}{site.line === null ? '' : `:${site.line}`}</span>
            </dd>
          </>
        )}
        <dt>ranks</dt>
        <dd>{ranks}</dd>
        {finding.first_seen.epoch !== null && (
          <>
            <dt>since</dt>
            <dd>epoch {finding.first_seen.epoch}</dd>
          </>
        )}
        {finding.live_bytes !== null && (
          <>
            <dt>{GROWS_BESIDE.has(finding.kind) ? 'now' : 'live'}</dt>
            <dd>
              <Bytes of={finding.live_bytes} />
            </dd>
          </>
        )}
        <Held of={finding.holders} />
        {finding.explanation !== '' && (
          <>
            <dt>why</dt>
            <dd class="prose">{finding.explanation}</dd>
          </>
        )}
        {finding.advice !== '' && (
          <>
            <dt>change</dt>
            <dd class="prose">{finding.advice}</dd>
          </>
        )}
      </dl>
    </details>
  );
}

/** See the module. */
export function Verdict({ note, report, failures, job }: { note: Diagnosis; report: Report | null; failures: Failed[]; job: JobAddress }): JSX.Element {
  const of = note.verdict === null ? grade(note.severity) : gradeOf(note.verdict, note.severity);
  const gaps = notJudged(note.not_judged);
  const [decides] = note.not_judged.filter((gap) => gap.decides);
  const [first] = note.findings;
  const shown = first === undefined || report === null ? [] : evidence(first, report.ranks, failures, job);
  return (
    <div class={`verdict ${of.colour}`}>
      <p class="headline">
        <Word of={of} /> {note.summary.startsWith(`${of.word}: `) ? note.summary.slice(of.word.length + 2) : note.summary}
      </p>
      {decides?.remedy != null && note.severity === 'inconclusive' && <p class="prose">What to do: {decides.remedy}.</p>}
      {note.findings.length === 0 && <p>Looked at: {lookedAt(note)}.</p>}
      <p class={note.completeness.exact ? undefined : 'inexact'}>{completeness(note.completeness, note.job.state === 'running')}</p>
      {gaps !== '' && <p class="prose">Not judged: {gaps}.</p>}
      {shown.length > 0 && (
        <p class="tools">
          {shown.map(({ to, text }, at) => <Link key={text} to={to} {...(at === 0 ? { class: 'act' } : {})}>{text}</Link>)}
        </p>
      )}
    </div>
  );
}

/** The findings, and what to change. */
export function Findings({ note, report, failures, job }: { note: Diagnosis; report: Report | null; failures: Failed[]; job: JobAddress }): JSX.Element {
  const more = note.findings.length - SHOWN;
  return (
    <>
      {note.findings.slice(0, SHOWN).map((finding, at) => (
        <One key={finding.id} finding={finding} number={at + 1} report={report} failures={failures} job={job} />
      ))}
      {more > 0 && <p>And {more} more: `memctl leaks --all` lists them.</p>}
      <details>
        <summary>What to change, and how to prove it</summary>
        {note.questions.map((question) => (
          <div key={question.question}>
            <h3>{question.question}</h3>
            {question.answer.map((text) => (
              <p key={text} class="prose">
                {text}
              </p>
            ))}
            {question.before.length + question.after.length > 0 && (
              <pre tabIndex={0}>
                {[...question.before.map((line) => `- ${line}`), ...question.after.map((line) => `+ ${line}`)].join('\n')}
              </pre>
            )}
            {question.commands.length > 0 && <pre tabIndex={0}>{question.commands.join('\n')}</pre>}
          </div>
        ))}
      </details>
    </>
  );
}
