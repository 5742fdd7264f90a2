// The cache of one rank's tiles.
//
// Guarantees: at most KEPT tiles are kept, the most recently wanted ones; at most AT_ONCE are requested at a time; a
// request that is no longer wanted is cancelled. A tile that can become finer is requested again while it is wanted, and
// stays until then; one that gained nothing is left alone.
// Refuses: to request a final tile a second time.

import { Refused } from '../api/ask';
import type { Place, Tile } from './tile';

/** About two megabytes. */
const KEPT = 96;
/** A browser has six connections to a daemon; one of them listens. */
const AT_ONCE = 3;
/** The pause before a tile that can become finer is requested again, and before one that failed. */
const BETTER_MS = 30;
const TROUBLE_MS = 5000;

/** Requests a tile; `session` is the one whose tiles are in the cache. */
export type Fetch = (place: Place, session: string | null, cancel: AbortSignal) => Promise<Tile>;

interface CachedTile {
  tile: Tile;
  /** Nothing new is expected of it until `refresh`. */
  isSettled: boolean;
}

const keyOf = ({ level, index }: Place): string => `${level}/${index}`;

/** See the module. */
export class TileStore {
  private readonly known = new Map<string, CachedTile>();
  private readonly asking = new Map<string, AbortController>();
  /** Tiles that are not requested again yet. */
  private readonly resting = new Set<string>();
  private wanted: Place[] = [];
  private session: string | null = null;

  constructor(
    private readonly fetch: Fetch,
    private readonly changed: () => void,
  ) {}

  /** A tile in the cache. */
  get(place: Place): Tile | undefined {
    return this.known.get(keyOf(place))?.tile;
  }

  /** The tiles in view, the most wanted first; all other requests are cancelled. */
  want(places: Place[]): void {
    this.wanted = places;
    const keys = new Set(places.map(keyOf));
    for (const [key, cancel] of this.asking) {
      if (keys.has(key)) continue;
      cancel.abort();
      this.asking.delete(key);
    }
    for (const key of keys) {
      const kept = this.known.get(key);
      if (!kept) continue;
      // Wanted tiles are moved to the end, where they are evicted last.
      this.known.delete(key);
      this.known.set(key, kept);
    }
    this.next();
  }

  /** There is new data: tiles that may change are requested again if they are wanted. */
  refresh(): void {
    for (const kept of this.known.values()) kept.isSettled = kept.tile.isFinal;
    this.next();
  }

  /** The view is closed. */
  close(): void {
    this.want([]);
  }

  private next(): void {
    for (const place of this.wanted) {
      if (this.asking.size >= AT_ONCE) return;
      const key = keyOf(place);
      if (this.asking.has(key) || this.resting.has(key) || this.known.get(key)?.isSettled) continue;
      const cancel = new AbortController();
      this.asking.set(key, cancel);
      void this.ask(place, key, cancel);
    }
  }

  private async ask(place: Place, key: string, cancel: AbortController): Promise<void> {
    const session = this.session;
    try {
      const tile = await this.fetch(place, session, cancel.signal);
      if (cancel.signal.aborted) return;
      this.keep(key, tile);
      if (this.known.get(key)?.isSettled === false) this.rest(key, BETTER_MS);
    } catch (error) {
      if (cancel.signal.aborted) return;
      // The rank has another session by now: the cache does not belong to it.
      if (error instanceof Refused && error.status === 400 && session !== null) this.forget();
      // (A report never gets data that it does not contain.)
      else if (!(error instanceof Refused) || error.status !== 404) this.rest(key, TROUBLE_MS);
      else this.resting.add(key);
    }
    this.asking.delete(key);
    this.next();
  }

  private rest(key: string, ms: number): void {
    this.resting.add(key);
    setTimeout(() => {
      this.resting.delete(key);
      this.next();
    }, ms);
  }

  private forget(): void {
    this.session = null;
    this.known.clear();
  }

  private keep(key: string, tile: Tile): void {
    if (this.session !== null && tile.session !== this.session) this.forget();
    this.session = tile.session;
    const before = this.known.get(key)?.tile;
    const gains = tile.coarse > 0 && (before === undefined || tile.coarse < before.coarse);
    this.known.delete(key);
    this.known.set(key, { tile, isSettled: !gains });
    for (const oldest of this.known.keys()) {
      if (this.known.size <= KEPT) break;
      this.known.delete(oldest);
    }
    this.changed();
  }
}
