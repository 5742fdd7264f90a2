// The boxes of a flame graph as a tree that is pointed at and walked by keys.
//
// Guarantees: a label never leaves its box. Arrows go to what is drawn above, below and beside; one box can be reached by Tab.

import type { JSX } from 'preact';
import { useRef } from 'preact/hooks';
import { fitted, label, labels, type Box } from '../draw/flame';
import { widthOf } from '../parts/measure';

/** Height of a row in pixels. */
export const ROW = 20;
const PADDING = 4;

/** A box with its place. */
export interface Placed {
  box: Box;
  /** Unique in the picture: a sandwich has two trees. */
  key: string;
  x: number;
  width: number;
  row: number;
}

interface Props {
  title: string;
  placed: Placed[];
  focus: string;
  zoom: string | null;
  classOf: (one: Placed) => string;
  says: (one: Placed) => string;
  hover: (one: Placed | null) => void;
  rest: (one: Placed) => void;
  act: (one: Placed) => void;
  /** Other keys; true if one was used. */
  keys: (pressed: string, one: Placed | undefined) => boolean;
}

/** See the module. */
export function FlameTree({ title, placed, focus, zoom, classOf, says, hover, rest, act, keys }: Props): JSX.Element {
  const holder = useRef<SVGSVGElement>(null);
  const rows = 1 + placed.reduce((deepest, one) => Math.max(deepest, one.row), 0);
  const here = placed.find((one) => one.key === focus) ?? placed[0];
  const walk = (to: Placed | undefined): void => {
    if (!to) return;
    rest(to);
    requestAnimationFrame(() => holder.current?.querySelector<SVGElement>(`[data-key="${to.key}"]`)?.focus());
  };
  const middle = (one: Placed): number => one.x + one.width / 2;
  const vertical = (by: number): Placed | undefined => {
    if (!here) return undefined;
    const row = placed.filter((one) => one.row === here.row + by);
    const inside = row.filter((one) => one.x >= here.x - 0.5 && one.x + one.width <= here.x + here.width + 0.5);
    const widest = inside.reduce<Placed | undefined>((best, one) => (best === undefined || one.width > best.width ? one : best), undefined);
    return widest ?? row.find((one) => one.x <= middle(here) && middle(here) <= one.x + one.width);
  };
  const beside = (by: number): Placed | undefined => {
    const row = placed.filter((one) => one.row === here?.row).sort((a, b) => a.x - b.x);
    return row[row.findIndex((one) => one === here) + by];
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const acts: Record<string, () => void> = {
      ArrowDown: () => { walk(vertical(1)); },
      ArrowUp: () => { walk(vertical(-1)); },
      ArrowRight: () => { walk(beside(1)); },
      ArrowLeft: () => { walk(beside(-1)); },
      Home: () => { walk(placed[0]); },
      Enter: () => { if (here) act(here); },
      ' ': () => { if (here) act(here); },
    };
    const own = acts[event.key];
    if (own) own();
    else if (!keys(event.key, here)) return;
    event.preventDefault();
  };
  return (
    <svg ref={holder} class="tree" role="tree" aria-label={title} width="100%" height={rows * ROW} onKeyDown={pressed} onPointerLeave={() => { hover(null); }}>
      {placed.map((one) => (
        // (Not onPointerEnter: a box that appears under a resting pointer is not hovered.)
        <g
          key={one.key}
          class={classOf(one)}
          role="treeitem"
          aria-level={one.box.call.depth + 1}
          aria-label={says(one)}
          aria-selected={one.key === zoom}
          tabindex={one === here ? 0 : -1}
          data-key={one.key}
          onClick={() => { act(one); }}
          onPointerMove={() => { hover(one); }}
          onFocus={() => { rest(one); }}
        >
          <rect x={one.x} y={one.row * ROW} width={one.width} height={ROW - 1} />
        </g>
      ))}
      <g class="names" aria-hidden="true">
        {placed.map(({ box, key: name, x, width, row }) => {
          const { own } = box.call;
          const text = fitted(labels(box.call), width - 2 * PADDING, (part) => widthOf(part, own));
          return text === '' ? null : <text key={name} class={own ? 'own' : undefined} x={x + PADDING} y={row * ROW + 14}>{text}</text>;
        })}
      </g>
    </svg>
  );
}

/** The text of a box for those who cannot see it. */
export const spoken = (box: Box, figures: string): string => `${label(box.call)}: ${figures}`;
