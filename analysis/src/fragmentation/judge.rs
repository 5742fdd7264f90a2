//! Judges a rank's picture and its steps: how much memory is wasted, why, and whether a request would fail.
//!
//! The kinds of waste, and the reasons for their limits:
//! - **A hole matters only from the size of a request on.** The job could not have used wasted bytes that are fewer
//!   than the largest request of the last steps, or than a tenth of the reserved memory.
//! - **Varying sizes**: reserved memory minus the highest step's height is waste if at least a quarter of the
//!   requested bytes comes from sites whose sizes go up *and down*. Sizes that only grow leave each outgrown size
//!   behind once, and the allocator releases it before a request fails. Sizes that return build up the same cache
//!   again after every flush.
//! - **Long-lived blocks**: free bytes beside blocks that were born before the step under way. One partly used segment
//!   per free list is how the allocator works and does not count.
//! - **Streams**: free bytes of other streams while the stream of the largest request has no room for it.
//! - **Rounding**: live bytes minus requested bytes.
//! - **Outgrown**: if none of these causes applies, reserved memory of at least three times the highest allocated
//!   bytes.
//!
//! The need of a job is the most that it ever had allocated, not only the most in the replayed stretch. Reserved
//! memory that exceeds this need by less than a tenth is not waste, regardless of the layout.
//!
//! Severity: info if everything would fit. Warning if a request as large as the largest of the last steps would find
//! neither a free block nor room on the device at the fullest moment. Critical if a request failed although the cache
//! held enough bytes for it. If the device's room is not known, no request is said to fail.

use memctl_model::allocator::segment_bytes;
use memctl_model::{AllocatorSettings, Severity, Stack, StackId};

use super::picture::{Picture, Pin};
use crate::steady::{Request, Steady};

/// Variety is the cause only if at least this share of the requested bytes varies.
const VARYING_SHARE_MIN: f64 = 0.25;
/// Reserved memory is outgrown if it is at least this multiple of the highest allocated bytes and exceeds them by at
/// least this many bytes.
const OUTGROWN: (f64, u64) = (3.0, 2 << 30);
/// Maximum number of holders in a report.
const PINS_SHOWN: usize = 10;

/// Why memory is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FragmentationCause {
    /// Request sizes go up and down from step to step.
    VaryingSizes,
    /// Long-lived blocks are among freed ones.
    LongLivedBlocks,
    /// Free memory belongs to other streams.
    Streams,
    /// Blocks are larger than the requests.
    Rounding,
    /// The cache holds far more than was ever in use at one time.
    Outgrown,
}

impl FragmentationCause {
    /// Every cause.
    pub const ALL: [Self; 5] =
        [Self::VaryingSizes, Self::LongLivedBlocks, Self::Streams, Self::Rounding, Self::Outgrown];

    /// The name in evidence, JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VaryingSizes => "varying_sizes",
            Self::LongLivedBlocks => "long_lived_blocks",
            Self::Streams => "streams",
            Self::Rounding => "rounding",
            Self::Outgrown => "outgrown",
        }
    }
}

/// The known facts about a rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// The picture at the rank's fullest moment, or at the moment of a failure.
    pub picture: &'a Picture,
    /// Step under way at that moment.
    pub step: Option<u64>,
    /// Epoch under way at that moment.
    pub epoch: Option<u32>,
    /// The steps of the stretch.
    pub steady: &'a Steady,
    /// The most ever allocated since the job began; `None` if unknown.
    pub peak_bytes: Option<u64>,
    /// The allocator's settings.
    pub settings: &'a AllocatorSettings,
    /// Bytes that the allocator could still get from the driver, or up to its limit, at that moment.
    pub room_bytes: Option<u64>,
    /// The request that failed at that moment although the cache held the bytes for it.
    pub failed: Option<Request>,
}

/// Blocks that keep free memory from being used, with the stack that allocated them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The blocks.
    pub pin: Pin,
    /// The stack that allocated them.
    pub stack: Stack,
}

/// A site whose request sizes vary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varying {
    /// The requesting stack.
    pub stack: Stack,
    /// Smallest request above 1 MiB.
    pub smallest_bytes: u64,
    /// Largest request.
    pub largest_bytes: u64,
    /// Number of steps examined.
    pub steps: u64,
}

/// How one device of a rank is fragmented.
#[derive(Clone, Debug, PartialEq)]
pub struct RankFragmentation {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// Epoch of the picture's moment.
    pub epoch: Option<u32>,
    /// Step of the picture's moment.
    pub step: Option<u64>,
    /// The picture.
    pub picture: Picture,
    /// Allocated bytes at the height of a typical step; `None` without steps.
    pub typical_bytes: Option<u64>,
    /// Number of steps examined.
    pub steps: u64,
    /// Allocated bytes at the height of the highest step.
    pub highest_bytes: u64,
    /// Reserved bytes at the end beyond that height: memory that no step needed.
    pub unused_bytes: Option<u64>,
    /// Share of the requested bytes from sites whose sizes go up and down.
    pub varying_share: Option<f64>,
    /// The varying site that requests most.
    pub varying: Option<Varying>,
    /// The largest request of the last steps, or the one that failed.
    pub largest_request: Option<Request>,
    /// The largest free block that could serve it.
    pub largest_usable_bytes: u64,
    /// Bytes that the allocator could still get from the driver.
    pub room_bytes: Option<u64>,
    /// Whether such a request would be served at that moment; `None` if the room is unknown and no free block is large
    /// enough.
    pub would_fit: Option<bool>,
    /// Why memory is idle, and how many bytes are.
    pub cause: Option<(FragmentationCause, u64)>,
    /// The severity; `None` if there is nothing to report.
    pub severity: Option<Severity>,
    /// The blocks that strand memory, most stranded bytes first.
    pub holders: Vec<Holder>,
    /// Whether expandable segments are on.
    pub expandable: bool,
}

/// Judges one device; `resolve` returns the frames of a stack.
#[must_use]
pub fn judge(facts: &Facts<'_>, resolve: &dyn Fn(StackId) -> Stack) -> RankFragmentation {
    let Facts { rank, device, picture, step, epoch, steady, peak_bytes, settings, room_bytes, failed } = *facts;
    let typical_bytes = steady.typical_height_bytes();
    let reserved = steady.reserved.map_or(picture.reserved_bytes, |(_, now)| now.max(picture.reserved_bytes));
    // The level may have been higher outside the replayed stretch.
    let highest_bytes = steady.highest().bytes.max(picture.allocated_bytes).max(peak_bytes.unwrap_or(0));
    let unused = reserved.saturating_sub(highest_bytes);
    let unused_bytes = typical_bytes.map(|_| unused);
    let largest_request = failed.or_else(|| steady.largest_recent());
    let largest_usable_bytes = largest_request.map_or(picture.largest_free_bytes, |request| {
        picture.largest_for(request.rounded_bytes, request.stream, request.pool)
    });
    let would_fit = largest_request.and_then(|request| fits(request, largest_usable_bytes, facts));
    let matters = largest_request.map_or(0, |request| request.rounded_bytes).max(reserved / 10).max(1);
    let causes = [
        // This is the memory that the steps of the stretch did not need. The code below limits it to the bytes that are
        // idle at the job's own peak.
        (
            FragmentationCause::VaryingSizes,
            varying_bytes(steady, typical_bytes.map(|_| reserved.saturating_sub(steady.highest().bytes))),
        ),
        (FragmentationCause::LongLivedBlocks, long_lived_bytes(facts)),
        (FragmentationCause::Streams, other_streams_bytes(picture, largest_request, largest_usable_bytes)),
        (FragmentationCause::Rounding, picture.unsplit_bytes()),
    ];
    let worst = causes.into_iter().max_by_key(|&(cause, bytes)| (bytes, std::cmp::Reverse(cause)));
    let is_outgrown = unused >= OUTGROWN.1 && reserved as f64 >= highest_bytes as f64 * OUTGROWN.0;
    let cause =
        worst.filter(|&(_, bytes)| bytes >= matters).or(is_outgrown.then_some((FragmentationCause::Outgrown, unused)));
    // Memory lost to rounding is part of the allocated memory. All other waste is reserved and not allocated.
    let wastes = failed.is_some() || would_fit == Some(false) || unused >= reserved / 10;
    let cause =
        cause.filter(|&(cause, _)| wastes || cause == FragmentationCause::Rounding).map(|(cause, bytes)| match cause {
            FragmentationCause::VaryingSizes => (cause, bytes.min(unused)),
            _ => (cause, bytes),
        });
    let severity = match (failed, cause, would_fit) {
        (Some(_), ..) => Some(Severity::Critical),
        (None, Some(_), Some(false)) => Some(Severity::Warning),
        (None, Some(_), _) => Some(Severity::Info),
        (None, None, _) => None,
    };
    let sites = steady.varying_sites();
    // A site with a stack is more helpful than a larger one without.
    let named = sites.iter().find(|(stack, _)| stack.is_some()).or(sites.first());
    let varying = named.map(|&(stack, site)| Varying {
        stack: resolve(stack),
        smallest_bytes: site.smallest_bytes,
        largest_bytes: site.largest_bytes,
        steps: site.steps,
    });
    RankFragmentation {
        rank,
        device,
        epoch,
        step,
        picture: picture.clone(),
        typical_bytes,
        steps: steady.steps,
        highest_bytes,
        unused_bytes,
        varying_share: steady.varying_share(),
        varying,
        largest_request,
        largest_usable_bytes,
        room_bytes,
        would_fit,
        cause,
        severity,
        holders: holders(picture, PINS_SHOWN, resolve),
        expandable: settings.expandable_segments,
    }
}

/// The blocks that strand most memory, by place. Blocks that several stacks allocated at one place are one holder.
#[must_use]
pub fn holders(picture: &Picture, most: usize, resolve: &dyn Fn(StackId) -> Stack) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for &pin in &picture.pins {
        let stack = resolve(pin.stack);
        let known = stack.site().and_then(|site| holders.iter_mut().find(|holder| holder.stack.site() == Some(site)));
        let Some(Holder { pin: known, .. }) = known else {
            holders.push(Holder { pin, stack });
            continue;
        };
        known.blocks += pin.blocks;
        known.live_bytes = known.live_bytes.saturating_add(pin.live_bytes);
        // A segment with blocks of both stacks is counted twice.
        known.segments += pin.segments;
        known.stranded_bytes = known.stranded_bytes.saturating_add(pin.stranded_bytes);
        if (pin.birth_epoch, pin.birth_step) < (known.birth_epoch, known.birth_step) {
            (known.birth_epoch, known.birth_step, known.birth_phase) =
                (pin.birth_epoch, pin.birth_step, pin.birth_phase);
        }
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.pin.stranded_bytes));
    holders.truncate(most);
    holders
}

fn fits(request: Request, largest_usable_bytes: u64, facts: &Facts<'_>) -> Option<bool> {
    if facts.failed.is_some() {
        return Some(false);
    }
    if largest_usable_bytes >= request.rounded_bytes {
        return Some(true);
    }
    // Before a request fails, the allocator releases every segment without a live block.
    let room = facts.room_bytes?.saturating_add(facts.picture.empty_bytes);
    Some(room >= segment_bytes(request.rounded_bytes, facts.settings.large_segment_size))
}

fn varying_bytes(steady: &Steady, unused_bytes: Option<u64>) -> u64 {
    let varies = steady.varying_share().is_some_and(|share| share >= VARYING_SHARE_MIN);
    if varies { unused_bytes.unwrap_or(0) } else { 0 }
}

/// Free bytes beside blocks that existed before the step under way. For a failure outside every step, all blocks
/// existed before.
fn long_lived_bytes(facts: &Facts<'_>) -> u64 {
    let Facts { picture, step, settings, .. } = *facts;
    let old = |pin: &&Pin| step.is_none_or(|step| pin.birth_step < step);
    let stranded = picture.pins.iter().filter(old).fold(0_u64, |sum, pin| sum.saturating_add(pin.stranded_bytes));
    let usual = (picture.lists.len() as u64).saturating_mul(settings.large_segment_size);
    stranded.saturating_sub(usual)
}

fn other_streams_bytes(picture: &Picture, request: Option<Request>, usable: u64) -> u64 {
    let Some(request) = request.filter(|request| usable < request.rounded_bytes) else { return 0 };
    let others = picture.lists.iter().filter(|list| list.stream != request.stream && list.pool == request.pool);
    // Blocks that would have served the request if they belonged to its stream.
    others.fold(0, |sum: u64, list| sum.saturating_add(list.space.serving(request.rounded_bytes).1))
}
