// The finest points in view, by tiles.
//
// Guarantees: something is always drawn: coarser tiles, or the timeline itself, until the tiles of the view have arrived;
// tiles that were passed by are not waited for.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { askTile } from '../api/ask';
import type { Mark, RankTimeline } from '../api/types';
import type { Sample, Stretch } from '../draw/course';
import { question, type JobAddress } from '../route';
import { TileStore } from './store';
import { opened, placesIn, pointsIn } from './tile';

/** The view is requested once it has rested this long. */
const SETTLED_MS = 40;

/** Points and their marks. */
export interface Fine {
  points: Sample[];
  marks: Mark[];
}

/** See the module. `process` is set if the rank has several. */
export function useTiles(job: JobAddress, line: RankTimeline, process: string | null, course: Sample[], view: Stretch): Fine {
  const [come, setCome] = useState(0);
  const held = useRef<TileStore | null>(null);
  held.current ??= new TileStore(
    async ({ level, index }, session, cancel) => {
      const of = { rank: String(line.rank), process, device: String(line.device), session, level: String(level), index: String(index) };
      return opened(await askTile(question(job, 'tiles', of), cancel));
    },
    () => { setCome((before) => before + 1); },
  );
  const store = held.current;
  // The same tiles give the same positions for any view within them: then nothing is computed again.
  const wanted = placesIn(view);
  const places = useMemo(() => wanted, [wanted.map(({ level, index }) => `${level}/${index}`).join()]);
  useEffect(() => {
    const timer = setTimeout(() => { store.want(places); }, SETTLED_MS);
    return () => { clearTimeout(timer); };
  }, [places]);
  useEffect(() => { store.refresh(); }, [line]);
  useEffect(() => () => { store.close(); }, []);
  return useMemo(() => {
    const tiles = places.map((place) => store.get(place));
    const marks = tiles.flatMap((tile) => tile?.marks ?? []);
    return { points: pointsIn(places, (place) => store.get(place), course), marks: marks.length > 0 ? marks : line.marks };
  }, [places, come, course, line]);
}
