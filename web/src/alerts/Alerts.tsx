// Alerts: the firing ones, the silences, and a form for a silence if the role allows one.
//
// Guarantees: users without the right to silence see no button; "nothing fires" always comes with the jobs that were not
// judged.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { change, useAsked } from '../api/ask';
import type { Alert, Alerts as Answer, Known, Silence, Silences } from '../api/types';
import { Link, Table, Waiting, Word } from '../parts/parts';
import { ago, date, duration, moment, plural } from '../words/numbers';
import { grade } from '../words/verdict';

/** Lengths of a silence, in minutes. */
const LENGTHS: [minutes: number, text: string][] = [[60, '1 hour'], [480, '8 hours'], [1440, '1 day'], [10_080, '1 week']];

/** The most jobs in the response. */
const LOOKED_AT = 100;

const HEADS = [{ text: 'Alert' }, { text: 'Job' }, { text: 'State' }, { text: 'Since' }, { text: 'Rule' }, { text: 'Silence' }];

/** The address of an alert's job. */
const addressOfJob = (alert: Alert): string => (alert.run !== null && alert.run > 1 ? `${alert.job}#${alert.run}` : alert.job);

/** The criteria of a silence, in words. */
export function about(of: Silence): string {
  const parts = [of.job === null ? null : `job ${of.job}`, of.kind === null ? null : of.kind.replaceAll('_', ' '), of.rule === null ? null : `rule ${of.rule}`];
  if (of.ranks.length > 0) parts.push(`ranks ${of.ranks.join(', ')}`);
  return parts.filter((part) => part !== null).join(', ');
}

function SilenceForm({ alert, done }: { alert: Alert; done: () => void }): JSX.Element {
  const [minutes, setMinutes] = useState(480);
  const [trouble, setTrouble] = useState<string | null>(null);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    try {
      const of = { job: alert.job, kind: alert.kind, minutes: String(minutes), tenant: alert.tenant };
      await change('silence', of);
      done();
    } catch (error) {
      setTrouble(error instanceof Error ? error.message : 'the daemon does not answer');
    }
  };
  return (
    <form onSubmit={(event) => void submit(event)} class="tools">
      <select aria-label={`For how long ${alert.job} is kept quiet`} value={String(minutes)} onChange={(event) => { setMinutes(Number(event.currentTarget.value)); }}>
        {LENGTHS.map(([value, text]) => <option key={value} value={String(value)}>{text}</option>)}
      </select>
      <button type="submit" aria-label={`Silence ${alert.kind.replaceAll('_', ' ')} of ${alert.job}`}>Silence</button>
      {trouble !== null && <span class="trouble" role="alert">{trouble}</span>}
    </form>
  );
}

function Row({ alert, silences, may, now, done }: { alert: Alert; silences: Silence[]; may: boolean; now: number; done: () => void }): JSX.Element {
  const by = silences.find((silence) => silence.id === alert.silenced_by);
  const lost = alert.receivers.filter((receiver) => receiver.last_error !== null);
  return (
    <tr>
      <th scope="row" class="sentence">
        <Word of={grade(alert.severity)} /> {alert.title}
        {lost.map((receiver) => <p key={receiver.receiver} class="trouble">{`${receiver.receiver} was not told: ${receiver.last_error ?? ''}`}</p>)}
      </th>
      <td class="name">
        <Link to={{ view: 'job', job: { name: addressOfJob(alert), attempt: null, rank: null, tenant: null }, since: null, until: null }}>{addressOfJob(alert)}</Link>
      </td>
      <td>{alert.silenced_by === null ? alert.state : `${alert.state}, silenced`}</td>
      <td title={date(moment(alert.since))}>{ago(moment(alert.since), now)}</td>
      <td>{alert.rule}</td>
      <td>
        {by !== undefined ? `for ${duration(moment(by.ends_at) - now)} more` : may && alert.state !== 'resolved' ? <SilenceForm alert={alert} done={done} /> : '–'}
      </td>
    </tr>
  );
}

/** See the module. */
export function Alerts({ tenant }: { tenant: string | null }): JSX.Element {
  // A change here requests the lists again.
  const [round, setRound] = useState(0);
  const [trouble, setTrouble] = useState<string | null>(null);
  const behind = tenant === null ? '' : `?tenant=${encodeURIComponent(tenant)}`;
  const always = (): boolean => true;
  const { answer, trouble: unheard } = useAsked<Answer>(`alerts${behind}`, always, undefined, round);
  const silenced = useAsked<Silences>(`silences${behind}`, always, undefined, round);
  const caller = useAsked<Known>('caller');
  const may = caller.answer?.role === 'operator' || caller.answer?.role === 'admin';
  const now = Date.now();
  const done = (): void => { setRound(round + 1); };
  const end = async (silence: Silence): Promise<void> => {
    try {
      await change('unsilence', { id: silence.id });
      done();
    } catch (error) {
      setTrouble(error instanceof Error ? error.message : 'the daemon does not answer');
    }
  };
  const alerts = answer?.alerts ?? [];
  const silences = silenced.answer?.silences ?? [];
  const firing = alerts.filter((alert) => alert.state === 'firing');
  const quiet = firing.filter((alert) => alert.silenced_by !== null).length;
  const open = answer?.jobs?.not_judged ?? [];
  const growing = answer?.jobs?.growing ?? [];
  const jobs = answer?.jobs?.jobs ?? 0;
  const watched = jobs === 0 ? '' : jobs < LOOKED_AT ? ` for ${plural(jobs, 'job')}` : ` for the newest ${jobs} jobs; older ones were not looked at`;
  return (
    <main>
      <h1 tabIndex={-1}>Alerts</h1>
      {answer === null ? (
        <Waiting trouble={unheard} what="the alerts" />
      ) : (
        <>
          <p role="status">
            {firing.length === 0 ? `No alert fires${watched}.` : `${plural(firing.length, 'alert')} firing, ${quiet === 0 ? 'none' : quiet} silenced.`}
            {open.length > 0 && ` ${plural(open.length, 'job')} could not be judged, or not yet: ${open.slice(0, 8).join(', ')}${open.length > 8 ? ', …' : ''}.`}
            {growing.length > 0 && ` The memory of ${plural(growing.length, 'job')} grows and its cause is open, which raises no alert: ${growing.slice(0, 8).join(', ')}${growing.length > 8 ? ', …' : ''}.`}
            {answer.given_up > 0 && ` ${plural(answer.given_up, 'notification')} could not be delivered since the daemon started.`}
            {(answer.jobs?.imported ?? 0) > 0 && ` ${plural(answer.jobs?.imported ?? 0, 'job')} of them ${answer.jobs?.imported === 1 ? 'was' : 'were'} read from files, which raise alerts only where a rule has \`imported = true\`: the list of jobs says what was found in them.`}
          </p>
          {alerts.length > 0 && (
            <Table caption="Alerts, firing ones first" heads={HEADS}>
              {alerts.map((alert) => <Row key={alert.id} alert={alert} silences={silences} may={may} now={now} done={done} />)}
            </Table>
          )}
        </>
      )}
      <h2>Silences</h2>
      {trouble !== null && <p class="trouble" role="alert">{trouble}</p>}
      {silenced.answer === null ? (
        <Waiting trouble={silenced.trouble} what="the silences" />
      ) : silences.length === 0 ? (
        <p>Nothing is kept quiet.</p>
      ) : (
        <Table caption="Silences, those that end first first" heads={[{ text: 'About' }, { text: 'Tenant' }, { text: 'By' }, { text: 'Why' }, { text: 'Ends in' }, { text: 'End it' }]}>
          {silences.map((silence) => (
            <tr key={silence.id}>
              <th scope="row">{about(silence)}</th>
              <td>{silence.tenant === '*' ? 'all tenants' : silence.tenant}</td>
              <td>{silence.author ?? '–'}</td>
              <td>{silence.comment ?? '–'}</td>
              <td title={date(moment(silence.ends_at))}>{duration(moment(silence.ends_at) - now)}</td>
              <td>{may ? <button type="button" aria-label={`End the silence about ${about(silence)}`} onClick={() => void end(silence)}>End</button> : '–'}</td>
            </tr>
          ))}
        </Table>
      )}
    </main>
  );
}
