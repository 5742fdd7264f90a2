// Asks the daemon, and keeps what it said last while it is asked again.
//
// Guarantees: what nobody waits for any more is cancelled; an answer that comes late never replaces a later one; what was
// there stays while it is asked for again; a report answers from its own file (`report/`). Refuses to ask any other host.

import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { file, said } from '../report/file';
import { isLive, listen, type News } from './live';

/** Why there is no answer, in the daemon's own sentence. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Whether the daemon wants a token, or the printed address, before it answers: its sentence, and whether a token helps. */
export const refusal = signal<{ words: string; takesToken: boolean } | null>(null);

/** How often what still changes is asked for again where the daemon does not tell by itself, and where it does. */
const AGAIN_MS = 5000;
const AGAIN_LIVE_MS = 60_000;
/** Between two answers at least, and so many times as long as the last one took. */
const REST_MS = 1000;
const RESTS = 4;

/** One question. */
export async function ask<T>(path: string, cancel?: AbortSignal): Promise<T> {
  return (await (await answered(path, cancel)).json()) as T;
}

/** A question that is answered with a tile's bytes. */
export async function askTile(path: string, cancel: AbortSignal): Promise<ArrayBuffer> {
  return (await answered(path, cancel)).arrayBuffer();
}

async function answered(path: string, cancel?: AbortSignal): Promise<Response> {
  if (file !== null) {
    const found = await said(file, path);
    if (typeof found === 'string') throw new Refused(404, found);
    return new Response(found);
  }
  const answer = await fetch(`/api/v1/${path}`, cancel ? { signal: cancel } : {});
  if (answer.ok) return answer;
  const words = (await answer.text()).trim().split('\n')[0] ?? answer.statusText;
  if (answer.status === 401) {
    refusal.value = { words, takesToken: answer.headers.get('www-authenticate') !== null };
  }
  throw new Refused(answer.status, words);
}

/** Changes something, where the role allows it. */
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

/** What is known of an answer. */
export interface Asked<T> {
  answer: T | null;
  trouble: string | null;
}

/** The answer to a question while it is shown; `null` asks nothing. `again` says whether it may still change, and `about` which
 * news concern it: all, where there is none; another `round` asks at once. */
export function useAsked<T>(
  path: string | null,
  again?: (answer: T) => boolean,
  about?: (news: NonNullable<News>) => boolean,
  round = 0,
): Asked<T> {
  const [known, setKnown] = useState<Asked<T> & { path: string | null }>({ path: null, answer: null, trouble: null });
  useEffect(() => {
    if (path === null) return undefined;
    const cancel = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let unheard: (() => void) | undefined;
    // Since when nothing is under way, and how long to rest from then on.
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
        if (file === null && again?.(answer)) {
          unheard ??= listen(hear);
          later(isLive.value ? AGAIN_LIVE_MS : AGAIN_MS);
        } else {
          unheard?.();
          unheard = undefined;
        }
      } catch (error) {
        if (cancel.signal.aborted) return;
        const words = error instanceof Refused ? error.message : 'the daemon does not answer; this page asks again';
        setKnown((before) => ({ path, answer: before.path === path ? before.answer : null, trouble: words }));
        if (!(error instanceof Refused) || error.status === 503) later(AGAIN_MS);
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
    // (Whether to ask again depends on the answer alone.)
  }, [path, round]);
  // The answer to another question is none to this one.
  return known.path === path ? known : { answer: null, trouble: null };
}
