// What a line of the list requests once it is in sight, and again when the job has new data.
//
// Guarantees: only a few are requested at a time, so that a long list does not delay other requests; a line that leaves the
// page cancels its request.

import type { RefObject } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { isOf, listen } from '../api/live';
import type { JobAddress } from '../route';

/** The most concurrent requests. */
const AT_A_TIME = 2;

let underWay = 0;
const waiting: (() => void)[] = [];

async function inTurn<T>(work: () => Promise<T>): Promise<T> {
  if (underWay >= AT_A_TIME) await new Promise<void>((resolve) => waiting.push(resolve));
  underWay += 1;
  try {
    return await work();
  } finally {
    underWay -= 1;
    waiting.shift()?.();
  }
}

/** The answer, once `here` was in sight; requested again while the job runs, at most every `rest` milliseconds. */
export function useSeen<T>(here: RefObject<Element | null>, job: JobAddress, path: string | null, runs: boolean, rest: number, ask: (path: string, cancel: AbortSignal) => Promise<T>): T | null {
  const [answer, setAnswer] = useState<T | null>(null);
  useEffect(() => {
    const place = here.current;
    if (!place || path === null) return undefined;
    const cancel = new AbortController();
    let [inSight, last, timer] = [false, -Infinity, undefined as ReturnType<typeof setTimeout> | undefined];
    const once = async (): Promise<void> => {
      last = performance.now();
      try {
        setAnswer(await inTurn(() => (cancel.signal.aborted ? Promise.reject(new Error()) : ask(path, cancel.signal))));
      } catch {
        // What cannot be shown stays empty: the sentence beside it is enough.
      }
    };
    const soon = (): void => {
      if (!inSight || timer !== undefined) return;
      timer = setTimeout(() => {
        timer = undefined;
        void once();
      }, Math.max(0, last + rest - performance.now()));
    };
    const watch = new IntersectionObserver((entries) => {
      inSight = entries.some((entry) => entry.isIntersecting);
      if (inSight && (runs || last === -Infinity)) soon();
    });
    watch.observe(place);
    const unheard = runs ? listen((news) => { if (news === null || isOf(news, job.name)) soon(); }) : undefined;
    return () => {
      cancel.abort();
      clearTimeout(timer);
      watch.disconnect();
      unheard?.();
    };
  }, [path, runs]);
  return answer;
}
