//! Display thresholds: parts of a whole below them are too small to be named on one screen.
//!
//! Guarantees: pure functions, the same for every page. Parts that are not named are still counted.

use memctl_model::SegmentKind;
use memctl_model::allocator::pool_of;

/// Classes of memory below this share of the peak are not named.
const CLASS_SHARE: f64 = 0.02;
/// Blocks that strand less than this share of the stranded memory are not named.
const HOLDER_SHARE: f64 = 0.01;
/// Minimum number of epoch ends that show a course; a single one is only a level.
const COURSE_ENDS: usize = 2;

/// Ranks wait for each other within a step. A rank that was last heard this long before the others is behind.
const BEHIND_NS: u64 = 1_000_000_000;

/// How many times as long a suggested search for holders may take as one that was not complete.
pub const LONGER_SEARCH_TIMES: u32 = 10;

/// Changes between two runs up to this size are not reported by default: smaller buffers depend on timing.
pub const CHANGE_BYTES: u64 = 64 << 10;
/// Holders of a finding are saved in a baseline if they have at least one part in this many of the first one's blocks.
pub const SAVED_HOLDERS_SHARE: u32 = 4;
/// The same for holders that must be known to the other run. The difference keeps a share near the limit from deciding.
pub const COMPARED_HOLDERS_SHARE: u32 = 2;
/// Sites below this share of the peak are not in the file of a baseline.
const BASELINE_SHARE: f64 = 0.001;

/// The least bytes of a site in the file of a baseline.
#[must_use]
pub fn baseline_site_bytes(peak_bytes: u64) -> u64 {
    (peak_bytes as f64 * BASELINE_SHARE) as u64
}

/// Whether a class of this share of the peak is named.
#[must_use]
pub fn is_class_named(share: f64) -> bool {
    share >= CLASS_SHARE
}

/// Whether blocks that strand this many of the stranded bytes are named.
#[must_use]
pub fn is_holder_named(bytes: u64, stranded_bytes: u64) -> bool {
    bytes > (stranded_bytes as f64 * HOLDER_SHARE) as u64
}

/// Whether fragmentation can make a request of this size fail.
#[must_use]
pub fn is_large_request(bytes: u64) -> bool {
    pool_of(bytes) == SegmentKind::Large
}

/// Whether this many epoch ends show a course.
#[must_use]
pub fn is_course(epoch_ends: usize) -> bool {
    epoch_ends >= COURSE_ENDS
}

/// Whether a rank that was last heard this long before the others is behind them.
#[must_use]
pub fn is_behind(ns: u64) -> bool {
    ns >= BEHIND_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_has_no_name() {
        assert!(is_class_named(0.02) && !is_class_named(0.019));
        assert!(is_holder_named(2, 100) && !is_holder_named(1, 100));
        assert!(is_holder_named(1, 0), "of nothing stranded nothing is hidden");
        assert!(is_large_request(2 << 20) && !is_large_request(1 << 20));
        assert!(is_behind(1_000_000_000) && !is_behind(999_999_999));
        assert!(is_course(2) && !is_course(1));
    }
}
