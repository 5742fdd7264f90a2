// A picture that is painted pixel by pixel, into memory that is reused between frames.
//
// Guarantees: it is painted before the frame is shown, and only when its content or size has changed; without a width it
// fills its place.

import type { JSX, RefObject } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

/** The most screen pixels per page pixel. */
const SHARPEST = 2;

interface Of {
  class: string;
  /** Pixels across; if left out, as many as fit. */
  width?: number;
  /** Pixels down, and the displayed height. */
  height: number;
  tall?: number;
  /** As many pixels as the screen has, so that lines are sharp. */
  sharp?: boolean;
  /** Paints into clear pixels; another function means another picture. */
  paint: (out: Uint32Array, width: number, height: number) => void;
  /** Draws lines on top of that. */
  draw?: (brush: CanvasRenderingContext2D, width: number, height: number) => void;
  canvas?: RefObject<HTMLCanvasElement | null>;
  hidden?: boolean;
  onPointerMove?: (pointer: PointerEvent) => void;
  onPointerLeave?: () => void;
  onClick?: (pointer: MouseEvent) => void;
}

/** See the module. */
export function Pixels({ class: name, width, height, tall = height, sharp, paint, draw, canvas, hidden, ...hears }: Of): JSX.Element {
  const own = useRef<HTMLCanvasElement>(null);
  const here = canvas ?? own;
  const image = useRef<ImageData | null>(null);
  const [room, setRoom] = useState(0);
  const scale = sharp ? Math.min(Math.max(devicePixelRatio, 1), SHARPEST) : 1;
  const [across, down] = [width ?? Math.round(room * scale), Math.round(height * scale)];
  useLayoutEffect(() => {
    const element = here.current;
    if (!element || width !== undefined) return undefined;
    const watch = new ResizeObserver(() => { setRoom(Math.max(Math.round(element.clientWidth), 1)); });
    watch.observe(element);
    return () => { watch.disconnect(); };
  }, [width === undefined]);
  useLayoutEffect(() => {
    const brush = here.current?.getContext('2d');
    if (!brush || across === 0 || down === 0) return;
    if (image.current?.width !== across || image.current.height !== down) image.current = brush.createImageData(across, down);
    const pixels = new Uint32Array(image.current.data.buffer);
    pixels.fill(0);
    paint(pixels, across, down);
    brush.putImageData(image.current, 0, 0);
    draw?.(brush, across, down);
  }, [paint, draw, across, down]);
  return <canvas ref={here} class={name} width={Math.max(across, 1)} height={Math.max(down, 1)} style={{ height: `${tall}px` }} aria-hidden={hidden ? 'true' : undefined} {...hears} />;
}

/** The position of a pointer on an element, each way from 0 to 1. */
export function within(element: Element | null, pointer: MouseEvent): { x: number; y: number } | null {
  const box = element?.getBoundingClientRect();
  if (!box || box.width === 0 || box.height === 0) return null;
  return { x: (pointer.clientX - box.left) / box.width, y: (pointer.clientY - box.top) / box.height };
}

const isDark = (): boolean => {
  const set = document.documentElement.dataset.light;
  return set === undefined ? matchMedia('(prefers-color-scheme:dark)').matches : set === 'dark';
};

/** Whether the page is dark, now and after changes: painted pixels do not follow the style by themselves. */
export function useDark(): boolean {
  const [dark, setDark] = useState(isDark);
  useEffect(() => {
    const look = (): void => { setDark(isDark()); };
    const lights = matchMedia('(prefers-color-scheme:dark)');
    lights.addEventListener('change', look);
    const chosen = new MutationObserver(look);
    chosen.observe(document.documentElement, { attributes: true });
    return () => {
      lights.removeEventListener('change', look);
      chosen.disconnect();
    };
  }, []);
  return dark;
}
