// The rows in view as a picture that can be hovered, clicked, scrolled, zoomed and walked by keys.
//
// Guarantees: a frame costs what is in view. Every action of the mouse has a key. Blocks are described outside the
// picture, in words.

import type { JSX } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { headOf, held, linesOf, living, type Row, type Stretch } from '../draw/blocks';
import { clamp, panned, zoomed } from '../draw/course';
import { ROW, raster, type Scene } from '../draw/raster';
import { useHeard } from '../parts/heard';
import { Pixels, useDark, within } from '../parts/Pixels';
import { bytes, plural } from '../words/numbers';
import { blockAt, surroundings, type Meaning } from './paint';

/** Lines in view. */
const SHOWN = 32;
const CLOSER = 0.6;

interface Of {
  of: Stretch;
  event: number;
  colours: Meaning;
  chosen: number | null;
  request: Scene['request'];
  choose: (block: number | null) => void;
  hover: (block: number | null) => void;
  step: (by: number) => void;
}

/** See the module. */
export function Picture({ of, event, colours, chosen, request, choose, hover, step }: Of): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [first, setFirst] = useState(0);
  const [view, setView] = useState({ from: 0, to: 1 });
  const dark = useDark();
  const lines = useMemo(() => linesOf(of.rows), [of]);
  const shown = Math.min(SHOWN, Math.max(lines.length, 1));
  const height = shown * ROW;
  const last = Math.max(0, lines.length - shown);
  const top = Math.min(first, last);
  const paint = useMemo(() => {
    const scene: Scene = { of, lines, event, first: top, ...view, chosen, request };
    const colours_of_all = surroundings(dark, colours.block);
    return (out: Uint32Array, width: number, tall: number) => { raster(scene, colours_of_all, width, tall, out); };
  }, [of, lines, event, colours, chosen, request, top, view, dark]);

  const all = { from: 0, to: 1 };
  const at = (pointer: MouseEvent): number | null => {
    const place = within(canvas.current, pointer);
    if (!place) return null;
    const row = lines[top + Math.floor((place.y * height) / ROW)]?.row ?? null;
    const here = row === null ? undefined : of.rows[row];
    if (!here || row === null) return null;
    const share = view.from + place.x * (view.to - view.from);
    return blockAt(of, row, here.address + share * here.scale, event);
  };
  useHeard(canvas, 'wheel', (wheel) => {
    if (wheel.ctrlKey || wheel.metaKey) {
      const around = view.from + (within(canvas.current, wheel)?.x ?? 0) * (view.to - view.from);
      setView(zoomed01(view, wheel.deltaY > 0 ? 1 / CLOSER : CLOSER, around));
    } else if (wheel.shiftKey) setView(panned(view, all, (wheel.deltaY || wheel.deltaX) > 0 ? 0.15 : -0.15));
    else if (last > 0) setFirst(clamp(first + Math.sign(wheel.deltaY) * 3, 0, last));
    else return;
    wheel.preventDefault();
  });

  const rowOf = (block: number | null): number => (block === null ? -1 : of.rows.findIndex((row) => row.blocks.includes(block)));
  const see = (block: number | undefined, row: number): void => {
    if (block === undefined) return;
    choose(block);
    const line = lines.findIndex((one) => one.row === row);
    if (line < top || line >= top + shown) setFirst(clamp(line - Math.floor(shown / 2), 0, last));
  };
  const walk = (by: number): void => {
    const row = rowOf(chosen);
    const here = of.rows[row];
    const blocks = here ? living(of, here, event) : [];
    const to = blocks[blocks.indexOf(chosen ?? -1) + by];
    if (to === undefined) climb(by, by > 0 ? 0 : -1);
    else see(to, row);
  };
  const climb = (by: number, place: number | null): void => {
    for (let row = Math.max(rowOf(chosen), by > 0 ? -1 : 0) + by; row >= 0 && row < of.rows.length; row += by) {
      const here = of.rows[row];
      const blocks = here ? living(of, here, event) : [];
      if (blocks.length === 0 || !here) continue;
      const from = (chosen === null ? 0 : (of.of.blocks.address[chosen] ?? 0)) - (of.rows[rowOf(chosen)]?.address ?? 0);
      const beside = blocks.find((block) => (of.of.blocks.address[block] ?? 0) - here.address >= from);
      see(place === null ? (beside ?? blocks.at(-1)) : blocks.at(place), row);
      return;
    }
  };
  const key = (pressed: KeyboardEvent): void => {
    if (pressed.ctrlKey || pressed.metaKey || pressed.altKey) return;
    const acts: Record<string, () => void> = {
      ArrowRight: () => { walk(1); },
      ArrowLeft: () => { walk(-1); },
      ArrowDown: () => { climb(1, null); },
      ArrowUp: () => { climb(-1, null); },
      PageDown: () => { setFirst(clamp(first + shown, 0, last)); },
      PageUp: () => { setFirst(clamp(first - shown, 0, last)); },
      Home: () => { setFirst(0); },
      End: () => { setFirst(last); },
      '+': () => { setView(zoomed01(view, CLOSER, (view.from + view.to) / 2)); },
      '=': () => { setView(zoomed01(view, CLOSER, (view.from + view.to) / 2)); },
      '-': () => { setView(zoomed01(view, 1 / CLOSER, (view.from + view.to) / 2)); },
      '0': () => { setView(all); },
      ',': () => { step(-1); },
      '.': () => { step(1); },
      '<': () => { step(-100); },
      '>': () => { step(100); },
      Escape: () => { choose(null); },
    };
    const act = acts[pressed.key];
    if (!act) return;
    pressed.preventDefault();
    act();
  };
  const inView = lines.slice(top, top + shown);
  return (
    <>
      <p class="faint">
        {`${plural(of.rows.length, 'segment')}${last === 0 ? '' : `; lines ${top + 1} to ${top + shown} of ${lines.length}, the wheel scrolls`}`}
        {view.to - view.from < 1 && `, ${(100 * (view.to - view.from)).toPrecision(2)} % of the width`}.
      </p>
      <div
        class="plot"
        role="application"
        aria-roledescription="picture of blocks"
        aria-label="Segments as rows, blocks as rectangles. Arrows walk from block to block, plus and minus zoom, 0 shows all, page keys scroll, comma and full stop go an event back and forth, less and greater a hundred, Escape lets go."
        aria-describedby="block-said"
        tabIndex={0}
        onKeyDown={key}
      >
        <div class="block-lines" aria-hidden="true">
          {inView.map((line, at) => {
            const row = line.row === null ? undefined : of.rows[line.row];
            return row === undefined
              ? <div key={at} class="block-head">{headOf(of, line.first, event)}</div>
              : <div key={at} class="block-size">{sizeAt(of, row, event)}</div>;
          })}
        </div>
        {last > 0 && <svg class="block-thumb" width="4" height={height} aria-hidden="true"><rect y={(height * top) / lines.length} width="4" height={(height * shown) / lines.length} /></svg>}
        <Pixels
          canvas={canvas}
          class="blocks"
          height={height}
          paint={paint}
          onPointerMove={(pointer) => { hover(at(pointer)); }}
          onPointerLeave={() => { hover(null); }}
          onClick={(pointer) => { choose(at(pointer)); }}
        />
      </div>
    </>
  );
}

/** The size of a row's segment after an event; nothing if there is none. */
function sizeAt(of: Stretch, row: Row, event: number): string {
  const size = held(of, row, event).reduce((sum, range) => sum + range.to - range.from, 0);
  return size === 0 ? '' : bytes(size);
}

/** Zooms within 0 to 1; down to a millionth, where a pixel of the largest segment is some bytes. */
function zoomed01(view: { from: number; to: number }, factor: number, around: number): { from: number; to: number } {
  const scaled = zoomed({ from: view.from * 1e6, to: view.to * 1e6 }, { from: 0, to: 1e6 }, factor, around * 1e6);
  return { from: scaled.from / 1e6, to: scaled.to / 1e6 };
}
