// The menu of a job's devices: every device of every process of every rank.

import type { JSX } from 'preact';
import type { Rank } from '../api/types';
import { keyOf, labelOf } from '../words/devices';

/** The most devices in the menu; the table and the heat map have all. */
const LISTED = 512;

/** See the module. */
export function DeviceChoice({ ranks, chosen, to }: { ranks: Rank[]; chosen: Rank | null; to: (device: Rank) => void }): JSX.Element {
  const listed = ranks.slice(0, LISTED);
  return (
    <label>
      Rank{' '}
      <select
        value={chosen === null ? '' : keyOf(chosen)}
        onChange={(event) => {
          const device = ranks.find((known) => keyOf(known) === event.currentTarget.value);
          if (device) to(device);
        }}
      >
        {(chosen === null || listed.includes(chosen) ? listed : [chosen, ...listed]).map((device) => (
          <option key={keyOf(device)} value={keyOf(device)}>{labelOf(device, ranks)}</option>
        ))}
      </select>
    </label>
  );
}
