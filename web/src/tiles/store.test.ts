// What is requested, cached and evicted, without a browser.

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Refused } from '../api/ask';
import { TileStore } from './store';
import { stretchOf, type Place, type Tile } from './tile';

interface TileRequest {
  place: Place;
  session: string | null;
  cancel: AbortSignal;
  come: (tile: Partial<Tile>) => Promise<void>;
  fail: (error: Error) => Promise<void>;
}

const at = (index: number): Place => ({ level: 20, index });
const empty = new Float64Array();

function tile(place: Place, more: Partial<Tile>): Tile {
  const columns = { min: empty, max: empty, last: empty, reservedMax: empty, reserved: empty };
  return { ...place, ...stretchOf(place), session: 's', first: 0, count: 0, isFinal: true, coarse: 0, marks: [], ...columns, ...more };
}

function opened(): { store: TileStore; asked: TileRequest[]; changes: () => number } {
  const asked: TileRequest[] = [];
  let changes = 0;
  const fetch = (place: Place, session: string | null, cancel: AbortSignal): Promise<Tile> =>
    new Promise((come, fail) => {
      const settled = async (act: () => void): Promise<void> => {
        act();
        await vi.advanceTimersByTimeAsync(0);
      };
      asked.push({
        place,
        session,
        cancel,
        come: (more) => settled(() => { come(tile(place, more)); }),
        fail: (error) => settled(() => { fail(error); }),
      });
    });
  return { store: new TileStore(fetch, () => { changes += 1; }), asked, changes: () => changes };
}

beforeEach(() => { vi.useFakeTimers(); });
afterEach(() => { vi.useRealTimers(); });

describe('what is wanted', () => {
  test('is asked for once, three at a time, and kept', async () => {
    const { store, asked, changes } = opened();
    store.want([1, 2, 3, 4].map(at));
    expect(asked.map((one) => one.place.index)).toEqual([1, 2, 3]);
    await asked[0]?.come({});
    expect(asked.map((one) => one.place.index)).toEqual([1, 2, 3, 4]);
    expect(asked.map((one) => one.session)).toEqual([null, null, null, 's']);
    for (const one of asked.slice(1)) await one.come({});
    store.want([1, 2].map(at));
    store.refresh();
    await vi.runAllTimersAsync();
    expect(asked.length).toBe(4);
    expect(changes()).toBe(4);
    expect(store.get(at(3))?.index).toBe(3);
  });

  test('is cancelled when it is wanted no more, and never kept', async () => {
    const { store, asked } = opened();
    store.want([1, 2].map(at));
    store.want([2, 3].map(at));
    expect(asked.map((one) => [one.place.index, one.cancel.aborted])).toEqual([[1, true], [2, false], [3, false]]);
    await asked[0]?.come({});
    expect(store.get(at(1))).toBeUndefined();
    store.close();
    expect(asked.every((one) => one.cancel.aborted)).toBe(true);
  });

  test('goes last where there are too many', async () => {
    const { store, asked } = opened();
    for (let index = 0; index < 200; index += 1) {
      store.want([at(0), at(index)]);
      for (const one of asked.splice(0)) await one.come({});
    }
    expect(store.get(at(0))).toBeDefined();
    expect(Array.from({ length: 200 }, (_, index) => store.get(at(index))).filter(Boolean).length).toBe(96);
    expect(store.get(at(50))).toBeUndefined();
  });
});

test('what can be told better is asked for again as long as it gains', async () => {
  const { store, asked } = opened();
  store.want([at(1)]);
  await asked[0]?.come({ isFinal: false, coarse: 5 });
  await vi.runAllTimersAsync();
  expect(asked.length).toBe(2);
  await asked[1]?.come({ isFinal: false, coarse: 5 });
  await vi.runAllTimersAsync();
  expect(asked.length).toBe(2);
  expect(store.get(at(1))?.coarse).toBe(5);
  // There is new data: the tile may change.
  store.refresh();
  expect(asked.length).toBe(3);
});

test('what cannot be had is asked for later', async () => {
  const { store, asked } = opened();
  store.want([at(1)]);
  await asked[0]?.fail(new Refused(503, 'busy'));
  expect(asked.length).toBe(1);
  await vi.advanceTimersByTimeAsync(5000);
  expect(asked.length).toBe(2);
});

test('tiles of another session are let go', async () => {
  const { store, asked } = opened();
  store.want([at(1), at(2)]);
  await asked[0]?.come({});
  await asked[1]?.come({ isFinal: false });
  store.refresh();
  expect(asked[2]?.session).toBe('s');
  await asked[2]?.fail(new Refused(400, 'another session'));
  expect(store.get(at(1))).toBeUndefined();
  expect(asked.slice(3).map((one) => [one.place.index, one.session])).toEqual([[1, null], [2, null]]);
  await asked[3]?.come({ session: 'new' });
  await asked[4]?.come({ session: 'newer' });
  expect([1, 2].map((index) => store.get(at(index))?.session)).toEqual([undefined, 'newer']);
});
