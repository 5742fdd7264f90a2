import { expect, test } from 'vitest';
import { commandOf, keyOf, questionOf, said, type ReportFile } from './file';

async function packed(answer: unknown): Promise<string> {
  const zipped = await new Response(new Blob([JSON.stringify(answer)]).stream().pipeThrough(new CompressionStream('gzip'))).arrayBuffer();
  return btoa(String.fromCharCode(...new Uint8Array(zipped)));
}

const FILE: ReportFile = {
  job: "it's",
  attempt: 0,
  version: '1',
  written_at: '2026-01-01T00:00:00Z',
  rank: 0,
  early: 0,
  late: 3,
  size: 4,
  device_memory: null,
  left_out: [],
  answers: {
    'timeline?floor=true&points=600&rank=0': await packed({ ranks: [{ rank: 0 }] }),
    'timeline?floor=true&points=600&rank=1': await packed({ ranks: [{ rank: 1 }] }),
    'blocks?at=peak&rank=0': await packed({ first_event: 10, last_event: 20 }),
  },
  reasons: { 'ledger?at=peak&rank=0': 'no event is stored' },
};

const answer = async (path: string): Promise<unknown> => {
  const found = await said(FILE, path);
  return typeof found === 'string' ? found : JSON.parse(new TextDecoder().decode(found));
};

test('a question has one key, however it is written', () => {
  expect(keyOf(questionOf('jobs/a%2Fb/flame?attempt=1&rank=0&from=epoch%3A0&at=epoch%3A3'))).toBe('flame?at=epoch:3&from=epoch:0&rank=0');
  expect(keyOf(questionOf('jobs/x/query'))).toBe('query');
});

test('courses are in the file one by one, and each of them is whole', async () => {
  expect(await answer('jobs/x/timeline?rank=0&points=600&since=2026-01-01T00%3A00%3A00Z')).toEqual({ ranks: [{ rank: 0 }] });
  expect(await answer('jobs/x/timeline?rank=0,1&points=600')).toEqual({ ranks: [{ rank: 0 }, { rank: 1 }] });
  expect(await answer('jobs/x/timeline?rank=0,2&points=600')).toContain('`memctl timeline');
});

test('the stretch of blocks at the peak answers for every event in it', async () => {
  expect(await answer('jobs/x/blocks?rank=0&event=15')).toEqual({ first_event: 10, last_event: 20 });
  expect(await answer('jobs/x/blocks?rank=0&event=21')).toBe('it is not in this file; `memctl ui` shows it');
});

test('what is not there has its reason, or the command that shows it', async () => {
  expect(await answer('jobs/x/ledger?rank=0&at=peak')).toBe('no event is stored');
  expect(commandOf(FILE.job, questionOf('jobs/x/sites?rank=3&at=peak'))).toBe("memctl sites --job 'it'\\''s' --rank 3 --peak");
  expect(commandOf('j', questionOf('jobs/x/ledger?rank=3&at=epoch%3A2'))).toBe('memctl ledger --job j --rank 3 --epoch-end 2');
  expect(commandOf('j', questionOf('jobs/x/flame?rank=3&at=epoch%3A2&from=epoch%3A1'))).toBe('memctl ui');
  expect(commandOf('j', questionOf('jobs/x/fit?rank=3&size=4'))).toBe('memctl fit --job j=4 --rank 3 --at 8,16');
  expect(commandOf('j', questionOf('jobs/x/fit?rank=3&size=16777216'))).toBe('memctl fit --job j=16777216 --rank 3 --at 16777216');
  expect(commandOf('j', questionOf('jobs/x/fit?rank=3&process=a&size=4'))).toBe('memctl ui');
  expect(commandOf('a b', questionOf('jobs/x/fit?size=4&limit=1024'))).toBe("memctl fit --job 'a b=4' --at 8,16 --device-memory 1024");
});
