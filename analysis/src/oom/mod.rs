//! Why a request failed: the arithmetic of one out-of-memory event, and its cause.
//!
//! The allocator empties its cache before it gives up. So two states count: the state at the request and the state
//! after the flush. The cause is the largest part of the memory that alone would have been enough for the request. If
//! no part is enough, the cause is the capacity.
//! Guarantees: every figure is a measurement or plain arithmetic on measurements; a figure that was not measured is
//! `None`. Neither a neighbour nor memory outside the allocator is named unless it was measured.

mod accumulation;
mod advice;
pub mod demand;
pub mod finding;
pub mod outcome;
mod places;
pub mod requests;

use memctl_model::allocator::segment_bytes;
use memctl_model::{AllocatorSettings, Moment, PoolId, Stack};

use crate::classes::Shares;
use crate::fragmentation::judge::Holder;
use crate::fragmentation::picture::Picture;
use crate::wording::bytes;

use demand::{Accumulation, Demand};
pub use finding::findings;
pub use outcome::Leaked;
use requests::Input;

/// Device memory that any process needs outside its allocator and that is not a fault: CUDA context, kernels,
/// communicators.
const CONTEXT_BYTES: u64 = 1 << 30;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OomCause {
    /// Live memory and the request together exceed the capacity.
    Capacity,
    /// The bytes were free in the cache, but in pieces.
    Fragmentation,
    /// Other processes hold the missing memory.
    Neighbour,
    /// This process holds the missing memory outside the allocator.
    OutsideAllocator,
    /// Leaked memory is the missing memory.
    Leak,
    /// Memory that accumulated in this phase or over the last steps is the missing memory.
    Accumulation,
}

impl OomCause {
    /// Every cause.
    pub const ALL: [Self; 6] =
        [Self::Capacity, Self::Fragmentation, Self::Neighbour, Self::OutsideAllocator, Self::Leak, Self::Accumulation];

    /// The name in evidence, JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Fragmentation => "fragmentation",
            Self::Neighbour => "neighbour",
            Self::OutsideAllocator => "outside_allocator",
            Self::Leak => "leak",
            Self::Accumulation => "accumulation",
        }
    }

    /// The cause with this name; `None` if a newer memctl wrote it.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// Whether live memory grew until the device was full. An allocator setting then only delays the failure.
    #[must_use]
    pub const fn is_growth(self) -> bool {
        matches!(self, Self::Leak | Self::Accumulation)
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
    /// Growth of the live bytes since then.
    #[must_use]
    pub fn growth_bytes(&self) -> Option<u64> {
        self.before_bytes.map(|before| self.bytes.saturating_sub(before))
    }
}

/// The state of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The rank.
    pub rank: u32,
    /// Its process's name within the job.
    pub process: String,
    /// Its reserved bytes at its last boundary before the failure.
    pub reserved_bytes: u64,
    /// The most that it had allocated until then.
    pub peak_allocated_bytes: u64,
    /// Free bytes of its device; `None` if not measured.
    pub device_free_bytes: Option<u64>,
}

/// The steps that ended before a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Allocated bytes at the end of the last of them.
    pub kept_bytes: u64,
    /// Highest allocated bytes until then.
    pub peak_bytes: u64,
}

/// The known facts about one failed request.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// The time in ns since the Unix epoch.
    pub time_ns: u64,
    /// Epoch under way.
    pub epoch: Option<u32>,
    /// Step under way.
    pub step: Option<u64>,
    /// Bytes of the request after rounding.
    pub rounded_bytes: u64,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolId,
    /// The requesting stack.
    pub stack: Stack,
    /// Free bytes of the device after the flush, as the driver reported them.
    pub device_free_bytes: u64,
    /// The steps before it; `None` if too few of them are stored.
    pub earlier: Option<Earlier>,
    /// How the same line's requests in the steps before explain this one; `None` if they do not.
    pub input: Option<Input>,
    /// What the live blocks show in comparison with the earlier steps.
    pub demand: Demand,
    /// The state at the request.
    pub at_request: Picture,
    /// Reserved bytes after the flush.
    pub reserved_after_bytes: u64,
    /// The most that was ever reserved until then. A limit is at least this, unless it was lowered later.
    pub reserved_peak_bytes: u64,
    /// The device's size.
    pub device_total_bytes: Option<u64>,
    /// The limit that the program set on its own allocator.
    pub own_limit_bytes: Option<u64>,
    /// Other processes' memory on the device, from the last measurement before the failure.
    pub others_bytes: Option<u64>,
    /// Live memory by class.
    pub classes: Shares,
    /// Sites with live memory, most bytes first.
    pub sites: Vec<SiteUse>,
    /// The blocks that strand memory, most stranded bytes first.
    pub stranding_blocks: Vec<Holder>,
    /// The other ranks.
    pub peers: Vec<Peer>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Whether the process caught the failure: it ended without an error, or a whole step or epoch followed.
    pub went_on: bool,
    /// The failed requests of this device so far, this one included.
    pub failures: u64,
    /// The first of them; `None` if its events are no longer stored.
    pub first_failure: Option<Moment>,
}

/// The explanation of one failed request.
#[derive(Clone, Debug)]
pub struct Report {
    /// The known facts.
    pub facts: Facts,
    /// The cause.
    pub cause: OomCause,
    /// Free bytes in the cache at the request.
    pub free_bytes: u64,
    /// The largest free block that could have served it.
    pub largest_usable_bytes: u64,
    /// Bytes released to the driver in the last attempt.
    pub flushed_bytes: u64,
    /// Free bytes in the cache after the flush; they are beside live blocks.
    pub stranded_bytes: u64,
    /// Bytes that a new segment for the request would have needed.
    pub segment_bytes: u64,
    /// Stranded bytes in holes behind the only block of a segment that was reserved for this block. No large request
    /// fits into them.
    pub rounded_away_bytes: u64,
    /// Free bytes of the device. If a limit was in force: the least room that was left below it, because the process
    /// had already reserved that much more.
    pub room_bytes: u64,
    /// Bytes that were missing even if all free memory were one piece; 0 if none were missing.
    pub missing_bytes: u64,
    /// The leak that caused this failure.
    pub leaked: Option<Leaked>,
    /// A limit below the device's size that was in force: its lowest possible value, and the value that it is below.
    /// `None` if the device itself was full.
    pub limit_bytes: Option<(u64, u64)>,
    /// Bytes of this process outside the allocator, including its context; `None` if the device's size or its other
    /// users are not known.
    pub outside_bytes: Option<u64>,
    /// Whether expandable segments would have served the request with whole pages from the holes.
    pub expandable_would_serve: bool,
}

impl Report {
    /// Bytes that must become free so that a new segment for the request fits. The request is then served even if all
    /// holes are too small.
    fn needed_bytes(&self) -> u64 {
        self.segment_bytes.saturating_sub(self.room_bytes).max(self.missing_bytes)
    }

    /// The process's own limit in words: `131 MiB`, or `at least 130 MiB and less than 132 MiB`. `None` if the device's
    /// free memory decided.
    fn limit(&self) -> Option<String> {
        let (least, below) = self.limit_bytes?;
        Some(match self.facts.own_limit_bytes == Some(least) {
            true => bytes(least),
            false => format!("at least {} and less than {}", bytes(least), bytes(below)),
        })
    }

    /// The memory that accumulated, if it is the cause or was leaked.
    fn accumulated(&self) -> Option<&Accumulation> {
        self.facts.demand.accumulated.as_ref().filter(|_| self.cause.is_growth())
    }
}

/// Explains one failed request.
#[must_use]
pub fn explain(mut facts: Facts) -> Report {
    // The line requested as much before, so the size of its input explains nothing.
    facts.input = facts.input.filter(|input| !(matches!(input, Input::Largest { .. }) && facts.demand.asked_before));
    let asked = facts.rounded_bytes;
    let segment_bytes = segment_bytes(asked, facts.settings.large_segment_size);
    let reserved_after = facts.reserved_after_bytes;
    let flushed_bytes = facts.at_request.reserved_bytes.saturating_sub(reserved_after);
    let in_segments = facts.at_request.active_bytes.saturating_sub(facts.at_request.loose_bytes);
    let stranded_bytes = reserved_after.saturating_sub(in_segments);
    // The device had room for the segment, and yet the request failed: a limit applies to this process.
    let limited = facts.device_free_bytes >= segment_bytes;
    let known = facts
        .own_limit_bytes
        .filter(|&own| own >= reserved_after && own < reserved_after.saturating_add(segment_bytes));
    let limit_bytes = limited.then(|| {
        if let Some(own) = known {
            return (own, own.saturating_add(1));
        }
        let most = reserved_after.saturating_add(segment_bytes);
        (facts.reserved_peak_bytes.max(reserved_after).min(most), most)
    });
    // The room below a limit is known only as an interval, so its lower bound is used.
    let room = match limit_bytes {
        // A peak above the interval was reached before the limit was lowered.
        Some((least, most)) if facts.reserved_peak_bytes < most => least.saturating_sub(reserved_after),
        Some(_) => 0,
        None => facts.device_free_bytes,
    };
    let within_reach = stranded_bytes.saturating_add(room);
    let outside_bytes = match (facts.device_total_bytes, facts.others_bytes) {
        (Some(total), Some(others)) => {
            Some(total.saturating_sub(facts.device_free_bytes).saturating_sub(reserved_after).saturating_sub(others))
        }
        _ => None,
    };
    let rounded_away_bytes = facts.at_request.rounded_away_bytes.min(stranded_bytes);
    let alone = |bytes: u64| bytes > 0 && room.saturating_add(bytes) >= segment_bytes;
    let others = if limited { 0 } else { facts.others_bytes.unwrap_or(0) };
    let outside = if limited { 0 } else { outside_bytes.unwrap_or(0).saturating_sub(CONTEXT_BYTES) };
    // Accumulated memory that exceeds the stranded memory would have used it up even without fragmentation.
    let accumulated = facts.demand.accumulated.as_ref().map_or(0, |accumulated| accumulated.beyond_bytes);
    let cause = [
        (OomCause::Fragmentation, stranded_bytes - rounded_away_bytes),
        (OomCause::Accumulation, accumulated),
        (OomCause::Neighbour, others),
        (OomCause::OutsideAllocator, outside),
    ]
    .into_iter()
    .filter(|&(_, bytes)| alone(bytes))
    .max_by_key(|&(cause, bytes)| (bytes, std::cmp::Reverse(cause)))
    .map_or(OomCause::Capacity, |(cause, _)| cause);
    let pages = facts.at_request.stranded_page_bytes.saturating_add(room);
    Report {
        cause,
        free_bytes: facts.at_request.free_bytes,
        largest_usable_bytes: facts.at_request.largest_for(asked, facts.stream, facts.pool),
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
