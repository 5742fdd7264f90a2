// The order of rows: both directions, unknown values, and the presses of a head.

import { expect, test } from 'vitest';
import { direction, orderOf, pressed, sorted } from './order';

test('rows are sorted both ways, unknown values last', () => {
  const rows = [['a', 2], ['b', null], ['c', 10], ['d', 2]] as const;
  const by = (text: string): string => sorted([...rows], orderOf(text, ['name', 'size'], null), (row, column) => (column === 'name' ? row[0] : row[1])).map(([name]) => name).join('');
  expect([by('size'), by('-size'), by('-name'), by('other')]).toEqual(['adcb', 'cadb', 'dcba', 'abcd']);
  expect(sorted(['job 10', 'job 9'], { by: 'name', down: false }, (row) => row)).toEqual(['job 9', 'job 10']);
});

test('a head is pressed: the preferred direction, the other one, the usual order', () => {
  const columns = ['size'];
  const texts: (string | undefined)[] = [undefined];
  for (let press = 0; press < 3; press += 1) texts.push(pressed(orderOf(texts.at(-1), columns, null), 'size', true, false));
  expect(texts).toEqual([undefined, '-size', 'size', undefined]);
  expect(pressed({ by: 'size', down: true }, 'size', true, true)).toBe('size');
  expect([direction({ by: 'size', down: true }, 'size'), direction(null, 'size')]).toEqual(['descending', undefined]);
});
