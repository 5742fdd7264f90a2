//! Stored items that are no longer what was stored.
//!
//! Guarantees: a damaged item costs itself and nothing else: it is left out of what is read, told in the log once, and
//! listed for whoever asks. Items that versions without checksums stored are taken as they are; a chunk has checksums of
//! its own, which are compared when it is decoded.
//! Refuses: to keep more than [`LISTED_MAX`] names.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::cells::Fault;
use super::rows::{ItemRow, SessionKey};

/// Damaged items that are remembered; more of them are a damaged disk, which `memctl check` looks at.
const LISTED_MAX: usize = 4_096;

/// The damaged items that reading came across.
#[derive(Debug, Default)]
pub(super) struct Damage(Mutex<BTreeSet<(SessionKey, u64)>>);

impl Damage {
    /// The items that are sound.
    pub(super) fn without<'r, R: 'r>(
        &self,
        session: SessionKey,
        rows: impl IntoIterator<Item = &'r R>,
        read: impl Fn(&'r R) -> Result<(ItemRow, bool), Fault>,
    ) -> Result<Vec<ItemRow>, Fault> {
        let mut sound = Vec::new();
        for row in rows {
            let (item, is_sound) = read(row)?;
            if is_sound {
                sound.push(item);
            } else {
                self.found(session, item.seq);
            }
        }
        Ok(sound)
    }

    /// Remembers an item, and says so the first time.
    pub(super) fn found(&self, session: SessionKey, seq: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < LISTED_MAX && known.insert((session, seq)) {
            tracing::error!(session, seq, "item {seq} of session {session} is damaged: it is left out of every answer");
        }
    }

    /// All of them, by session and number.
    pub(super) fn list(&self) -> Vec<(SessionKey, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}
