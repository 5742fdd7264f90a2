// The page: one view at a time, by its address.

import { render } from 'preact';
import type { JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { Alerts } from './alerts/Alerts';
import { refusal } from './api/ask';
import { Blocks } from './blocks/Blocks';
import { Compare } from './compare/Compare';
import { Job } from './job/Job';
import { Jobs } from './jobs/Jobs';
import { Moment } from './moment/Moment';
import { Head, shine } from './parts/Head';
import { file } from './report/file';
import { Head as ReportHead } from './report/Head';
import { Link } from './parts/parts';
import { SignIn } from './parts/SignIn';
import { Head as SiteHead } from './site/Head';
import { site } from './site/place';
import { Start } from './site/Start';
import { Settings } from './settings/Settings';
import { Step } from './step/Step';
import { follow, route, type Route } from './route';
import './style.css';

/** (The same object each time, so that what is computed from it is kept.) */
const NOTHING = {};

function titleOf(at: Route): string {
  switch (at.view) {
    case 'jobs':
      return site === null ? 'Jobs · memctl' : 'memctl';
    case 'job':
      return `${at.job.name} · memctl`;
    case 'moment':
      return `${at.job.name}: ${at.from === null ? 'a moment' : 'what changed'} · memctl`;
    case 'blocks':
      return `${at.job.name}: blocks · memctl`;
    case 'step':
      return `${at.job.name}: within a step · memctl`;
    case 'compare':
      return `${at.job.name}: compared · memctl`;
    case 'settings':
      return `${at.job.name}: settings · memctl`;
    case 'alerts':
      return 'Alerts · memctl';
    case 'nowhere':
      return 'Not found · memctl';
  }
}

function View({ at }: { at: Route }): JSX.Element {
  switch (at.view) {
    case 'jobs':
      if (site !== null) return <Start of={site} />;
      return <Jobs filter={at.filter} tenant={at.tenant} list={at.list ?? NOTHING} />;
    case 'job':
      return <Job job={at.job} since={at.since} until={at.until} over={at.over ?? ''} classes={at.classes ?? null} heat={at.heat ?? null} />;
    case 'moment':
      return <Moment job={at.job} at={at.at} from={at.from} finding={at.finding ?? null} kept={at.flame ?? NOTHING} />;
    case 'blocks':
      return <Blocks key={at.job.name} job={at.job} at={at.at} event={at.event} look={at.look ?? NOTHING} />;
    case 'step':
      return <Step key={at.job.name} at={at} />;
    case 'compare':
      return <Compare key={`${at.job.name} ${at.before}`} job={at.job} before={at.before} />;
    case 'settings':
      return <Settings job={at.job} limit={at.limit} size={at.size ?? ''} />;
    case 'alerts':
      return <Alerts tenant={at.tenant} />;
    case 'nowhere':
      return (
        <main>
          <h1 tabIndex={-1}>There is nothing at {at.path}</h1>
          <p>
            <Link to={{ view: 'jobs', filter: '', tenant: null }}>The list of jobs</Link>
          </p>
        </main>
      );
  }
}

function Page(): JSX.Element {
  const at = route.value;
  useEffect(() => {
    document.title = titleOf(at);
  });
  const refused = refusal.value;
  return (
    <>
      {file !== null ? <ReportHead of={file} at={at} /> : site !== null ? <SiteHead at={at.view} /> : <Head at={at.view} />}
      {refused === null ? <View at={at} /> : <SignIn words={refused.words} takesToken={refused.takesToken} />}
    </>
  );
}

shine();
follow();
const root = document.getElementById('page');
// The fallback content of a report without scripts.
root?.replaceChildren();
if (root) render(<Page />, root);
