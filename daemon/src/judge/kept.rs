//! What is kept of a watch in the store, so that a daemon that starts, or a command that asks a store itself, need not read
//! every table of a long session again.
//!
//! Guarantees: a watch that goes on from what was kept knows what one knows that has seen every item; what was written by
//! another state of the program, is damaged or contradicts itself is not used, and the items are read instead.
//! Refuses to keep what saves little, and what is large beside what it saves. Nothing depends on it: it may be gone at any time.

use std::collections::BTreeMap;

use memctl_analysis::judge::RankWatch;
use memctl_model::Sample;
use serde::{Deserialize, Serialize};

use super::shown;
use crate::store::{SessionKey, Store, WatchRow};

/// Which form the state has: of another one nothing is known.
const FORM: &str = env!("WATCH_FORM");
/// Reading fewer bytes of items takes no time.
const SAVES_MIN_BYTES: u64 = 256 << 10;
/// While a session runs, it is kept again once so much has come, of all that had: one part of this many.
const MORE_OF: u64 = 4;
/// What is kept takes a part of what it saves, of this many at most.
const PART_OF: u64 = 2;
/// A state takes so much when it is unpacked, at most.
const STATE_MAX_BYTES: usize = 64 << 20;
/// What is kept is written while data comes: little work goes into its compression.
const LEVEL: i32 = 1;

/// A session's watch without what its session's rows and stacks tell anyway.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Kept {
    pub watches: BTreeMap<u8, RankWatch>,
    pub highest: BTreeMap<u8, Sample>,
    pub last: BTreeMap<u8, Sample>,
    pub shown: shown::Seen,
    pub measured: bool,
    /// Bytes of the items that it has seen.
    pub read_bytes: u64,
}

/// How much of a session was read, and how much of that was kept.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Bytes of items that were seen.
    pub read_bytes: u64,
    /// As many of them as what was kept last has seen, or what was not worth keeping.
    settled_bytes: u64,
}

impl Progress {
    /// What was read from the store.
    pub(super) fn of_kept(read_bytes: u64) -> Self {
        Self { read_bytes, settled_bytes: read_bytes }
    }

    /// Whether it is time to keep what is known.
    pub(super) fn is_due(self, ended: bool) -> bool {
        let more = self.read_bytes.saturating_sub(self.settled_bytes);
        more >= SAVES_MIN_BYTES && (ended || more >= self.read_bytes / MORE_OF)
    }

    pub(super) fn settle(&mut self) {
        self.settled_bytes = self.read_bytes;
    }
}

impl Kept {
    /// What was kept of a session, and the number of the last item that it has seen. What cannot be used is as if it were not
    /// there: also a store that fails, which the next question to it will tell.
    pub(super) async fn read(store: &dyn Store, session: SessionKey, durable: u64) -> Option<(Self, u64)> {
        let row = store.watch(session).await.ok()??;
        if row.form != FORM || row.seq > durable {
            return None;
        }
        let state = zstd::bulk::decompress(&row.state, STATE_MAX_BYTES).ok()?;
        match postcard::from_bytes(&state) {
            Ok(kept) => Some((kept, row.seq)),
            Err(error) => {
                tracing::warn!(session, %error, "what was kept of a session's watch cannot be read; its items are read instead");
                None
            }
        }
    }
}

/// The row of a state, where it is worth keeping.
pub(super) fn row(kept: &impl Serialize, seq: u64, read_bytes: u64) -> Option<WatchRow> {
    let state = postcard::to_allocvec(kept).ok().filter(|state| state.len() <= STATE_MAX_BYTES)?;
    let state = zstd::bulk::compress(&state, LEVEL).ok()?;
    let small = state.len() as u64 <= read_bytes / PART_OF;
    small.then(|| WatchRow { seq, form: FORM.to_owned(), state: state.into() })
}

/// [`Kept`] as it is written: the same fields in the same order.
#[derive(Serialize)]
pub(super) struct Keeping<'a> {
    pub watches: &'a BTreeMap<u8, RankWatch>,
    pub highest: &'a BTreeMap<u8, Sample>,
    pub last: &'a BTreeMap<u8, Sample>,
    pub shown: &'a shown::Seen,
    pub measured: bool,
    pub read_bytes: u64,
}
