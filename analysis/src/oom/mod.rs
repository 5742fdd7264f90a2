//! Why a request failed: the arithmetic of one out-of-memory event, and what it was.
//!
//! The allocator empties its cache before it gives up, so two states count: the one at the request, and the one after
//! the flush. A failure has one cause: the largest of those that alone would have made the difference. Guarantees:
//! every figure is a measurement or plain arithmetic on measurements; what was not measured is `None`.
//! Refuses to name a neighbour, or memory outside the allocator, that was not measured.

pub mod finding;
pub mod outcome;

use memctl_model::allocator::segment_bytes;
use memctl_model::{AllocatorSettings, PoolId, Stack};

use crate::classes::Shares;
use crate::fragmentation::judge::Holder;
use crate::fragmentation::picture::Picture;

pub use finding::findings;
pub use outcome::Leaked;

/// Device memory that any process needs outside its allocator and that is no fault: CUDA context, kernels,
/// communicators.
const CONTEXT_BYTES: u64 = 1 << 30;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OomCause {
    /// What is live and what was asked for is more than there is.
    Capacity,
    /// The bytes were free in the cache, in pieces.
    Fragmentation,
    /// Other processes hold what was missing.
    Neighbour,
    /// This process holds what was missing outside the allocator.
    OutsideAllocator,
    /// What had leaked is what was missing.
    Leak,
}

impl OomCause {
    /// Every cause.
    pub const ALL: [Self; 5] =
        [Self::Capacity, Self::Fragmentation, Self::Neighbour, Self::OutsideAllocator, Self::Leak];

    /// The name in evidence, JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Fragmentation => "fragmentation",
            Self::Neighbour => "neighbour",
            Self::OutsideAllocator => "outside_allocator",
            Self::Leak => "leak",
        }
    }
}

/// Live memory of one site when the request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteUse {
    /// The stack that allocated it.
    pub stack: Stack,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Live bytes at the end of the last step that ended well; `None` without one.
    pub before_bytes: Option<u64>,
}

impl SiteUse {
    /// What it grew by since then.
    #[must_use]
    pub fn growth_bytes(&self) -> Option<u64> {
        self.before_bytes.map(|before| self.bytes.saturating_sub(before))
    }
}

/// How another rank stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The rank.
    pub rank: u32,
    /// Its process's name within the job.
    pub process: String,
    /// Its reserved bytes, at its last boundary before the failure.
    pub reserved_bytes: u64,
    /// The most it had allocated until then.
    pub peak_allocated_bytes: u64,
    /// What was free on its device; `None` where it was not measured.
    pub device_free_bytes: Option<u64>,
}

/// What is known of one failed request.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// When, ns since the Unix epoch.
    pub time_ns: u64,
    /// Epoch under way.
    pub epoch: Option<u32>,
    /// Step under way.
    pub step: Option<u64>,
    /// The request, rounded.
    pub asked_bytes: u64,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolId,
    /// The stack that asked.
    pub stack: Stack,
    /// What the driver said was free on the device, behind the flush.
    pub device_free_bytes: u64,
    /// What the request found.
    pub found: Picture,
    /// Reserved bytes behind the flush.
    pub reserved_after_bytes: u64,
    /// The most that was ever reserved until then: a limit cannot be lower.
    pub reserved_peak_bytes: u64,
    /// The device's size.
    pub device_total_bytes: Option<u64>,
    /// Other processes' memory on the device, measured last before.
    pub others_bytes: Option<u64>,
    /// What was live, by class.
    pub classes: Shares,
    /// Live sites, most bytes first.
    pub sites: Vec<SiteUse>,
    /// Blocks that strand most, first.
    pub holders: Vec<Holder>,
    /// The other ranks.
    pub peers: Vec<Peer>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Whether the process caught the failure: it ended without one, or began and ended a step or an epoch afterwards.
    pub went_on: bool,
}

/// One failed request, explained.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is known.
    pub facts: Facts,
    /// Why.
    pub cause: OomCause,
    /// Free in the cache when the request came.
    pub free_bytes: u64,
    /// The largest free block that could have served it.
    pub largest_usable_bytes: u64,
    /// Given back to the driver in the last attempt.
    pub flushed_bytes: u64,
    /// Free in the cache behind the flush: beside live blocks.
    pub stranded_bytes: u64,
    /// What the driver would have been asked for.
    pub segment_bytes: u64,
    /// Of these: rests of segments behind the one block for which they were taken, too small for anything else.
    pub rounded_away_bytes: u64,
    /// What the driver had beside; 0 where a limit was in force, which leaves nothing that is known.
    pub room_bytes: u64,
    /// Bytes that were missing, were all free memory one piece; 0 when they were there.
    pub missing_bytes: u64,
    /// The leak that this is the outcome of.
    pub leaked: Option<Leaked>,
    /// A limit below the device's size was in force: at least, and less than. `None` when the device itself was full.
    pub limit_bytes: Option<(u64, u64)>,
    /// Of this process outside the allocator, context included; `None` where the device's size or its other users are not known.
    pub outside_bytes: Option<u64>,
    /// Whether expandable segments would have served it: whole pages could have been taken from the holes.
    pub expandable_would_serve: bool,
}

/// Explains one failed request.
#[must_use]
pub fn explain(facts: Facts) -> Report {
    let asked = facts.asked_bytes;
    let segment_bytes = segment_bytes(asked, facts.settings.large_segment_size);
    let reserved_after = facts.reserved_after_bytes;
    let flushed_bytes = facts.found.reserved_bytes.saturating_sub(reserved_after);
    let in_segments = facts.found.active_bytes.saturating_sub(facts.found.loose_bytes);
    let stranded_bytes = reserved_after.saturating_sub(in_segments);
    // The driver had room and was not asked: something allows this process less.
    let limited = facts.device_free_bytes >= segment_bytes;
    let limit_bytes = limited.then(|| {
        let most = reserved_after.saturating_add(segment_bytes);
        (facts.reserved_peak_bytes.max(reserved_after).min(most), most)
    });
    // How far below a limit the process stood is known only as an interval; the room it left is at least nothing.
    let room = if limited { 0 } else { facts.device_free_bytes };
    let within_reach = stranded_bytes.saturating_add(room);
    let outside_bytes = match (facts.device_total_bytes, facts.others_bytes) {
        (Some(total), Some(others)) => {
            Some(total.saturating_sub(facts.device_free_bytes).saturating_sub(reserved_after).saturating_sub(others))
        }
        _ => None,
    };
    let rounded_away_bytes = facts.found.rounded_away_bytes.min(stranded_bytes);
    let alone = |bytes: u64| bytes > 0 && room.saturating_add(bytes) >= segment_bytes;
    let others = if limited { 0 } else { facts.others_bytes.unwrap_or(0) };
    let outside = if limited { 0 } else { outside_bytes.unwrap_or(0).saturating_sub(CONTEXT_BYTES) };
    let cause = [
        (OomCause::Fragmentation, stranded_bytes - rounded_away_bytes),
        (OomCause::Neighbour, others),
        (OomCause::OutsideAllocator, outside),
    ]
    .into_iter()
    .filter(|&(_, bytes)| alone(bytes))
    .max_by_key(|&(cause, bytes)| (bytes, std::cmp::Reverse(cause)))
    .map_or(OomCause::Capacity, |(cause, _)| cause);
    let pages = facts.found.stranded_page_bytes.saturating_add(room);
    Report {
        cause,
        free_bytes: facts.found.free_bytes,
        largest_usable_bytes: facts.found.largest_for(asked, facts.stream, facts.pool),
        flushed_bytes,
        stranded_bytes,
        rounded_away_bytes,
        segment_bytes,
        room_bytes: room,
        leaked: None,
        missing_bytes: asked.saturating_sub(within_reach),
        limit_bytes,
        outside_bytes,
        expandable_would_serve: !facts.settings.expandable_segments && pages >= asked,
        facts,
    }
}

#[cfg(test)]
mod tests;
