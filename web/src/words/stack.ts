// A stack as a text that people paste: the form of a Python traceback, which editors know.

import type { Frame } from '../api/types';

/** Frames outermost first, one a line. */
export function traceback(frames: Frame[], what: string): string {
  const lines = frames.map((frame) => `  File "${frame.file}"${frame.line === null ? '' : `, line ${frame.line}`}, in ${frame.function}`);
  return [`${what} (most recent call last):`, ...lines, ''].join('\n');
}
