//! The out-of-memory forecast of running jobs. If memory grows with enough evidence and the device is nearly full, the
//! recent steps are replayed as coming steps, under the process's limit on its device. The replay begins at the end of
//! the last step. A forecast is reported only if the evidence supports it.
//!
//! Guarantees: a process without such growth, or with more than a quarter of its limit free, costs nothing. At most
//! [`DEVICES_MAX`] devices are replayed over all jobs, and at most [`EVENTS_MAX`] events of a device per round. The
//! forecast runs in the judge's task. It takes 1 % of a core per device as long as one search takes at most a third of
//! a second (see `pace`). A failure here loses only the forecast.
//!
//! Refuses: processes that mark no steps, and processes in which a request has already failed.

mod forecast;
mod pace;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_analysis::judge::{ForecastRequest, Foreseen, RankWatch, foreseen};
use memctl_model::{Event, Finding, Foresight, JobState, MarkKind};
use memctl_proto::chunk::Decoder;
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;
use memctl_replay::{Ahead, Conf, Fails, Limit, Of, STEPS_AHEAD, Shortage, Version};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::forecast::{Forecast, Saw};
use self::pace::{Pace, processor_time};
use super::job_watch::JobWatch;
use crate::job_data::job::state;
use crate::job_data::replay::keyframe_before;
use crate::job_data::stacks::open;
use crate::job_data::{FoundJob, ReadError};
use crate::store::{DeviceRow, Selection, SessionKey, SessionRow, Store};
use crate::streams::Streams;

/// The most devices that are replayed, over all jobs.
pub(super) const DEVICES_MAX: usize = 16;
/// Of [`DEVICES_MAX`], the places reserved for devices whose growth supports every forecast.
const DEVICES_SURE: usize = 8;
/// Events of a device that are replayed per round. If more have arrived, the replay begins at a keyframe again.
const EVENTS_MAX: u64 = 1 << 20;
/// The first replay of a device begins at least this many events back.
const EVENTS_BACK: u64 = 1 << 16;
/// Items of marks that are read in a round.
const ITEMS_MAX: usize = 64;
/// Payloads read at a time.
const PAYLOADS: usize = 16;
/// If several steps ended since the last round, a search is made only at this many of the last ends. A forecast needs
/// two.
const ENDS_LOOKED_AT: usize = 2;
/// How far to look ahead if steps are short. A forecast appears a second or two after its step, and the user needs time
/// to act on it.
const HORIZON_NS: u64 = 30_000_000_000;

/// The replays of a job's devices.
#[derive(Default)]
pub(super) struct Looks {
    devices: HashMap<(SessionKey, u8), Look>,
}

/// The replay of one device.
struct Look {
    ahead: Ahead,
    at_event: u64,
    /// When the last replayed step ended. `step_ns` is its duration.
    ended_ns: u64,
    step_ns: Option<u64>,
    /// The reported forecast; it is only set if the growth supported it when it was made.
    forecast: Option<Forecast>,
    pace: Pace,
    /// Processor time used in this round.
    worked: Duration,
    _place: OwnedSemaphorePermit,
}

impl Looks {
    /// Findings about requests that will fail. `findings` are the other findings of the judge.
    pub async fn look(
        &mut self,
        (store, streams, places): (&dyn Store, &Streams, &Arc<Semaphore>),
        found: &FoundJob,
        watch: &JobWatch,
        findings: &[Finding],
    ) -> Vec<Finding> {
        let mut forecasts = Vec::new();
        let mut known = std::mem::take(&mut self.devices);
        let by_key = found.by_key();
        for row in &found.devices {
            let key = (row.session, row.info.index.0);
            let running = by_key.get(&row.session).filter(|session| state(session, streams) == JobState::Running);
            let watched = watch.watch(row.session, row.info.index.0);
            let (Some(&session), Some(watched)) = (running, watched) else { continue };
            let Some(limit_bytes) = limit(row, watched) else { continue };
            let vouched = foresight(watched, findings);
            if vouched == Foresight::Nothing {
                continue;
            }
            let mut look = match known.remove(&key) {
                Some(look) if row.events.saturating_sub(look.at_event) <= EVENTS_MAX => look,
                _ => {
                    let is_kept_free = places.available_permits() <= DEVICES_SURE;
                    if is_kept_free && vouched < Foresight::AllSteps {
                        continue;
                    }
                    let Ok(place) = places.clone().try_acquire_owned() else { continue };
                    match Look::begin(store, session, row, place).await {
                        Ok(look) => look,
                        Err(error) => {
                            tracing::debug!(session = session.key, %error, "nothing can be foreseen");
                            continue;
                        }
                    }
                }
            };
            let mut goes_on = Ok(true);
            if look.pace.is_due(Instant::now()) {
                goes_on = look.catch_up(store, session, row, (Limit::Device(limit_bytes), vouched)).await;
                look.pace.worked(std::mem::take(&mut look.worked), Instant::now());
            }
            match goes_on {
                Ok(true) => {
                    let request = |fails: &Fails| ForecastRequest {
                        bytes: fails.requested.bytes,
                        stack: watch.frames(session.key, fails.stack),
                    };
                    let standing =
                        look.forecast.as_ref().filter(|forecast| vouched.vouches_for(forecast.fails.sight()));
                    forecasts.extend(standing.map(|forecast| look.finding(forecast, watched, request, limit_bytes)));
                    self.devices.insert(key, look);
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(session = session.key, %error, "nothing can be foreseen"),
            }
        }
        forecasts
    }
}

/// The process's limit on its device, if the device is nearly full and no request has failed.
fn limit(row: &DeviceRow, watched: &RankWatch) -> Option<u64> {
    let limit_bytes = watched.limit_bytes()?;
    let peak = row.latest.map_or(0, |latest| latest.peaks.reserved_bytes);
    let is_near = peak >= limit_bytes / 4 * 3;
    (row.ooms == 0 && is_near).then_some(limit_bytes)
}

/// The forecasts that the growth in a process supports.
fn foresight(watched: &RankWatch, findings: &[Finding]) -> Foresight {
    let name = watched.who().name();
    let fills = findings.iter().filter(|finding| finding.kind.fills() && finding.processes.contains(&name));
    fills.map(|finding| finding.foresight).max().unwrap_or_default()
}

impl Look {
    async fn begin(
        store: &dyn Store,
        session: &SessionRow,
        row: &DeviceRow,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, ReadError> {
        let from = row.events.saturating_sub(EVENTS_BACK);
        let keyframe = keyframe_before(store, session.key, row.info.index.0, from).await?;
        let conf = Conf::recorded(&session.info.settings, Version::of_framework(session.info.framework.as_deref()));
        let segments = keyframe.as_ref().map_or(&[][..], |keyframe| &keyframe.segments);
        Ok(Self {
            ahead: Ahead::new(conf, segments),
            at_event: keyframe.as_ref().map_or(0, |keyframe| keyframe.at_event),
            ended_ns: keyframe.as_ref().map_or(0, |keyframe| keyframe.time_ns),
            step_ns: None,
            forecast: None,
            pace: Pace::new(Instant::now()),
            worked: Duration::ZERO,
            _place: place,
        })
    }

    /// Replays new events, up to the last step end that has events after it. Returns false if the replay cannot
    /// continue.
    async fn catch_up(
        &mut self,
        store: &dyn Store,
        session: &SessionRow,
        row: &DeviceRow,
        (limit, vouched): (Limit, Foresight),
    ) -> Result<bool, ReadError> {
        let mut ends = step_ends(store, session.key, self.ended_ns).await?;
        if ends.is_empty() {
            return Ok(true);
        }
        let selection = Selection { events: Some((self.at_event, u64::MAX)), ..Selection::default() };
        let chunks = store.chunks(session.key, row.info.index.0, selection).await?;
        // A step end without later events would be counted, but no search would be made at it.
        let latest_ns = chunks.iter().map(|chunk| chunk.index.last_ns).max().unwrap_or(0);
        ends.retain(|&end_ns| end_ns < latest_ns);
        if ends.is_empty() {
            return Ok(true);
        }
        let mut decoder = Decoder::new().map_err(ReadError::decoder)?;
        let mut events: Vec<Event> = Vec::new();
        for group in chunks.chunks(PAYLOADS) {
            let seqs: Vec<u64> = group.iter().map(|chunk| chunk.seq).collect();
            let payloads = store.payloads(session.key, &seqs).await?;
            if payloads.len() < group.len() {
                return Ok(false);
            }
            for (chunk, (seq, payload)) in group.iter().zip(payloads) {
                // The content of dropped or missing events is unknown, so the replay cannot continue.
                let Some(known) = self.at_event.checked_sub(chunk.index.first_event) else { return Ok(false) };
                let begun = processor_time();
                events.clear();
                decoder.decode(&payload, &mut events).map_err(ReadError::chunk(store, session.key, seq))?;
                let unknown = events.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
                self.replay(unknown, &mut ends, (limit, vouched));
                self.worked += processor_time().saturating_sub(begun);
                if ends.is_empty() {
                    return Ok(true);
                }
            }
        }
        Ok(true)
    }

    /// Replays events up to the last of these step ends, and removes the ends that it reaches.
    fn replay(&mut self, events: &[Event], ends: &mut VecDeque<u64>, (limit, vouched): (Limit, Foresight)) {
        for event in events {
            while let Some(end_ns) = ends.pop_front_if(|&mut end_ns| end_ns < event.time_ns) {
                self.step_ends(end_ns, (limit, vouched), ends.len());
            }
            if ends.is_empty() {
                return;
            }
            self.ahead.event(event);
            self.at_event += 1;
        }
    }

    fn step_ends(&mut self, end_ns: u64, (limit, vouched): (Limit, Foresight), more: usize) {
        self.ahead.step_ends();
        self.step_ns = Some(end_ns.saturating_sub(self.ended_ns));
        self.ended_ns = end_ns;
        let seen = self.ahead.steps_seen();
        if more >= ENDS_LOOKED_AT || self.forecast.as_ref().is_some_and(|forecast| !forecast.is_followed(seen)) {
            return;
        }
        let steps = self.step_ns.map_or(STEPS_AHEAD, |ns| u32::try_from(HORIZON_NS / ns.max(1)).unwrap_or(u32::MAX));
        let reach = self.ahead.reach(steps);
        let played = self.pace.steps(seen, reach, self.ahead.is_in_sight(), Instant::now());
        let fails = self.ahead.look(limit, played);
        if self.ahead.has_room() {
            self.pace.has_room(seen, (played, reach), self.ahead.is_uneven());
        }
        if more == 0 {
            self.tell(fails, (limit, vouched), seen);
        }
    }

    /// Updates the reported forecast after a search.
    fn tell(&mut self, fails: Option<Fails>, (limit, vouched): (Limit, Foresight), seen: u64) {
        if let Some(fails) = fails.filter(|fails| vouched.vouches_for(fails.sight())) {
            let (fails, instead) = self.ahead.names(limit, &fails);
            self.forecast = Some(Forecast { fails, instead, at: seen });
            return;
        }
        let saw = Saw { seen, is_in_sight: self.ahead.is_in_sight(), is_uneven: self.ahead.is_uneven() };
        self.forecast = self.forecast.take().filter(|forecast| forecast.stands(saw));
    }

    fn finding(
        &self,
        forecast: &Forecast,
        watched: &RankWatch,
        request: impl Fn(&Fails) -> ForecastRequest,
        limit_bytes: u64,
    ) -> Finding {
        let fails = &forecast.fails;
        foreseen(&Foreseen {
            who: watched.who(),
            steps: forecast.steps(self.ahead.steps_seen()),
            is_of_largest: fails.of == Of::Most,
            request: request(fails),
            instead: forecast.instead.iter().map(request).collect(),
            is_cut_up: fails.shortage == Shortage::Fragmentation,
            allocated_bytes: fails.allocated_bytes,
            reserved_bytes: fails.reserved_bytes,
            limit_bytes,
            step_seconds: self.step_ns.map(|ns| ns as f64 / 1e9),
        })
    }
}

/// When the steps of a session ended after a moment, in order.
async fn step_ends(store: &dyn Store, session: SessionKey, after_ns: u64) -> Result<VecDeque<u64>, ReadError> {
    let selection = Selection { times_ns: Some((after_ns, u64::MAX)), ..Selection::default() };
    let mut ends = Vec::new();
    for row in store.items(session, ItemKind::Marks, None, selection).await?.iter().take(ITEMS_MAX) {
        if let Content::Marks(marks) = open(session, row)? {
            let of_steps = marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_)));
            ends.extend(of_steps.map(|mark| mark.time_ns).filter(|&end_ns| end_ns > after_ns));
        }
    }
    ends.sort_unstable();
    Ok(ends.into())
}

#[cfg(test)]
mod tests;
