// The few functions of WASI that the module's standard library imports: a clock, randomness, and the text of a panic.
//
// Guarantees: there are no files, no environment and no arguments. Every other function fails with "not supported".

/** WASI's error numbers. */
const OK = 0;
const BAD_FILE = 8;
const NOT_SUPPORTED = 52;

const NS_PER_MS = 1_000_000;
/** The largest request of `crypto.getRandomValues`. */
const RANDOM_BYTES_MAX = 65_536;
/** The error stream. */
const STDERR = 2;

type Functions = Record<string, (...values: never[]) => number>;

/** The functions; `memory` is the module's memory, `said` gets what is written to the error stream. */
export function wasi(memory: () => WebAssembly.Memory, said: (text: string) => void): Functions {
  const view = (): DataView => new DataView(memory().buffer);
  const known: Functions = {
    clock_time_get: (clock: number, _precision: bigint, at: number): number => {
      const ms = clock === 0 ? performance.timeOrigin + performance.now() : performance.now();
      view().setBigUint64(at, BigInt(Math.round(ms * NS_PER_MS)), true);
      return OK;
    },
    random_get: (at: number, bytes: number): number => {
      for (let done = 0; done < bytes; done += RANDOM_BYTES_MAX) {
        crypto.getRandomValues(new Uint8Array(memory().buffer, at + done, Math.min(bytes - done, RANDOM_BYTES_MAX)));
      }
      return OK;
    },
    fd_write: (file: number, parts: number, count: number, written: number): number => {
      const of = view();
      let bytes = 0;
      let text = '';
      for (let part = parts; part < parts + 8 * count; part += 8) {
        const [at, length] = [of.getUint32(part, true), of.getUint32(part + 4, true)];
        text += new TextDecoder().decode(new Uint8Array(memory().buffer, at, length));
        bytes += length;
      }
      if (file === STDERR) said(text);
      of.setUint32(written, bytes, true);
      return OK;
    },
    environ_sizes_get: (count: number, bytes: number): number => {
      view().setUint32(count, 0, true);
      view().setUint32(bytes, 0, true);
      return OK;
    },
    environ_get: (): number => OK,
    fd_prestat_get: (): number => BAD_FILE,
    sched_yield: (): number => OK,
    proc_exit: (code: number): number => {
      throw new Error(`the module ended with code ${code}`);
    },
  };
  return new Proxy(known, { get: (functions, name: string) => functions[name] ?? ((): number => NOT_SUPPORTED) });
}
