//! Caches the rows of a device's chunks between requests, ordered by time.
//!
//! Guarantees: the rows match the store at the given session row or later. For a running session only new rows are
//! read. If retention removed any, all rows are read again. Memory is bounded ([`KEPT_BYTES`]): if the rows of a device
//! exceed the bound, they are read again for each request.

use std::sync::Arc;

use memctl_model::{Levels, Rollup, SessionId};

use super::recent::Recent;
use crate::job_data::ReadError;
use crate::store::{ChunkRow, Selection, SessionRow, Store};

/// Limit of the bytes of all devices' rows: about three hundred thousand rows.
const KEPT_BYTES: usize = 32 << 20;

/// The values of a chunk's row that tiles use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub seq: u64,
    pub first_event: u64,
    pub count: u64,
    pub first_ns: u64,
    pub last_ns: u64,
    /// The latest time in this chunk and all chunks before it. It ascends even if times run backwards.
    pub reach_ns: u64,
    allocated_min: u64,
    allocated_max: u64,
    allocated_end: u64,
    reserved_max: u64,
    reserved_end: u64,
    pub exact: bool,
}

impl Row {
    pub fn new(chunk: &ChunkRow, before_ns: u64) -> Self {
        let (index, levels) = (&chunk.index, &chunk.levels);
        Self {
            seq: chunk.seq,
            first_event: index.first_event,
            count: index.count,
            first_ns: index.first_ns,
            last_ns: index.last_ns,
            reach_ns: index.last_ns.max(before_ns),
            allocated_min: levels.allocated_min,
            allocated_max: levels.allocated_max,
            allocated_end: levels.allocated_end,
            reserved_max: levels.reserved_max,
            reserved_end: levels.reserved_end,
            exact: levels.exact,
        }
    }

    /// The number of events up to the end of the chunk.
    pub fn end_event(&self) -> u64 {
        self.first_event.saturating_add(self.count)
    }

    /// The levels after the chunk's last event.
    pub fn end(&self) -> Levels {
        levels(self.allocated_end, self.reserved_end)
    }

    /// The chunk's rollup, with the levels that are stored.
    pub fn rollup(&self) -> Rollup {
        let mut rollup = Rollup {
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            start: self.end(),
            end: self.end(),
            min: levels(self.allocated_min, self.reserved_end),
            max: levels(self.allocated_max, self.reserved_max),
            ..Rollup::default()
        };
        // The counts by kind of event are not stored with the chunk. Only the total matters here.
        rollup.counts[0] = self.count;
        rollup
    }
}

const fn levels(allocated_bytes: u64, reserved_bytes: u64) -> Levels {
    Levels { allocated_bytes, active_bytes: allocated_bytes, reserved_bytes }
}

/// A device's rows at a given state of its session.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    all: Vec<Row>,
    durable_seq: u64,
    expired_events: u64,
}

impl Rows {
    /// The rows that overlap a range of time (its end excluded), and the row before them.
    pub fn within(&self, (start_ns, end_ns): (u64, u64)) -> (Option<&Row>, &[Row]) {
        let first = self.all.partition_point(|row| row.reach_ns < start_ns);
        let count = self.all[first..].iter().take_while(|row| row.first_ns < end_ns).count();
        (first.checked_sub(1).and_then(|before| self.all.get(before)), &self.all[first..first + count])
    }

    /// The time of the last event.
    pub fn reach_ns(&self) -> Option<u64> {
        self.all.last().map(|row| row.reach_ns)
    }

    /// Whether an event at or after this time has arrived. If so, all earlier events have arrived too.
    pub fn is_past(&self, time_ns: u64) -> bool {
        self.all.last().is_some_and(|row| row.first_ns >= time_ns)
    }

    fn take(&mut self, chunks: &[ChunkRow]) {
        for chunk in chunks.iter().filter(|chunk| chunk.index.count > 0) {
            let before_ns = self.reach_ns().unwrap_or(0);
            self.all.push(Row::new(chunk, before_ns));
        }
    }

    fn next_event(&self) -> u64 {
        self.all.last().map_or(0, Row::end_event)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.all.capacity() * size_of::<Row>()
    }
}

/// The rows of the most recently requested devices.
pub(super) struct KeptRows(Recent<(SessionId, u8), Rows>);

impl KeptRows {
    pub fn new() -> Self {
        Self(Recent::new(KEPT_BYTES))
    }

    /// The rows of a device; see the module.
    pub async fn of(&self, store: &dyn Store, session: &SessionRow, device: u8) -> Result<Arc<Rows>, ReadError> {
        let key = (session.info.id, device);
        let kept = self.0.get(&key).filter(|kept| {
            // If the request's session row is older than the cached rows, they need not be read again.
            kept.expired_events == session.expired_events
        });
        if let Some(kept) = kept.as_ref().filter(|kept| kept.durable_seq >= session.durable_seq) {
            return Ok(kept.clone());
        }
        let mut rows = kept.map_or_else(Rows::default, Arc::unwrap_or_clone);
        let new = match rows.next_event() {
            0 => Selection::default(),
            next => Selection { events: Some((next, u64::MAX)), ..Selection::default() },
        };
        rows.take(&store.chunks(session.key, device, new).await?);
        (rows.durable_seq, rows.expired_events) = (session.durable_seq, session.expired_events);
        let (bytes, rows) = (rows.bytes(), Arc::new(rows));
        self.0.put(key, rows.clone(), bytes);
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ChunkLevels, ItemIndex};

    fn chunk(seq: u64, first_ns: u64, last_ns: u64) -> ChunkRow {
        let index =
            ItemIndex { device: Some(0), first_ns, last_ns, first_event: seq * 10, count: 10, ..ItemIndex::default() };
        let levels = ChunkLevels { allocated_end: seq, ..ChunkLevels::default() };
        ChunkRow { seq, index, levels, payload_bytes: 1 }
    }

    #[test]
    fn a_stretch_has_the_chunks_that_touch_it_and_the_one_before() {
        let mut rows = Rows::default();
        rows.take(&[chunk(1, 0, 10), chunk(2, 11, 20), chunk(3, 18, 30), chunk(4, 50, 60)]);
        let seqs = |times| {
            let (before, within) = rows.within(times);
            (before.map(|row| row.seq), within.iter().map(|row| row.seq).collect::<Vec<_>>())
        };
        assert_eq!(seqs((0, 11)), (None, vec![1]));
        assert_eq!(seqs((12, 19)), (Some(1), vec![2, 3]));
        assert_eq!(seqs((31, 50)), (Some(3), vec![]));
        assert_eq!(seqs((55, 99)), (Some(3), vec![4]));
        assert_eq!(seqs((61, 99)), (Some(4), vec![]));
        assert_eq!(rows.reach_ns(), Some(60));
        assert!(rows.is_past(50) && !rows.is_past(51));
    }
}
