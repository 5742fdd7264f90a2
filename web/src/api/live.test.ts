import { expect, test } from 'vitest';
import { newsOf } from './live';

test('an event names the jobs that have something new', () => {
  const job = { job: 'gpt2 "ft"', attempt: 1, tenant: 'lab-a' };
  expect(newsOf(JSON.stringify({ jobs: [job] }))).toEqual([job]);
  expect(newsOf('{}')).toBeNull();
  expect(newsOf('nothing')).toBeNull();
});
