// The growth lane: what is still allocated at a moment, by the epoch in which it was allocated.
//
// Guarantees: pure. Its bytes are those of the sites' answer, to the byte. The lane has a scale of its own, so that a small
// leak beside large parameters is as clear as a large one. The first epoch does not set the scale: what stays for good is
// allocated in it.

import type { Finding, Frame, RankSites, Site } from '../api/types';

/** The most bars; of more epochs, several share a bar. */
export const BARS_MAX = 240;

/** Epochs that share a bar, and their bytes. */
export interface LaneBar {
  from: number;
  to: number;
  bytes: number;
  /** Height of the bar, 0..1. A bar that is higher than the lane is cut off at 1. */
  height: number;
  cut: boolean;
}

/** The lane. */
export interface Lane {
  bars: LaneBar[];
  /** The bytes of a bar of height 1. */
  top: number;
  /** The bytes of all bars. */
  bytes: number;
  /** Epochs after the first, and in how many of them something was allocated that is still live. */
  later: { epochs: number; kept: number };
}

/** Whether a call is the finding's line, or one of its lines. */
function isOf(finding: Finding, call: Frame): boolean {
  const own = finding.site;
  if (own?.file !== call.file || own.function !== call.function) return false;
  return call.line === own.line || (call.line !== null && finding.lines.includes(call.line));
}

/** Whether a site is reached through the finding's line, as in the flame graph. */
function isReached(finding: Finding, { site, stack }: Site): boolean {
  return stack.some((call) => isOf(finding, call)) || (site !== null && isOf(finding, site));
}

/** The lane of a finding, or of all memory without one; `null` where nothing of it is live or no epochs are known. */
export function lane(of: RankSites, finding: Finding | null): Lane | null {
  const born = new Map<number, number>();
  for (const site of of.sites) {
    if (finding !== null && !isReached(finding, site)) continue;
    for (const { epoch, live_bytes } of site.births) born.set(epoch, (born.get(epoch) ?? 0) + live_bytes);
  }
  const last = Math.max(of.epoch, ...born.keys());
  if (born.size === 0 || last < 2) return null;
  const each = Math.ceil((last + 1) / BARS_MAX);
  const bars = Array.from({ length: Math.ceil((last + 1) / each) }, (_, at) => {
    const [from, to] = [at * each, Math.min(last, (at + 1) * each - 1)];
    let sum = 0;
    for (let epoch = from; epoch <= to; epoch += 1) sum += born.get(epoch) ?? 0;
    return { from, to, bytes: sum };
  });
  const highest = Math.max(...bars.slice(1).map((bar) => bar.bytes));
  const top = highest > 0 ? highest : Math.max(...bars.map((bar) => bar.bytes));
  const kept = [...born].filter(([epoch, sum]) => epoch > 0 && sum > 0).length;
  return {
    bars: bars.map((bar) => ({ ...bar, height: Math.min(1, bar.bytes / top), cut: bar.bytes > top })),
    top,
    bytes: bars.reduce((sum, bar) => sum + bar.bytes, 0),
    later: { epochs: last, kept },
  };
}
