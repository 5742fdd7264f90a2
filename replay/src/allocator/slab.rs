//! The blocks, by slot. Neighbours in memory are linked, as in the allocator.
//!
//! Guarantees: a slot belongs to its block until it is vacated. Slots are reused, so memory is proportional to the
//! existing blocks. Access to a vacant slot is not checked.

use super::address::ReservationId;

/// The number of a block's place in the slab.
pub(super) type Slot = u32;
/// No block.
pub(super) const NIL: Slot = u32::MAX;

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// In a free list, or in the list of unmapped ranges.
    Free,
    /// Allocated.
    Allocated,
    /// Freed by the program, and still used by another stream.
    Pending,
}

/// One block, like PyTorch's `Block`. It has the size of a line of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub addr: u64,
    pub size: u64,
    /// Requested bytes while it is allocated.
    pub requested: u64,
    pub stream: u64,
    /// The neighbours within the segment.
    pub prev: Slot,
    pub next: Slot,
    /// Index of its pool.
    pub pool: u32,
    pub usage: Use,
    /// Whether it is mapped; only ranges of expandable segments may be unmapped.
    pub mapped: bool,
    /// The expandable segment that contains it.
    pub reservation: Option<ReservationId>,
    /// The age by which ties between equally large blocks are broken ([`crate::Ties`]): the number of its segment, or
    /// its own number. It is 0 if age does not matter.
    pub age: u32,
    /// While free: the number of searches of its pool before it was listed, for garbage collection. While pending: its
    /// turn.
    pub since: u64,
}

impl Block {
    /// A free range of a pool.
    pub fn free(addr: u64, size: u64, stream: u64, pool: u32, reservation: Option<ReservationId>) -> Self {
        Self {
            addr,
            size,
            requested: 0,
            stream,
            prev: NIL,
            next: NIL,
            pool,
            usage: Use::Free,
            mapped: true,
            reservation,
            age: 0,
            since: 0,
        }
    }

    /// Whether it is only a part of its segment.
    pub fn is_split(&self) -> bool {
        self.prev != NIL || self.next != NIL
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    blocks: Vec<Block>,
    vacant: Vec<Slot>,
}

impl Slab {
    pub fn insert(&mut self, block: Block) -> Slot {
        if let Some(slot) = self.vacant.pop() {
            self.blocks[slot as usize] = block;
            return slot;
        }
        self.blocks.push(block);
        (self.blocks.len() - 1) as Slot
    }

    pub fn remove(&mut self, slot: Slot) {
        self.vacant.push(slot);
    }

    pub fn get(&self, slot: Slot) -> &Block {
        &self.blocks[slot as usize]
    }

    pub fn get_mut(&mut self, slot: Slot) -> &mut Block {
        &mut self.blocks[slot as usize]
    }

    /// Inserts a new block between its neighbours and links them.
    pub fn splice(&mut self, before: Slot, block: Block, after: Slot) -> Slot {
        let slot = self.insert(Block { prev: before, next: after, ..block });
        if before != NIL {
            self.get_mut(before).next = slot;
        }
        if after != NIL {
            self.get_mut(after).prev = slot;
        }
        slot
    }
}
