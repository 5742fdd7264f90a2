// Small parts of every view: links, figures with their exact value, errors, tables that scroll by themselves.

import type { ComponentChildren, JSX } from 'preact';
import { file } from '../report/file';
import { addressOf, go, type Route } from '../route';
import { bytes, change, exactly } from '../words/numbers';
import type { Grade } from '../words/verdict';

/** A link within the page. */
export function Link(of: {
  to: Exclude<Route, { view: 'nowhere' }>;
  class?: string;
  label?: string;
  current?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  const follow = (event: MouseEvent): void => {
    // The browser handles requests for another tab.
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(of.to);
  };
  // A report is about one job.
  if (file !== null && (of.to.view === 'jobs' || of.to.view === 'alerts')) return <span class={of.class}>Report</span>;
  return (
    <a href={addressOf(of.to)} class={of.class} aria-label={of.label} aria-current={of.current ? 'page' : undefined} onClick={follow}>
      {of.children}
    </a>
  );
}

/** Bytes for people; the exact number on hover. */
export function Bytes({ of }: { of: number | null | undefined }): JSX.Element {
  return <span title={exactly(of)}>{bytes(of)}</span>;
}

/** Bytes with their sign. */
export function Change({ of }: { of: number | null | undefined }): JSX.Element {
  return <span title={exactly(of)}>{change(of)}</span>;
}

/** A severity as sign and word. */
export function Word({ of, short }: { of: Grade; short?: boolean }): JSX.Element {
  return (
    <span class={`word ${of.colour}`}>
      <span aria-hidden="true">{of.sign} </span>
      <span class={short ? 'unseen' : undefined}>{of.word}</span>
    </span>
  );
}

/** The placeholder while something loads, or if it cannot be shown. */
export function Waiting({ trouble, what }: { trouble: string | null; what: string }): JSX.Element {
  if (trouble === null) return <p class="faint" role="status">{`Loading ${what}…`}</p>;
  return (
    <p class={file === null ? 'prose trouble' : 'prose'} role={file === null ? 'alert' : 'status'}>
      {`${what.charAt(0).toUpperCase()}${what.slice(1)} cannot be shown: ${trouble}`}
    </p>
  );
}

/** The head of a column: `sort` sorts by it, `sorted` says how the rows are sorted now. */
export interface HeadCell {
  text: string;
  number?: boolean;
  title?: string;
  sort?: () => void;
  sorted?: 'ascending' | 'descending' | undefined;
}

const SIGN = { ascending: ' ▲', descending: ' ▼' };

/** A table that scrolls by itself where the screen is narrow. */
export function Table(of: {
  caption: string;
  class?: string;
  heads: HeadCell[];
  /** Whether the children are bodies of the table, and not its rows. */
  bodies?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <div class={`scroll ${of.class ?? ''}`} role="region" aria-label={of.caption} tabIndex={0}>
      <table>
        <caption>{of.caption}</caption>
        <thead>
          <tr>
            {of.heads.map((head) => (
              <th key={head.text} scope="col" class={head.number ? 'number' : undefined} title={head.title} aria-sort={head.sort === undefined ? undefined : (head.sorted ?? 'none')}>
                {head.sort === undefined ? head.text : (
                  <button type="button" class="sort" onClick={head.sort}>
                    {head.text}
                    <span aria-hidden="true">{head.sorted === undefined ? '' : SIGN[head.sorted]}</span>
                  </button>
                )}
              </th>
            ))}
          </tr>
        </thead>
        {of.bodies ? of.children : <tbody>{of.children}</tbody>}
      </table>
    </div>
  );
}
