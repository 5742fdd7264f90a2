// The site under the pointer, shared by the flame graph and the table of sites: each shows it in its own way.

import { signal } from '@preact/signals';

/** Its id (`siteId`); `null` if the pointer is on none. */
export const lit = signal<string | null>(null);
