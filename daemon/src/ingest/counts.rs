//! Ingest's counters since the daemon started, for metrics.
//!
//! Guarantees: everything that is counted as stored is durable. Counting never waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memctl_model::Dropped;
use memctl_proto::v1::{ItemKind, RefusedReason};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::histogram::Histogram;
use crate::store::{Append, SessionKey, StoreError};

/// Kinds of items. The index is the number of the kind on the wire minus one.
pub const KINDS: [ItemKind; 7] = [
    ItemKind::Chunk,
    ItemKind::Marks,
    ItemKind::Stacks,
    ItemKind::SiteTables,
    ItemKind::Keyframe,
    ItemKind::Samples,
    ItemKind::End,
];
/// Counters for reasons of refused streams; more than the protocol defines.
const REASONS: usize = 32;
/// The most sessions with drops that are tracked. For any further session, drops that its chunks announced may be
/// counted twice at its end.
const SESSIONS_MAX: usize = 4_096;

/// Why the store did not take the last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFault {
    /// The store's error. It names the place, so it is only for callers that see the whole store and for the log.
    pub error: String,
    /// When the write failed.
    pub at: Instant,
}

/// The counters; see the module.
#[derive(Debug, Default)]
pub struct Counts {
    items: [AtomicU64; KINDS.len()],
    refused: [AtomicU64; REASONS],
    dropped: [AtomicU64; 3],
    /// Payload bytes stored.
    pub bytes: AtomicU64,
    /// Events stored.
    pub events: AtomicU64,
    /// Items that never arrived.
    pub missing: AtomicU64,
    /// Commits that failed.
    pub failures: AtomicU64,
    /// `None` if the last write succeeded.
    pub write_fault: watch::Sender<Option<WriteFault>>,
    /// Duration of commits.
    pub commits: Histogram,
    /// Drops announced by chunks of sessions that have not ended.
    announced: Mutex<HashMap<SessionKey, u64>>,
}

/// Ingest's metrics.
#[derive(Clone)]
pub struct Figures {
    /// Stored and refused items.
    pub counts: Arc<Counts>,
    pub(super) duplicates: Arc<AtomicU64>,
    pub(super) budget: Arc<Semaphore>,
    pub(super) budget_bytes: usize,
}

impl Figures {
    /// Bytes that wait for their commit.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        (self.budget_bytes - self.budget.available_permits().min(self.budget_bytes)) as u64
    }

    /// Limit of the bytes that wait.
    #[must_use]
    pub fn queue_bytes_max(&self) -> u64 {
        self.budget_bytes as u64
    }

    /// Duplicate items since the start.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }
}

fn add(count: &AtomicU64, more: u64) {
    // Relaxed here and below: these are only metrics.
    count.fetch_add(more, Ordering::Relaxed);
}

impl Counts {
    /// Counts an append that is durable.
    pub(super) fn stored(&self, append: &Append) {
        let mut announced = 0;
        for item in &append.items {
            if let Some(at) = KINDS.iter().position(|kind| *kind == item.kind) {
                add(&self.items[at], 1);
            }
            add(&self.bytes, item.payload.len() as u64);
            if item.kind == ItemKind::Chunk {
                add(&self.events, item.index.count);
            }
            announced += item.levels.map_or(0, |levels| levels.dropped_before);
        }
        // Saturating: the numbers come from the wire.
        let missing = append.gaps.iter().map(|gap| gap.last.saturating_sub(gap.first).saturating_add(1));
        add(&self.missing, missing.fold(0, u64::saturating_add));
        self.drops(append, announced);
    }

    /// Counts drops. A chunk announces the events dropped before it; a session's last item has all drops, by reason.
    fn drops(&self, append: &Append, announced: u64) {
        if announced == 0 && append.end.is_none() {
            return;
        }
        let mut known = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&append.session).copied().unwrap_or(0);
        let total = before.saturating_add(announced);
        add(&self.dropped[0], announced);
        if append.end.is_some() {
            let Dropped { ring_full, spool_full, shutdown } = append.dropped;
            add(&self.dropped[0], ring_full.saturating_sub(total));
            add(&self.dropped[1], spool_full);
            add(&self.dropped[2], shutdown);
            known.remove(&append.session);
        } else if before > 0 || known.len() < SESSIONS_MAX {
            known.insert(append.session, total);
        }
    }

    /// Notes that the store takes writes.
    pub(super) fn written(&self) {
        self.write_fault.send_if_modified(|fault| fault.take().is_some());
    }

    /// Notes that the store took no write. A fault of one session is no fault of the store.
    pub(crate) fn not_written(&self, error: &StoreError) {
        if error.session().is_none() && !matches!(error, StoreError::Foreign | StoreError::Closed { .. }) {
            self.write_fault.send_replace(Some(WriteFault { error: error.to_string(), at: Instant::now() }));
        }
    }

    /// Counts a refused stream.
    pub(super) fn refuse(&self, reason: RefusedReason) {
        if let Some(count) = self.refused.get(reason as usize) {
            add(count, 1);
        }
    }

    /// Items stored, by kind.
    pub fn items(&self) -> impl Iterator<Item = (ItemKind, u64)> + '_ {
        KINDS.into_iter().zip(&self.items).map(|(kind, count)| (kind, count.load(Ordering::Relaxed)))
    }

    /// Streams refused, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (RefusedReason, u64)> + '_ {
        let known = (1_i32..).zip(&self.refused[1..]);
        known.filter_map(|(reason, count)| Some((RefusedReason::try_from(reason).ok()?, count.load(Ordering::Relaxed))))
    }

    /// Events that agents dropped, by reason.
    #[must_use]
    pub fn dropped(&self) -> [(&'static str, u64); 3] {
        let [ring_full, spool_full, shutdown] = &self.dropped;
        [("ring_full", ring_full), ("spool_full", spool_full), ("shutdown", shutdown)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use memctl_model::SessionEnd;

    use super::*;
    use crate::store::{ChunkLevels, Gap, ItemIndex, NewItem};

    fn append(dropped_before: Option<u64>, end: Option<Dropped>) -> Append {
        let item = dropped_before.map(|dropped_before| NewItem {
            seq: 1,
            kind: ItemKind::Chunk,
            payload: Bytes::from_static(b"12345"),
            unpacked_bytes: 0,
            index: ItemIndex { count: 9, ..ItemIndex::default() },
            levels: Some(ChunkLevels { dropped_before, ..ChunkLevels::default() }),
        });
        Append {
            session: 3,
            items: item.into_iter().collect(),
            gaps: vec![Gap { first: 5, last: 6 }],
            durable_seq: 1,
            duplicates: 0,
            heard_ns: 0,
            devices: Vec::new(),
            epoch_ends: Vec::new(),
            dropped: end.unwrap_or_default(),
            end: end.map(|dropped| SessionEnd { dropped, ..SessionEnd::default() }),
        }
    }

    #[test]
    fn what_chunks_announced_is_not_counted_again_at_the_end() {
        let counts = Counts::default();
        counts.stored(&append(Some(4), None));
        counts.stored(&append(Some(0), None));
        counts.stored(&append(None, Some(Dropped { ring_full: 7, spool_full: 2, shutdown: 1 })));
        assert_eq!(counts.dropped(), [("ring_full", 7), ("spool_full", 2), ("shutdown", 1)]);
        let chunks = counts.items().find(|(kind, _)| *kind == ItemKind::Chunk).unwrap().1;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert_eq!((chunks, read(&counts.events), read(&counts.bytes), read(&counts.missing)), (2, 18, 10, 6));
        // The next session with this key starts from zero.
        counts.stored(&append(Some(1), None));
        assert_eq!(counts.dropped()[0].1, 8);
    }
}
