// A report: this page in a file, together with the responses that it shows.
//
// Guarantees: nothing is requested from the network; a response is unpacked when a view needs it; missing data is
// reported with the command that shows it. Pure except for reading the document once.

import { SIZE_MAX } from '../words/sizes';

/** The data that `memctl report` wrote into the file. */
export interface ReportFile {
  job: string;
  attempt: number;
  version: string;
  written_at: string;
  /** The rank of the verdict. */
  rank: number | null;
  /** The epochs at whose ends it is compared. */
  early: number | null;
  late: number | null;
  /** The size that the job was recorded at, and the limit of the process, if they were given. */
  size: number | null;
  device_memory: number | null;
  /** What was left out, in sentences. */
  left_out: string[];
  /** Responses by request, compressed. */
  answers: Record<string, string>;
  /** Why a request has no response. */
  reasons: Record<string, string>;
}

/** The id of the element that contains it. */
const ELEMENT = 'report';

function read(): ReportFile | null {
  const text = typeof document === 'undefined' ? null : document.getElementById(ELEMENT)?.textContent;
  return text ? (JSON.parse(text) as ReportFile) : null;
}

/** The file, if the page is a report. */
export const file = read();

/** A request in a file, without the job, which is always the same. */
export interface Question {
  verb: string;
  asked: Map<string, string>;
}

/** The request of a path below `/api/v1`. */
export function questionOf(path: string): Question {
  const [place = '', query = ''] = path.split('?');
  const asked = [...new URLSearchParams(query)].filter(([name]) => name !== 'attempt' && name !== 'tenant');
  return { verb: place.split('/').at(-1) ?? '', asked: new Map(asked) };
}

/** Its key in the file. */
export function keyOf({ verb, asked }: Question): string {
  const pairs = [...asked].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, value]) => `${name}=${value}`);
  return pairs.length === 0 ? verb : `${verb}?${pairs.join('&')}`;
}

/** The command that shows everything without a command of its own. */
const PAGE = 'memctl ui';

/** Quotes a word for a shell. */
const word = (text: string): string => (/^[\w.:/=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The command that shows the result of a request. */
export function commandOf(job: string, { verb, asked }: Question): string {
  const rank = asked.get('rank');
  const of = `--job ${word(job)}${rank === undefined ? '' : ` --rank ${word(rank)}`}`;
  const at = asked.get('at') ?? '';
  const epoch = /^epoch:(\d+)$/.exec(at)?.[1];
  const when = at === 'peak' ? ' --peak' : at === 'end' ? ' --end' : epoch === undefined ? ` --at ${word(at)}` : ` --epoch-end ${epoch}`;
  if (verb === 'sites' || (verb === 'flame' && !asked.has('from'))) return `memctl sites ${of}${at === '' ? '' : when}`;
  if (verb === 'ledger') return `memctl ledger ${of}${at === '' ? ' --peak' : when}`;
  if (verb === 'timeline') return `memctl timeline ${of}`;
  if (verb === 'what-if') return `memctl what-if ${of}${asked.has('limit') ? ` --limit ${word(asked.get('limit') ?? '')}` : ''}`;
  if (verb === 'fit') return fitOf(job, rank, asked);
  if (verb === 'anatomy') return `memctl ledger ${of} --peak`;
  return PAGE;
}

/** The same for other sizes: for a curve, twice and four times the recorded size. (`memctl fit` has no flag for one of a rank's
 * processes; the page has.) */
function fitOf(job: string, rank: string | undefined, asked: Map<string, string>): string {
  if (asked.has('process')) return PAGE;
  const size = Number(asked.get('size') ?? '1');
  const of = `--job ${word(`${job}=${size}`)}${rank === undefined ? '' : ` --rank ${word(rank)}`}`;
  const at = new Set([2, 4].map((times) => Math.min(times * size, SIZE_MAX)));
  return `memctl fit ${of} --at ${[...at].join(',')}${asked.has('limit') ? ` --device-memory ${word(asked.get('limit') ?? '')}` : ''}`;
}

/** Unpacks a compressed response. */
export async function unpacked(packed: string): Promise<ArrayBuffer> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer();
}

const text = (bytes: ArrayBuffer): unknown => JSON.parse(new TextDecoder().decode(bytes));

/** A file's response to a request: its bytes, or why there is none. */
export async function said(of: ReportFile, path: string): Promise<ArrayBuffer | string> {
  const question = questionOf(path);
  const { verb, asked } = question;
  // The whole timeline contains every stretch of it.
  if (verb === 'timeline' || verb === 'classes') for (const name of ['since', 'until']) asked.delete(name);
  const packed = of.answers[keyOf(question)] ?? null;
  if (packed !== null) return unpacked(packed);
  if (verb === 'timeline') {
    // (Overlaid ranks are requested without a floor; their timelines in the file have one.)
    const several = await courses(of, { verb, asked: new Map([...asked, ['floor', 'true']]) });
    if (several !== null) return several;
  }
  if (verb === 'blocks' && asked.has('event')) {
    const around = await stretch(of, question);
    if (around !== null) return around;
  }
  return of.reasons[keyOf(question)] ?? `it is not in this file; \`${commandOf(of.job, question)}\` shows it`;
}

/** Timelines of several ranks, which a file has one by one. */
async function courses(of: ReportFile, { verb, asked }: Question): Promise<ArrayBuffer | null> {
  const packed = (asked.get('rank') ?? '').split(',').map((rank) => of.answers[keyOf({ verb, asked: new Map([...asked, ['rank', rank]]) })]);
  const known = packed.filter((one) => one !== undefined);
  if (known.length < packed.length) return null;
  const read = (await Promise.all(known.map(unpacked))).map((bytes) => text(bytes) as { ranks: unknown[] });
  const whole = { ...read[0], ranks: read.flatMap((one) => one.ranks) };
  return new TextEncoder().encode(JSON.stringify(whole)).buffer;
}

/** The stretch of blocks around an event, if the stretch at the peak contains it. */
async function stretch(of: ReportFile, { verb, asked }: Question): Promise<ArrayBuffer | null> {
  const peak = new Map([...asked, ['at', 'peak']]);
  peak.delete('event');
  const packed = of.answers[keyOf({ verb, asked: peak })];
  if (packed === undefined) return null;
  const bytes = await unpacked(packed);
  const { first_event, last_event } = text(bytes) as { first_event: number; last_event: number };
  const event = Number(asked.get('event'));
  return event >= first_event && event <= last_event ? bytes : null;
}
