//! The part of a job that a query is about, by epochs or by time.
//!
//! An unset bound includes everything; an empty range includes nothing.

use memctl_model::{Boundary, SiteTable};

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

    /// Whether a table shows the levels with which the selected epochs begin. Growth within them is measured from there.
    pub(super) fn begins_after(&self, table: &SiteTable) -> bool {
        let is_before = |(first, _): (u32, u32)| table.epoch.checked_add(1) == Some(first);
        table.boundary == Boundary::EpochEnd && self.epochs.is_some_and(is_before) && self.holds_time(table.time_ns)
    }

    pub(super) fn holds_time(&self, time_ns: u64) -> bool {
        self.times_ns.is_none_or(|(first, last)| (first..=last).contains(&time_ns))
    }
}
