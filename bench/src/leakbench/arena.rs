//! The memory of added blocks. It consists of separate segments, far above all real addresses.
//!
//! Guarantees: blocks are placed, split and merged as by PyTorch's native allocator with default settings: by best fit,
//! small blocks in segments of 2 MiB, large blocks in segments of 20 MiB or in their own. The block map applies the
//! same rules, so it finds no contradiction. Segments are never released.

use std::collections::{BTreeMap, HashMap};

use memctl_model::allocator::{
    LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, SEGMENT_STEP_BYTES, SMALL_BYTES_MAX, round_to_block, segment_bytes,
};
use memctl_model::{Action, Event, PoolId, StackId};

use super::overlay::{Added, Change};

const FIRST_ADDRESS: u64 = 1 << 60;
/// The size of the segment of a captured graph, in bytes. The allocator requests large memory in multiples of 2 MiB,
/// and at least 20 MiB if blocks are small.
#[must_use]
pub fn captured_bytes(size: u64) -> u64 {
    size.next_multiple_of(SEGMENT_STEP_BYTES).max(LARGE_SEGMENT_BYTES)
}

#[derive(Clone, Copy, Debug)]
struct Block {
    addr: u64,
    size: u64,
    requested: u64,
    small: bool,
}

/// The memory of added blocks; see the module's documentation.
#[derive(Debug)]
pub struct Arena {
    /// The address of its first segment.
    first: u64,
    /// The free blocks by address. Each has its size, whether its pool is the small one, and its segment.
    free: BTreeMap<u64, (u64, bool, u64)>,
    live: HashMap<u32, (Block, u64)>,
    segments: u64,
}

impl Default for Arena {
    fn default() -> Self {
        Self::from(FIRST_ADDRESS)
    }
}

impl Arena {
    /// An arena whose segments begin at an address.
    #[must_use]
    pub fn from(first: u64) -> Self {
        Self { first, free: BTreeMap::new(), live: HashMap::new(), segments: 0 }
    }

    /// The true size of a live block.
    #[must_use]
    pub fn size(&self, block: Added) -> Option<u64> {
        self.live.get(&block.0).map(|(block, _)| block.size)
    }

    /// Performs a change. Passes its events to `sink`, in order.
    pub fn change(&mut self, block: Added, change: Change, time_ns: u64, sink: &mut dyn FnMut(Event)) {
        let pool = match change {
            // Each capture has a pool of its own, as with `torch.cuda.graph`.
            Change::Capture { .. } => PoolId { first: 0, second: block.0 + 1 },
            Change::Keep { .. } | Change::Drop => PoolId::DEFAULT,
        };
        let event = |action, addr, size, stack| Event { time_ns, addr, size, stream: 0, pool, stack, action };
        match change {
            Change::Keep { size, stack } => {
                let rounded = round_to_block(size);
                let small = rounded <= SMALL_BYTES_MAX;
                let found = self.best_fit(rounded, small).unwrap_or_else(|| {
                    let (addr, bytes) = self.segment(rounded, small);
                    sink(event(Action::SegmentAlloc, addr, bytes, stack));
                    addr
                });
                let taken = self.take(found, rounded);
                sink(event(Action::Alloc, found, size, stack));
                self.live.insert(block.0, (Block { requested: size, ..taken.0 }, taken.1));
            }
            Change::Capture { size, stack } => {
                let bytes = captured_bytes(size);
                self.segments += 1;
                let addr = self.first + (self.segments << 38);
                sink(event(Action::SegmentAlloc, addr, bytes, stack));
                // The intermediate memory of the graph is returned to its pool. Its result stays allocated.
                let (result, between) = (bytes / 4, bytes / 2);
                sink(event(Action::Alloc, addr, result, stack));
                sink(event(Action::Alloc, addr + result, between, stack));
                for action in [Action::FreeRequested, Action::FreeCompleted] {
                    sink(event(action, addr + result, between, StackId::NONE));
                }
            }
            Change::Drop => {
                let Some((gone, segment)) = self.live.remove(&block.0) else { return };
                for action in [Action::FreeRequested, Action::FreeCompleted] {
                    sink(event(action, gone.addr, gone.requested, StackId::NONE));
                }
                self.give_back(gone, segment);
            }
        }
    }

    fn best_fit(&self, rounded: u64, small: bool) -> Option<u64> {
        let fits = self.free.iter().filter(|&(_, &(size, pool, _))| pool == small && size >= rounded);
        fits.min_by_key(|&(&addr, &(size, ..))| (size, addr)).map(|(&addr, _)| addr)
    }

    fn segment(&mut self, rounded: u64, small: bool) -> (u64, u64) {
        let bytes = segment_bytes(rounded, LARGE_SEGMENT_BYTES);
        self.segments += 1;
        // Segments are 256 GiB apart, so they are never adjacent.
        let addr = self.first + (self.segments << 38);
        self.free.insert(addr, (bytes, small, addr));
        (addr, bytes)
    }

    fn take(&mut self, addr: u64, rounded: u64) -> (Block, u64) {
        let (size, small, segment) = self.free.remove(&addr).unwrap_or((rounded, true, addr));
        let rest = size - rounded;
        let splits = if small { rest >= MIN_BLOCK_BYTES } else { rest > SMALL_BYTES_MAX };
        if splits {
            self.free.insert(addr + rounded, (rest, small, segment));
        }
        let size = if splits { rounded } else { size };
        (Block { addr, size, requested: 0, small }, segment)
    }

    fn give_back(&mut self, gone: Block, segment: u64) {
        let (mut addr, mut size) = (gone.addr, gone.size);
        if let Some(&(above, _, of)) = self.free.get(&(addr + size))
            && of == segment
        {
            self.free.remove(&(addr + size));
            size += above;
        }
        if let Some((&below, &(bytes, _, of))) = self.free.range(..addr).next_back()
            && of == segment
            && below + bytes == addr
        {
            self.free.remove(&below);
            (addr, size) = (below, size + bytes);
        }
        self.free.insert(addr, (size, gone.small, segment));
    }
}
