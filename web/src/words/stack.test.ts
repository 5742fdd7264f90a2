// The text of a copied stack.

import { expect, test } from 'vitest';
import { traceback } from './stack';

test('a stack has the form of a traceback', () => {
  expect(traceback([{ function: 'main', file: '/a.py', line: 3 }, { function: 'f', file: '/b.py', line: null }], '6.00 MiB')).toBe(
    '6.00 MiB (most recent call last):\n  File "/a.py", line 3, in main\n  File "/b.py", in f\n',
  );
});
