//! Free blocks by size, and segments by how full they are.
//!
//! Guarantees: sizes are the allocator's own (block sizes, rounded requests). A request is matched only with blocks of
//! its own kind, as in the allocator. Indices only explain the state; only a replay can predict an out of memory.

use memctl_model::SegmentKind;
use memctl_model::allocator::SMALL_BYTES_MAX;

use crate::block_map::{FreeBlock, SegmentUse};

/// Free blocks by size, to find out which requests they can serve. Blocks are reusable only on their stream and in
/// their pool. For a query about one stream, pass only its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    small: Sizes,
    large: Sizes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sizes {
    /// The sizes, ascending.
    sizes: Vec<u64>,
    total_bytes: u64,
}

impl Sizes {
    /// Number and bytes of the blocks of at least `size` bytes.
    fn at_least(&self, size: u64) -> (u64, u64) {
        let serving = &self.sizes[self.sizes.partition_point(|&free| free < size)..];
        (serving.len() as u64, serving.iter().fold(0, |sum: u64, &size| sum.saturating_add(size)))
    }
}

impl FreeSpace {
    /// Sorts the free blocks.
    #[must_use]
    pub fn of(blocks: impl IntoIterator<Item = FreeBlock>) -> Self {
        let mut space = Self::default();
        for block in blocks {
            let sizes = if block.kind == SegmentKind::Small { &mut space.small } else { &mut space.large };
            sizes.sizes.push(block.size);
            sizes.total_bytes = sizes.total_bytes.saturating_add(block.size);
        }
        space.small.sizes.sort_unstable();
        space.large.sizes.sort_unstable();
        space
    }

    /// All free bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.small.total_bytes.saturating_add(self.large.total_bytes)
    }

    /// The largest free block of either kind, 0 when there is none.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        let largest = |sizes: &Sizes| sizes.sizes.last().copied().unwrap_or(0);
        largest(&self.small).max(largest(&self.large))
    }

    /// Number and bytes of the free blocks that could serve a request of `rounded` bytes.
    #[must_use]
    pub fn serving(&self, rounded: u64) -> (u64, u64) {
        if rounded <= SMALL_BYTES_MAX { self.small.at_least(rounded) } else { self.large.at_least(rounded) }
    }

    /// The share of the free bytes that cannot serve a request of `rounded` bytes: 0 if all can, 1 if none can, `None`
    /// if nothing is free. Linux calls it the unusable free space index (mm/vmstat.c, after Gorman).
    #[must_use]
    pub fn unusable_free_index(&self, rounded: u64) -> Option<f64> {
        let free = self.free_bytes();
        (free > 0).then(|| (free - self.serving(rounded).1) as f64 / free as f64)
    }

    /// The index at 512 B, 1 KiB, … up to the first power of two that no block can serve.
    #[must_use]
    pub fn unusable_free_curve(&self) -> Vec<(u64, f64)> {
        let largest = self.largest_free_bytes();
        let mut curve = Vec::new();
        for exponent in 9..64 {
            let size = 1_u64 << exponent;
            let Some(index) = self.unusable_free_index(size) else { break };
            curve.push((size, index));
            if size > largest {
                break;
            }
        }
        curve
    }
}

/// Segments with similar occupancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccupancyClass {
    /// Number of segments.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their free bytes.
    pub free_bytes: u64,
}

/// Free bytes by the occupancy of their segment. A wholly free segment can be released; one live block keeps its whole
/// segment reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Segments without a live block: `empty_cache` would release them.
    pub empty: OccupancyClass,
    /// Partly used segments, by quarters of live bytes: up to 25%, 50%, 75%, below 100%.
    pub quarters: [OccupancyClass; 4],
    /// Segments without a free byte.
    pub full: OccupancyClass,
}

impl Occupancy {
    /// Sorts segments into classes.
    #[must_use]
    pub fn of(segments: impl IntoIterator<Item = SegmentUse>) -> Self {
        let mut occupancy = Self::default();
        for segment in segments {
            let live = segment.size.saturating_sub(segment.free_bytes);
            let class = if live == 0 {
                &mut occupancy.empty
            } else if live == segment.size {
                &mut occupancy.full
            } else {
                // 128 bits are needed because four times a size may not fit in 64. The result is below 4 because live
                // < size.
                let quarter = (u128::from(live) * 4).div_ceil(u128::from(segment.size)) - 1;
                &mut occupancy.quarters[quarter as usize]
            };
            class.segments += 1;
            class.bytes = class.bytes.saturating_add(segment.size);
            class.free_bytes = class.free_bytes.saturating_add(segment.free_bytes);
        }
        occupancy
    }

    /// Free bytes that stay reserved even after `empty_cache`, because their segments have live blocks.
    #[must_use]
    pub fn pinned_free_bytes(&self) -> u64 {
        self.quarters.iter().fold(0, |sum, class| class.free_bytes.saturating_add(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::PoolId;

    const MIB: u64 = 1 << 20;

    fn free(size: u64, kind: SegmentKind) -> FreeBlock {
        FreeBlock { addr: 0, size, stream: 0, pool: PoolId::DEFAULT, kind, expandable: false }
    }

    fn segment(size: u64, free_bytes: u64) -> SegmentUse {
        SegmentUse {
            addr: 0,
            size,
            stream: 0,
            pool: PoolId::DEFAULT,
            kind: SegmentKind::Large,
            expandable: false,
            allocated_bytes: size - free_bytes,
            pending_bytes: 0,
            free_bytes,
            largest_free_bytes: free_bytes,
            live_blocks: 1,
            free_blocks: 1,
        }
    }

    #[test]
    fn the_index_rises_with_the_request() {
        let space = FreeSpace::of([2, 4, 10].map(|mib| free(mib * MIB, SegmentKind::Large)));
        assert_eq!(space.free_bytes(), 16 * MIB);
        assert_eq!(space.largest_free_bytes(), 10 * MIB);
        assert_eq!(space.unusable_free_index(2 * MIB), Some(0.0));
        assert_eq!(space.unusable_free_index(4 * MIB), Some(0.125));
        assert_eq!(space.unusable_free_index(10 * MIB), Some(0.375));
        assert_eq!(space.unusable_free_index(10 * MIB + 512), Some(1.0));
        assert_eq!(space.serving(4 * MIB), (2, 14 * MIB));
        assert_eq!(FreeSpace::default().unusable_free_index(512), None);
    }

    #[test]
    fn small_requests_are_served_by_the_small_pool_only() {
        let space = FreeSpace::of([free(MIB, SegmentKind::Small), free(3 * MIB, SegmentKind::Large)]);
        assert_eq!(space.unusable_free_index(512), Some(0.75));
        assert_eq!(space.unusable_free_index(2 * MIB), Some(0.25));
        let curve = space.unusable_free_curve();
        assert_eq!(curve.first(), Some(&(512, 0.75)));
        assert_eq!(curve.last(), Some(&(4 * MIB, 1.0)));
    }

    #[test]
    fn segments_fall_into_quarters() {
        let sizes = [(100, 100), (100, 75), (100, 74), (100, 1), (100, 0)];
        let occupancy = Occupancy::of(sizes.map(|(size, free)| segment(size, free)));
        assert_eq!(occupancy.empty, OccupancyClass { segments: 1, bytes: 100, free_bytes: 100 });
        assert_eq!(occupancy.quarters.map(|class| class.segments), [1, 1, 0, 1]);
        assert_eq!(occupancy.full.segments, 1);
        assert_eq!(occupancy.pinned_free_bytes(), 150);
        assert_eq!(Occupancy::of([segment(u64::MAX, 1)]).quarters[3].segments, 1);
    }
}
