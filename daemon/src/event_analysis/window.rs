//! Replays the last stretch of a device's events. Finds what its steps did, and the state at the highest allocated
//! memory after warm-up.
//!
//! Guarantees: one replay of at most [`EVENTS_MAX`] events that begins at a keyframe, and a second one of at most
//! [`STATE_EVERY`] events.
//!
//! Refuses: a device whose last keyframe is further back, because a query must not replay a whole job.

use memctl_analysis::BlockMap;
use memctl_analysis::churn::RankChurn;
use memctl_analysis::fragmentation::judge::{Facts, judge};
use memctl_analysis::fragmentation::{Picture, RankFragmentation};
use memctl_analysis::oom;
use memctl_analysis::rules::PlacementRules;
use memctl_analysis::steady::{Request, Steady, WARM_UP_STEPS};
use memctl_model::{DeviceIndex, Keyframe, KeyframeReason, Sample, Stack, StackId};

use super::measured;
use crate::job_data::error::ReadError;
use crate::job_data::mark_cursor::{MarkCursor, Passed};
use crate::job_data::replay::{Go, Replay, keyframe_before};
use crate::job_data::stacks::dictionary;
use crate::store::{ChunkRow, DeviceRow, Selection, SessionRow, Store};

/// The fewest events of a stretch, if the device has that many. They cover tens of steps of a large model, thousands of
/// a small one.
const EVENTS_MIN: u64 = 1 << 17;
/// The most events of a stretch. A stretch begins at a keyframe. There is a keyframe every quarter of a million events,
/// in older recordings every million. The replay takes tens of milliseconds.
pub(crate) const EVENTS_MAX: u64 = 1 << 21;

/// The first replay saves its state this often, so that the second one is short.
const STATE_EVERY: u64 = if cfg!(test) { 64 } else { 1 << 17 };

/// The state after `at_event` events, and the time of the last of them.
struct State {
    at_event: u64,
    time_ns: u64,
    map: BlockMap,
}

/// The result of replaying a device.
pub(crate) struct StretchAnalysis {
    pub fragmentation: RankFragmentation,
    pub churn: RankChurn,
}

/// Replays the last stretch. If a request failed although the cache had enough bytes, its state is used instead of the
/// fullest moment.
pub(crate) async fn analyse_stretch(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    failure: Option<&oom::Report>,
) -> Result<Option<StretchAnalysis>, ReadError> {
    let index = device.info.index;
    // Event numbers also count dropped events. So the last event's number is at least the number of stored events.
    let last_ones = (device.events.saturating_sub(2 * EVENTS_MAX), u64::MAX);
    let chunks =
        store.chunks(session.key, index.0, Selection { events: Some(last_ones), ..Selection::default() }).await?;
    let Some(last) = chunks.last() else { return Ok(None) };
    let until = last.index.first_event + last.index.count;
    let from = keyframe_before(store, session.key, index.0, until.saturating_sub(EVENTS_MIN)).await?;
    let from = from.map_or(0, |keyframe| keyframe.at_event);
    let of_stretch = |chunk: &&ChunkRow| chunk.index.first_event + chunk.index.count > from;
    let Some(first) = chunks.iter().find(of_stretch).filter(|_| until - from <= EVENTS_MAX) else { return Ok(None) };
    let times_ns = (first.index.first_ns, last.index.last_ns);
    let cursor = MarkCursor::between(store, session.key, times_ns).await?;
    let (steady, states) = steps(store, session, index, (from, until), first.index.first_step, cursor.clone()).await?;
    let retries = measured::retries(store, session, device, times_ns).await?;
    let stacks = dictionary(store, session.key).await?;
    let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
    let churn = RankChurn::of(session.info.rank, index.0, &steady, retries, &resolve);
    let settings = &session.info.settings;
    let failed = failure.filter(|report| report.cause == oom::OomCause::Fragmentation).map(|report| &report.facts);
    let (picture, cursor, time_ns) = match failed {
        Some(facts) => (facts.at_request.clone(), (facts.epoch, facts.step), facts.time_ns),
        None => {
            let at = steady.highest().at.unwrap_or(until);
            let near = states.into_iter().rev().find(|state| state.at_event <= at);
            let (keyframe, cursor) = state_from(store, session, index.0, at, cursor, near).await?;
            (
                Picture::of(&keyframe, settings.large_segment_size),
                (cursor.epoch(), steady.highest().step),
                keyframe.time_ns,
            )
        }
    };
    let sample = measured::nearest(store, session, device, time_ns).await?;
    let facts = Facts {
        rank: session.info.rank,
        device: index.0,
        picture: &picture,
        epoch: cursor.0,
        step: cursor.1,
        steady: &steady,
        // The peak since the job began, even if those events have expired.
        peak_bytes: device.latest.map(|latest| latest.peaks.allocated_bytes),
        settings,
        room_bytes: sample.as_ref().and_then(|sample| room(sample, picture.reserved_bytes)),
        failed: failed.map(|facts| Request {
            rounded_bytes: facts.rounded_bytes,
            stack: StackId::NONE,
            stream: facts.stream,
            pool: facts.pool,
        }),
    };
    Ok(Some(StretchAnalysis { fragmentation: judge(&facts, &resolve), churn }))
}

async fn steps(
    store: &dyn Store,
    session: &SessionRow,
    device: DeviceIndex,
    (from, until): (u64, u64),
    first_step: u64,
    mut cursor: MarkCursor,
) -> Result<(Steady, Vec<State>), ReadError> {
    let rules = PlacementRules::new(&session.info.settings);
    // A stretch that begins in the middle of a job has no warm-up.
    let mut steady = Steady::new(rules, from > 0 && first_step >= WARM_UP_STEPS);
    let mut replay = Replay::before(store, session, device.0, &[], from).await?.with_cursor(cursor.clone());
    let mut states: Vec<State> = Vec::new();
    let mut next_state = from + STATE_EVERY;
    let mut before = replay.map().levels();
    replay
        .run(until, |number, event, map| {
            if number > from {
                cursor.advance(event.time_ns, |passed| match passed {
                    Passed::StepBegin(step) => steady.step_begins(step, before),
                    Passed::StepEnd => steady.step_ends(before),
                });
                steady.event(number, event, map.levels());
            }
            before = map.levels();
            if number >= next_state {
                next_state += STATE_EVERY;
                states.push(State { at_event: number, time_ns: event.time_ns, map: map.clone() });
            }
            Go::On
        })
        .await?;
    // Ends the last step if its end mark follows the last event. If the step has not ended, its peak and its largest
    // request count all the same.
    cursor.advance(u64::MAX, |passed| {
        if passed == Passed::StepEnd {
            steady.step_ends(before);
        }
    });
    Ok((steady, states))
}

/// The state after a number of events, and the position in the training loop.
pub(crate) async fn state_at(
    store: &dyn Store,
    session: &SessionRow,
    device: u8,
    at: u64,
    cursor: MarkCursor,
) -> Result<(Keyframe, MarkCursor), ReadError> {
    state_from(store, session, device, at, cursor, None).await
}

/// The same as [`state_at`], beginning at an earlier state.
async fn state_from(
    store: &dyn Store,
    session: &SessionRow,
    device: u8,
    at: u64,
    mut cursor: MarkCursor,
    near: Option<State>,
) -> Result<(Keyframe, MarkCursor), ReadError> {
    let mut replay = Replay::before(store, session, device, &[], at).await?.with_cursor(cursor.clone());
    let mut time_ns = replay.started_ns().unwrap_or(session.info.started_ns);
    if let Some(State { at_event, time_ns: then, map }) = near.filter(|state| state.at_event > replay.at_event()) {
        time_ns = then;
        replay = replay.from(at_event, map);
    }
    replay
        .run(at, |_, event, _| {
            time_ns = event.time_ns;
            Go::On
        })
        .await?;
    cursor.advance(time_ns, |_| ());
    Ok((replay.map().keyframe(DeviceIndex(device), at, time_ns, KeyframeReason::Periodic), cursor))
}

/// The bytes that the driver could still provide at this reserved size. The memory outside the allocator is computed
/// from the sample alone, because its figures are of one time.
fn room(sample: &Sample, reserved_bytes: u64) -> Option<u64> {
    let used = sample.device_used_bytes?;
    let beside = used.saturating_sub(sample.reserved_bytes.unwrap_or(reserved_bytes));
    Some(sample.device_total_bytes?.saturating_sub(beside).saturating_sub(reserved_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::tiles::tests::{events, stored};

    /// Each state that the first replay saves equals that of a replay from the preceding keyframe. So do the states
    /// after it.
    #[tokio::test]
    async fn a_saved_state_is_that_after_as_many_events() {
        let stored = stored(&events(5, 1_000), 50).await;
        let store: &dyn Store = &stored.store;
        let job = store.jobs(1).await.unwrap().remove(0);
        let session = store.sessions(job.key).await.unwrap().remove(0);
        let times_ns = (0, u64::MAX);
        let cursor = MarkCursor::between(store, session.key, times_ns).await.unwrap();
        let (_, states) = steps(store, &session, DeviceIndex(0), (0, 1_000), 0, cursor.clone()).await.unwrap();
        assert!(states.len() >= 10, "{}", states.len());
        for state in states {
            for at in [state.at_event, state.at_event + 7] {
                let (directly, _) = state_at(store, &session, 0, at, cursor.clone()).await.unwrap();
                let near = State { at_event: state.at_event, time_ns: state.time_ns, map: state.map.clone() };
                let (saved, _) = state_from(store, &session, 0, at, cursor.clone(), Some(near)).await.unwrap();
                assert_eq!(saved, directly, "after {at} events");
            }
        }
    }
}
