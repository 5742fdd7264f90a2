// The growth lane below the timeline: what is still allocated, by the epoch in which it was allocated.
//
// Guarantees: it shows the finding's line if a finding is about growth on this device, and all memory otherwise. The caption
// says which, and its figures are those of the bars.

import type { JSX } from 'preact';
import { useAsked } from '../api/ask';
import { isOf } from '../api/live';
import type { Finding, Rank, Sites } from '../api/types';
import { fileName } from '../draw/flame';
import { lane } from '../draw/lane';
import { question, type JobAddress } from '../route';
import { isSame } from '../words/devices';
import { compared } from '../words/grown';
import { bytes, plural } from '../words/numbers';

/** Width and height of the drawing's units. */
const [WIDTH, HEIGHT] = [1000, 100];
/** Kinds of findings about live memory that grows from epoch to epoch. (A chain is freed with its epoch.) */
const GROWS = new Set(['leak', 'graph_kept', 'eval_graph']);

/** The finding of this device whose growth the lane can show. */
function grows(findings: Finding[], rank: Rank): Finding | null {
  const isHere = ({ ranks, processes }: Finding): boolean => ranks.includes(rank.rank) && (processes.length === 0 || processes.includes(rank.process));
  return findings.find((finding) => GROWS.has(finding.kind) && finding.site !== null && isHere(finding)) ?? null;
}

/** See the module. */
export function GrowthLane({ job, rank, findings, runs }: { job: JobAddress; rank: Rank; findings: Finding[]; runs: boolean }): JSX.Element | null {
  const finding = grows(findings, rank);
  const last = rank.epoch_ends.at(-1);
  const end = last === undefined ? null : `epoch:${last.epoch}`;
  const at = (finding === null ? null : compared(finding, rank)?.at) ?? end;
  const own = (news: { job: string; run: number }): boolean => isOf(news, job.name);
  const sites = useAsked<Sites>(at === null ? null : question(job, 'sites', { rank: String(rank.rank), at }), () => runs, own);
  const shown = sites.answer?.ranks.find((known) => isSame(known, rank));
  const drawn = shown === undefined ? null : lane(shown, finding);
  if (drawn === null || last === undefined) return null;
  const { kept, epochs } = drawn.later;
  const line = finding?.site;
  const whose = line ? `${line.function} (${fileName(line.file)}${line.line === null ? '' : `:${line.line}`})` : 'all sites';
  const words = `${bytes(drawn.bytes)} of ${whose} were live at the end of epoch ${last.epoch}: allocated in ${kept} of the ${plural(epochs, 'epoch')} after the first.`;
  const wide = WIDTH / drawn.bars.length;
  return (
    <figure class="lane">
      <figcaption class="faint">{`Still live at the end, by the epoch of allocation. ${words}`}</figcaption>
      <svg width="100%" height="72" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={words}>
        {drawn.bars.map((bar, place) => (
          <g key={bar.from} data-bytes={bar.bytes}>
            <title>{`${bar.from === bar.to ? `epoch ${bar.from}` : `epochs ${bar.from} to ${bar.to}`}: ${bytes(bar.bytes)}${bar.cut ? ', higher than the lane' : ''}`}</title>
            <rect class="reach" x={place * wide} y="0" width={wide} height={HEIGHT} />
            <rect class={`${finding === null ? 'rest' : 'own'}${bar.cut ? ' cut' : ''}`} x={place * wide} y={HEIGHT * (1 - bar.height)} width={wide * 0.9} height={HEIGHT * bar.height} />
          </g>
        ))}
      </svg>
      <p class="faint lane-ends">
        <span>{`epoch ${drawn.bars[0]?.from ?? 0}`}</span>
        <span>{`full height: ${bytes(drawn.top)} ${drawn.bars.some((bar) => bar.to > bar.from) ? 'a bar' : 'an epoch'}`}</span>
        <span>{`epoch ${last.epoch}`}</span>
      </p>
    </figure>
  );
}
