//! The verdict on a job: one value that describes the behaviour of its memory. All commands, pages, reports and alerts
//! share it.
//!
//! The growth is a measurement. Whether it will stop depends on its holder and may be unknown. The verdict is
//! computed from both. Guarantees: the first sentence is made in one place and states only what was measured.

use std::fmt;

use crate::bytes::HumanBytes;
use crate::stack::Frame;

/// The behaviour of a job's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerdictKind {
    /// A request failed.
    OutOfMemory,
    /// Retained memory has grown and continues to grow.
    Growing,
    /// Retained memory grows up to a known bound.
    Filling,
    /// There is too little data to decide whether memory grows.
    NotEnoughData,
    /// Memory accumulates within each epoch or request and is freed.
    Released,
    /// Retained memory grew and has stopped growing.
    LevelledOff,
    /// Retained memory was flat.
    Steady,
}

impl VerdictKind {
    /// Every kind, the gravest first. If a job has several devices, the gravest kind is the job's.
    pub const ALL: [Self; 7] = [
        Self::OutOfMemory,
        Self::Growing,
        Self::Filling,
        Self::NotEnoughData,
        Self::Released,
        Self::LevelledOff,
        Self::Steady,
    ];

    /// The name in JSON, in flags and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Growing => "growing",
            Self::Filling => "filling",
            Self::NotEnoughData => "not_enough_data",
            Self::Released => "released",
            Self::LevelledOff => "levelled_off",
            Self::Steady => "steady",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its place in [`Self::ALL`]: 0 is the gravest.
    #[must_use]
    pub fn order(self) -> usize {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(Self::ALL.len())
    }
}

/// Whether the reason for the growth is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its holder has no bound, or the pattern of its blocks has no other explanation: it is a leak.
    Known,
    /// Neither the holder nor the pattern decides: it is a leak unless its holder has a bound.
    Open,
}

impl Cause {
    /// The name in JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Open => "open",
        }
    }

    /// The cause with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Known, Self::Open].into_iter().find(|cause| cause.name() == name)
    }
}

/// The memory that a verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Live memory of the device's allocator, private pools included.
    Device,
    /// Device memory that the allocator does not hold.
    OutsideAllocator,
    /// Memory of the host: of the process, or of its workers.
    Host,
}

impl MemoryKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Device, Self::OutsideAllocator, Self::Host];

    /// The name in JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::OutsideAllocator => "outside_allocator",
            Self::Host => "host",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "live memory",
            Self::OutsideAllocator => "device memory outside the allocator",
            Self::Host => "host memory",
        })
    }
}

/// The verdict on a job; see the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The behaviour of the memory.
    pub kind: VerdictKind,
    /// For [`VerdictKind::Growing`].
    pub cause: Option<Cause>,
    /// The memory that it is about; absent if nothing was measured.
    pub memory: Option<MemoryKind>,
    /// Bytes by which it has grown, on the device with the most growth. For released memory: its peak.
    pub grown_bytes: Option<u64>,
    /// Seconds in which it grew.
    pub seconds: Option<f64>,
    /// The site of the allocations.
    pub site: Option<Frame>,
    /// Ranks concerned, ascending.
    pub ranks: Vec<u32>,
    /// Processes concerned, by their names within the job, sorted.
    pub processes: Vec<String>,
    /// For [`VerdictKind::Filling`]: bytes at which it will stop.
    pub bound_bytes: Option<u64>,
    /// For [`VerdictKind::Filling`]: whether the device has room for it; absent if the device's size is unknown.
    pub fits: Option<bool>,
    /// The memory's holder, in words: ``local `history` → list, 77 items``.
    pub holder: Option<String>,
    /// The lowest and the highest live memory at the last third of the boundaries, if it was not flat; for
    /// [`VerdictKind::Steady`] and [`VerdictKind::NotEnoughData`].
    pub swing_bytes: Option<(u64, u64)>,
    /// The first sentence of every page about the job.
    pub sentence: String,
}

impl Verdict {
    /// A verdict with only a kind and a sentence.
    #[must_use]
    pub fn new(kind: VerdictKind, sentence: impl Into<String>) -> Self {
        Self {
            kind,
            cause: None,
            memory: None,
            grown_bytes: None,
            seconds: None,
            site: None,
            ranks: Vec::new(),
            processes: Vec::new(),
            bound_bytes: None,
            fits: None,
            holder: None,
            swing_bytes: None,
            sentence: sentence.into(),
        }
    }

    /// Whether memory grows because of a leak.
    #[must_use]
    pub fn is_leak(&self) -> bool {
        self.kind == VerdictKind::Growing && self.cause == Some(Cause::Known)
    }
}

/// `682 MiB in 9 s`: bytes and duration.
#[must_use]
pub fn bytes_in_duration(bytes: u64, seconds: f64) -> String {
    format!("{} in {}", HumanBytes::of(bytes), duration(seconds))
}

/// Seconds in the largest unit with a value of at least two: `9 s`, `5 min`, `3 h`, `4 days`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert!(VerdictKind::ALL.into_iter().all(|kind| VerdictKind::of_name(kind.name()) == Some(kind)));
        assert!([Cause::Known, Cause::Open].into_iter().all(|cause| Cause::of_name(cause.name()) == Some(cause)));
        assert!(MemoryKind::ALL.into_iter().all(|kind| MemoryKind::of_name(kind.name()) == Some(kind)));
        assert_eq!(VerdictKind::of_name("healthy"), None);
        assert!(VerdictKind::OutOfMemory.order() < VerdictKind::Steady.order());
    }

    #[test]
    fn a_time_has_the_largest_unit_of_which_there_are_two() {
        assert_eq!(bytes_in_duration(682 << 20, 9.2), "682 MiB in 9 s");
        assert_eq!(
            [0.25, 119.0, 300.0, 7_300.0, 400_000.0].map(duration),
            ["250 ms", "119 s", "5 min", "2 h", "5 days"]
        );
    }
}
