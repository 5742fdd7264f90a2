//! `backend:cudaMallocAsync`: the bounds between which the driver's pool would have stayed.
//!
//! The driver packs the memory, so nothing outside of it can replay this. The pool is bounded as follows. It takes
//! memory in pieces of 32 MiB and keeps it until the program releases its cache (torch sets
//! `cudaMemPoolAttrReleaseThreshold` to the maximum, `lazy_init_device` in CUDAMallocAsyncAllocator.cpp). It holds at
//! least the bytes that are live at one time. It holds at most the bytes needed if memory were reused only for
//! requests of the same size on the same stream and in the same pool. On an H100 (driver 580.159, torch 2.11) 25 of 25
//! trainings were within these bounds.
//!
//! The allocator compares the process's share with the live requested bytes (`mallocAsync` in that file), not with the
//! bytes that the pool holds. So it is known exactly which request fails.
//!
//! Guarantees: memory is proportional to the live blocks and [`SIZES_MAX`]. The position of the pool between its
//! bounds is unknown.

use foldhash::HashMap;
use memctl_model::PoolId;
use memctl_model::allocator::{REQUEST_BYTES_MAX, round_to_block};

use crate::allocator::Limit;
use crate::request::Requested;

/// The bytes that the pool takes at a time.
const PIECE_BYTES: u64 = 32 << 20;
/// Maximum number of different kinds; memory of further kinds counts as never reused.
const SIZES_MAX: usize = 1 << 18;

/// Requests that may reuse each other's memory: stream, pool, rounded bytes.
type Kind = (u64, PoolId, u64);

/// The bounds; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    limit: Limit,
    /// For each kind: the blocks that are live now, and the most that were live at one time.
    kinds: HashMap<Kind, (u64, u64)>,
    requested: u64,
    rounded: u64,
    peak_requested: u64,
    peak_rounded: u64,
    /// Bytes taken if memory is reused only by requests of the same kind.
    taken: u64,
}

impl Bounds {
    pub fn new(limit: Limit) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Applies a request; returns whether it is served.
    pub fn alloc(&mut self, requested: &Requested) -> bool {
        let bytes = requested.bytes.min(REQUEST_BYTES_MAX);
        let wanted = self.requested.saturating_add(bytes);
        let rounded = round_to_block(bytes);
        let held = self.rounded.saturating_add(rounded);
        let fits = match self.limit {
            Limit::None => true,
            Limit::Share(limit) => wanted <= limit,
            Limit::Device(limit) => held <= limit,
        };
        if !fits {
            return false;
        }
        (self.requested, self.rounded) = (wanted, held);
        self.peak_requested = self.peak_requested.max(wanted);
        self.peak_rounded = self.peak_rounded.max(held);
        let kind = (requested.stream, requested.pool, rounded);
        let is_told_apart = self.kinds.len() < SIZES_MAX || self.kinds.contains_key(&kind);
        if is_told_apart {
            let (live, most) = self.kinds.entry(kind).or_default();
            *live += 1;
            if *live <= *most {
                return true;
            }
            *most = *live;
        }
        self.taken = self.taken.saturating_add(rounded);
        true
    }

    /// Frees a block that was served.
    pub fn free(&mut self, requested: &Requested) {
        let bytes = requested.bytes.min(REQUEST_BYTES_MAX);
        let rounded = round_to_block(bytes);
        self.requested = self.requested.saturating_sub(bytes);
        self.rounded = self.rounded.saturating_sub(rounded);
        if let Some((live, _)) = self.kinds.get_mut(&(requested.stream, requested.pool, rounded)) {
            *live = live.saturating_sub(1);
        }
    }

    /// Requested bytes of live blocks.
    pub fn live_requested(&self) -> u64 {
        self.requested
    }

    /// The most requested bytes that were live at one time.
    pub fn peak_requested(&self) -> u64 {
        self.peak_requested
    }

    /// The least and the most that the pool may have held at its peak.
    pub fn peak_reserved(&self) -> [u64; 2] {
        [self.peak_rounded, self.taken].map(|bytes| bytes.div_ceil(PIECE_BYTES).saturating_mul(PIECE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn asked(mib: u64, stream: u64) -> Requested {
        Requested { bytes: mib * MIB, stream, pool: PoolId::DEFAULT }
    }

    #[test]
    fn memory_is_used_again_by_all_or_by_the_same_size_alone() {
        let mut one = Bounds::default();
        for round in [40, 30, 40, 30] {
            assert!(one.alloc(&asked(round, 0)));
            one.free(&asked(round, 0));
        }
        assert_eq!(one.peak_reserved(), [64 * MIB, 96 * MIB], "40 at once; 40 and 30 if neither serves the other");
        assert!(one.alloc(&asked(40, 1)));
        assert_eq!((one.peak_reserved(), one.peak_requested()), ([64 * MIB, 128 * MIB], 40 * MIB));
    }

    #[test]
    fn a_share_is_compared_with_what_lives() {
        let mut one = Bounds::new(Limit::Share(50 * MIB));
        assert!(one.alloc(&asked(30, 0)) && !one.alloc(&asked(21, 0)) && one.alloc(&asked(20, 0)));
        one.free(&asked(30, 0));
        assert!(one.alloc(&asked(30, 0)));
    }
}
