// The first screen of the page without a daemon: open recordings, and the recordings that are open.
//
// Guarantees: files can be dropped anywhere on the screen, or chosen by keyboard. An import can be stopped at any time.

import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { useAsked } from '../api/ask';
import type { Jobs } from '../api/types';
import { Link } from '../parts/parts';
import { useHeard } from '../parts/heard';
import { count, plural } from '../words/numbers';
import { inShort } from '../words/verdict';
import { Says } from '../jobs/Row';
import { imported } from './desk';
import { desk, jobOf, open, opening, openSample, trouble } from './open';
import type { Site } from './place';

const PERCENT = 100;

function chosen(files: FileList | null | undefined): void {
  const list = [...(files ?? [])];
  if (list.length > 0) void open(jobOf(list.map((file) => file.name)), list.map((file) => ({ name: file.name, bytes: file })));
}

function Opening(): JSX.Element | null {
  const now = opening.value;
  if (now === null) return null;
  const { progress } = now;
  return (
    <p class="tools" role="status">
      <progress max={1} value={progress === null ? 0 : progress.share} aria-label={`Reading ${now.job}`} />
      <span>{progress === null ? `Reading ${now.job}…` : `${progress.file}: ${count(Math.floor(progress.share * PERCENT))} % read, ${plural(progress.events, 'event')}`}</span>
      <button type="button" onClick={() => { desk?.stop(); }}>Cancel</button>
    </p>
  );
}

function Opened(): JSX.Element | null {
  const { answer } = useAsked<Jobs>(imported.value === 0 ? null : 'jobs', undefined, undefined, imported.value);
  if (answer === null || answer.jobs.length === 0) return null;
  return (
    <>
      <h2>Open recordings</h2>
      <ul class="worst">
        {answer.jobs.map((job) => (
          <li key={job.id}>
            <Link to={{ view: 'job', job: { name: job.id, attempt: null, rank: null, tenant: null }, since: null, until: null }}>{job.id}</Link>{' '}
            <span class="faint">{`${plural(job.ranks, 'rank')}, ${plural(job.events, 'event')}`}</span>{' '}
            <Says of={inShort(job.verdict)} />
          </li>
        ))}
      </ul>
    </>
  );
}

/** See the module. */
export function Start({ of }: { of: Site }): JSX.Element {
  const [over, setOver] = useState(false);
  useHeard(null, 'dragover', (event) => {
    event.preventDefault();
    setOver(true);
  });
  useHeard(null, 'dragleave', (event) => {
    if (event.relatedTarget === null) setOver(false);
  });
  useHeard(null, 'drop', (event) => {
    event.preventDefault();
    setOver(false);
    chosen(event.dataTransfer?.files);
  });
  useEffect(() => {
    desk?.load().catch((error: unknown) => { trouble.value = String(error); });
  }, []);
  const isBusy = opening.value !== null;
  return (
    <main>
      <h1 tabIndex={-1}>GPU memory of a training, from its snapshots</h1>
      <p class="prose">
        Files are read in this browser, and nothing leaves it. <code>torch.cuda.memory._dump_snapshot("rank0.pickle")</code> writes one for each rank.
      </p>
      <label class={over ? 'drop over' : 'drop'}>
        <span>Drop rank0.pickle … rankN.pickle here, plain or compressed by gzip or zstd, or choose them:</span>{' '}
        <input type="file" multiple disabled={isBusy} onChange={(event) => { chosen(event.currentTarget.files); event.currentTarget.value = ''; }} />
      </label>
      <Opening />
      {trouble.value !== null && <p class="prose trouble" role="alert">{trouble.value}</p>}
      {of.samples.length > 0 && (
        <>
          <h2>Samples</h2>
          <ul class="worst">
            {of.samples.map((sample) => (
              <li key={sample.name}>
                <button type="button" disabled={isBusy} onClick={() => void openSample(sample)}>{sample.name}</button>{' '}
                <span class="faint">{sample.about}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      <Opened />
    </main>
  );
}
