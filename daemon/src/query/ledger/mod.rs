//! The ledger: all used memory of a device by owner, at one moment of each rank.
//!
//! Guarantees: the allocator's part is replayed with classes, from one keyframe and the chunks after it. The device's
//! part is the measurement nearest to that moment, and the response gives its time.

mod blocks;
pub(super) mod owners;

use memctl_analysis::classes::Shares;
use memctl_analysis::ledger::{HeldThen, Ledger as Figures};
use memctl_answers::SCHEMA;
use memctl_answers::ledger::{Ledger, Listed, Rank, View};
use memctl_model::{FindingKind, Gap, Keyframe, Stack, StackId};
use memctl_proto::{StackDictionary, v1};

use super::answer;
use super::events_until::{EventsUntil, events_until};
use super::moment::At;
use super::scope::Scope;
use super::sites::{part_is_stored, peak_is_stored};
use super::timeline::{chosen, span};
use crate::event_analysis::classed::{Classed, Until};
use crate::event_analysis::measured;
use crate::event_analysis::window::state_at;
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::job_data::mark_cursor::MarkCursor;
use crate::job_data::replay::{Go, Replay, keyframe_before};
use crate::job_data::stacks::dictionary;
use crate::store::{ChunkRow, DeviceRow, EpochEndRow, Selection, SessionRow, Store};
use crate::streams::Streams;

/// A ledger at any moment.
pub struct LedgerQuestion {
    /// The selected part of a job.
    pub selection: v1::Selection,
    /// The moment of each device.
    pub at: At,
    /// Whether every live block is listed as well.
    pub blocks: bool,
}

impl From<v1::LedgerRequest> for LedgerQuestion {
    fn from(request: v1::LedgerRequest) -> Self {
        use v1::ledger_request::Moment;
        let at = match request.moment {
            None | Some(Moment::Peak(_)) => At::Peak,
            Some(Moment::EpochEnd(epoch)) => At::EpochEnd(epoch),
            Some(Moment::End(_)) => At::End,
        };
        Self { selection: request.selection.unwrap_or_default(), at, blocks: request.blocks }
    }
}

/// Answers a ledger request.
pub(super) async fn ledger(
    store: &dyn Store,
    streams: &Streams,
    LedgerQuestion { selection, at, blocks }: LedgerQuestion,
) -> Result<Ledger, ReadError> {
    let found = find(store, &selection).await?;
    let epoch_ends = store.epoch_ends(found.job.key).await?;
    let mut ranks = Vec::new();
    let mut room = blocks.then_some(blocks::ANSWER_BLOCKS_MAX);
    for session in &found.sessions {
        for device in found.devices_of(session.key).iter() {
            let ends =
                || epoch_ends.iter().filter(|end| end.session == session.key && end.device == device.info.index.0);
            let chunks = store.chunks(session.key, device.info.index.0, chosen(&selection)?).await?;
            let position = match at {
                At::Peak => {
                    let everything = selection.first_epoch.is_none() && selection.since_ns.is_none();
                    if !everything {
                        let span = span(&selection, &epoch_ends, session, device.info.index.0);
                        part_is_stored(session, chunks.first(), span)?;
                    }
                    peak(store, session, device, &chunks, everything).await?
                }
                At::EpochEnd(epoch) => {
                    let end = ends().rfind(|end| end.epoch == epoch);
                    Some(position(end.ok_or_else(|| no_epoch(&found.job.name, session.info.rank, epoch))?))
                }
                At::End => chunks.last().map(|chunk| Position::behind(chunk, end_of(chunk))),
                At::Event(event) => {
                    let within = chunks.iter().rfind(|chunk| chunk.index.first_event < event);
                    within.map(|chunk| Position::behind(chunk, event.min(end_of(chunk))))
                }
                At::Time(time_ns) => {
                    let device = device.info.index.0;
                    let until = events_until(store, session, device, time_ns).await?;
                    until.map(|EventsUntil { chunk, at, .. }| Position::behind(&chunk, at))
                }
            };
            if let Some(position) = position {
                let process = found.process_name(session);
                let ledger = rank(store, session, device, &chunks, position, room.as_mut()).await?;
                ranks.push(Listed { rank: Rank { process, ..ledger.rank }, ..ledger });
            }
        }
    }
    let mut scope = Scope::new(&found, &MEASURED, selection.ranks.is_empty() && selection.processes.is_empty());
    if ranks.is_empty() || ranks.iter().any(|listed| listed.rank.measured_at.is_none()) {
        let how_many =
            if ranks.iter().all(|listed| listed.rank.measured_at.is_none()) { Gap::Whole } else { Gap::Part };
        let remedy = "start the job with `memctl run`, which measures it; snapshots do not contain it";
        scope.gap(&MEASURED, how_many, "the device was not measured around this moment", remedy);
    }
    let not_judged = scope.into_answer().not_judged;
    ranks.sort_by_key(|listed| (listed.rank.rank, listed.rank.device));
    Ok(Ledger {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        ranks,
        not_judged,
        view: View::default(),
    })
}

/// Kinds of findings that are based on measurements instead of a replay.
const MEASURED: [FindingKind; 2] = [FindingKind::OutsideAllocator, FindingKind::ForeignProcess];

/// A moment of a device, as a number of preceding events.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub at: u64,
    pub exact: bool,
    /// The epoch and the step that ended at this moment, if known.
    ended: Option<(u32, u64)>,
}

impl Position {
    /// The moment after `at` events, the last of which is in this chunk.
    fn behind(chunk: &ChunkRow, at: u64) -> Self {
        Self { at, exact: chunk.levels.exact, ended: None }
    }
}

fn position(end: &EpochEndRow) -> Position {
    Position { at: end.at_event, exact: end.exact, ended: Some((end.epoch, end.step)) }
}

fn end_of(chunk: &ChunkRow) -> u64 {
    chunk.index.first_event + chunk.index.count
}

fn no_epoch(job: &str, rank: u32, epoch: u32) -> ReadError {
    ReadError::NoEpoch { job: job.to_owned(), epoch, known: format!(" on rank {rank}") }
}

/// The moment at which allocated bytes were highest; `None` if no event is stored.
pub(super) async fn peak(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    chunks: &[ChunkRow],
    everything: bool,
) -> Result<Option<Position>, ReadError> {
    let Some(highest) = chunks.iter().rev().max_by_key(|chunk| chunk.levels.allocated_max) else { return Ok(None) };
    if everything {
        peak_is_stored(session, Some(device), highest)?;
    }
    let mut replay = Replay::before(store, session, device.info.index.0, &[], highest.index.first_event).await?;
    let mut most = (highest.index.first_event, 0);
    replay
        .run(end_of(highest), |number, _, map| {
            let allocated = map.levels().allocated_bytes;
            if number > highest.index.first_event && allocated > most.1 {
                most = (number, allocated);
            }
            Go::On
        })
        .await?;
    Ok(Some(Position { at: most.0, exact: highest.levels.exact, ended: None }))
}

/// The state at a moment, with the data for reading its blocks.
pub(super) struct Then {
    pub keyframe: Keyframe,
    pub stacks: StackDictionary,
    pub epoch: u32,
    pub step: u64,
    /// The classes of its blocks.
    pub known: Classed,
}

/// Replays to a moment.
pub(super) async fn then(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    chunks: &[ChunkRow],
    position: Position,
) -> Result<Then, ReadError> {
    // The replay starts at the moment's keyframe. Allocations in the chunks after it are classified by the marks of
    // their time.
    let keyframe = keyframe_before(store, session.key, device.info.index.0, position.at).await?;
    let from = keyframe.map_or(0, |keyframe| keyframe.at_event);
    let is_near = |chunk: &&ChunkRow| chunk.index.first_event < position.at && end_of(chunk) > from;
    let mut near: Vec<&ChunkRow> = chunks.iter().filter(is_near).collect();
    if near.is_empty() {
        // The moment is exactly that of a keyframe, so epoch and step are taken from the events before it.
        near.extend(chunks.iter().rfind(|chunk| chunk.index.first_event < position.at));
    }
    let times_ns =
        (near.first().map_or(0, |chunk| chunk.index.first_ns), near.last().map_or(0, |chunk| chunk.index.last_ns));
    let cursor = MarkCursor::between(store, session.key, times_ns).await?;
    let (keyframe, cursor) = state_at(store, session, device.info.index.0, position.at, cursor).await?;
    let stacks = dictionary(store, session.key).await?;
    let moment = (position.at, Until::Later);
    let known = Classed::around(store, session, device.info.index.0, chunks, moment, &stacks).await?;
    let within = near.last().map_or((0, 0), |chunk| (chunk.index.last_epoch, chunk.index.last_step));
    Ok(Then {
        keyframe,
        stacks,
        known,
        epoch: position.ended.map(|(epoch, _)| epoch).or(cursor.epoch()).unwrap_or(within.0),
        step: position.ended.map(|(_, step)| step).or(cursor.step()).unwrap_or(within.1),
    })
}

async fn rank(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    chunks: &[ChunkRow],
    position: Position,
    room: Option<&mut usize>,
) -> Result<Listed, ReadError> {
    let Then { keyframe, stacks, epoch, step, known } = then(store, session, device, chunks, position).await?;
    let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
    let classed = known.of(&keyframe);
    let mut shares = Shares::default();
    classed.iter().for_each(|(class, block)| shares.add(*class, block.size));
    let reserved = keyframe.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.size));
    let measured = measured::around(store, session, device, keyframe.time_ns).await?;
    let held = async |time_ns: Option<u64>| match time_ns {
        Some(time_ns) => held_at(store, session, device, time_ns).await,
        None => Ok(None),
    };
    let then = HeldThen {
        at_process_bytes: held(measured.process_ns).await?,
        at_device_bytes: held(measured.device_ns).await?,
    };
    let figures = Figures::new(shares, reserved, measured.sample.as_ref(), then);
    let mut rank = Rank {
        rank: session.info.rank,
        device: u32::from(device.info.index.0),
        epoch,
        step,
        exact: position.exact,
        ..Rank::new(&figures, keyframe.time_ns)
    };
    owners::add(&mut rank, &keyframe, &resolve);
    let blocks = room.map(|room| {
        let listed = blocks::list(classed, &resolve, room);
        rank.blocks_left_out = listed.left_out;
        listed.blocks
    });
    Ok(Listed { rank, blocks })
}

/// Bytes that the allocator had reserved at a moment; `None` if there are no events for it.
async fn held_at(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    time_ns: u64,
) -> Result<Option<u64>, ReadError> {
    let index = device.info.index.0;
    let before = Selection { times_ns: Some((0, time_ns)), ..Selection::default() };
    let chunks = store.chunks(session.key, index, before).await?;
    let Some(last) = chunks.last() else { return Ok(None) };
    let mut replay = match Replay::before(store, session, index, &[], last.index.first_event).await {
        Err(ReadError::Expired { .. }) => return Ok(None),
        other => other?,
    };
    let mut held = replay.map().levels().reserved_bytes;
    let ran = replay
        .run(end_of(last), |_, event, map| {
            if event.time_ns > time_ns {
                return Go::Stop;
            }
            held = map.levels().reserved_bytes;
            Go::On
        })
        .await;
    match ran {
        Err(ReadError::Expired { .. }) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok(Some(held)),
    }
}
