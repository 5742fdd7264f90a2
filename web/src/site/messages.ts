// The messages between the page and its worker.

/** A file of an import. */
export interface Chosen {
  name: string;
  bytes: Blob;
}

/** From the page: the module first, then requests, which are answered in their order. */
export type Request =
  | { kind: 'module'; module: WebAssembly.Module }
  | { kind: 'import'; id: number; job: string; files: Chosen[] }
  | { kind: 'get'; id: number; address: string };

/** From the worker. After a fault it answers nothing any more. */
export type Reply =
  | { kind: 'progress'; id: number; file: string; share: number; events: number }
  | { kind: 'answer'; id: number; status: number; content: ArrayBuffer }
  | { kind: 'fault'; words: string };
