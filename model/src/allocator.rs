//! The arithmetic of PyTorch's caching allocator: how a request is rounded, which pool serves it, and how large a segment is.
//!
//! Guarantees: the results equal those of the native CUDA allocator of PyTorch 2.0 to 2.15 for every request up to
//! [`REQUEST_BYTES_MAX`]. Nothing overflows. Callers reject larger requests or treat them as requests of that size.
//!
//! Source of constants and rules: `c10/cuda/CUDACachingAllocator.cpp` (since 2.9 with `c10/core/AllocatorConfig.h`). Each
//! constant names PyTorch's.

use crate::SegmentKind;

/// Every block's address and size is a multiple of this many bytes: `kMinBlockSize`.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// Rounded requests up to this many bytes are served from the small pool. A block of the large pool keeps a rest up to
/// this size: `kSmallSize`.
pub const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a segment of the small pool, and of a page of a small expandable segment: `kSmallBuffer`.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Bytes of an ordinary segment of the large pool, unless `large_segment_size_mb` sets another size: `kLargeBuffer`.
pub const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// From this many bytes on a request gets a segment of its own size: `kMinLargeAlloc`.
pub const OWN_SEGMENT_BYTES_MIN: u64 = 10 << 20;
/// The size of a request's own segment is rounded up to a multiple of this: `kRoundLarge`.
pub const SEGMENT_STEP_BYTES: u64 = 2 << 20;
/// Largest supported request, 4 EiB: rounding it up to the next power of two still fits in 64 bits.
pub const REQUEST_BYTES_MAX: u64 = 1 << 62;

/// The next multiple of [`MIN_BLOCK_BYTES`], at least one: the bytes that a request occupies without
/// `roundup_power2_divisions`. Larger requests count as [`REQUEST_BYTES_MAX`].
#[inline]
#[must_use]
pub fn round_to_block(requested: u64) -> u64 {
    requested.clamp(1, REQUEST_BYTES_MAX).next_multiple_of(MIN_BLOCK_BYTES)
}

/// The bytes that a request occupies at least with these `roundup_power2_divisions`: `round_size`. Entry `i` applies
/// to requests from 2^i MiB on. The first entry also applies to smaller requests, the last to all larger ones.
#[must_use]
pub fn round(divisions: &[u32; 16], requested: u64) -> u64 {
    let requested = requested.clamp(1, REQUEST_BYTES_MAX);
    let entry = requested.ilog2().saturating_sub(20).min(15);
    let divisions = u64::from(divisions[entry as usize]);
    if divisions <= 1 || requested <= MIN_BLOCK_BYTES * divisions {
        return round_to_block(requested);
    }
    if requested.is_power_of_two() {
        return requested;
    }
    let below = 1_u64 << requested.ilog2();
    // PyTorch accepts powers of two only. For any other number its shift has the effect of the next lower power of
    // two.
    let step = below >> divisions.ilog2();
    // A step is a power of two.
    if step == 0 { below * 2 } else { (requested + (step - 1)) & !(step - 1) }
}

/// The pool that serves a rounded request: `get_pool`.
#[inline]
#[must_use]
pub fn pool_of(rounded: u64) -> SegmentKind {
    if rounded <= SMALL_BYTES_MAX { SegmentKind::Small } else { SegmentKind::Large }
}

/// Bytes of the segment that the driver must provide for a rounded request: `get_allocation_size`. An ordinary large
/// segment has `large_segment` bytes.
#[must_use]
pub fn segment_bytes(rounded: u64, large_segment: u64) -> u64 {
    if rounded <= SMALL_BYTES_MAX {
        SMALL_SEGMENT_BYTES
    } else if rounded < OWN_SEGMENT_BYTES_MIN {
        large_segment
    } else {
        rounded.checked_next_multiple_of(SEGMENT_STEP_BYTES).unwrap_or(rounded)
    }
}

/// The pool to which a segment of this many bytes belongs. Segments and pages of the small pool have 2 MiB; all others
/// have 10 MiB or more.
#[must_use]
pub fn segment_kind(bytes: u64) -> SegmentKind {
    if bytes <= SMALL_SEGMENT_BYTES { SegmentKind::Small } else { SegmentKind::Large }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_blocks_or_divisions() {
        for (requested, rounded) in [(0, 512), (1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)] {
            assert_eq!(round(&[0; 16], requested), rounded, "{requested}");
            assert_eq!(round_to_block(requested), rounded, "{requested}");
        }
        let four = [4; 16];
        assert_eq!(round(&four, 1200), 1536, "not above 512 * 4: the plain rule holds");
        assert_eq!(round(&four, 4097), 5120);
        assert_eq!(round(&four, (5 << 20) + 1), 6 << 20);
        assert_eq!(round(&four, 8 << 20), 8 << 20);
        let mut one = [0; 16];
        one[2] = 2;
        assert_eq!(round(&one, (4 << 20) + 1), 6 << 20);
        assert_eq!(round(&one, (8 << 20) + 1), (8 << 20) + 512);
        assert_eq!(round(&four, u64::MAX), REQUEST_BYTES_MAX);
        assert_eq!(round_to_block(u64::MAX), REQUEST_BYTES_MAX);
    }

    #[test]
    fn a_segment_has_2_mib_20_mib_or_the_requests_own_size() {
        assert_eq!(segment_bytes(1 << 20, LARGE_SEGMENT_BYTES), 2 << 20);
        assert_eq!(segment_bytes((1 << 20) + 512, LARGE_SEGMENT_BYTES), 20 << 20);
        assert_eq!(segment_bytes(10 << 20, LARGE_SEGMENT_BYTES), 10 << 20);
        assert_eq!(segment_bytes((10 << 20) + 512, LARGE_SEGMENT_BYTES), 12 << 20);
        assert_eq!(segment_bytes(u64::MAX, LARGE_SEGMENT_BYTES), u64::MAX);
        assert_eq!([1 << 20, (1 << 20) + 512].map(pool_of), [SegmentKind::Small, SegmentKind::Large]);
        assert_eq!([2 << 20, 20 << 20].map(segment_kind), [SegmentKind::Small, SegmentKind::Large]);
    }
}
