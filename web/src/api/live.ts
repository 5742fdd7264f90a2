// Notifications from the daemon about jobs with new data, while a view of this page needs them.
//
// Guarantees: at most one connection per page, and none while the page is hidden or has no listeners. If the daemon has
// no slot, or the connection fails, there are no notifications and callers have to poll.

import { signal } from '@preact/signals';

/** New data of a job; `null` for any job. */
export type News = { job: string; run: number; attempt: number; tenant: string } | null;

type Heard = (news: News) => void;

/** Whether news are about the job of an address: `gpt2` is its newest run, `gpt2#3` a certain one. */
export function isOf(news: { job: string; run: number }, address: string): boolean {
  const at = address.lastIndexOf('#');
  return at < 0 ? news.job === address : news.job === address.slice(0, at) && String(news.run) === address.slice(at + 1);
}

/** Whether the daemon sends notifications. */
export const isLive = signal(false);

/** The pause after the daemon had no slot. */
const RETRY_MS = 30_000;

const listeners = new Set<Heard>();
let source: EventSource | null = null;
let retry: ReturnType<typeof setTimeout> | undefined;

/** The jobs of an event's data; `null` if it names none. */
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
    // Data may have arrived without a listener.
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
    // A broken connection reconnects by itself; a refused one does not.
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

/** Listens for news until the returned function is called. */
export function listen(heard: Heard): () => void {
  listeners.add(heard);
  open();
  return () => {
    listeners.delete(heard);
    if (listeners.size === 0) close();
  };
}
