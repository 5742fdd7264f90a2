// Bytes, counts, shares and times in the terminal's notation.
//
// Guarantees: bytes have binary units. From 1 KiB on they have three significant digits. An unknown value is never
// shown as 0.

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'] as const;

/** The text for an unknown value. */
export const UNKNOWN = '–';

/** `49.6 MiB`. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return UNKNOWN;
  const sign = value < 0 ? '-' : '';
  const magnitude = Math.abs(value);
  if (magnitude < 1024) return `${sign}${Math.round(magnitude)} B`;
  let scaled = magnitude / 1024;
  let unit = 0;
  // 999.5 would be shown as 1000, so the next unit is used.
  while (scaled >= 999.5 && unit + 1 < UNITS.length) {
    scaled /= 1024;
    unit += 1;
  }
  const decimals = scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2;
  return `${sign}${scaled.toFixed(decimals)} ${UNITS[unit] ?? ''}`;
}

/** `+3.00 MiB`. */
export function change(value: number | null | undefined): string {
  return typeof value === 'number' && value > 0 ? `+${bytes(value)}` : bytes(value);
}

/** `12,345`. */
export function count(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}

/** The exact figure, for hovering. */
export function exactly(value: number | null | undefined): string {
  return value === null || value === undefined ? 'not known' : `${count(value)} bytes`;
}

/** `1 event`, `2 events`. */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
}

/** `12.3 %`. A part that is not 0 but rounds to 0 is shown as `< 0.1 %`. */
export function percent(part: number, whole: number): string {
  const text = `${((100 * part) / Math.max(whole, 1)).toFixed(1)} %`;
  return part > 0 && text === '0.0 %' ? '< 0.1 %' : text;
}

/** A number of milliseconds as text: `2 h 5 min`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86_400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return whole % 60 === 0 ? `${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** `23 min ago`. */
export function ago(then: number, now: number): string {
  const minutes = Math.floor((now - then) / 60_000);
  if (minutes < 1) return 'just now';
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ago` : `${Math.floor(hours / 24)} days ago`;
}

/** Milliseconds since 1970 of an RFC 3339 time, with fractions of a millisecond. */
export function moment(text: string): number {
  const [, whole = '', part = '', zone = ''] = /^([^.Z+]*)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$/.exec(text) ?? [];
  return Date.parse(`${whole}${zone}`) + Number(`0.${part || '0'}`) * 1000;
}

/** The time for a number of milliseconds since 1970, with microseconds. */
export function rfc3339(ms: number): string {
  const whole = Math.floor(ms);
  const micros = Math.min(999, Math.floor((ms - whole) * 1000));
  return new Date(whole).toISOString().replace('Z', `${String(micros).padStart(3, '0')}Z`);
}

/** `2026-11-20 10:00:00 UTC`. */
export function date(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}
