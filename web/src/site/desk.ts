// Passes requests to the worker of the page without a daemon, and starts it again when it was stopped.
//
// Guarantees: requests are answered in their order. A stopped import leaves no trace: the recordings that were imported
// before are read again from their files, before anything else is answered.
// Refuses: the network, except for the page's own files.

import { signal } from '@preact/signals';
import type { Chosen, Reply, Request } from './messages';
import type { Site } from './place';
import StartWorker from './worker?worker&inline';

/** What the module says to an address. */
export interface Answer {
  status: number;
  content: ArrayBuffer;
}

/** How far an import is. */
export interface Progress {
  file: string;
  /** The share of all files that was read. */
  share: number;
  events: number;
}

/** The number of imports that have ended well; a change shows new recordings. */
export const imported = signal(0);

interface Waiting {
  resolve: (answer: Answer) => void;
  reject: (why: Error) => void;
  onProgress?: (progress: Progress) => void;
}

interface Import {
  job: string;
  files: Chosen[];
}

/** The import was stopped by the user. */
export class Stopped extends Error {}

/** See the module. */
export class Desk {
  private worker: Worker | null = null;
  private module: Promise<WebAssembly.Module> | null = null;
  private readonly waiting = new Map<number, Waiting>();
  private readonly kept: Import[] = [];
  private ids = 0;

  constructor(private readonly site: Site) {}

  /** Loads the module ahead of its first use, so that the network is needed no more. */
  async load(): Promise<void> {
    await this.started();
  }

  /** The answer to an address below `/api/v1`. */
  async get(address: string): Promise<Answer> {
    return this.request((id) => ({ kind: 'get', id, address }));
  }

  /** Imports files as a run of a job; fails with the module's sentence. */
  async read(job: string, files: Chosen[], onProgress: (progress: Progress) => void): Promise<void> {
    const { status, content } = await this.request((id) => ({ kind: 'import', id, job, files }), onProgress);
    if (status !== 200) throw new Error(new TextDecoder().decode(content).trim());
    this.kept.push({ job, files });
    imported.value += 1;
  }

  /** Stops everything that is under way. */
  stop(): void {
    this.end(new Stopped('it was stopped'));
  }

  private async request(of: (id: number) => Request, onProgress?: (progress: Progress) => void): Promise<Answer> {
    const worker = await this.started();
    const id = ++this.ids;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, ...(onProgress === undefined ? {} : { onProgress }) });
      worker.postMessage(of(id));
    });
  }

  private async started(): Promise<Worker> {
    this.module ??= loaded(this.site.module);
    let module: WebAssembly.Module;
    try {
      module = await this.module;
    } catch (error) {
      this.module = null;
      throw error;
    }
    if (this.worker !== null) return this.worker;
    const worker = new StartWorker();
    this.worker = worker;
    worker.onmessage = ({ data }: MessageEvent<Reply>): void => { this.take(data); };
    worker.onerror = (event): void => { this.end(new Error(event.message)); };
    const first: Request = { kind: 'module', module };
    worker.postMessage(first);
    // What was imported before is read again. These answers are not waited for.
    for (const { job, files } of this.kept) {
      const again: Request = { kind: 'import', id: ++this.ids, job, files };
      worker.postMessage(again);
    }
    return worker;
  }

  private take(reply: Reply): void {
    if (reply.kind === 'fault') {
      this.end(new Error(reply.words));
      return;
    }
    const waits = this.waiting.get(reply.id);
    if (reply.kind === 'progress') waits?.onProgress?.(reply);
    else {
      this.waiting.delete(reply.id);
      waits?.resolve(reply);
    }
  }

  private end(why: Error): void {
    this.worker?.terminate();
    this.worker = null;
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const one of waiting) one.reject(why);
  }
}

async function loaded(address: string): Promise<WebAssembly.Module> {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} cannot be loaded: ${answer.status}`);
  return WebAssembly.compile(await answer.arrayBuffer());
}
