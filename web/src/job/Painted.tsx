// Allocated and reserved memory over time, painted behind the timeline.
//
// Guarantees: a frame costs its pixels and leaves no garbage, for any number of points: text paths took a hundred
// megabytes after some hundred frames. It has no text: the timeline says it in words.

import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import type { Sample, Stretch } from '../draw/course';
import { paintEnvelope, trace } from '../draw/painted';
import { pixel } from '../draw/raster';
import { Pixels, useDark } from '../parts/Pixels';

/** The envelope's colour in light and in dark (`--envelope`), with its opacity. */
const faint = (colour: string): number => ((pixel(colour) & 0xffffff) | (115 << 24)) >>> 0;

/** See the module. */
export function Painted({ of, view, top, height }: { of: Sample[]; view: Stretch; top: number; height: number }): JSX.Element {
  const dark = useDark();
  const paint = useMemo(() => {
    const colour = faint(getComputedStyle(document.documentElement).getPropertyValue('--envelope').trim());
    return (out: Uint32Array, width: number, down: number) => { paintEnvelope(of, view, top, colour, width, down, out); };
  }, [of, view.from, view.to, top, dark]);
  const draw = useMemo(
    () => (brush: CanvasRenderingContext2D, width: number, down: number) => {
      const style = getComputedStyle(brush.canvas);
      const line = (value: 'min' | 'max' | 'reserved', colour: string, wide: number): void => {
        brush.beginPath();
        trace(of, view, top, value, width, down, brush);
        brush.strokeStyle = style.getPropertyValue(colour);
        brush.lineWidth = (wide * down) / height;
        brush.stroke();
      };
      line('max', '--envelope', 1);
      line('min', '--envelope', 1);
      line('reserved', '--reserved', 1.5);
    },
    [of, view.from, view.to, top, height, dark],
  );
  return <Pixels class="painted" height={height} sharp paint={paint} draw={draw} hidden />;
}
