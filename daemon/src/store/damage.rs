//! Tracks stored items and answers about holders that are damaged.
//!
//! Guarantees: damage of one item affects nothing else. The item is left out of every read, logged once, and listed by
//! [`Damage::list`]. Items without a checksum, stored by older versions, are trusted. Chunks also have their own
//! checksums, which are compared when a chunk is decoded. At most [`LISTED_MAX`] damaged items are remembered.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::holders::{HoldersIndex, HoldersRow};
use super::row_reader::Fault;
use super::rows::{ItemRow, SessionKey};

/// How many damaged items are remembered. More than this mean a damaged disk, which `memctl check` reports in full.
const LISTED_MAX: usize = 4_096;

/// Damage found while reading.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// Items, by session and number.
    items: Mutex<BTreeSet<(SessionKey, u64)>>,
    /// Answers about holders, by session and time.
    answers: Mutex<BTreeSet<(SessionKey, u64)>>,
}

impl Damage {
    /// Leaves out damaged rows.
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

    /// Remembers an item, and logs it the first time.
    pub(super) fn found(&self, session: SessionKey, seq: u64) {
        if is_new(&self.items, (session, seq)) {
            tracing::error!(
                session,
                seq,
                "item {seq} of session {session} is damaged: answers leave it out, or say that they need it"
            );
        }
    }

    /// Returns an undamaged answer about holders; logs a damaged one the first time.
    pub(super) fn sound(&self, (row, is_sound): (HoldersRow, bool)) -> Option<HoldersRow> {
        let HoldersIndex { session, asked_ns, .. } = row.index;
        if !is_sound && is_new(&self.answers, (session, asked_ns)) {
            tracing::error!(
                session,
                asked_ns,
                "an answer about holders of session {session} is damaged: no finding shows it"
            );
        }
        is_sound.then_some(row)
    }

    /// All damaged items found, by session and number.
    pub(super) fn list(&self) -> Vec<(SessionKey, u64)> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

fn is_new(known: &Mutex<BTreeSet<(SessionKey, u64)>>, found: (SessionKey, u64)) -> bool {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.len() < LISTED_MAX && known.insert(found)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::store::holders::Says;

    /// Counts what is logged.
    struct Log(Arc<AtomicU32>);

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            // Relaxed: a single thread counts.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_damaged_answer_about_holders_is_told_once() {
        let index = |asked_ns| HoldersIndex {
            session: 1,
            asked_ns,
            finding: None,
            site: 0,
            unasked: false,
            says: Says::Nothing,
            counted_epoch: None,
            bytes: 1,
        };
        let row = |asked_ns| HoldersRow { index: index(asked_ns), answer: vec![0].into() };
        let (damage, lines) = (Damage::default(), Arc::new(AtomicU32::new(0)));
        tracing::subscriber::with_default(Log(lines.clone()), || {
            assert_eq!(damage.sound((row(1), true)), Some(row(1)));
            for _ in 0..3 {
                assert_eq!(damage.sound((row(2), false)), None);
            }
            assert_eq!(lines.load(Ordering::Relaxed), 1);
            assert_eq!(damage.sound((row(3), false)), None);
        });
        assert_eq!((lines.load(Ordering::Relaxed), damage.list()), (2, vec![]));
    }
}
