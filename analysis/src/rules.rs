//! The caching allocator's arithmetic: how a request is rounded and when a block is split.
//!
//! Guarantees: the results of PyTorch's native CUDA allocator, 2.0 to 2.15, for every request up
//! to [`REQUEST_BYTES_MAX`]; nothing here overflows. Refuses nothing: larger requests are the
//! caller's to turn away. Constants and rules: c10/cuda/CUDACachingAllocator.cpp.

use memctl_model::{AllocatorSettings, SegmentKind};

/// Every block's address and size is a multiple of this many bytes.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// Rounded requests up to this many bytes are served from the small pool.
pub const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a segment of the small pool, and of a page of a small expandable segment.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Largest request that is looked at, 4 EiB: rounding it up to the next power of two still fits in 64 bits.
pub const REQUEST_BYTES_MAX: u64 = 1 << 62;

/// The settings that decide a block's true size, ready for use on every event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRules {
    /// Blocks of at least this many bytes are never split; `u64::MAX` when there is no limit.
    max_split_size: u64,
    /// Whether new memory comes from expandable segments.
    expandable: bool,
    /// Whether any entry of `divisions` matters: lets the usual case skip the look-up.
    rounds_to_divisions: bool,
    divisions: [u32; 16],
}

impl PlacementRules {
    /// The rules that follow from an allocator's settings.
    #[must_use]
    pub fn new(settings: &AllocatorSettings) -> Self {
        Self {
            max_split_size: settings.max_split_size.unwrap_or(u64::MAX),
            expandable: settings.expandable_segments,
            rounds_to_divisions: settings.roundup_power2_divisions.iter().any(|&divisions| divisions > 1),
            divisions: settings.roundup_power2_divisions,
        }
    }

    /// Bytes that a request occupies at least: the next multiple of 512, or of the division that
    /// `roundup_power2_divisions` asks for. Requests above [`REQUEST_BYTES_MAX`] count as that many.
    #[inline]
    #[must_use]
    pub fn round_size(&self, requested: u64) -> u64 {
        let requested = requested.min(REQUEST_BYTES_MAX);
        if self.rounds_to_divisions {
            return self.round_to_division(requested);
        }
        round_to_block(requested)
    }

    #[cold]
    fn round_to_division(&self, requested: u64) -> u64 {
        if requested < MIN_BLOCK_BYTES {
            return MIN_BLOCK_BYTES;
        }
        // Entry 0 serves everything below 2 MiB, entry 15 everything from 32 GiB.
        let entry = (requested.ilog2()).saturating_sub(20).min(15);
        let divisions = u64::from(self.divisions[entry as usize]);
        if divisions <= 1 || requested <= MIN_BLOCK_BYTES * divisions {
            return round_to_block(requested);
        }
        if requested.is_power_of_two() {
            return requested;
        }
        let below = 1_u64 << requested.ilog2();
        // PyTorch accepts powers of two only; for anything else the next lower one is meant by its shift.
        let step = below >> divisions.ilog2();
        if step == 0 { below * 2 } else { requested.next_multiple_of(step) }
    }

    /// Whether a free block is split when `rounded` of its bytes are handed out and `remaining` are left.
    #[inline]
    #[must_use]
    pub fn should_split(&self, kind: SegmentKind, expandable: bool, rounded: u64, remaining: u64) -> bool {
        // A block of an expandable segment is only ever handed out while the setting is on, so the
        // segment itself is evidence enough when the setting was changed at run time.
        if kind == SegmentKind::Small || expandable || self.expandable {
            remaining >= MIN_BLOCK_BYTES
        } else {
            rounded < self.max_split_size && remaining > SMALL_BYTES_MAX
        }
    }
}

fn round_to_block(requested: u64) -> u64 {
    requested.max(MIN_BLOCK_BYTES).next_multiple_of(MIN_BLOCK_BYTES)
}

/// Which pool a segment of this many bytes serves: the small pool's segments and pages have 2 MiB,
/// all others more than 10 MiB.
#[must_use]
pub fn segment_kind(bytes: u64) -> SegmentKind {
    if bytes <= SMALL_SEGMENT_BYTES { SegmentKind::Small } else { SegmentKind::Large }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(divisions: [u32; 16]) -> PlacementRules {
        PlacementRules::new(&AllocatorSettings { roundup_power2_divisions: divisions, ..Default::default() })
    }

    #[test]
    fn requests_round_to_512() {
        let plain = rules([0; 16]);
        for (requested, rounded) in [(0, 512), (1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)] {
            assert_eq!(plain.round_size(requested), rounded, "{requested}");
        }
        assert_eq!(plain.round_size(u64::MAX), REQUEST_BYTES_MAX);
    }

    #[test]
    fn divisions_round_to_parts_of_a_power_of_two() {
        let four = rules([4; 16]);
        // 1200 bytes: not above 512 * 4, so the plain rule holds.
        assert_eq!(four.round_size(1200), 1536);
        assert_eq!(four.round_size(2048), 2048);
        // Between 4096 and 8192 the steps are 1024.
        assert_eq!(four.round_size(4097), 5120);
        assert_eq!(four.round_size((5 << 20) + 1), 6 << 20);
        assert_eq!(four.round_size(100), 512);
        assert_eq!(four.round_size(u64::MAX), REQUEST_BYTES_MAX);
    }

    #[test]
    fn a_division_belongs_to_its_size_class() {
        let mut divisions = [0; 16];
        divisions[2] = 2;
        let rules = rules(divisions);
        assert_eq!(rules.round_size((4 << 20) + 1), 6 << 20);
        assert_eq!(rules.round_size((2 << 20) + 1), (2 << 20) + 512);
        assert_eq!(rules.round_size((8 << 20) + 1), (8 << 20) + 512);
    }

    #[test]
    fn a_large_block_is_split_when_more_than_a_mebibyte_remains() {
        let plain = rules([0; 16]);
        let split = |remaining| plain.should_split(SegmentKind::Large, false, 23 << 20, remaining);
        assert!(!split(1 << 20));
        assert!(split((1 << 20) + 512));
        assert!(plain.should_split(SegmentKind::Small, false, 512, 512));
        assert!(plain.should_split(SegmentKind::Large, true, 512, 512));
        assert!(!plain.should_split(SegmentKind::Large, true, 512, 0));
    }

    #[test]
    fn blocks_beyond_the_split_limit_stay_whole() {
        let limited = PlacementRules::new(&AllocatorSettings { max_split_size: Some(32 << 20), ..Default::default() });
        assert!(limited.should_split(SegmentKind::Large, false, (32 << 20) - 512, 8 << 20));
        assert!(!limited.should_split(SegmentKind::Large, false, 32 << 20, 8 << 20));
    }
}
