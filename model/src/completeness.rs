//! How complete the data behind an answer is.

/// Events that did not arrive, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dropped {
    /// The ring was full: the batcher could not keep up.
    pub ring_full: u64,
    /// The daemon was away for longer than the spool could hold.
    pub spool_full: u64,
    /// Time ran out at the end.
    pub shutdown: u64,
}

impl Dropped {
    /// Number of all dropped events.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.ring_full + self.spool_full + self.shutdown
    }
}

/// The completeness of the data behind an answer. Invariant: `produced = stored + dropped + in flight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Completeness {
    /// Nothing was dropped, nothing is missing, and every ended session has everything that it produced.
    pub exact: bool,
    /// Events in the store.
    pub events_stored: u64,
    /// Events that agents dropped and counted.
    pub events_dropped: u64,
    /// Events removed by retention.
    pub events_expired: u64,
    /// Items that never arrived (holes in a session's sequence).
    pub gaps: u64,
    /// Stored items that were found damaged when they were read, and are left out.
    pub items_damaged: u64,
}
