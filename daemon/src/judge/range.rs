//! The part of a job that a query is about, by epochs or by time.
//!
//! An unset bound includes everything; an empty range includes nothing.

use memctl_model::SiteTable;

/// Selects the boundaries that count in a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First and last epoch.
    pub epochs: Option<(u32, u32)>,
    /// First and last nanosecond.
    pub times_ns: Option<(u64, u64)>,
}

impl Range {
    pub(super) fn holds(&self, table: &SiteTable) -> bool {
        self.epochs.is_none_or(|(first, last)| (first..=last).contains(&table.epoch)) && self.holds_time(table.time_ns)
    }

    pub(super) fn holds_time(&self, time_ns: u64) -> bool {
        self.times_ns.is_none_or(|(first, last)| (first..=last).contains(&time_ns))
    }
}
