// The memory of one process at other sizes than the recorded one: a curve with its interval, the limit, the largest size
// that fits as a sentence, and the same figures as a table.
//
// Guarantees: figures and reservations are those of `memctl fit` from one recording. A report has the size that it was
// written with, and says how to get one if it has none.
// Refuses: to guess the size, which a recording does not contain.

import type { JSX } from 'preact';
import { useAsked } from '../api/ask';
import type { Fit } from '../api/types';
import { curve, labels, UNITS, type Curve } from '../draw/sizes';
import { Bytes, Table, Waiting } from '../parts/parts';
import { file } from '../report/file';
import { question, type JobAddress } from '../route';
import { bytes, count } from '../words/numbers';
import { aboveSaid, largestSaid, scaledSaid, SIZE_MAX, sizeOf } from '../words/sizes';

/** Labels are at least this part of the picture apart. */
const APART = 0.09;
/** The height of the picture in pixels, without its labels. */
const HIGH = 240;

/** Whether a size fits. If the lower end of its interval alone does, neither is promised. */
function saidOfFit(point: Fit['at'][number], limit: number | null): JSX.Element | string {
  if (point.fits === null) return '–';
  if (point.fits) return 'yes';
  return limit !== null && point.low <= limit ? 'unsure' : <span class="inexact">no</span>;
}

const percentOf = (part: number): string => `${(100 * part).toFixed(2)}%`;

function Picture({ of, drawn, recorded }: { of: Fit; drawn: Curve; recorded: number | null }): JSX.Element {
  const { device_memory_bytes: limit, largest_that_fits: largest } = of;
  const kind = (size: number): string | undefined => (size === largest ? 'fits' : size === recorded ? 'recorded' : undefined);
  return (
    <figure>
      <svg class="course sizes" width="100%" height={HIGH + 20} aria-hidden="true">
        <svg width="100%" height={HIGH} viewBox={`0 0 ${UNITS} ${UNITS}`} preserveAspectRatio="none">
          <path class="range" d={drawn.range} />
          <path class="peak" d={drawn.peak} />
          {drawn.showsLimit && limit !== null && <path class="limit" d={`M0 ${UNITS * drawn.y(limit)}H${UNITS}`} />}
        </svg>
        {drawn.points.map((point) => (
          <circle key={point.size} class={kind(point.size)} cx={percentOf(drawn.x(point.size))} cy={HIGH * drawn.y(point.peak_reserved_bytes)} r="3.5">
            <title>{`${count(point.size)}: ${bytes(point.peak_reserved_bytes)}, ${bytes(point.low)} to ${bytes(point.high)}`}</title>
          </circle>
        ))}
        <text class="scale" x="4" y="14">{bytes(drawn.top)}</text>
        <text class="scale" x="4" y={HIGH - 4}>0 B</text>
        {labels(drawn, [largest, recorded], APART).map((size) => (
          <text key={size} class="tick" x={percentOf(drawn.x(size))} y={HIGH + 14} text-anchor="middle">{count(size)}</text>
        ))}
      </svg>
      <ul class="legend">
        <li><i class="key reserved" />highest reserved, by size</li>
        <li><i class="key held" />its interval</li>
        {drawn.showsLimit && <li><i class="key limit" />{`the limit, ${bytes(limit)}`}</li>}
        <li>● the recorded size</li>
        {largest !== null && <li>★ the largest that fits, green in the picture</li>}
      </ul>
    </figure>
  );
}

const HEADS = [
  { text: 'Size', number: true },
  { text: 'Fits' },
  { text: 'Allocated', number: true },
  { text: 'Reserved', number: true },
  { text: 'Low', number: true },
  { text: 'High', number: true },
];

function SizesForecast({ of, isAsked }: { of: Fit; isAsked: boolean }): JSX.Element {
  const [recording] = of.recordings;
  const recorded = recording?.size ?? null;
  const drawn = curve(of);
  const above = aboveSaid(of);
  return (
    <>
      <p class="prose"><strong>{largestSaid(of, isAsked)}</strong></p>
      {drawn !== null && <Picture of={of} drawn={drawn} recorded={recorded} />}
      <Table caption={`Highest memory by size, forecast from one recording at ${count(recorded ?? 0)}`} heads={HEADS}>
        {of.at.map((point) => (
          <tr key={point.size} class={point.size === of.largest_that_fits ? 'chosen' : undefined}>
            <th scope="row" class="number">{count(point.size)}</th>
            <td>
              {saidOfFit(point, of.device_memory_bytes)}
              {point.size === recorded && <> ●<span class="unseen"> as recorded</span></>}
              {point.size === of.largest_that_fits && <> ★<span class="unseen"> the largest that fits</span></>}
            </td>
            <td class="number"><Bytes of={point.peak_allocated_bytes} /></td>
            <td class="number"><Bytes of={point.peak_reserved_bytes} /></td>
            <td class="number"><Bytes of={point.low} /></td>
            <td class="number"><Bytes of={point.high} /></td>
          </tr>
        ))}
      </Table>
      {above !== '' && <p class="prose">{above}</p>}
      {of.scaled !== null && <p class="prose">{scaledSaid(of.scaled)}</p>}
      <p class="prose faint">{`Not looked at: ${of.not_looked_at.join(' ')}`}</p>
    </>
  );
}

interface Asking {
  job: JobAddress;
  /** The process. */
  asked: Record<'rank' | 'process' | 'device', string | null>;
  /** The process's limit in bytes. */
  limit: number | null;
  /** The size, as typed. */
  size: string;
  /** Whether no other replay of this view is running. */
  isFree: boolean;
  /** Whether another one is: the forecast follows it. */
  waits: boolean;
  show: (size: string) => void;
}

/** See the module. */
export function Sizes({ job, asked, limit, size, isFree, waits, show }: Asking): JSX.Element {
  const number = file === null ? sizeOf(size) : file.size;
  const memory = file === null ? limit : file.device_memory;
  const wanted = { ...asked, limit: memory === null ? null : String(memory), size: String(number) };
  const isAsked = number !== null && asked.rank !== null && isFree;
  const fit = useAsked<Fit>(isAsked ? question(job, 'fit', wanted) : null);
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem('size') as HTMLInputElement;
    show(field.value.trim());
  };
  return (
    <section aria-labelledby="sizes">
      <h2 id="sizes">At other sizes</h2>
      {file === null ? (
        <form class="tools" onSubmit={submit}>
          <label>
            What number was this recorded at? (batch, sequence length…){' '}
            <input name="size" type="search" class="few" inputMode="numeric" autocomplete="off" placeholder="8" defaultValue={size} />
          </label>
          <button type="submit">Forecast</button>
        </form>
      ) : (
        file.size === null && (
          <p class="prose">
            Other sizes are not in this file. <code>memctl report --size N --device-memory 80GiB</code> puts them in: N is the number that the job was recorded at (batch, sequence length…).
          </p>
        )
      )}
      {file === null && size !== '' && number === null && (
        <p class="prose trouble" role="alert">{`${size} is not a size. Write it as a whole number from 1 to ${count(SIZE_MAX)}.`}</p>
      )}
      {number !== null && fit.answer === null && (isAsked || waits) && <Waiting trouble={fit.trouble} what="the forecast" />}
      {number !== null && fit.answer !== null && <SizesForecast of={fit.answer} isAsked={memory !== null} />}
    </section>
  );
}
