// The worker of the page without a daemon: it runs the module, which reads recordings and answers the page's requests.
//
// Guarantees: requests are answered one at a time, in their order. A file is read in slices and never held as a whole. A
// fault of the module is reported with its own words; the page then starts another worker.
// Refuses: the network.

import type { Chosen, Reply, Request } from './messages';
import { wasi } from './wasi';

/** What the module exports; see `browser/src/host.rs`. */
interface Module {
  memory: WebAssembly.Memory;
  _initialize?: () => void;
  memctl_input: (bytes: number) => number;
  memctl_import: () => number;
  memctl_get: () => number;
  memctl_output: () => number;
  memctl_output_bytes: () => number;
}

/** The part of a worker's scope that is used. */
declare const self: {
  onmessage: (event: MessageEvent<Request>) => void;
  postMessage: (reply: Reply, transfer: Transferable[]) => void;
};
declare class FileReaderSync {
  readAsArrayBuffer(bytes: Blob): ArrayBuffer;
}

/** Bytes that are read from a file at a time. */
const SLICE_BYTES = 4 << 20;
/** The pause between two reports of progress. */
const REPORT_MS = 50;

/** A file that the module reads from its start to its end. */
class Reading {
  private at = 0;
  private slice = new Uint8Array();
  private used = 0;

  constructor(readonly of: Chosen) {}

  /** Writes the next bytes into `room`; returns their number. */
  next(room: Uint8Array): number {
    if (this.used === this.slice.length) {
      const end = Math.min(this.at + SLICE_BYTES, this.of.bytes.size);
      this.slice = new Uint8Array(new FileReaderSync().readAsArrayBuffer(this.of.bytes.slice(this.at, end)));
      this.used = 0;
      this.at = end;
    }
    const bytes = this.slice.subarray(this.used, this.used + room.length);
    room.set(bytes);
    this.used += bytes.length;
    return bytes.length;
  }

  /** The share that was read. */
  share(): number {
    return this.of.bytes.size === 0 ? 1 : this.at / this.of.bytes.size;
  }
}

let module: Module | null = null;
let files: Reading[] = [];
/** The file that was read last, and the import that it belongs to. */
let reading = { id: 0, place: 0, reported: 0 };
let lastWords = '';

function send(reply: Reply, transfer: Transferable[] = []): void {
  self.postMessage(reply, transfer);
}

const memory = (): WebAssembly.Memory => {
  if (module === null) throw new Error('the module is not loaded yet');
  return module.memory;
};

const ours = {
  read: (place: number, at: number, bytes: number): number => {
    reading.place = place;
    try {
      return files[place]?.next(new Uint8Array(memory().buffer, at, bytes)) ?? -1;
    } catch {
      // The file was changed or removed since it was chosen.
      return -1;
    }
  },
  progress: (_rank: number, _bytes: number, events: number): void => {
    const file = files[reading.place];
    if (file === undefined || performance.now() - reading.reported < REPORT_MS) return;
    reading.reported = performance.now();
    // Files before this one are read.
    const share = (reading.place + file.share()) / files.length;
    send({ kind: 'progress', id: reading.id, file: file.of.name, share, events });
  },
};

function load(from: WebAssembly.Module): void {
  const imports = { memctl: ours, wasi_snapshot_preview1: wasi(memory, (text) => { lastWords += text; }) };
  module = new WebAssembly.Instance(from, imports).exports as unknown as Module;
  module._initialize?.();
}

function called(of: Module, id: number, input: string, call: () => number): void {
  const bytes = new TextEncoder().encode(input);
  const at = of.memctl_input(bytes.length);
  new Uint8Array(of.memory.buffer, at, bytes.length).set(bytes);
  const status = call();
  const content = of.memory.buffer.slice(of.memctl_output(), of.memctl_output() + of.memctl_output_bytes());
  send({ kind: 'answer', id, status, content }, [content]);
}

function answer(request: Request): void {
  if (request.kind === 'module') {
    load(request.module);
    return;
  }
  const of = module;
  if (of === null) throw new Error('the module is not loaded yet');
  if (request.kind === 'get') {
    called(of, request.id, request.address, of.memctl_get);
    return;
  }
  files = request.files.map((file) => new Reading(file));
  reading = { id: request.id, place: 0, reported: 0 };
  const names = request.files.map((file) => file.name);
  called(of, request.id, JSON.stringify({ job: request.job, files: names }), of.memctl_import);
  files = [];
}

self.onmessage = (event: MessageEvent<Request>): void => {
  try {
    answer(event.data);
  } catch (error) {
    const own = error instanceof Error ? error.message : String(error);
    const panic = /panicked at [^\n]*\n([^\n]+)/.exec(lastWords)?.[1] ?? '';
    const words = lastWords.includes('memory allocation') ? 'it needs more memory than a page can have (4 GiB); `memctl import` reads it' : panic === '' ? own : panic;
    send({ kind: 'fault', words });
  }
};
