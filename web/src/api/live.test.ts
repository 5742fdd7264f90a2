import { expect, test } from 'vitest';
import { isOf, newsOf } from './live';

test('an event names the jobs that have something new', () => {
  const job = { job: 'gpt2 "ft"', run: 1, attempt: 1, tenant: 'lab-a' };
  expect(newsOf(JSON.stringify({ jobs: [job] }))).toEqual([job]);
  expect(newsOf('{}')).toBeNull();
  expect(newsOf('nothing')).toBeNull();
});

test('a name is whichever run is the newest, and a run is itself', () => {
  const news = { job: 'gpt2', run: 3 };
  expect(['gpt2', 'gpt2#3', 'gpt2#2', 'gpt', 'gpt2#33'].filter((address) => isOf(news, address))).toEqual(['gpt2', 'gpt2#3']);
});
