//! Answers memory over time: replayed event by event if that is little work, otherwise from the chunks' rollups.

use memctl_analysis::timeline::{Bucket, Timeline};
use memctl_answers::SCHEMA;
use memctl_answers::format::time::Time;
use memctl_answers::timeline::{self as answers, Point, RankTimeline, Timeline as Answer};
use memctl_model::limits::TIMELINE_POINTS_MAX;
use memctl_model::{Levels, Mark, MarkKind, Rollup};
use memctl_proto::item::Content;
use memctl_proto::v1;
use memctl_proto::v1::ItemKind;

use super::answer;
use super::floor::{REPLAY_CHUNKS, floor};
use crate::job_data::error::ReadError;
use crate::job_data::job::{FoundJob, find};
use crate::job_data::mark_cursor::MarkCursor;
use crate::job_data::replay::{Go, Replay};
use crate::job_data::stacks::open;
use crate::store::{ChunkRow, EpochEndRow, Selection, SessionRow, Store};
use crate::streams::Streams;

/// Points per rank, unless the request gives a number.
const POINTS: u32 = 240;
/// Limit of the points in a response. Each takes 100 bytes, and three times that as JSON.
const ANSWER_POINTS: usize = 32_768;
/// Limits of the marks in a response, per device and in total.
const MARKS_MAX: usize = 2_000;
const ANSWER_MARKS: usize = 16_384;

/// Whether an answer has the floor of each device. The floor covers the whole recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floors {
    Left,
    Shown,
}

/// Answers a timeline request.
pub(super) async fn timeline(
    store: &dyn Store,
    streams: &Streams,
    request: v1::TimelineRequest,
    floors: Floors,
) -> Result<Answer, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let points = match request.points {
        0 => POINTS,
        points if points > TIMELINE_POINTS_MAX => {
            let most = TIMELINE_POINTS_MAX;
            return Err(ReadError::Invalid(format!("a timeline has at most {most} points per rank, not {points}")));
        }
        points => points,
    };
    let found = find(store, &selection).await?;
    let devices = found.sessions.iter().map(|session| devices_of(&found, session).count()).sum::<usize>().max(1);
    let points = points.min(u32::try_from((ANSWER_POINTS / devices).max(1)).unwrap_or(u32::MAX));
    let marks_max = MARKS_MAX.min(ANSWER_MARKS / devices);
    let epoch_ends = store.epoch_ends(found.job.key).await?;
    let chosen = chosen(&selection)?;
    let mut ranks = Vec::new();
    for session in &found.sessions {
        let marks = stored_marks(store, session, chosen).await?;
        for device in devices_of(&found, session) {
            let chunks = store.chunks(session.key, device, chosen).await?;
            let span = span(&selection, &epoch_ends, session, device);
            let buckets = buckets(store, session, device, &chunks, &epoch_ends, (span, points)).await?;
            let floor = match floors {
                Floors::Shown => floor(store, (session, device), &chunks, &epoch_ends, &marks).await?,
                Floors::Left => Vec::new(),
            };
            ranks.push(RankTimeline {
                rank: session.info.rank,
                device: u32::from(device),
                points: answer_points(
                    &buckets,
                    &chunks,
                    &epoch_ends,
                    (session.key, device),
                    MarkCursor::of(marks.clone()),
                ),
                marks: shown(&marks, chosen, (span, marks_max)),
                process: found.process_name(session),
                floor,
            });
        }
    }
    ranks.sort_by_key(|rank| (rank.rank, rank.device));
    Ok(Answer {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        ranks,
        points,
        ..Answer::default()
    })
}

/// The devices of a session, by index.
pub(super) fn devices_of<'a>(found: &'a FoundJob, session: &'a SessionRow) -> impl Iterator<Item = u8> + 'a {
    found.devices_of(session.key).iter().map(|device| device.info.index.0)
}

/// The selection in the store's form.
pub(super) fn chosen(selection: &v1::Selection) -> Result<Selection, ReadError> {
    let times = (selection.since_ns.unwrap_or(0), selection.until_ns.unwrap_or(u64::MAX));
    let epochs = (selection.first_epoch.unwrap_or(0), selection.last_epoch.unwrap_or(u32::MAX));
    if times.0 > times.1 || epochs.0 > epochs.1 {
        return Err(ReadError::Invalid("the selection ends before it begins".into()));
    }
    Ok(Selection {
        times_ns: (times != (0, u64::MAX)).then_some(times),
        epochs: (epochs != (0, u32::MAX)).then_some(epochs),
        events: None,
    })
}

async fn buckets(
    store: &dyn Store,
    session: &SessionRow,
    device: u8,
    chunks: &[ChunkRow],
    epoch_ends: &[EpochEndRow],
    (span, points): (Span, u32),
) -> Result<Vec<Bucket>, ReadError> {
    let (Some(first), Some(last)) = (chunks.first(), chunks.last()) else { return Ok(Vec::new()) };
    let start = chunks.iter().map(|chunk| chunk.index.first_ns).min().unwrap_or(0).max(span.times_ns.0);
    let end = chunks.iter().map(|chunk| chunk.index.last_ns).max().unwrap_or(0).min(span.times_ns.1);
    let mut timeline = Timeline::new(start, end.saturating_add(1), points as usize);
    if chunks.len() > REPLAY_CHUNKS {
        for chunk in chunks {
            timeline.push_rollup(&rollup(chunk));
        }
        return Ok(timeline.finish());
    }
    let mut replay = Replay::before(store, session, device, epoch_ends, first.index.first_event).await?;
    replay
        .run(last.index.first_event + last.index.count, |number, event, map| {
            if number <= span.events.0 || number <= first.index.first_event || event.time_ns < start {
                // These are the levels before the selection begins. Time 0 precedes every beginning.
                timeline.push(0, map.levels());
            } else if number <= span.events.1 && event.time_ns <= end {
                timeline.push(event.time_ns, map.levels());
            }
            Go::On
        })
        .await?;
    Ok(timeline.finish())
}

/// A selection on one device. `times_ns` includes both bounds. `events` begins after its first count and includes its
/// last event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub times_ns: (u64, u64),
    pub events: (u64, u64),
}

/// The span of a selection on a device. An epoch lies between the end of the previous epoch and its own end.
pub(super) fn span(selection: &v1::Selection, epoch_ends: &[EpochEndRow], session: &SessionRow, device: u8) -> Span {
    let ends = || epoch_ends.iter().filter(|end| end.session == session.key && end.device == device);
    let before = selection.first_epoch.and_then(|first| ends().rfind(|end| end.epoch < first));
    let last = selection.last_epoch.and_then(|last| ends().rfind(|end| end.epoch <= last));
    // The running epoch has no end yet.
    let last = last.filter(|end| selection.last_epoch == Some(end.epoch));
    let (since, until) = (selection.since_ns.unwrap_or(0), selection.until_ns.unwrap_or(u64::MAX));
    Span {
        times_ns: (
            before.map_or(since, |end| since.max(end.time_ns)),
            last.map_or(until, |end| until.min(end.time_ns)),
        ),
        events: (before.map_or(0, |end| end.at_event), last.map_or(u64::MAX, |end| end.at_event)),
    }
}

/// The rollup of a chunk, with the levels that are stored.
fn rollup(chunk: &ChunkRow) -> Rollup {
    let levels =
        |allocated_bytes, reserved_bytes| Levels { allocated_bytes, active_bytes: allocated_bytes, reserved_bytes };
    let end = levels(chunk.levels.allocated_end, chunk.levels.reserved_end);
    Rollup {
        first_ns: chunk.index.first_ns,
        last_ns: chunk.index.last_ns,
        first_epoch: chunk.index.first_epoch,
        last_epoch: chunk.index.last_epoch,
        first_step: chunk.index.first_step,
        last_step: chunk.index.last_step,
        start: end,
        end,
        min: levels(chunk.levels.allocated_min, chunk.levels.reserved_end),
        max: levels(chunk.levels.allocated_max, chunk.levels.reserved_max),
        counts: {
            let mut counts = [0; memctl_model::Action::ALL.len()];
            // The counts by kind of event are not stored with the chunk. Only the total matters here.
            counts[0] = chunk.index.count;
            counts
        },
        ..Rollup::default()
    }
}

fn answer_points(
    buckets: &[Bucket],
    chunks: &[ChunkRow],
    epoch_ends: &[EpochEndRow],
    (session, device): (i64, u8),
    mut cursor: MarkCursor,
) -> Vec<Point> {
    let ends: Vec<&EpochEndRow> =
        epoch_ends.iter().filter(|end| end.session == session && end.device == device).collect();
    buckets
        .iter()
        .map(|bucket| {
            // The current epoch is the one that ends next, otherwise that of the last chunk.
            let next = ends.iter().find(|end| end.time_ns.saturating_add(1) >= bucket.end_ns);
            let last = chunks.last().map_or((0, 0), |chunk| (chunk.index.last_epoch, chunk.index.last_step));
            let (epoch, step) = next.map_or(last, |end| (end.epoch, end.step));
            // Marks have the step itself. An epoch's end and a chunk only have its last step.
            cursor.advance(bucket.end_ns, |_| ());
            Point {
                first_at: Time(bucket.start_ns),
                last_at: Time(bucket.end_ns),
                epoch,
                step: cursor.last_step().unwrap_or(step),
                allocated_bytes: bucket.last.allocated_bytes,
                reserved_bytes: bucket.last.reserved_bytes,
                peak_allocated_bytes: bucket.max.allocated_bytes,
                peak_reserved_bytes: bucket.max.reserved_bytes,
                min_allocated_bytes: bucket.min.allocated_bytes,
            }
        })
        .collect()
}

/// The marks of a session within a selection's times, including those in the same items around it.
pub(super) async fn stored_marks(
    store: &dyn Store,
    session: &SessionRow,
    chosen: Selection,
) -> Result<Vec<Mark>, ReadError> {
    let by_time = Selection { epochs: None, ..chosen };
    let mut all = Vec::new();
    for row in store.items(session.key, ItemKind::Marks, None, by_time).await? {
        if let Content::Marks(marks) = open(session.key, &row)? {
            all.extend(marks);
        }
    }
    Ok(all)
}

/// A step of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichStep {
    /// The first one.
    First,
    /// The last one.
    Last,
}

/// The time at which a step of an epoch ended. Two step ends are the same phase of the loop, so a comparison between
/// them shows memory that is kept within an epoch.
pub(super) async fn step_end(
    store: &dyn Store,
    selection: &v1::Selection,
    epoch: u32,
    which: WhichStep,
) -> Result<u64, ReadError> {
    let found = find(store, selection).await?;
    let [session] = found.sessions.as_slice() else {
        return Err(ReadError::Invalid("a step is of one process: rank=N, and process=NAME if it has several".into()));
    };
    let mut marks = stored_marks(store, session, Selection::default()).await?;
    marks.sort_by_key(|mark| mark.time_ns);
    let mut now = None;
    let mut ends = marks.iter().filter_map(|mark| {
        match mark.kind {
            MarkKind::EpochBegin(begun) => now = Some(begun),
            MarkKind::EpochEnd(_) => now = None,
            MarkKind::StepEnd(_) if now == Some(epoch) => return Some(mark.time_ns),
            _ => {}
        }
        None
    });
    let end = match which {
        WhichStep::First => ends.next(),
        WhichStep::Last => ends.last(),
    };
    let none = || ReadError::Invalid(format!("no step of epoch {epoch} ended on rank {}", session.info.rank));
    end.ok_or_else(none)
}

/// Epoch boundaries within a selection, and steps and phases if there are few.
fn shown(all: &[Mark], chosen: Selection, (span, marks_max): (Span, usize)) -> Vec<answers::Mark> {
    let is_within = |mark: &&Mark| {
        // The previous epoch ends at the same time at which the selection begins.
        let is_chosen = match (&mark.kind, chosen.epochs) {
            (MarkKind::EpochBegin(epoch) | MarkKind::EpochEnd(epoch), Some((first, last))) => {
                (first..=last).contains(epoch)
            }
            _ => true,
        };
        is_chosen && (span.times_ns.0..=span.times_ns.1).contains(&mark.time_ns)
    };
    let mut all: Vec<&Mark> = all.iter().filter(is_within).collect();
    if all.len() > marks_max {
        all.retain(|mark| matches!(mark.kind, MarkKind::EpochBegin(_) | MarkKind::EpochEnd(_) | MarkKind::Note(_)));
        all.truncate(marks_max);
    }
    all.into_iter().map(mark).collect()
}

pub(super) fn mark(mark: &Mark) -> answers::Mark {
    let (kind, value, name) = match &mark.kind {
        MarkKind::EpochBegin(epoch) => ("epoch_begin", Some(u64::from(*epoch)), None),
        MarkKind::EpochEnd(epoch) => ("epoch_end", Some(u64::from(*epoch)), None),
        MarkKind::StepBegin(step) => ("step_begin", Some(*step), None),
        MarkKind::StepEnd(step) => ("step_end", Some(*step), None),
        MarkKind::PhaseBegin(phase) => ("phase_begin", None, Some(phase.name())),
        MarkKind::PhaseEnd(phase) => ("phase_end", None, Some(phase.name())),
        MarkKind::RegionBegin(name) => ("region_begin", None, Some(name.as_str())),
        MarkKind::RegionEnd(name) => ("region_end", None, Some(name.as_str())),
        MarkKind::Note(name) => ("note", None, Some(name.as_str())),
        MarkKind::WindowEnd(window) => ("window_end", Some(*window), None),
    };
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    answers::Mark { at: Time(mark.time_ns), kind: kind.into(), value, name }
}
