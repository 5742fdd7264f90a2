//! Finds the floor of a device from exact levels: the memory that was not freed until the last boundary.
//!
//! Guarantees: the floor ends with the level at the last epoch's end; if no epoch ended, at the end of the last step or
//! window. Nothing after that counts. The last [`REPLAY_CHUNKS`] chunks before it are replayed event by event. For an
//! earlier chunk, its stored minimum is used for all of it. The floor is empty if a session ended without a boundary,
//! or if the events before its boundary have expired.

use memctl_analysis::floor::Floor;
use memctl_answers::format::time::Time;
use memctl_answers::timeline::FloorStep;
use memctl_model::{Mark, MarkKind};

use crate::job_data::error::ReadError;
use crate::job_data::replay::{Go, Replay};
use crate::store::{ChunkRow, EpochEndRow, SessionRow, Store};

/// The most chunks that are replayed per rank: two million events, some tens of milliseconds. Rollups are precise
/// enough for earlier chunks.
pub(super) const REPLAY_CHUNKS: usize = 32;
/// The most steps of the floor (times of one level) in an answer.
const STEPS_MAX: usize = 2_048;

/// The last boundary, as a number of events and as a time.
struct Boundary {
    events: u64,
    time_ns: u64,
}

/// The last boundary of a device; `None` if its session ended without one.
fn boundary(session: &SessionRow, device: u8, epoch_ends: &[EpochEndRow], marks: &[Mark]) -> Option<Boundary> {
    let end = epoch_ends.iter().rfind(|end| end.session == session.key && end.device == device);
    if let Some(end) = end {
        return Some(Boundary { events: end.at_event, time_ns: end.time_ns });
    }
    let ends = marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_) | MarkKind::WindowEnd(_)));
    let by_time = |time_ns| Boundary { events: u64::MAX, time_ns };
    match ends.map(|mark| mark.time_ns).max() {
        Some(time_ns) => Some(by_time(time_ns)),
        None => session.end.is_none().then(|| by_time(u64::MAX)),
    }
}

/// The floor; see the module. `chunks` are all chunks of the device.
pub(super) async fn floor(
    store: &dyn Store,
    (session, device): (&SessionRow, u8),
    chunks: &[ChunkRow],
    epoch_ends: &[EpochEndRow],
    marks: &[Mark],
) -> Result<Vec<FloorStep>, ReadError> {
    let Some(last) = boundary(session, device, epoch_ends, marks) else { return Ok(Vec::new()) };
    let counts = |chunk: &&ChunkRow| chunk.index.first_event < last.events && chunk.index.first_ns <= last.time_ns;
    let before: Vec<&ChunkRow> = chunks.iter().filter(counts).collect();
    let (coarse, exact) = before.split_at(before.len().saturating_sub(REPLAY_CHUNKS));
    let (Some(first), Some(end)) = (exact.first(), exact.last()) else { return Ok(Vec::new()) };
    let mut floor = Floor::default();
    coarse.iter().for_each(|chunk| floor.push(chunk.index.first_ns, chunk.levels.allocated_min));
    let from = first.index.first_event;
    let replayed = async {
        let mut replay = Replay::before(store, session, device, epoch_ends, from).await?;
        replay.run(from, |_, _, _| Go::On).await?;
        floor.push(first.index.first_ns, replay.map().levels().allocated_bytes);
        replay
            .run(end.index.first_event + end.index.count, |number, event, map| {
                if number > last.events || event.time_ns > last.time_ns {
                    return Go::Stop;
                }
                floor.push(event.time_ns, map.levels().allocated_bytes);
                Go::On
            })
            .await
    };
    match replayed.await {
        Err(ReadError::Expired { .. }) => return Ok(Vec::new()),
        other => other?,
    }
    let until_ns = last.time_ns.min(chunks.iter().map(|chunk| chunk.index.last_ns).max().unwrap_or(0));
    let steps = floor.finish(until_ns, STEPS_MAX).into_iter();
    Ok(steps.map(|step| FloorStep { until: Time(step.until_ns), allocated_bytes: step.bytes }).collect())
}
