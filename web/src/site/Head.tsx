// The head of the page without a daemon.

import type { JSX } from 'preact';
import { Colours } from '../parts/Head';
import { Help } from '../parts/Help';
import { Link } from '../parts/parts';
import type { Route } from '../route';

/** See the module. */
export function Head({ at }: { at: Route['view'] }): JSX.Element {
  return (
    <header class="head">
      <nav aria-label="Main">
        <Link to={{ view: 'jobs', filter: '', tenant: null }} class="brand" label="memctl, recordings">
          memctl
        </Link>
        <Link to={{ view: 'jobs', filter: '', tenant: null }} current={at === 'jobs'}>
          Recordings
        </Link>
      </nav>
      <div class="who">
        <span class="faint">everything stays in this browser</span>
        <Help />
        <Colours />
      </div>
    </header>
  );
}
