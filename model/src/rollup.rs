//! The summary of a chunk, which answers queries without decoding the chunk.

use crate::event::Action;

/// The three levels that a timeline shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Levels {
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Active bytes.
    pub active_bytes: u64,
    /// Reserved bytes.
    pub reserved_bytes: u64,
}

/// Summary of consecutive events of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rollup {
    /// Events by action, indexed by its number.
    pub counts: [u64; Action::ALL.len()],
    /// Time of the first event, ns since the Unix epoch.
    pub first_ns: u64,
    /// Time of the last event.
    pub last_ns: u64,
    /// Epoch at the first event.
    pub first_epoch: u32,
    /// Epoch at the last event.
    pub last_epoch: u32,
    /// Step at the first event.
    pub first_step: u64,
    /// Step at the last event.
    pub last_step: u64,
    /// Levels before the first event.
    pub start: Levels,
    /// Levels after the last event.
    pub end: Levels,
    /// Lowest levels in between, each by itself.
    pub min: Levels,
    /// Highest levels in between, each by itself.
    pub max: Levels,
    /// Events of this device that were dropped between the last chunk and the first of these.
    pub dropped_before: u64,
    /// Whether the levels are exact: no drop since the last keyframe.
    pub exact: bool,
}

impl Rollup {
    /// Number of all events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Number of events with one action.
    #[must_use]
    pub fn count(&self, action: Action) -> u64 {
        self.counts[action as usize]
    }
}
