import { expect, test } from 'vitest';
import { sparkline } from './sparkline';

test('a band from lowest to highest, below what is reserved', () => {
  const drawn = sparkline({ schema: 2, rank: 0, process: 'rank 0', peak_allocated_bytes: [50, 100], min_allocated_bytes: [0, 50], reserved_bytes: [100, 200] });
  expect(drawn).toEqual({ allocated: 'M0.0 75.0L100.0 50.0L100.0 75.0L0.0 100.0Z', reserved: 'M0.0 50.0L100.0 0.0', top: 200 });
});

test('nothing is drawn of nothing', () => {
  expect(sparkline({ schema: 2, rank: null, process: null, peak_allocated_bytes: [], min_allocated_bytes: [], reserved_bytes: [] })).toBeNull();
});
