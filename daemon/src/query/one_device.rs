//! One device of one process with its stored rows, for answers that replay a stretch of its events.
//!
//! Guarantees: a moment becomes a number of events within the stored ones.
//! Refuses: more than one process at a time, and a device without stored events.

use super::moment::At;
use crate::job_data::error::ReadError;
use crate::job_data::job::FoundJob;
use crate::job_data::replay::{Go, Replay};
use crate::store::{ChunkRow, DeviceRow, EpochEndRow, Selection, SessionRow, Store};

/// A device of one process and its stored rows.
pub(super) struct OneDevice<'a> {
    pub store: &'a dyn Store,
    pub session: &'a SessionRow,
    pub row: &'a DeviceRow,
    pub chunks: Vec<ChunkRow>,
    epoch_ends: Vec<EpochEndRow>,
}

/// The number of events up to a chunk's end.
pub(super) fn end_of(chunk: &ChunkRow) -> u64 {
    chunk.index.first_event + chunk.index.count
}

impl<'a> OneDevice<'a> {
    /// The device of a selection. `what` begins the sentence of an error: "blocks are".
    pub async fn of(store: &'a dyn Store, found: &'a FoundJob, what: &str) -> Result<Self, ReadError> {
        let [session] = found.sessions.as_slice() else {
            return Err(ReadError::Invalid(format!(
                "{what} of one process: give rank=N, and process=NAME if the rank has several"
            )));
        };
        let Some(row) = found.devices_of(session.key).first() else {
            return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {}", session.info.rank)));
        };
        let chunks = store.chunks(session.key, row.info.index.0, Selection::default()).await?;
        if chunks.is_empty() {
            return Err(ReadError::Invalid(format!(
                "no events of rank {} are stored (any more), and {what} computed from single events",
                session.info.rank
            )));
        }
        let epoch_ends = store.epoch_ends(found.job.key).await?;
        Ok(Self { store, session, row, chunks, epoch_ends })
    }

    /// The stored events: from behind so many to behind so many.
    pub fn stored(&self) -> (u64, u64) {
        (self.chunks.first().map_or(0, |chunk| chunk.index.first_event), self.chunks.last().map_or(0, end_of))
    }

    /// Its epoch ends.
    pub fn ends(&self) -> impl Iterator<Item = &EpochEndRow> {
        let (session, device) = (self.session.key, self.row.info.index.0);
        self.epoch_ends.iter().filter(move |end| end.session == session && end.device == device)
    }

    /// A replay from the keyframe before an event.
    pub async fn replay(&self, event: u64) -> Result<Replay<'_>, ReadError> {
        Replay::before(self.store, self.session, self.row.info.index.0, &self.epoch_ends, event).await
    }

    /// A moment as a number of events, within the stored ones.
    pub async fn event_of(&self, at: At, found: &FoundJob) -> Result<u64, ReadError> {
        let (from, to) = self.stored();
        let event = match at {
            At::End => to,
            At::Event(event) => event,
            At::EpochEnd(epoch) => {
                let known = format!(" on rank {}", self.session.info.rank);
                let end = self.ends().filter(|end| end.epoch == epoch).last();
                end.ok_or_else(|| ReadError::NoEpoch { job: found.job.name.clone(), epoch, known })?.at_event
            }
            At::Time(time_ns) => self.event_at(time_ns).await?,
            At::Peak => self.peak().await?,
        };
        Ok(event.clamp(from, to))
    }

    /// The number of events up to a time, inclusive.
    pub async fn event_at(&self, time_ns: u64) -> Result<u64, ReadError> {
        let Some(chunk) = self.chunks.iter().rfind(|chunk| chunk.index.first_ns <= time_ns) else {
            return Ok(self.stored().0);
        };
        let (mut replay, first) = (self.replay(chunk.index.first_event).await?, chunk.index.first_event);
        let mut at = first;
        replay
            .run(end_of(chunk), |number, event, _| {
                if number > first && event.time_ns > time_ns {
                    return Go::Stop;
                }
                at = number;
                Go::On
            })
            .await?;
        Ok(at)
    }

    async fn peak(&self) -> Result<u64, ReadError> {
        let highest = self.chunks.iter().rev().max_by_key(|chunk| chunk.levels.allocated_max);
        let Some(highest) = highest else { return Ok(0) };
        let first = highest.index.first_event;
        let mut replay = self.replay(first).await?;
        let mut most = (first, 0);
        replay
            .run(end_of(highest), |number, _, map| {
                let allocated = map.levels().allocated_bytes;
                if number > first && allocated > most.1 {
                    most = (number, allocated);
                }
                Go::On
            })
            .await?;
        Ok(most.0)
    }
}
