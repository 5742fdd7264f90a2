// The recordings of the page without a daemon: opening files and samples, one import at a time.
//
// Guarantees: the name of a job is made from the names of its files. Errors are the module's sentences.

import { signal } from '@preact/signals';
import { go } from '../route';
import { Desk, Stopped, type Progress } from './desk';
import type { Chosen } from './messages';
import { site, type Sample } from './place';

/** The worker's requests; `null` if the page has a daemon. */
export const desk = site === null ? null : new Desk(site);

/** The import under way. */
export const opening = signal<{ job: string; progress: Progress | null } | null>(null);

/** Why the last import failed. */
export const trouble = signal<string | null>(null);

/** The longest name of a job. */
const NAME_MAX = 80;

/** The name of the job of some files: the file's own name, or what is left of several names without their ranks. */
export function jobOf(names: readonly string[]): string {
  const [first = ''] = names;
  const stem = first.replace(/(\.(pickle|pkl|gz|zst|zstd))+$/i, '');
  const common = names.length === 1 ? stem : stem.replace(/[_.-]*rank[_=.-]*\d+(?!.*rank[_=.-]*\d)/i, '');
  const plain = common.replace(/[^\w.-]+/g, '-').replace(/^[^A-Za-z0-9]+|[-.]+$/g, '').slice(0, NAME_MAX);
  return plain === '' ? 'recording' : plain;
}

/** Opens files as one job, and shows it. */
export async function open(job: string, files: Chosen[]): Promise<void> {
  if (desk === null || files.length === 0 || opening.value !== null) return;
  trouble.value = null;
  opening.value = { job, progress: null };
  try {
    await desk.read(job, files, (progress) => { opening.value = { job, progress }; });
    go({ view: 'job', job: { name: job, attempt: null, rank: null, tenant: null }, since: null, until: null });
  } catch (error) {
    if (!(error instanceof Stopped)) trouble.value = error instanceof Error ? error.message : String(error);
  } finally {
    opening.value = null;
  }
}

/** Opens a sample: its files are the page's own. */
export async function openSample(sample: Sample): Promise<void> {
  try {
    const files = await Promise.all(sample.files.map(async (address): Promise<Chosen> => {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(`${address} cannot be loaded: ${answer.status}`);
      return { name: address.split('/').at(-1) ?? address, bytes: await answer.blob() };
    }));
    await open(sample.name, files);
  } catch (error) {
    trouble.value = error instanceof Error ? error.message : String(error);
  }
}
