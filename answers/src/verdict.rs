//! The verdict on a job's memory, as in every answer about a job.
//!
//! Guarantees: the same value in every command, the page and the report. An older daemon sends no verdict.

use memctl_model::{self as model, Cause, MemoryKind, VerdictKind};
use serde::{Deserialize, Serialize};

use super::Frame;

/// What a job's memory did: see `memctl_model::verdict`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Verdict {
    /// Its kind's name.
    pub kind: String,
    /// `known` or `open`; null where the kind has none.
    pub cause: Option<String>,
    /// `device`, `outside_allocator` or `host`; null where nothing was measured.
    pub memory: Option<String>,
    /// The first sentence of every page.
    pub sentence: String,
    /// Bytes by which memory has grown.
    pub grown_bytes: Option<u64>,
    /// Seconds in which it grew.
    pub seconds: Option<f64>,
    /// Where it was allocated.
    pub site: Option<Frame>,
    /// Ranks concerned, ascending.
    pub ranks: Vec<u32>,
    /// Processes concerned.
    pub processes: Vec<String>,
    /// Bytes at which it will stop.
    pub bound_bytes: Option<u64>,
    /// Whether the device has room for that.
    pub fits: Option<bool>,
    /// What holds it.
    pub holder: Option<String>,
    /// The least live memory at the boundaries of the last third, where it was not flat.
    pub lowest_bytes: Option<u64>,
    /// The most.
    pub highest_bytes: Option<u64>,
}

impl From<&model::Verdict> for Verdict {
    fn from(verdict: &model::Verdict) -> Self {
        let model::Verdict {
            kind,
            cause,
            memory,
            grown_bytes,
            seconds,
            site,
            ranks,
            processes,
            bound_bytes,
            fits,
            holder,
            swing_bytes,
            sentence,
        } = verdict;
        Self {
            kind: kind.name().to_owned(),
            cause: cause.map(|cause: Cause| cause.name().to_owned()),
            memory: memory.map(|memory: MemoryKind| memory.name().to_owned()),
            sentence: sentence.clone(),
            grown_bytes: *grown_bytes,
            seconds: seconds.and_then(super::finite),
            site: site.as_ref().map(Frame::from),
            ranks: ranks.clone(),
            processes: processes.clone(),
            bound_bytes: *bound_bytes,
            fits: *fits,
            holder: holder.clone(),
            lowest_bytes: swing_bytes.map(|(lowest, _)| lowest),
            highest_bytes: swing_bytes.map(|(_, highest)| highest),
        }
    }
}

impl Verdict {
    /// The kind, when this memctl knows it.
    #[must_use]
    pub fn known_kind(&self) -> Option<VerdictKind> {
        VerdictKind::of_name(&self.kind)
    }

    /// The verdict in two or three words.
    #[must_use]
    pub fn words(&self) -> &str {
        match self.known_kind() {
            Some(VerdictKind::OutOfMemory) => "out of memory",
            Some(VerdictKind::Growing) if self.is_known() => "leak",
            Some(VerdictKind::Growing) => "growing",
            Some(VerdictKind::Filling) if self.overflows() => "fills, no room",
            Some(VerdictKind::Filling) => "filling",
            Some(VerdictKind::NotEnoughData) => "inconclusive",
            Some(VerdictKind::Released) => "released",
            Some(VerdictKind::LevelledOff) => "levelled off",
            Some(VerdictKind::Steady) => "steady",
            None => &self.kind,
        }
    }

    /// Whether something is wrong, or too little is known to exclude it.
    #[must_use]
    pub fn is_grave(&self) -> bool {
        match self.known_kind() {
            Some(VerdictKind::OutOfMemory | VerdictKind::Growing | VerdictKind::NotEnoughData) | None => true,
            Some(VerdictKind::Filling) => self.overflows(),
            Some(VerdictKind::Released | VerdictKind::LevelledOff | VerdictKind::Steady) => false,
        }
    }

    /// Whether memory grows for a reason that is a leak.
    #[must_use]
    pub fn is_leak(&self) -> bool {
        self.known_kind() == Some(VerdictKind::Growing) && self.is_known()
    }

    /// Whether memory grows, and it is open whether it will stop.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.known_kind() == Some(VerdictKind::Growing) && !self.is_known()
    }

    /// Whether memory fills a container that does not fit into the device.
    #[must_use]
    pub fn overflows(&self) -> bool {
        self.known_kind() == Some(VerdictKind::Filling) && self.fits == Some(false)
    }

    /// Whether memory fills a container that fits into the device.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.known_kind() == Some(VerdictKind::Filling) && self.fits == Some(true)
    }

    fn is_known(&self) -> bool {
        self.cause.as_deref().and_then(Cause::of_name) == Some(Cause::Known)
    }
}
