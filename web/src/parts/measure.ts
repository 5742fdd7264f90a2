// The width of a text in the page's font, for texts that are drawn by position.
//
// Guarantees: never less than what the browser draws, but for letters that it joins.

const FONT = '12px system-ui,sans-serif';
const known = new Map<string, number>();
let brush: CanvasRenderingContext2D | null = null;

/** In pixels, at 12 pixels high; own code is bold. */
export function widthOf(text: string, bold: boolean): number {
  brush ??= document.createElement('canvas').getContext('2d');
  if (brush === null) return text.length * 9;
  let width = 0;
  for (const letter of text) {
    const key = bold ? `b${letter}` : letter;
    let one = known.get(key);
    if (one === undefined) {
      brush.font = bold ? `600 ${FONT}` : FONT;
      one = brush.measureText(letter).width;
      known.set(key, one);
    }
    width += one;
  }
  return width;
}
