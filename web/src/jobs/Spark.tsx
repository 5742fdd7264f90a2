// The sparkline of a job in the list.

import type { JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { ask } from '../api/ask';
import type { Sparkline } from '../api/types';
import { UNITS, sparkline } from '../draw/sparkline';
import { question, type JobAddress } from '../route';
import { bytes } from '../words/numbers';
import { useSeen } from './seen';

/** The pause between two requests for one line. */
const REST_MS = 5000;

/** See the module. */
export function Spark({ job, runs }: { job: JobAddress; runs: boolean }): JSX.Element {
  const here = useRef<HTMLSpanElement>(null);
  const line = useSeen(here, job, question(job, 'sparkline'), runs, REST_MS, ask<Sparkline>);
  const drawn = line === null ? null : sparkline(line);
  const last = line?.peak_allocated_bytes.at(-1);
  return (
    <>
      <span ref={here} class="spark" title={drawn === null ? undefined : `rank ${line?.rank ?? 0}: up to ${bytes(drawn.top)}`}>
        {drawn !== null && (
          <svg width="120" height="24" viewBox={`0 0 ${UNITS} ${UNITS}`} preserveAspectRatio="none" role="img" aria-label={`Memory of rank ${line?.rank ?? 0} over time, ${bytes(last)} allocated last`}>
            <path class="allocated" d={drawn.allocated} />
            <path class="reserved" d={drawn.reserved} />
          </svg>
        )}
      </span>
      <span class="top faint">{drawn === null ? '' : bytes(drawn.top)}</span>
    </>
  );
}
