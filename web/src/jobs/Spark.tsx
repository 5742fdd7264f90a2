// The sparkline of a job in the list: requested once it is in sight, and again when the job has new data.
//
// Guarantees: only a few are requested at a time, so that a long list does not delay other requests.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask } from '../api/ask';
import { isOf, listen } from '../api/live';
import type { Sparkline } from '../api/types';
import { UNITS, sparkline } from '../draw/sparkline';
import { question, type JobAddress } from '../route';
import { bytes } from '../words/numbers';

/** The most concurrent requests. */
const AT_A_TIME = 2;
/** The pause between two requests for one line. */
const REST_MS = 5000;

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

/** See the module. */
export function Spark({ job, runs }: { job: JobAddress; runs: boolean }): JSX.Element {
  const [line, setLine] = useState<Sparkline | null>(null);
  const here = useRef<HTMLSpanElement>(null);
  const path = question(job, 'sparkline');
  useEffect(() => {
    const place = here.current;
    if (!place) return undefined;
    const cancel = new AbortController();
    let [inSight, last, timer] = [false, -Infinity, undefined as ReturnType<typeof setTimeout> | undefined];
    const once = async (): Promise<void> => {
      last = performance.now();
      try {
        setLine(await inTurn(() => (cancel.signal.aborted ? Promise.reject(new Error()) : ask<Sparkline>(path, cancel.signal))));
      } catch {
        // If a line cannot be drawn, the sentence next to it is enough.
      }
    };
    const soon = (): void => {
      if (!inSight || timer !== undefined) return;
      timer = setTimeout(() => {
        timer = undefined;
        void once();
      }, Math.max(0, last + REST_MS - performance.now()));
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
  const drawn = line === null ? null : sparkline(line);
  const last = line?.peak_allocated_bytes.at(-1);
  return (
    <span ref={here} class="spark" title={drawn === null ? undefined : `rank ${line?.rank ?? 0}: up to ${bytes(drawn.top)}`}>
      {drawn !== null && (
        <svg width="120" height="24" viewBox={`0 0 ${UNITS} ${UNITS}`} preserveAspectRatio="none" role="img" aria-label={`Memory of rank ${line?.rank ?? 0} over time, ${bytes(last)} allocated last`}>
          <path class="allocated" d={drawn.allocated} />
          <path class="reserved" d={drawn.reserved} />
        </svg>
      )}
    </span>
  );
}
