// The page without a daemon: a static folder whose module reads recordings in the browser. The document then names the
// module and the samples.
//
// Guarantees: pure except for reading the document once.

/** A bundled recording. */
export interface Sample {
  name: string;
  /** What it is of, in a few words. */
  about: string;
  /** The addresses of its files, relative to the page. */
  files: string[];
}

/** The contents of the static folder. */
export interface Site {
  /** The address of the module, relative to the page. */
  module: string;
  samples: Sample[];
}

/** The id of the element that contains it. */
const ELEMENT = 'site';

function read(): Site | null {
  const text = typeof document === 'undefined' ? null : document.getElementById(ELEMENT)?.textContent;
  return text ? (JSON.parse(text) as Site) : null;
}

/** The static folder, if the page is one. */
export const site = read();
