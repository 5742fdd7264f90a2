//! The outbox holds items from the moment they get their number until the daemon reports that they are durable.
//!
//! Guarantees: an item is removed only when it is acknowledged or given up. Items leave in the order of their numbers.
//! Memory and spool hold at most what was configured. When both are full, `push` waits and the rings fill. The worker
//! thread calls `push`; training never does.
//!
//! (Over 400 lines: everything here happens under one lock.)
//!
//! With a spool, all unacknowledged items are on disk as soon as memory is full or the link is down. Another process
//! can then deliver them after this one has died.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memctl_proto::item::{Content, Packed};
use memctl_proto::v1;
use prost::Message as _;
use tokio::sync::Notify;

use super::outgoing::Outgoing;
use super::spool::{Place, Spool};

/// How long `push` sleeps before it checks again whether the deadline has changed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// There was room.
    AtOnce,
    /// There was room after a while.
    AfterWaiting,
    /// There was no room until the deadline. The item is dropped and its events are counted as abandoned.
    Abandoned,
}

/// Counts of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WindowCounts {
    /// Events in acknowledged items.
    pub acked_events: u64,
    /// Events in waiting items.
    pub waiting_events: u64,
    /// Bytes of waiting items.
    pub waiting_bytes: u64,
    /// Events in items that were given up at the end.
    pub abandoned_events: u64,
    /// Of these, events that a full spool did not take.
    pub spool_full_events: u64,
    /// Items that were given up at the end, of any kind.
    pub abandoned_items: u64,
    /// Number of the last item so far.
    pub last_seq: u64,
    /// Number of the last acknowledged item.
    pub acked_seq: u64,
    /// Bytes in the spool.
    pub spooled_bytes: u64,
}

struct Entry {
    seq: u64,
    events: u64,
    bytes: u64,
    item: Option<v1::Item>,
    place: Option<Place>,
}

impl Entry {
    fn is_last_word(&self) -> bool {
        self.item.as_ref().is_some_and(|item| item.kind() == v1::ItemKind::End)
    }

    /// Adds lost events to those that the session's end reports. `spool_is_full` says why they were lost.
    fn amend(&mut self, lost: u64, spool_is_full: bool) {
        let said = self.item.as_ref().and_then(|item| Packed::from_item(item).ok()?.open().ok());
        if let (Some(Content::End(mut end)), 1..) = (said, lost) {
            *(if spool_is_full { &mut end.dropped.spool_full } else { &mut end.dropped.shutdown }) += lost;
            self.item = Some(Packed::end(&end).numbered(self.seq));
        }
    }
}

struct Inner {
    entries: VecDeque<Entry>,
    memory_bytes: u64,
    spool: Option<Spool>,
    linked: bool,
    /// Whether the items come from a spool. The daemon may then have more items of the session than are here.
    recovered: bool,
    counts: WindowCounts,
    closed: bool,
    /// Why the daemon last took nothing, until it acknowledges again.
    refusal: Option<String>,
}

/// The outbox of one session.
pub struct Window {
    inner: Mutex<Inner>,
    memory_bytes_max: u64,
    room: Condvar,
    news: Notify,
}

impl Window {
    /// An empty outbox that keeps at most `memory_bytes_max` in memory.
    #[must_use]
    pub fn new(memory_bytes_max: u64, spool: Option<Spool>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                entries: VecDeque::new(),
                memory_bytes: 0,
                spool,
                linked: true,
                recovered: false,
                counts: WindowCounts::default(),
                closed: false,
                refusal: None,
            }),
            memory_bytes_max,
            room: Condvar::new(),
            news: Notify::new(),
        }
    }

    /// An outbox over a spool's items, to deliver what another process left.
    #[must_use]
    pub fn recovered(spool: Spool) -> Self {
        let window = Self::new(0, None);
        {
            let mut inner = window.lock();
            inner.entries = spool
                .places()
                .map(|(seq, place)| Entry {
                    seq,
                    events: 0,
                    bytes: u64::from(place.bytes),
                    item: None,
                    place: Some(place),
                })
                .collect();
            inner.counts.waiting_bytes = inner.entries.iter().map(|entry| entry.bytes).sum();
            inner.counts.last_seq = inner.entries.back().map_or(0, |entry| entry.seq);
            inner.spool = Some(spool);
            inner.recovered = true;
        }
        window
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in another thread must not end the trainer's agent. The counts stay usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers the item with the session's end and keeps it, even when there is no room for other items. A session
    /// whose end is never reported would seem to run forever.
    pub fn push_last(&self, packed: Packed) {
        let mut inner = self.lock();
        let seq = inner.counts.last_seq + 1;
        let item = packed.numbered(seq);
        let bytes = item.encoded_len() as u64;
        inner.counts.last_seq = seq;
        let (item, place) = match inner.closed {
            true => (Some(item), None),
            false => inner.room_for(&item, bytes, u64::MAX).unwrap_or((Some(item), None)),
        };
        inner.memory_bytes += if item.is_some() { bytes } else { 0 };
        inner.entries.push_back(Entry { seq, events: 0, bytes, item, place });
        inner.counts.waiting_bytes += bytes;
        let is_given_up = inner.closed;
        drop(inner);
        self.news.notify_one();
        if is_given_up {
            // Items that are not on disk by now are lost, and the session's end reports them.
            self.close();
        }
    }

    /// Numbers an item and keeps it. Waits while there is no room, at most until the deadline. `deadline` is called at
    /// every check, because the session may be ended while this waits.
    pub fn push(&self, outgoing: Outgoing, deadline: &dyn Fn() -> Option<Instant>) -> Pushed {
        let Outgoing { packed, events } = outgoing;
        let mut inner = self.lock();
        let seq = inner.counts.last_seq + 1;
        let item = packed.numbered(seq);
        let bytes = item.encoded_len() as u64;
        let mut waited = false;
        loop {
            if let Some((item, place)) = inner.room_for(&item, bytes, self.memory_bytes_max) {
                inner.memory_bytes += if item.is_some() { bytes } else { 0 };
                inner.entries.push_back(Entry { seq, events, bytes, item, place });
                inner.counts.last_seq = seq;
                inner.counts.waiting_events += events;
                inner.counts.waiting_bytes += bytes;
                drop(inner);
                self.news.notify_one();
                return if waited { Pushed::AfterWaiting } else { Pushed::AtOnce };
            }
            if inner.closed || deadline().is_some_and(|deadline| Instant::now() >= deadline) {
                // The number stays used. From the next number the daemon sees that an item is missing.
                inner.counts.last_seq = seq;
                inner.count_abandoned(events);
                inner.counts.abandoned_items += 1;
                return Pushed::Abandoned;
            }
            waited = true;
            inner = self.room.wait_timeout(inner, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The first item after `seq`, if there is one.
    ///
    /// # Errors
    /// The item is in the spool and cannot be read back.
    pub fn after(&self, seq: u64) -> std::io::Result<Option<v1::Item>> {
        let mut inner = self.lock();
        let index = inner.entries.partition_point(|entry| entry.seq <= seq);
        let Some(entry) = inner.entries.get(index) else { return Ok(None) };
        if let Some(item) = &entry.item {
            return Ok(Some(item.clone()));
        }
        let (place, seq) = (entry.place, entry.seq);
        match (place, &mut inner.spool) {
            (Some(place), Some(spool)) => spool.read(place, seq).map(Some),
            _ => Err(std::io::Error::other("an item is neither in memory nor in the spool")),
        }
    }

    /// Takes from the daemon's welcome that it has all items up to `seq`. Returns `false` when that is more than this
    /// agent ever made, because another agent recorded this session then.
    #[must_use]
    pub fn resume(&self, seq: u64) -> bool {
        {
            let inner = self.lock();
            if !inner.recovered && seq > inner.counts.last_seq {
                return false;
            }
        }
        self.ack(seq);
        true
    }

    /// Removes the items up to `seq`: they are durable.
    pub fn ack(&self, seq: u64) {
        let mut inner = self.lock();
        inner.counts.acked_seq = inner.counts.acked_seq.max(seq);
        while let Some(entry) = inner.entries.pop_front_if(|entry| entry.seq <= seq) {
            inner.refusal = None;
            inner.memory_bytes -= if entry.item.is_some() { entry.bytes } else { 0 };
            inner.counts.waiting_events -= entry.events;
            inner.counts.waiting_bytes -= entry.bytes;
            inner.counts.acked_events += entry.events;
        }
        if let Some(spool) = &mut inner.spool {
            spool.forget(seq);
        }
        drop(inner);
        self.room.notify_all();
        self.news.notify_waiters();
    }

    /// Gives up the items that are larger than the daemon accepts. Returns the number of items and of their events.
    /// Their numbers stay used, so the daemon sees that items are missing.
    pub fn leave_out(&self, bytes_max: u64) -> (u64, u64) {
        let mut inner = self.lock();
        let (mut items, mut events, mut bytes, mut in_memory) = (0, 0, 0, 0);
        inner.entries.retain(|entry| {
            let stays = entry.bytes <= bytes_max;
            if !stays {
                items += 1;
                events += entry.events;
                bytes += entry.bytes;
                in_memory += if entry.item.is_some() { entry.bytes } else { 0 };
            }
            stays
        });
        inner.memory_bytes -= in_memory;
        inner.counts.waiting_events -= events;
        inner.counts.waiting_bytes -= bytes;
        inner.counts.abandoned_events += events;
        inner.counts.abandoned_items += items;
        drop(inner);
        self.room.notify_all();
        self.news.notify_waiters();
        (items, events)
    }

    /// Notes why the daemon takes nothing now. It may do so later.
    pub fn note_refusal(&self, reason: &str) {
        self.lock().refusal = Some(reason.to_owned());
    }

    /// Why the daemon last took nothing; `None` if it has acknowledged something since.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.lock().refusal.clone()
    }

    /// Sets whether the daemon can be reached. If not, everything unacknowledged goes to the spool.
    pub fn set_linked(&self, linked: bool) {
        let mut inner = self.lock();
        inner.linked = linked;
        if !linked {
            inner.spill();
        }
    }

    /// Bytes of the items above `acked` and up to `sent`, which are in flight on the wire.
    #[must_use]
    pub fn under_way(&self, sent: u64) -> u64 {
        self.lock().entries.iter().take_while(|entry| entry.seq <= sent).map(|entry| entry.bytes).sum()
    }

    /// Closes the outbox. Pushes no longer wait, and unacknowledged items go to the spool if there is one. Returns the
    /// number of events that are neither acknowledged nor spooled.
    pub fn close(&self) -> u64 {
        let mut inner = self.lock();
        inner.closed = true;
        // The session's end reports what is lost, so it is written after that is known.
        let last_word = inner.entries.pop_back_if(|entry| entry.place.is_none() && entry.is_last_word());
        inner.spill();
        let lost: u64 = inner.entries.iter().filter(|entry| entry.place.is_none()).map(|entry| entry.events).sum();
        inner.count_abandoned(lost);
        inner.counts.waiting_events -= lost;
        let (mut gone_items, mut gone_bytes) = (0, 0);
        inner.entries.retain_mut(|entry| {
            // A spooled item stays in the spool. Its copy in memory is no longer counted.
            entry.item = None;
            if entry.place.is_none() {
                gone_items += 1;
                gone_bytes += entry.bytes;
            }
            entry.place.is_some()
        });
        if let Some(mut entry) = last_word {
            entry.amend(lost, inner.spool.is_some());
            entry.place = entry.item.take().and_then(|item| inner.spool.as_mut()?.append(&item));
            match entry.place {
                Some(_) => inner.entries.push_back(entry),
                None => (gone_items, gone_bytes) = (gone_items + 1, gone_bytes + entry.bytes),
            }
        }
        inner.counts.abandoned_items += gone_items;
        inner.counts.waiting_bytes -= gone_bytes;
        inner.memory_bytes = 0;
        drop(inner);
        self.sync();
        self.room.notify_all();
        lost
    }

    /// Syncs what the spool took since the last sync. Blocks on the disk, so a background thread calls this.
    pub fn sync(&self) {
        let unsynced = self.lock().spool.as_mut().and_then(Spool::unsynced);
        if let Some(Err(error)) = unsynced.map(super::spool::Unsynced::sync) {
            tracing::warn!(%error, "spooled data is not on the disk yet: a crash of this machine may lose it");
        }
    }

    /// Whether the spool took anything since the last sync.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.lock().spool.as_ref().is_none_or(Spool::is_synced)
    }

    /// Whether the outbox was given up.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether all items so far are acknowledged.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// The outbox's counts.
    #[must_use]
    pub fn counts(&self) -> WindowCounts {
        let inner = self.lock();
        WindowCounts { spooled_bytes: inner.spool.as_ref().map_or(0, Spool::bytes), ..inner.counts }
    }

    /// Waits for a push or an acknowledgement.
    pub(super) fn news(&self) -> tokio::sync::futures::Notified<'_> {
        self.news.notified()
    }
}

impl Inner {
    /// Counts events for which there was no room. Where there is a spool, it was full.
    fn count_abandoned(&mut self, events: u64) {
        self.counts.abandoned_events += events;
        self.counts.spool_full_events += if self.spool.is_some() { events } else { 0 };
    }

    /// Where an item can be stored now: in memory, in the spool, in both or nowhere.
    fn room_for(&mut self, item: &v1::Item, bytes: u64, memory_max: u64) -> Option<(Option<v1::Item>, Option<Place>)> {
        // An item larger than all memory is still accepted when the outbox is empty.
        let in_memory = self.memory_bytes + bytes <= memory_max || self.entries.is_empty();
        let spooling = self.spool.as_ref().is_some_and(|spool| !self.linked || !in_memory || spool.bytes() > 0);
        if spooling
            && self.spill()
            && let Some(place) = self.spool.as_mut().and_then(|spool| spool.append(item))
        {
            return Some((in_memory.then(|| item.clone()), Some(place)));
        }
        in_memory.then(|| (Some(item.clone()), None))
    }

    /// Puts everything that is only in memory into the spool. The spool then has all the last items without a gap.
    /// Returns `false` when they do not fit.
    fn spill(&mut self) -> bool {
        let Some(spool) = &mut self.spool else { return false };
        for entry in &mut self.entries {
            if entry.place.is_none()
                && let Some(item) = &entry.item
            {
                match spool.append(item) {
                    Some(place) => entry.place = Some(place),
                    None => return false,
                }
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
