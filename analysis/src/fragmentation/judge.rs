//! A rank's picture and its steps become a report: how much is wasted, why, and whether a request would fail.
//!
//! What counts as waste, and why these lines:
//! - **A hole matters from the size of a request on.** Wasted bytes that are fewer than the largest request of the last
//!   steps (or than a tenth of what is reserved) would have served nothing that this job asks for.
//! - **Varying sizes**: reserved minus the height of the highest step is waste when a quarter or more of the bytes asked for
//!   comes from sites whose sizes go up *and down*. Sizes that only grow leave what they outgrew behind once, and the
//!   allocator gives it back before a request fails; sizes that return build the same cache up again after every flush.
//! - **Long-lived blocks**: free bytes beside blocks that were born before the step under way. One partly used segment a
//!   free list is how the allocator works and is not counted.
//! - **Streams**: free bytes that another stream holds while the stream of the largest request has no room for it.
//! - **Rounding**: live bytes beyond what was asked for.
//! - **Outgrown**: where none of these explains it, three times as much reserved as was ever allocated at a time.
//!
//! What a job needs is the most it ever had allocated, and not the most of the stretch that was replayed. Reserved memory
//! that exceeds that by less than a tenth is no waste, wherever it lies.
//!
//! Severity: info while everything would fit, warning when a request as large as the largest of the last steps would find
//! neither a free block nor room on the device at the fullest moment, critical when one failed with the bytes it needed in
//! the cache. Where the device's room is not known, nothing is said to fail.

use memctl_model::allocator::segment_bytes;
use memctl_model::{AllocatorSettings, Severity, Stack, StackId};

use super::picture::{Picture, Pin};
use crate::steady::{Request, Steady};

/// The share of the requested bytes that must vary before variety is the cause.
const VARYING_SHARE_MIN: f64 = 0.25;
/// Reserved memory is out of all proportion from this multiple of the highest allocated on, and from so many bytes beyond.
const OUTGROWN: (f64, u64) = (3.0, 2 << 30);
/// Pins in a report.
const PINS_SHOWN: usize = 10;

/// Why memory lies idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FragmentationCause {
    /// Request sizes go up and down from step to step.
    VaryingSizes,
    /// Blocks that live long lie among freed ones.
    LongLivedBlocks,
    /// Free memory belongs to other streams.
    Streams,
    /// Blocks are larger than what was asked for.
    Rounding,
    /// The cache holds far more than was ever in use at a time.
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

/// What is known of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// Ranks may be judged at their fullest moment, or at the moment of a failure.
    pub picture: &'a Picture,
    /// Step under way at that moment.
    pub step: Option<u64>,
    /// Epoch under way at that moment.
    pub epoch: Option<u32>,
    /// What the steps did.
    pub steady: &'a Steady,
    /// The most ever allocated since the job began; `None` if unknown.
    pub peak_bytes: Option<u64>,
    /// The allocator's settings.
    pub settings: &'a AllocatorSettings,
    /// What the allocator could still get from the driver (or up to its limit) at that moment.
    pub room_bytes: Option<u64>,
    /// The request that failed at that moment although the cache held the bytes for it.
    pub failed: Option<Request>,
}

/// Blocks that keep free memory from being used, with their place.
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
    /// The stack that asks.
    pub stack: Stack,
    /// Smallest request above 1 MiB.
    pub smallest_bytes: u64,
    /// Largest request.
    pub largest_bytes: u64,
    /// Steps looked at.
    pub steps: u64,
}

/// How one device of a rank is fragmented.
#[derive(Clone, Debug, PartialEq)]
pub struct RankFragmentation {
    /// The rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// The moment: epoch.
    pub epoch: Option<u32>,
    /// The moment: step.
    pub step: Option<u64>,
    /// The moment's picture.
    pub picture: Picture,
    /// Allocated bytes at the height of a typical step; `None` without steps.
    pub typical_bytes: Option<u64>,
    /// Steps that this rests on.
    pub steps: u64,
    /// Allocated bytes at the height of the highest of them.
    pub highest_bytes: u64,
    /// Reserved at the end, beyond that: what no step needed.
    pub unused_bytes: Option<u64>,
    /// Share of the requested bytes from sites whose sizes go up and down.
    pub varying_share: Option<f64>,
    /// The varying site that asks for most.
    pub varying: Option<Varying>,
    /// The largest request of the last steps, or the one that failed.
    pub largest_request: Option<Request>,
    /// The largest free block that could serve it.
    pub largest_usable_bytes: u64,
    /// What the allocator could still get from the driver.
    pub room_bytes: Option<u64>,
    /// Whether such a request would be served at that moment; `None` where the room is not known and no block is free.
    pub would_fit: Option<bool>,
    /// Why memory lies idle, and how much of it.
    pub cause: Option<(FragmentationCause, u64)>,
    /// `None` = nothing to say.
    pub severity: Option<Severity>,
    /// Blocks that strand most, first.
    pub holders: Vec<Holder>,
    /// Whether expandable segments are on.
    pub expandable: bool,
}

/// Judges one device; `resolve` names stacks.
#[must_use]
pub fn judge(facts: &Facts<'_>, resolve: &dyn Fn(StackId) -> Stack) -> RankFragmentation {
    let Facts { rank, device, picture, step, epoch, steady, peak_bytes, settings, room_bytes, failed } = *facts;
    let typical_bytes = steady.typical_height_bytes();
    let reserved = steady.reserved.map_or(picture.reserved_bytes, |(_, now)| now.max(picture.reserved_bytes));
    // What the stretch did not see may have been higher.
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
        // (Memory that the steps of this stretch did not need; the job's own peak shows how much lies idle.)
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
    // What is lost to rounding is part of what is allocated; everything else is reserved beyond it.
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
    // A place that can be named helps more than the largest that cannot.
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

/// The blocks that strand most, by place: what several stacks allocated at one place is one holder.
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
        // (A segment with blocks of both is counted twice.)
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
    // Before a request fails the allocator gives back every segment without a live block.
    let room = facts.room_bytes?.saturating_add(facts.picture.empty_bytes);
    Some(room >= segment_bytes(request.rounded_bytes, facts.settings.large_segment_size))
}

fn varying_bytes(steady: &Steady, unused_bytes: Option<u64>) -> u64 {
    let varies = steady.varying_share().is_some_and(|share| share >= VARYING_SHARE_MIN);
    if varies { unused_bytes.unwrap_or(0) } else { 0 }
}

/// Free bytes beside blocks that were there before the step under way. At a failure outside every step all of them were.
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
    // Blocks that would have done, had they belonged to the asking stream.
    others.fold(0, |sum: u64, list| sum.saturating_add(list.space.serving(request.rounded_bytes).1))
}
