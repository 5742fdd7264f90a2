//! Counts where events are. `produced = stored + dropped + in flight` holds at any moment, and any thread can read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ring::Gauge;
use crate::uplink::window::Window;

/// Where a session's events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events that the source produced.
    pub produced: u64,
    /// Events that the daemon has stored (acknowledged).
    pub stored: u64,
    /// Events dropped, for any reason.
    pub dropped: u64,
    /// Events in rings, open chunks, the outbox or the spool.
    pub in_flight: u64,
    /// Unacknowledged bytes.
    pub in_flight_bytes: u64,
}

/// Shared counts of a session's stages.
pub struct Ledger {
    gauges: Vec<Gauge>,
    /// Events in open or ready chunks.
    waiting: AtomicU64,
    /// Events and notes taken so far.
    taken: AtomicU64,
    /// Events left in rings at the end, and events that could not be encoded.
    left_behind: AtomicU64,
    window: Arc<Window>,
}

impl Ledger {
    pub(crate) fn new(gauges: Vec<Gauge>, window: Arc<Window>) -> Self {
        Self { gauges, waiting: AtomicU64::new(0), taken: AtomicU64::new(0), left_behind: AtomicU64::new(0), window }
    }

    // Relaxed throughout: the figures are for display, and the equation is exact once the session has stopped.
    pub(crate) fn set_waiting(&self, events: u64) {
        self.waiting.store(events, Ordering::Relaxed);
    }

    pub(crate) fn set_taken(&self, taken: u64) {
        self.taken.store(taken, Ordering::Relaxed);
    }

    /// Grows while the worker makes progress.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn leave_batch(&self, events: u64) {
        self.waiting.store(self.waiting.load(Ordering::Relaxed).saturating_sub(events), Ordering::Relaxed);
    }

    pub(crate) fn leave_behind(&self, events: u64) {
        self.left_behind.fetch_add(events, Ordering::Relaxed);
    }

    /// Where the events are now. `in_flight` is the rest that is neither stored nor dropped. [`Self::waiting`] counts a
    /// part of it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let window = self.window.counts();
        let (pushed, lost) =
            self.gauges.iter().fold((0, 0), |(pushed, lost), gauge| (pushed + gauge.pushed(), lost + gauge.dropped()));
        let dropped = lost + window.abandoned_events + self.left_behind.load(Ordering::Relaxed);
        let (produced, stored) = (pushed + lost, window.acked_events);
        // The counts are read one after the other while they grow, so the sum may briefly be too high.
        let in_flight = produced.saturating_sub(dropped).saturating_sub(stored);
        Counts { produced, stored, dropped, in_flight, in_flight_bytes: window.waiting_bytes }
    }
}
