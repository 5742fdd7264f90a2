//! The settings of the caching allocator in a form for use on every event: how a request is rounded and when a block
//! is split.
//!
//! Guarantees: the results equal those of PyTorch's native CUDA allocator; the arithmetic is that of
//! [`memctl_model::allocator`].

use memctl_model::allocator::{self, MIN_BLOCK_BYTES, SMALL_BYTES_MAX};
use memctl_model::{AllocatorSettings, SegmentKind};

/// The settings that determine a block's size, in a form for use on every event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRules {
    /// Blocks of at least this many bytes are never split; `u64::MAX` when there is no limit.
    max_split_size: u64,
    /// Whether new memory comes from expandable segments.
    expandable: bool,
    /// Whether any entry of `divisions` has an effect. If none has, the look-up is skipped.
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

    /// The bytes that a request occupies at least: the next multiple of 512, or of the division that
    /// `roundup_power2_divisions` sets. Requests above [`allocator::REQUEST_BYTES_MAX`] count as that many bytes.
    #[inline]
    #[must_use]
    pub fn round_size(&self, requested: u64) -> u64 {
        if self.rounds_to_divisions {
            return allocator::round(&self.divisions, requested);
        }
        allocator::round_to_block(requested)
    }

    /// Whether a free block is split when `rounded` of its bytes are allocated and `remaining` bytes are left.
    #[inline]
    #[must_use]
    pub fn should_split(&self, kind: SegmentKind, expandable: bool, rounded: u64, remaining: u64) -> bool {
        // A block of an expandable segment is allocated only while the setting is on. So an expandable segment is
        // sufficient evidence, even if the setting was changed at run time.
        if kind == SegmentKind::Small || expandable || self.expandable {
            remaining >= MIN_BLOCK_BYTES
        } else {
            rounded < self.max_split_size && remaining > SMALL_BYTES_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(divisions: [u32; 16]) -> PlacementRules {
        PlacementRules::new(&AllocatorSettings { roundup_power2_divisions: divisions, ..Default::default() })
    }

    #[test]
    fn requests_are_rounded_by_the_settings() {
        let mut divisions = [0; 16];
        assert_eq!(rules(divisions).round_size(1200), 1536);
        divisions[2] = 2;
        let rules = rules(divisions);
        assert_eq!(
            [1200, (2 << 20) + 1, (4 << 20) + 1].map(|size| rules.round_size(size)),
            [1536, (2 << 20) + 512, 6 << 20]
        );
        assert_eq!(rules.round_size(u64::MAX), allocator::REQUEST_BYTES_MAX);
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
