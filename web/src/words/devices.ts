// The devices of a job's processes: which one an address means, and how an address and a request name it.
//
// Guarantees: pure. An address that names a rank, a process or a device that the job does not have means none. A process
// is named only if its rank has several, a device only if its process has several.

import type { Finding, Rank, Report } from '../api/types';
import type { JobAddress } from '../route';
import { nameOf } from './verdict';

/** The part of an answer that says which device it is of. */
export type Device = Pick<Rank, 'rank' | 'process' | 'device'>;

/** The rank that a finding is about: the one whose figures it has, or else its first. */
export function rankOf(finding: Finding): number | null {
  const { rank } = finding.evidence;
  return typeof rank === 'number' ? rank : (finding.ranks[0] ?? null);
}

/** The device that a finding is about. */
export function deviceOf(finding: Finding, ranks: Rank[]): Rank | null {
  const own = ranks.filter((known) => finding.ranks.includes(known.rank) && (finding.processes.length === 0 || finding.processes.includes(known.process)));
  const about = rankOf(finding);
  return own.find((known) => known.rank === about) ?? own[0] ?? ranks.find((known) => known.rank === about) ?? null;
}

/** The device of an address: the one that it names, or else the worst finding's, or else the first. */
export function chosen(report: Report, job: JobAddress): Rank | null {
  const { ranks } = report;
  const isMeant = (known: Device): boolean =>
    (job.rank === null || known.rank === job.rank) &&
    (job.process === undefined || known.process === job.process) &&
    (job.device === undefined || known.device === job.device);
  const meant = ranks.filter(isMeant);
  const worst = report.findings.map((finding) => deviceOf(finding, meant)).find((device) => device !== null);
  return worst ?? meant[0] ?? null;
}

/** Why an address means no device. */
export function missing(ranks: Rank[], job: JobAddress): string {
  const named = [
    ...(job.rank === null ? [] : [`rank ${job.rank}`]),
    ...(job.process === undefined ? [] : [`process ${job.process}`]),
    ...(job.device === undefined ? [] : [`device ${job.device}`]),
  ];
  if (ranks.length === 0) return 'Nothing is stored of any rank of this job.';
  const known = [...new Set(ranks.map((rank) => rank.rank))].sort((a, b) => a - b);
  const runs = known.reduce<[number, number][]>((all, rank) => {
    const last = all.at(-1);
    if (last?.[1] === rank - 1) last[1] = rank;
    else all.push([rank, rank]);
    return all;
  }, []);
  const list = runs.map(([from, to]) => (from === to ? String(from) : `${from}-${to}`)).join(', ');
  return `There is no ${named.join(', ')} in this job; it has ${known.length === 1 ? 'rank' : 'ranks'} ${list}.`;
}

/** Whether a rank has several processes, and whether a process has several devices. */
function several(of: Device, ranks: Device[]): { processes: boolean; devices: boolean } {
  const own = ranks.filter((known) => known.rank === of.rank);
  return {
    processes: own.some((known) => known.process !== of.process),
    devices: own.some((known) => known.process === of.process && known.device !== of.device),
  };
}

/** Its place in an address. */
export function addressIn(job: JobAddress, of: Device, ranks: Device[]): JobAddress {
  const { processes, devices } = several(of, ranks);
  const { name, attempt, tenant } = job;
  return { name, attempt, tenant, rank: of.rank, ...(processes ? { process: of.process } : {}), ...(devices ? { device: of.device } : {}) };
}

/** Its place in a request. */
export function selectionOf(of: Device, ranks: Device[]): Record<'rank' | 'process' | 'device', string | null> {
  const { processes, devices } = several(of, ranks);
  return { rank: String(of.rank), process: processes ? of.process : null, device: devices ? String(of.device) : null };
}

/** Its name, such as `rank 3` or `rank 0, device 1`. */
export function labelOf(of: Device, ranks: Device[]): string {
  return `${nameOf(of.process, of.rank)}${several(of, ranks).devices ? `, device ${of.device}` : ''}`;
}

/** The same device in another answer. */
export function isSame(one: Device | null, other: Device | null): boolean {
  return one !== null && other !== null && one.rank === other.rank && one.process === other.process && one.device === other.device;
}

/** Identifies a device within a job. */
export const keyOf = (of: Device): string => `${of.rank} ${of.process} ${of.device}`;
