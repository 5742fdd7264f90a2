//! Removal: oldest items first, and the rows that belong to them.
//!
//! Guarantees: the counts match what was removed, and the sessions' sums follow. `expiry` decides what is removed.

use memctl_proto::v1::ItemKind;

use super::{Inner, Session, add};
use crate::store::expiry::{BATCH_ITEMS, Candidate, Part, victims};
use crate::store::holders::{self, HoldersIndex};
use crate::store::rows::{Expired, NewItem, SessionKey};

impl Inner {
    pub(super) fn take_watches(&mut self, job: i64) -> Expired {
        let sessions = self.sessions.values_mut().filter(|session| session.state.job == job);
        let bytes = sessions.filter_map(|session| session.watch.take()).map(|watch| watch.state.len() as u64).sum();
        Expired { bytes, ..Expired::default() }
    }

    pub(super) fn take_holders(&mut self, job: i64, excess_bytes: u64) -> Expired {
        let bytes = self.delete_holders(&holders::victims(self.holders_kept(job), excess_bytes));
        Expired { bytes, ..Expired::default() }
    }

    /// Removes answers about holders; returns their bytes.
    pub(super) fn delete_holders(&mut self, victims: &[HoldersIndex]) -> u64 {
        for row in victims {
            self.sessions.get_mut(&row.session).and_then(|session| session.holders.remove(&row.asked_ns));
        }
        victims.iter().map(HoldersIndex::spends).sum()
    }

    /// Removes a batch of a job's oldest items, as many as it takes to free `excess_bytes`.
    pub(super) fn take(&mut self, job: i64, part: Part, excess_bytes: u64) -> Expired {
        let mut candidates: Vec<((bool, u64), Candidate)> = self
            .sessions_of(job)
            .flat_map(|(key, session)| {
                let is_open = session.state.end.is_none();
                session.items.values().filter_map(move |item| candidate(key, session, item, part, is_open))
            })
            .collect();
        candidates.sort_by_key(|(age, candidate)| (*age, candidate.session, candidate.seq));
        let candidates = candidates.into_iter().map(|(_, candidate)| candidate).take(BATCH_ITEMS as usize).collect();
        let mut gone = Expired::default();
        for item in victims(candidates, excess_bytes) {
            if let Some(session) = self.sessions.get_mut(&item.session) {
                gone += session.expire(item);
            }
        }
        gone
    }
}

impl Session {
    /// Removes an item, and with a chunk the keyframes that only older events needed.
    fn expire(&mut self, item: Candidate) -> Expired {
        let mut gone = item.gone();
        self.items.remove(&item.seq);
        if item.is_chunk() {
            let chunks = self.items.values().filter(|kept| kept.is_chunk() && kept.index.device == Some(item.device));
            let first_event = chunks.map(|kept| kept.index.first_event).min().unwrap_or(u64::MAX);
            let older = |kept: &&NewItem| kept.index.first_event <= first_event;
            let needed = self.keyframes(item.device).filter(older).map(|kept| kept.seq).max();
            let idle: Vec<u64> = self
                .keyframes(item.device)
                .map(|kept| kept.seq)
                .filter(|seq| needed.is_some_and(|needed| *seq < needed))
                .collect();
            for seq in idle {
                gone.bytes += self.items.remove(&seq).map_or(0, |kept| kept.payload.len() as u64);
                gone.items += 1;
            }
        }
        self.state.expired_events = add(self.state.expired_events, gone.events);
        self.state.stored_bytes = self.state.stored_bytes.saturating_sub(gone.bytes);
        self.state.stored_items = self.state.stored_items.saturating_sub(gone.items);
        gone
    }
}

/// An item that may be removed, with its order; the latest item of a running session stays.
fn candidate(
    key: SessionKey,
    session: &Session,
    item: &NewItem,
    part: Part,
    is_open: bool,
) -> Option<((bool, u64), Candidate)> {
    let alike =
        |other: &NewItem| other.kind == item.kind && (!item.is_chunk() || other.index.device == item.index.device);
    let is_last = || !session.items.range(item.seq + 1..).any(|(_, other)| alike(other));
    let (may_go, is_open) = match part {
        Part::Chunks => (item.is_chunk() && (!is_open || !is_last()), is_open),
        Part::Rest => {
            let is_rest = matches!(item.kind, ItemKind::Marks | ItemKind::SiteTables | ItemKind::Samples);
            (is_rest && !is_last(), false)
        }
    };
    let candidate = Candidate {
        job: session.state.job,
        session: key,
        device: item.index.device.unwrap_or(0),
        kind: item.kind as i32,
        seq: item.seq,
        events: if item.is_chunk() { item.index.count } else { 0 },
        bytes: item.payload.len() as u64,
    };
    may_go.then_some(((is_open, item.index.last_ns), candidate))
}
