// Hears from the daemon which jobs have something new, while somebody on this page wants to know.
//
// Guarantees: one connection a page at most, and none while the page is hidden or nobody listens; where the daemon has no
// place for a listener, or none can be kept, nothing is told and who asks has to ask from time to time.

import { signal } from '@preact/signals';

/** Something new of a job; `null` of any. */
export type News = { job: string; run: number; attempt: number; tenant: string } | null;

type Heard = (news: News) => void;

/** Whether news are of the job that an address names: `gpt2` is whichever run is the newest, `gpt2#3` one. */
export function isOf(news: { job: string; run: number }, address: string): boolean {
  const at = address.lastIndexOf('#');
  return at < 0 ? news.job === address : news.job === address.slice(0, at) && String(news.run) === address.slice(at + 1);
}

/** Whether the daemon tells by itself. */
export const isLive = signal(false);

/** After the daemon had no place. */
const RETRY_MS = 30_000;

const listeners = new Set<Heard>();
let source: EventSource | null = null;
let retry: ReturnType<typeof setTimeout> | undefined;

/** The jobs of an event's data; `null` where it says nothing of single jobs. */
export function newsOf(data: string): NonNullable<News>[] | null {
  try {
    const said = JSON.parse(data) as { jobs?: unknown };
    return Array.isArray(said.jobs) ? (said.jobs as NonNullable<News>[]) : null;
  } catch {
    return null;
  }
}

function tell(news: News): void {
  for (const heard of [...listeners]) heard(news);
}

function open(): void {
  clearTimeout(retry);
  if (source !== null || listeners.size === 0 || document.hidden) return;
  const opened = new EventSource('/api/v1/live');
  source = opened;
  opened.addEventListener('open', () => {
    isLive.value = true;
    // What came while nobody listened.
    tell(null);
  });
  opened.addEventListener('jobs', (event: MessageEvent<string>) => {
    const jobs = newsOf(event.data);
    if (jobs === null) tell(null);
    else for (const job of jobs) tell(job);
  });
  opened.addEventListener('all', () => {
    tell(null);
  });
  opened.addEventListener('error', () => {
    isLive.value = false;
    // A connection that broke comes again by itself; one that was refused does not.
    if (opened.readyState !== EventSource.CLOSED) return;
    close();
    retry = setTimeout(open, RETRY_MS);
  });
}

function close(): void {
  clearTimeout(retry);
  source?.close();
  source = null;
  isLive.value = false;
}

if (typeof document !== 'undefined') {
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) close();
    else open();
  });
}

/** Hears of what is new until the function that it gives is called. */
export function listen(heard: Heard): () => void {
  listeners.add(heard);
  open();
  return () => {
    listeners.delete(heard);
    if (listeners.size === 0) close();
  };
}
