// Shows the recorded requests of one process under other allocator settings. Each setting has a bar, cautions, and the
// request that fails under a limit. The recommended setting is marked. Below them are other sizes (`Sizes`).
//
// Guarantees: figures and the recommendation are those of `memctl what-if`; gaps are listed below them. A daemon replays
// one process at a time: a waiting view says so. Recommendations come only from the response.

import { Fragment, type JSX } from 'preact';
import { useAsked } from '../api/ask';
import type { Rank, RankReplays, Report, Setting, WhatIf } from '../api/types';
import { fileName } from '../draw/flame';
import { DeviceChoice } from '../parts/DeviceChoice';
import { Bytes, Link, Table, Waiting } from '../parts/parts';
import { file } from '../report/file';
import { go, question, type JobAddress } from '../route';
import { bytes, count } from '../words/numbers';
import { groups, limitOf, nameOfSetting, type Group } from '../words/settings';
import { addressIn, chosen, labelOf, missing, selectionOf } from '../words/devices';
import { Sizes } from './Sizes';

function Bar({ of, most }: { of: Setting; most: number }): JSX.Element {
  const x = (value: number): number => (1000 * value) / Math.max(most, 1);
  return (
    <svg class="setting" viewBox="0 0 1000 16" preserveAspectRatio="none" width="100%" height="16" aria-hidden="true">
      <rect class="held" width={x(of.peak_reserved_bytes)} height="16" />
      <rect class="used" width={x(of.peak_allocated_bytes)} height="16" />
      {of.limit_bytes !== null && of.limit_bytes <= most && <path class="limit" d={`M${x(of.limit_bytes)} 0V16`} />}
    </svg>
  );
}

function Row({ of, group, device }: { of: Setting; group: Group; device: RankReplays }): JSX.Element {
  const isRecommended = device.recommended?.allocator_conf === of.allocator_conf && group.isFirst && of !== group.recorded;
  const failed = of.out_of_memory;
  // (A replay that ended early held less memory, and cannot be compared.)
  const isCompared = of !== group.recorded && failed === null && group.recorded.out_of_memory === null;
  const change = isCompared ? of.peak_reserved_bytes - group.recorded.peak_reserved_bytes : 0;
  return (
    <tr class={isRecommended ? 'chosen' : undefined}>
      <th scope="row" class="name">
        <code>{nameOfSetting(of).split(',').map((part, at, all) => <Fragment key={part}>{part}{at + 1 < all.length && <>,<wbr /></>}</Fragment>)}</code>
        {of === group.recorded && <span class="faint"> as recorded</span>}
        {isRecommended && <strong> ★ recommended</strong>}
      </th>
      <td class="bar-cell"><Bar of={of} most={group.most} /></td>
      <td class="number"><Bytes of={of.peak_reserved_bytes} /></td>
      <td class={`number ${change < 0 ? 'less' : change > 0 ? 'more' : ''}`}>{!isCompared ? '–' : change === 0 ? 'same' : `${change > 0 ? '+' : ''}${bytes(change)}`}</td>
      <td class="number">{count(of.device_allocs + of.device_frees)}</td>
      <td class="number">{count(of.retries)}</td>
      <td class="sentence">
        {failed !== null && (
          <strong class="inexact">
            {`✖ out of memory${failed.step === null ? '' : ` in step ${count(failed.step)}`}, at a request for ${bytes(failed.requested_bytes)}${failed.site === null ? '' : ` in ${failed.site.function} (${fileName(failed.site.file)}${failed.site.line === null ? '' : `:${failed.site.line}`})`}. `}
          </strong>
        )}
        {of.cautions.map((text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`).join(' ')}
      </td>
    </tr>
  );
}

const HEADS = [
  { text: 'Setting' },
  { text: 'Peak of allocated and reserved memory' },
  { text: 'Reserved', number: true },
  { text: 'Change', number: true },
  { text: 'Driver calls', number: true },
  { text: 'Retries', number: true },
  { text: 'Before you use it' },
];

/** The limits under which settings were replayed, and their source. */
function limitsSaid(of: Group[], isAsked: boolean): string {
  const [low, high] = of.map((group) => group.limit).filter((limit) => limit !== null);
  if (low === undefined) return '';
  if (isAsked) return `Replayed under a limit: the process may reserve ${bytes(low)}. `;
  const range = high === undefined ? `it may have ${bytes(low)}` : `it may have between ${bytes(Math.min(low, high))} and ${bytes(Math.max(low, high))}: both are replayed`;
  return `A request of this process failed, which shows that ${range}. `;
}

function Device({ of, isAsked }: { of: RankReplays; isAsked: boolean }): JSX.Element {
  const found = groups(of.settings);
  // The replay of the recorded settings, under the first limit (or none) with which no request fails.
  const again = found.find((group) => group.recorded.out_of_memory === null)?.recorded;
  const more = again === undefined ? 0 : again.peak_reserved_bytes - of.recorded.peak_reserved_bytes;
  const begun = more === 0 ? '' : `Every replay below first requests what was in use when the recording began. So the recorded settings reserve ${bytes(again?.peak_reserved_bytes)} here, and reserved ${bytes(of.recorded.peak_reserved_bytes)} in the recording. Compare the bars with each other.`;
  return (
    <>
      <p class={of.exact ? 'faint' : 'inexact'}>
        {of.exact
          ? `The replay repeats the recording, every segment and every address (${of.recorded.torch ?? 'torch of an unknown version'}).`
          : `NOT EXACT: the replay does not repeat the recording${of.replayed.differs_at === null ? '' : ` from event ${count(of.replayed.differs_at.event)} on`}; no setting is recommended.`}
      </p>
      {found.length > 0 && <p class="prose">{limitsSaid(found, isAsked)}{begun}</p>}
      {of.recommended !== null && <p class="prose"><strong>★ {of.recommended.why}</strong></p>}
      {of.exact && of.recommended === null && (
        <p class="prose">{found.length > 0 && of.settings.every((setting) => setting.out_of_memory !== null) ? 'Every setting below runs out of memory: none of them helps.' : 'No setting of those below is worth a change.'}</p>
      )}
      {found.map((group) => (
        <Table
          key={String(group.limit)}
          caption={group.limit === null ? 'Settings, without a limit: no request fails' : `Settings under a limit of ${bytes(group.limit)}`}
          heads={HEADS}
        >
          {group.settings.map((setting) => <Row key={setting.allocator_conf} of={setting} group={group} device={of} />)}
        </Table>
      ))}
      <ul class="legend">
        <li><i class="key used" />highest allocated</li>
        <li><i class="key held" />highest reserved: what the process takes from the device</li>
        {of.settings.some((setting) => setting.limit_bytes !== null) && <li><i class="key limit" />the limit</li>}
      </ul>
    </>
  );
}

/** See the module. */
export function Settings({ job, limit, size }: { job: JobAddress; limit: string; size: string }): JSX.Element {
  const report = useAsked<Report>(question(job, 'query'));
  const ranks = report.answer?.ranks ?? [];
  const rank = report.answer === null ? null : chosen(report.answer, job);
  const here = rank === null ? job : addressIn(job, rank, ranks);
  const trouble = report.answer !== null && rank === null ? missing(ranks, job) : report.trouble;
  const most = limitOf(limit);
  const asked = rank === null ? { rank: null, process: null, device: null } : selectionOf(rank, ranks);
  const isSize = limit === '' || most !== null;
  const limited = { ...asked, limit: most === null ? null : String(most) };
  const settings = useAsked<WhatIf>(rank !== null && isSize ? question(job, 'what-if', limited) : null);
  const name = rank === null ? 'this rank' : labelOf(rank, ranks);
  const show = (to: { device?: Rank; limit?: string; size?: string }): void => {
    const at = to.size ?? size;
    go({ view: 'settings', job: to.device === undefined ? here : addressIn(job, to.device, ranks), limit: to.limit ?? limit, ...(at === '' ? {} : { size: at }) }, true);
  };
  // (A daemon replays one process at a time: the second request would only wait for the first.)
  const hasResponse = settings.answer !== null || settings.trouble !== null;
  return (
    <main>
      <p class="trail">
        <Link to={{ view: 'jobs', filter: '', tenant: null }}>Jobs</Link>
        {' › '}
        <Link to={{ view: 'job', job: here, since: null, until: null }}>{job.name}</Link>
      </p>
      <h1 tabIndex={-1}>{`${name.charAt(0).toUpperCase()}${name.slice(1)} under other allocator settings`}</h1>
      {report.answer !== null && (
        <div class="tools">
          <DeviceChoice ranks={ranks} chosen={rank} to={(device) => { show({ device }); }} />
          {file === null && (
            <label>
              Memory limit of the process{' '}
              <input type="search" class="few" placeholder="40GiB" value={limit} onChange={(event) => { show({ limit: event.currentTarget.value.trim() }); }} />
            </label>
          )}
        </div>
      )}
      <section aria-labelledby="settings">
        <h2 id="settings">Settings</h2>
        {!isSize ? (
          <p class="prose trouble" role="alert">{`${limit} is not a size. Write it as 40GiB or 512MiB.`}</p>
        ) : settings.answer === null ? (
          <Waiting trouble={trouble ?? settings.trouble} what="the replay" />
        ) : (
          <>
            {settings.answer.ranks.map((device) => <Device key={device.device} of={device} isAsked={most !== null} />)}
            <p class="prose faint">{`Not looked at: ${settings.answer.not_looked_at.join(' ')}`}</p>
          </>
        )}
      </section>
      <Sizes job={job} asked={asked} limit={most} size={size} isFree={isSize && hasResponse} waits={isSize && !hasResponse && trouble === null} show={(to) => { show({ size: to }); }} />
    </main>
  );
}
