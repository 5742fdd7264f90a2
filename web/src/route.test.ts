// Addresses: written addresses can be read, and invalid ones are not guessed.

import { expect, test } from 'vitest';
import { addressOf, question, routeIn, routeOf, type Route } from './route';

const job = { name: 'a/b c', attempt: '2', rank: 3, tenant: 'lab' };

test.each<Exclude<Route, { view: 'nowhere' }>>([
  { view: 'jobs', filter: '', tenant: null },
  { view: 'jobs', filter: 'gpt & co', tenant: 'lab-a' },
  { view: 'job', job, since: null, until: null },
  { view: 'job', job: { ...job, attempt: null, rank: null, tenant: null }, since: '2026-01-01T00:00:00Z', until: null },
  { view: 'job', job, since: null, until: null, over: '1,7' },
  { view: 'moment', job, at: 'epoch:7', from: 'epoch:2' },
  { view: 'moment', job, at: 'peak', from: null },
  { view: 'blocks', job, at: 'peak', event: 123_456_789_012 },
  { view: 'blocks', job, at: 'epoch:3', event: null },
  { view: 'job', job, since: null, until: null, classes: 'off' },
  { view: 'settings', job, limit: '40GiB' },
  { view: 'settings', job, limit: '' },
  { view: 'settings', job, limit: '40GiB', size: '8' },
  { view: 'step', job, step: 12, at: null, event: null, first: null, by: 'site', axis: 'time', from: 100, to: 2_000 },
  { view: 'step', job, step: null, at: 'peak', event: null, first: null, by: 'class', axis: 'events', from: null, to: null },
  { view: 'step', job, step: null, at: null, event: 77, first: 80, by: 'class', axis: 'events', from: null, to: null },
  { view: 'alerts', tenant: 'lab-a' },
  { view: 'jobs', filter: 'leak', tenant: null, list: { sort: '-grown', group: 'label:team' } },
  { view: 'job', job, since: null, until: null, heat: 'reserved_bytes' },
  { view: 'moment', job, at: 'peak', from: null, flame: { mode: 'callees', focus: '1a2b', search: 'mlp', open: 'all', site: 'x1', sort: '-blocks' } },
  { view: 'blocks', job, at: 'peak', event: 7, look: { by: 'age', scale: 'one', fit: '1 GiB', stream: '0', block: '7f00' } },
])('an address is read as it was written: %o', (route) => {
  const [path = '', query = ''] = addressOf(route).split('?');
  expect(routeOf(path, query)).toEqual(route);
});

test('what means nothing leads nowhere', () => {
  for (const path of ['/nothing', '/jobs', '/jobs/a/other', '/jobs/a/moment/b', '/jobs/%ff']) {
    expect(routeOf(path, '')).toEqual({ view: 'nowhere', path });
  }
  expect(routeOf('/jobs/a', 'rank=x')).toMatchObject({ view: 'job', job: { rank: null } });
});

test('a question names the job and what is asked', () => {
  expect(question(job, 'flame', { rank: '3', at: 'peak', from: null })).toBe('jobs/a%2Fb%20c/flame?attempt=2&tenant=lab&rank=3&at=peak');
});

test('every address within a report is about its job', () => {
  expect(routeIn('j', 2, '')).toEqual({ view: 'job', job: { name: 'j', attempt: null, rank: 2, tenant: null }, since: null, until: null });
  expect(routeIn('j', 2, '#/alerts')).toMatchObject({ view: 'job' });
  expect(routeIn('j', 2, '#/jobs/other/moment?rank=1&at=peak')).toMatchObject({ view: 'moment', at: 'peak', job: { name: 'j', rank: 1 } });
  expect(routeIn('j', 2, '#/jobs/j/blocks')).toMatchObject({ view: 'blocks', at: 'peak', job: { rank: 2 } });
});
