//! The arithmetic of requests: rounding, which pool serves a size, and how large a segment is asked of the driver.
//!
//! Guarantees: PyTorch's results for every request up to [`REQUEST_BYTES_MAX`], larger ones count as that many; nothing
//! overflows. Refuses nothing.

/// Every block's address and size is a multiple of this many bytes.
pub(crate) const MIN_BLOCK_BYTES: u64 = 512;
/// Rounded requests up to this many bytes are served from the small pool; a large block keeps a rest up to this size.
pub(crate) const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a segment of the small pool, and of a page of a small expandable segment.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Bytes of an ordinary segment of the large pool, unless `large_segment_size_mb` says otherwise.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// No device has a large segment above this size, 1 TiB.
pub(crate) const LARGE_SEGMENT_BYTES_MAX: u64 = 1 << 40;
/// From this many bytes on a request gets a segment of its own size.
const OWN_SEGMENT_BYTES_MIN: u64 = 10 << 20;
/// What such a segment is rounded to.
const SEGMENT_STEP_BYTES: u64 = 2 << 20;
/// Largest request that is looked at, 4 EiB.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 62;

/// Bytes that a request occupies at least.
pub(crate) fn round(divisions: &[u32; 16], requested: u64) -> u64 {
    let requested = requested.clamp(1, REQUEST_BYTES_MAX);
    // Entry 0 serves everything below 2 MiB, entry 15 everything from 32 GiB.
    let entry = requested.ilog2().saturating_sub(20).min(15);
    let divisions = u64::from(divisions[entry as usize]);
    if divisions <= 1 || requested <= MIN_BLOCK_BYTES * divisions {
        return requested.next_multiple_of(MIN_BLOCK_BYTES);
    }
    if requested.is_power_of_two() {
        return requested;
    }
    let below = 1_u64 << requested.ilog2();
    let step = below >> divisions.ilog2();
    // (A step is a power of two.)
    if step == 0 { below * 2 } else { (requested + (step - 1)) & !(step - 1) }
}

/// Bytes of the segment that is asked of the driver for a rounded request.
pub(crate) fn segment(rounded: u64, large_segment: u64) -> u64 {
    if rounded <= SMALL_BYTES_MAX {
        SMALL_SEGMENT_BYTES
    } else if rounded < OWN_SEGMENT_BYTES_MIN {
        large_segment
    } else {
        rounded.next_multiple_of(SEGMENT_STEP_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_blocks_or_divisions() {
        for (requested, rounded) in [(0, 512), (1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)] {
            assert_eq!(round(&[0; 16], requested), rounded, "{requested}");
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
    }

    #[test]
    fn a_segment_has_2_mib_20_mib_or_the_requests_own_size() {
        assert_eq!(segment(1 << 20, LARGE_SEGMENT_BYTES), 2 << 20);
        assert_eq!(segment((1 << 20) + 512, LARGE_SEGMENT_BYTES), 20 << 20);
        assert_eq!(segment(10 << 20, LARGE_SEGMENT_BYTES), 10 << 20);
        assert_eq!(segment((10 << 20) + 512, LARGE_SEGMENT_BYTES), 12 << 20);
    }
}
