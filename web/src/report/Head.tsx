// The head of a report: its views, its source and what was left out, light or dark.

import type { JSX } from 'preact';
import { Colours } from '../parts/Head';
import { Link } from '../parts/parts';
import type { JobAddress, Route } from '../route';
import { date, moment } from '../words/numbers';
import type { ReportFile } from './file';

/** See the module. */
export function Head({ of, at }: { of: ReportFile; at: Route }): JSX.Element {
  const job: JobAddress = { name: of.job, attempt: null, rank: of.rank, tenant: null };
  const [early, late] = [of.early, of.late];
  const is = (view: string, changes = false): boolean => at.view === view && (at.view !== 'moment' || (at.from !== null) === changes);
  return (
    <>
      <header class="head">
        <nav aria-label="Views of this report">
          <span class="brand">memctl report</span>
          <Link to={{ view: 'job', job, since: null, until: null }} current={is('job')}>
            Verdict and course
          </Link>
          {early !== null && late !== null && (
            <Link to={{ view: 'moment', job, at: `epoch:${late}`, from: `epoch:${early}` }} current={is('moment', true)}>
              What changed
            </Link>
          )}
          {of.rank !== null && (
            <>
              <Link to={{ view: 'moment', job, at: 'peak', from: null }} current={is('moment')}>
                The peak
              </Link>
              <Link to={{ view: 'blocks', job, at: 'peak', event: null }} current={is('blocks')}>
                Blocks at the peak
              </Link>
              <Link to={{ view: 'settings', job, limit: '' }} current={is('settings')}>
                Settings
              </Link>
            </>
          )}
        </nav>
        <div class="who">
          <span class="faint">{`written ${date(moment(of.written_at))} by memctl ${of.version}`}</span>
          <Colours />
        </div>
      </header>
      {of.left_out.length > 0 && <p class="left-out faint">{of.left_out.join(' ')}</p>}
    </>
  );
}
