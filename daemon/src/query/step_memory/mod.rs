//! Finds the blocks of one step of a device, and how they stack up to its allocated memory.
//!
//! Guarantees: the step is replayed from the keyframe before it. At the event of every point, the blocks and the rest
//! add up to the allocated bytes of the replay. At most [`EVENTS_MAX`] events are replayed after the step's begin, and at
//! most [`BLOCKS_MAX`] blocks and [`POINTS_MAX`] points are returned. A longer step is returned in parts. Its bounds take
//! a replay of a chunk each, and its classes those of [`Classed`].
//! Refuses: more than one device at a time.
//!
//! - `spans`: the steps as spans of time, from marks; `columns`: the blocks as they are returned.

mod columns;
mod spans;

use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_analysis::lifetimes::Lives;
use memctl_analysis::step_blocks::{Level, Stacked, stacked};
use memctl_analysis::{Birth, BlockMap};
use memctl_answers::SCHEMA;
use memctl_answers::blocks::Failure;
use memctl_answers::format::time::Time;
use memctl_answers::step_memory::{StepLevel, StepMemory, StepName, StepPhase, StepPoints, StepSpan};
use memctl_model::{Action, DeviceIndex, Event, KeyframeReason, StackId};
use memctl_proto::v1;

use self::columns::Drawn;
use self::spans::{PhaseSpan, Which};
use super::answer;
use super::moment::At;
use super::one_device::{OneDevice, end_of};
use crate::event_analysis::classed::{Classed, Until};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::job_data::mark_cursor::MarkCursor;
use crate::job_data::replay::Go;
use crate::job_data::stacks::dictionary;
use crate::store::{ChunkRow, Store};
use crate::streams::Streams;

/// The most events of an answer. The classes of blocks are known for as many events.
const EVENTS_MAX: u64 = 1 << 18;
/// The most blocks that are returned each for itself.
const BLOCKS_MAX: usize = 2_000;
/// The most points; each takes about fifty bytes as JSON.
const POINTS_MAX: usize = 1 << 14;
/// The most phases; a step has some of each.
const PHASES_MAX: usize = 256;

/// A step, or a range of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAt {
    /// A step by its number.
    Step(u64),
    /// The step at a moment, or the last one before it.
    Moment(At),
    /// All events of the range, without a step.
    Events,
}

/// The memory within a step of one device.
pub struct StepMemoryQuestion {
    /// One process.
    pub selection: v1::Selection,
    /// The step.
    pub at: StepAt,
    /// The part of it, as numbers of events.
    pub part: (Option<u64>, Option<u64>),
}

/// Answers the request.
pub(super) async fn step_memory(
    store: &dyn Store,
    streams: &Streams,
    StepMemoryQuestion { selection, at, part }: StepMemoryQuestion,
) -> Result<StepMemory, ReadError> {
    let found = find(store, &selection).await?;
    let device = OneDevice::of(store, &found, "the memory within a step is").await?;
    let place = place(&device, at, part, &found).await?;
    let (first, last) = place.shown(part);
    let Replayed { lives, mut levels, frees, exact } = replayed(&device, (first, last)).await?;
    let times_ns = place.times_ns((first, last), &mut levels);
    let stacked = stacked(&lives.blocks, first, &levels, BLOCKS_MAX, POINTS_MAX);
    let stacks = dictionary(store, device.session.key).await?;
    let index = device.row.info.index;
    let moment = (last, Until::Later);
    let known = Classed::around(store, device.session, index.0, &device.chunks, moment, &stacks).await?;
    let drawn = Drawn::new(&stacked, &lives, (first, last), &frees, &known, &stacks);
    Ok(StepMemory {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        rank: device.session.info.rank,
        process: found.process_name(device.session),
        device: u32::from(index.0),
        exact: exact && stacked.consistent,
        of: place.of,
        previous: place.previous,
        next: place.next,
        first_event: first,
        last_event: last,
        first_at: Time(times_ns.0),
        duration_ns: times_ns.1.saturating_sub(times_ns.0),
        start: level(first, levels.first()),
        peak: stacked.peak.map_or(level(first, None), |peak| level(peak.event, Some(&peak.level))),
        end: level(last, levels.last()),
        events_per_point: stacked.events_per_point,
        points: points(&stacked, times_ns.0),
        rest_blocks: stacked.rest_blocks,
        blocks: drawn.columns,
        phases: phases(&place.phases, (first, last), &levels),
        failures: failures(&lives),
        classes: Class::ALL.iter().map(|class| class.name()).collect(),
        frames: drawn.stacks.frames,
        stacks: drawn.stacks.stacks,
        sites: drawn.stacks.sites,
        owners: drawn.stacks.owners,
    })
}

/// A step among the events.
struct Place {
    of: StepSpan,
    /// Its begin and its end, if they are known.
    times_ns: (Option<u64>, Option<u64>),
    previous: Option<StepName>,
    next: Option<StepName>,
    phases: Vec<PhaseSpan>,
    /// The moment that was asked for.
    around: Option<u64>,
}

impl Place {
    /// The shown part of it.
    fn shown(&self, (from, to): (Option<u64>, Option<u64>)) -> (u64, u64) {
        let StepSpan { first_event, last_event, .. } = self.of;
        // A long step is shown around the moment that was asked for.
        let is_long = last_event - first_event > EVENTS_MAX;
        let around = self.around.filter(|_| is_long).map(|event| event.saturating_sub(EVENTS_MAX / 2));
        let latest = last_event.saturating_sub(EVENTS_MAX).max(first_event);
        let begin = around.map_or(first_event, |begin| begin.clamp(first_event, latest));
        let first = from.unwrap_or(begin).clamp(first_event, last_event);
        let last = to.unwrap_or(last_event).clamp(first, last_event);
        (first, last.min(first.saturating_add(EVENTS_MAX)))
    }

    /// Begin and end of the shown part. The level before the first event was there when the step began: the time of the
    /// event that made it may be long ago.
    fn times_ns(&self, (first, last): (u64, u64), levels: &mut [Level]) -> (u64, u64) {
        let end = levels.last().map_or(0, |level| level.time_ns);
        let next = levels.get(1).map_or(u64::MAX, |level| level.time_ns);
        let begin_ns = self.times_ns.0.filter(|_| first == self.of.first_event);
        let Some(start) = levels.first_mut() else { return (0, 0) };
        start.time_ns = begin_ns.map_or(start.time_ns, |begin_ns| begin_ns.max(start.time_ns).min(next));
        let end_ns = self.times_ns.1.filter(|_| last == self.of.last_event);
        (start.time_ns, end_ns.map_or(end, |end_ns| end_ns.max(end)))
    }
}

async fn place(
    of: &OneDevice<'_>,
    at: StepAt,
    part: (Option<u64>, Option<u64>),
    found: &crate::job_data::job::FoundJob,
) -> Result<Place, ReadError> {
    let (which, around) = match at {
        StepAt::Step(step) => (Which::Step(step), None),
        StepAt::Moment(moment) => {
            let event = of.event_of(moment, found).await?;
            let time_ns = match moment {
                At::Time(time_ns) => time_ns,
                _ => time_of(of, event).await?,
            };
            (Which::At(time_ns), Some(event))
        }
        StepAt::Events => return Ok(events(of, part)),
    };
    let Some(found) = spans::find(of, which).await? else {
        return match at {
            StepAt::Step(step) => {
                let rank = of.session.info.rank;
                Err(ReadError::Invalid(format!("no marks of step {step} of rank {rank} are stored")))
            }
            // Without any step, what is stored is shown in parts.
            _ => Ok(Place { around, ..events(of, (None, None)) }),
        };
    };
    let (stored_from, stored_to) = of.stored();
    // A begin is before the events of its own time, and an end is behind them.
    let first = of.event_at(found.span.begin_ns.saturating_sub(1)).await?.max(stored_from);
    let end_ns = found.span.end_ns.or(found.next.map(|next| next.begin_ns.saturating_sub(1)));
    let last = match end_ns {
        Some(end_ns) => of.event_at(end_ns).await?,
        None => stored_to,
    };
    let times_ns = (Some(found.span.begin_ns).filter(|&begin_ns| begin_ns > 0), end_ns);
    let of = StepSpan {
        kind: found.span.kind,
        epoch: found.span.name.epoch,
        step: found.span.name.step,
        ended: found.span.end_ns.is_some(),
        first_event: first,
        last_event: last.max(first),
    };
    let next = found.next.map(|next| next.name);
    Ok(Place { of, times_ns, previous: found.previous, next, phases: found.phases, around })
}

/// A range of the stored events.
fn events(of: &OneDevice<'_>, (from, to): (Option<u64>, Option<u64>)) -> Place {
    let (stored_from, stored_to) = of.stored();
    let first = from.unwrap_or(stored_from).clamp(stored_from, stored_to);
    let last = to.unwrap_or(stored_to).clamp(first, stored_to);
    let near = of.chunks.iter().rfind(|chunk| chunk.index.first_event <= first);
    let (epoch, step) = near.map_or((0, 0), |chunk| (chunk.index.last_epoch, chunk.index.last_step));
    let of = StepSpan { kind: "events", epoch, step, ended: true, first_event: first, last_event: last };
    Place { of, times_ns: (None, None), previous: None, next: None, phases: Vec::new(), around: None }
}

/// The time of the last of so many events.
async fn time_of(of: &OneDevice<'_>, event: u64) -> Result<u64, ReadError> {
    let Some(chunk) = of.chunks.iter().rfind(|chunk| chunk.index.first_event < event) else {
        return Ok(of.chunks.first().map_or(0, |chunk| chunk.index.first_ns));
    };
    let mut time_ns = chunk.index.first_ns;
    let mut replay = of.replay(chunk.index.first_event).await?;
    replay
        .run(event.min(end_of(chunk)), |_, event, _| {
            time_ns = event.time_ns;
            Go::On
        })
        .await?;
    Ok(time_ns)
}

/// The data that a replay of the step collects.
struct Replayed {
    lives: Lives,
    /// After the first event and after each later one.
    levels: Vec<Level>,
    /// The stacks of frees, by the number of their event.
    frees: HashMap<u64, StackId>,
    exact: bool,
}

async fn replayed(of: &OneDevice<'_>, (first, last): (u64, u64)) -> Result<Replayed, ReadError> {
    let mut replay = of.replay(first).await?;
    let from = replay.at_event();
    let near = |chunk: &&ChunkRow| end_of(chunk) > from && chunk.index.first_event < last.max(first + 1);
    let mut near = of.chunks.iter().filter(near);
    let times_ns = near.next().map_or((0, 0), |one| {
        near.fold((one.index.first_ns, one.index.last_ns), |(from, to), chunk| {
            (chunk.index.first_ns.min(from), chunk.index.last_ns.max(to))
        })
    });
    let mut cursor = MarkCursor::between(of.store, of.session.key, times_ns).await?;
    replay = replay.with_cursor(cursor.clone());
    let mut time_ns = of.chunks.iter().rfind(|chunk| chunk.index.first_event <= first).map_or(0, |c| c.index.first_ns);
    replay
        .run(first, |_, event, _| {
            time_ns = event.time_ns;
            Go::On
        })
        .await?;
    let state = replay.map().keyframe(DeviceIndex(of.row.info.index.0), first, time_ns, KeyframeReason::Periodic);
    let (mut lives, mut levels) = (Lives::new(&state), vec![level_of(time_ns, replay.map())]);
    let mut frees = HashMap::new();
    // Events before the first mark of an epoch belong to the epoch that ends next.
    let mut ends: Vec<(u64, u32, u64)> = of.ends().map(|end| (end.at_event, end.epoch, end.step)).collect();
    ends.sort_unstable();
    replay
        .run(last, |number, event, map| {
            let next = ends.partition_point(|(at, ..)| *at < number);
            let end = ends.get(next).or(ends.last());
            let mut birth = end.map_or_else(Birth::default, |&(_, epoch, step)| Birth { epoch, step, phase: None });
            cursor.refine(event, &mut birth);
            lives.event(number, event, map.block_bytes(event.addr), birth);
            levels.push(level_of(event.time_ns, map));
            if is_free(event) && event.stack.is_some() {
                frees.insert(number, event.stack);
            }
            Go::On
        })
        .await?;
    let exact = of.chunks.iter().rfind(|chunk| chunk.index.first_event <= last);
    let exact = exact.is_none_or(|chunk| chunk.levels.exact) && !replay.jumped();
    Ok(Replayed { lives, levels, frees, exact })
}

fn is_free(event: &Event) -> bool {
    matches!(event.action, Action::FreeRequested | Action::FreeCompleted)
}

fn level_of(time_ns: u64, map: &BlockMap) -> Level {
    let levels = map.levels();
    Level { time_ns, allocated_bytes: levels.allocated_bytes, reserved_bytes: levels.reserved_bytes }
}

fn level(event: u64, of: Option<&Level>) -> StepLevel {
    let Level { allocated_bytes, reserved_bytes, .. } = of.copied().unwrap_or_default();
    StepLevel { event, allocated_bytes, reserved_bytes }
}

fn points(of: &Stacked, first_ns: u64) -> StepPoints {
    let mut points = StepPoints::default();
    for point in &of.points {
        points.event.push(point.event);
        points.elapsed_ns.push(point.level.time_ns.saturating_sub(first_ns));
        points.allocated_bytes.push(point.level.allocated_bytes);
        points.reserved_bytes.push(point.level.reserved_bytes);
        points.rest_bytes.push(point.rest_bytes);
    }
    points
}

/// Phases of the shown part, as numbers of events.
fn phases(of: &[PhaseSpan], (first, last): (u64, u64), levels: &[Level]) -> Vec<StepPhase> {
    // (The first level is that before the first event.)
    let times = levels.get(1..).unwrap_or_default();
    let behind =
        |is_before: &dyn Fn(u64) -> bool| first + times.partition_point(|level| is_before(level.time_ns)) as u64;
    let among_events = |phase: &PhaseSpan| StepPhase {
        phase: phase.phase.name(),
        first_event: behind(&|time_ns| time_ns < phase.times_ns.0),
        last_event: behind(&|time_ns| time_ns <= phase.times_ns.1).min(last),
    };
    of.iter().map(among_events).filter(|phase| phase.first_event < phase.last_event).take(PHASES_MAX).collect()
}

fn failures(lives: &Lives) -> Vec<Failure> {
    let failed = |failure: &memctl_analysis::lifetimes::Failure| Failure {
        event: failure.event,
        bytes: failure.bytes,
        stream: format!("{:x}", failure.stream),
    };
    lives.failures.iter().map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_is_shown_around_its_moment_and_in_parts() {
        let place = |first_event, last_event, around| Place {
            of: StepSpan { kind: "step", epoch: 0, step: 1, ended: true, first_event, last_event },
            times_ns: (None, None),
            previous: None,
            next: None,
            phases: Vec::new(),
            around,
        };
        assert_eq!(place(10, 500, Some(300)).shown((None, None)), (10, 500), "all of a short one");
        let long = place(10, 10 + 4 * EVENTS_MAX, None);
        assert_eq!(long.shown((None, None)), (10, 10 + EVENTS_MAX));
        assert_eq!(long.shown((Some(10 + EVENTS_MAX), None)), (10 + EVENTS_MAX, 10 + 2 * EVENTS_MAX));
        assert_eq!(long.shown((Some(20), Some(30))), (20, 30));
        assert_eq!(long.shown((Some(0), Some(5))), (10, 10), "nothing outside of it");
        let around = |event| place(10, 10 + 4 * EVENTS_MAX, Some(event)).shown((None, None));
        assert_eq!(around(2 * EVENTS_MAX), (2 * EVENTS_MAX - EVENTS_MAX / 2, 2 * EVENTS_MAX + EVENTS_MAX / 2));
        assert_eq!(around(10), (10, 10 + EVENTS_MAX));
        assert_eq!(around(u64::MAX), (10 + 3 * EVENTS_MAX, 10 + 4 * EVENTS_MAX));
    }
}
