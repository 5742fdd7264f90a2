//! The state of a watch as saved in the store. With it, a daemon that starts, or a command that opens a store itself,
//! does not read every table of a long session again.
//!
//! Guarantees: a watch that resumes from saved state equals one that has read every item. State that another version
//! wrote, or that is damaged or inconsistent, is ignored, and the items are read instead.
//!
//! State is not saved if it saves little time, or if it is large compared with the items that it replaces. Nothing
//! depends on saved state, so it may be deleted at any time.

#[cfg(target_family = "wasm")]
use memctl_zstd as zstd;
use std::collections::BTreeMap;

use memctl_analysis::judge::RankWatch;
use memctl_model::Sample;
use serde::{Deserialize, Serialize};

use super::session_boundaries;
use crate::store::{SessionKey, Store, WatchRow};

/// Version of the state's format; state of another version is ignored.
const FORM: &str = env!("WATCH_FORM");
/// If the items have fewer bytes than this, reading them takes too little time to save the state.
const SAVES_MIN_BYTES: u64 = 256 << 10;
/// The state of a running session is saved again once one part in this many of its items is new.
const MORE_OF: u64 = 4;
/// The state may take at most one part in this many of the bytes of the items that it replaces.
const PART_OF: u64 = 2;
/// The largest state, unpacked.
const STATE_MAX_BYTES: usize = 64 << 20;
/// Compression level. State is saved while data arrives, so the level is a cheap one.
const LEVEL: i32 = 1;

/// A session's watch without the data that the session's rows and stacks contain.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SavedWatch {
    pub watches: BTreeMap<u8, RankWatch>,
    pub highest: BTreeMap<u8, Sample>,
    pub last: BTreeMap<u8, Sample>,
    pub shown: session_boundaries::SessionBoundaries,
    pub measured: bool,
    /// Bytes of the items that it has read.
    pub read_bytes: u64,
}

/// How much of a session was read, and how much of that the saved state covers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Bytes of the items that were read.
    pub read_bytes: u64,
    /// Bytes that the last saved state covers, or that were not worth saving.
    settled_bytes: u64,
}

impl Progress {
    /// The progress of saved state that was read from the store.
    pub(super) fn of_kept(read_bytes: u64) -> Self {
        Self { read_bytes, settled_bytes: read_bytes }
    }

    /// Whether it is time to save the state.
    pub(super) fn is_due(self, ended: bool) -> bool {
        let more = self.read_bytes.saturating_sub(self.settled_bytes);
        more >= SAVES_MIN_BYTES && (ended || more >= self.read_bytes / MORE_OF)
    }

    pub(super) fn settle(&mut self) {
        self.settled_bytes = self.read_bytes;
    }
}

impl SavedWatch {
    /// The saved state of a session, and the number of the last item that it covers. State that cannot be used counts
    /// as absent. So does state in a store that fails, because the next query to the store returns the error.
    pub(super) async fn read(store: &dyn Store, session: SessionKey, durable: u64) -> Option<(Self, u64)> {
        let row = store.watch(session).await.ok()??;
        if row.form != FORM || row.seq > durable {
            return None;
        }
        let state = zstd::bulk::decompress(&row.state, STATE_MAX_BYTES).ok()?;
        match postcard::from_bytes(&state) {
            Ok(kept) => Some((kept, row.seq)),
            Err(error) => {
                tracing::warn!(session, %error, "the saved state of a session's watch cannot be read; its items are read instead");
                None
            }
        }
    }
}

/// The row of a state, if it is worth saving.
pub(super) fn row(kept: &impl Serialize, seq: u64, read_bytes: u64) -> Option<WatchRow> {
    let state = postcard::to_allocvec(kept).ok().filter(|state| state.len() <= STATE_MAX_BYTES)?;
    let state = zstd::bulk::compress(&state, LEVEL).ok()?;
    let small = state.len() as u64 <= read_bytes / PART_OF;
    small.then(|| WatchRow { seq, form: FORM.to_owned(), state: state.into() })
}

/// The serialized form of [`SavedWatch`]: the same fields in the same order.
#[derive(Serialize)]
pub(super) struct Keeping<'a> {
    pub watches: &'a BTreeMap<u8, RankWatch>,
    pub highest: &'a BTreeMap<u8, Sample>,
    pub last: &'a BTreeMap<u8, Sample>,
    pub shown: &'a session_boundaries::SessionBoundaries,
    pub measured: bool,
    pub read_bytes: u64,
}
