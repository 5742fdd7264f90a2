// The head of every view: the current view, the current user, light or dark.

import { signal } from '@preact/signals';
import type { JSX } from 'preact';
import { signOut, useAsked } from '../api/ask';
import type { Known } from '../api/types';
import type { Route } from '../route';
import { Help } from './Help';
import { Link } from './parts';

/** The source of the colours. */
type Light = 'system' | 'light' | 'dark';

const NEXT: Record<Light, Light> = { system: 'light', light: 'dark', dark: 'system' };
const KEPT = 'memctl-light';

const kept = (): Light => {
  try {
    const found = localStorage.getItem(KEPT);
    return found === 'light' || found === 'dark' ? found : 'system';
  } catch {
    return 'system';
  }
};

const light = signal<Light>(kept());

/** Applies the chosen colours. */
export function shine(): void {
  const root = document.documentElement;
  if (light.value === 'system') delete root.dataset.light;
  else root.dataset.light = light.value;
}

function turn(): void {
  light.value = NEXT[light.value];
  try {
    localStorage.setItem(KEPT, light.value);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  shine();
}

/** Chooses light or dark. */
export function Colours(): JSX.Element {
  return (
    <button type="button" onClick={turn} aria-label={`Colours: ${light.value}. Change`}>
      <span aria-hidden="true">◐ </span>
      {light.value}
    </button>
  );
}

/** See the module. */
export function Head({ at }: { at: Route['view'] }): JSX.Element {
  const { answer } = useAsked<Known>('caller');
  return (
    <header class="head">
      <nav aria-label="Main">
        <Link to={{ view: 'jobs', filter: '', tenant: null }} class="brand" label="memctl, list of jobs">
          memctl
        </Link>
        <Link to={{ view: 'jobs', filter: '', tenant: null }} current={at === 'jobs'}>
          Jobs
        </Link>
        <Link to={{ view: 'alerts', tenant: null }} current={at === 'alerts'}>
          Alerts
        </Link>
      </nav>
      <div class="who">
        {answer !== null && (
          <span class="faint" title={`${answer.name}, version ${answer.version}`}>
            {answer.role}
            {answer.tenant === '*' ? '' : ` of ${answer.tenant}`}
          </span>
        )}
        {answer?.signed_in === true && (
          <button type="button" onClick={() => void signOut()}>
            Sign out
          </button>
        )}
        <Help />
        <Colours />
      </div>
    </header>
  );
}
