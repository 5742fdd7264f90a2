// Requests data from the daemon, and keeps the last response while it is requested again.
//
// Guarantees: a request that is no longer needed is cancelled; a late response never replaces a later one; shown data
// stays while it is requested again; a report answers from its own file (`report/`), and a page without a daemon from its
// worker (`site/`).
// Refuses: any other host.

import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { file, said } from '../report/file';
import { desk } from '../site/open';
import { isLive, listen, type News } from './live';

/** Why a request failed, in the daemon's own sentence. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Set if the daemon needs a token or the printed address first: its sentence, and whether a token helps. */
export const refusal = signal<{ words: string; takesToken: boolean } | null>(null);

/** How often changing data is requested again, without and with notifications from the daemon. */
const AGAIN_MS = 5000;
const AGAIN_LIVE_MS = 60_000;
/** The pause between two requests: at least this, and this many times as long as the last one took. */
const REST_MS = 1000;
const RESTS = 4;

/** One request. */
export async function ask<T>(path: string, cancel?: AbortSignal): Promise<T> {
  return (await (await answered(path, cancel)).json()) as T;
}

/** A request for a tile's bytes. */
export async function askTile(path: string, cancel: AbortSignal): Promise<ArrayBuffer> {
  return (await answered(path, cancel)).arrayBuffer();
}

async function answered(path: string, cancel?: AbortSignal): Promise<Response> {
  if (file !== null) {
    const found = await said(file, path);
    if (typeof found === 'string') throw new Refused(404, found);
    return new Response(found);
  }
  if (desk !== null) {
    const { status, content } = await desk.get(path);
    if (status === 200) return new Response(content);
    throw new Refused(status, new TextDecoder().decode(content).trim().split('\n')[0] ?? '');
  }
  const answer = await fetch(`/api/v1/${path}`, cancel ? { signal: cancel } : {});
  if (answer.ok) return answer;
  const words = (await answer.text()).trim().split('\n')[0] ?? answer.statusText;
  if (answer.status === 401) {
    refusal.value = { words, takesToken: answer.headers.get('www-authenticate') !== null };
  }
  throw new Refused(answer.status, words);
}

/** Changes something, if the role allows it. */
export async function change(verb: string, what: Record<string, string>): Promise<void> {
  const answer = await fetch(`/api/v1/${verb}?${new URLSearchParams(what).toString()}`, { method: 'POST' });
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim().split('\n')[0] ?? answer.statusText);
}

/** Signs in with a token, which the daemon turns into a cookie. */
export async function signIn(token: string): Promise<void> {
  const answer = await fetch('/login', { method: 'POST', headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim().split('\n')[0] ?? answer.statusText);
  refusal.value = null;
}

/** Signs out. */
export async function signOut(): Promise<void> {
  await fetch('/logout', { method: 'POST' });
  location.assign('/');
}

/** The state of a request. */
export interface AskState<T> {
  answer: T | null;
  trouble: string | null;
}

/** The response to a request while it is shown; `null` requests nothing. `again` says whether it may still change, and `about`
 * which notifications concern it: all, if left out; another `round` requests at once. */
export function useAsked<T>(
  path: string | null,
  again?: (answer: T) => boolean,
  about?: (news: NonNullable<News>) => boolean,
  round = 0,
): AskState<T> {
  const [known, setKnown] = useState<AskState<T> & { path: string | null }>({ path: null, answer: null, trouble: null });
  useEffect(() => {
    if (path === null) return undefined;
    const cancel = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let unheard: (() => void) | undefined;
    // Since when nothing is pending, and how long to pause from then on.
    let [idle, rest, waits] = [0, 0, false];
    const later = (ms: number): void => {
      clearTimeout(timer);
      timer = setTimeout(() => void once(), ms);
    };
    const hear = (news: News): void => {
      if (news !== null && about?.(news) === false) return;
      if (idle === 0) waits = true;
      else later(Math.max(0, idle + rest - performance.now()));
    };
    const once = async (): Promise<void> => {
      const begun = performance.now();
      idle = 0;
      try {
        const answer = await ask<T>(path, cancel.signal);
        if (cancel.signal.aborted) return;
        setKnown({ path, answer, trouble: null });
        if (file === null && desk === null && again?.(answer)) {
          unheard ??= listen(hear);
          later(isLive.value ? AGAIN_LIVE_MS : AGAIN_MS);
        } else {
          unheard?.();
          unheard = undefined;
        }
      } catch (error) {
        if (cancel.signal.aborted) return;
        const words = error instanceof Refused || desk !== null ? (error as Error).message : 'the daemon does not answer; this page asks again';
        setKnown((before) => ({ path, answer: before.path === path ? before.answer : null, trouble: words }));
        if (desk === null && (!(error instanceof Refused) || error.status === 503)) later(AGAIN_MS);
      }
      idle = performance.now();
      rest = Math.max(REST_MS, RESTS * (idle - begun));
      if (waits && unheard !== undefined) later(rest);
      waits = false;
    };
    void once();
    return () => {
      cancel.abort();
      clearTimeout(timer);
      unheard?.();
    };
    // (Whether to request again depends on the response alone.)
  }, [path, round]);
  // A response to another request does not count.
  return known.path === path ? known : { answer: null, trouble: null };
}
