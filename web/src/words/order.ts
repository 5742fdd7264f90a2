// The order of a table's rows as an address has it: a column's name, with `-` in front for the largest first.
//
// Guarantees: pure; rows that are equal keep their order; unknown values come last in either direction.

/** A column, and the direction. */
export interface Order {
  by: string;
  down: boolean;
}

/** The order of a text; the usual one if it names none of the columns. */
export function orderOf(text: string | undefined, columns: string[], usual: Order | null): Order | null {
  if (text === undefined) return usual;
  const down = text.startsWith('-');
  const by = down ? text.slice(1) : text;
  return columns.includes(by) ? { by, down } : usual;
}

/** The text after a press on a column's head: first `down` or not as the column prefers, then the other way, then the usual
 * order, which has no text. */
export function pressed(order: Order | null, by: string, prefersDown: boolean, isUsual: boolean): string | undefined {
  const text = (down: boolean): string => `${down ? '-' : ''}${by}`;
  if (order?.by !== by || isUsual) return text(isUsual ? !prefersDown : prefersDown);
  return order.down === prefersDown ? text(!prefersDown) : undefined;
}

/** Sorted rows. */
export function sorted<Row>(rows: Row[], order: Order | null, value: (row: Row, by: string) => number | string | null): Row[] {
  if (order === null) return rows;
  const { by, down } = order;
  const known = rows.map((row) => ({ row, key: value(row, by) }));
  const compare = (a: number | string, b: number | string): number =>
    typeof a === 'string' || typeof b === 'string' ? String(a).localeCompare(String(b), 'en', { numeric: true }) : a - b;
  return known
    .sort((a, b) => {
      if (a.key === null || b.key === null) return a.key === b.key ? 0 : a.key === null ? 1 : -1;
      return (down ? -1 : 1) * compare(a.key, b.key);
    })
    .map(({ row }) => row);
}

/** What `aria-sort` says of a column. */
export const direction = (order: Order | null, by: string): 'ascending' | 'descending' | undefined =>
  order?.by !== by ? undefined : order.down ? 'descending' : 'ascending';
