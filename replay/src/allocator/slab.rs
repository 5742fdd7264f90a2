//! The blocks, by slot: neighbours in memory are linked, as in the allocator.
//!
//! Guarantees: a slot stays the block's until it is given back; slots are used again, so memory follows the blocks that exist.
//! Refuses nothing: who uses a slot knows that it is taken.

use super::address::ReservationId;

/// Where a block is kept.
pub(super) type Slot = u32;
/// No block.
pub(super) const NIL: Slot = u32::MAX;

/// Whether a block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// In a free list, or in the list of unmapped ranges.
    Free,
    /// Handed out.
    Allocated,
    /// Given back, and still used by another stream.
    Pending,
}

/// One block, as PyTorch's `Block`: a line of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub addr: u64,
    pub size: u64,
    /// Bytes that were asked for, while it is handed out.
    pub requested: u64,
    pub stream: u64,
    /// The neighbours within the segment.
    pub prev: Slot,
    pub next: Slot,
    /// Index of its pool.
    pub pool: u32,
    pub usage: Use,
    /// Whether memory is behind it; only ranges of expandable segments have none.
    pub mapped: bool,
    /// The expandable segment that it lies in.
    pub reservation: Option<ReservationId>,
    /// Its segment's place among those that were made, or its own among the blocks, where that decides between equally large
    /// ones ([`crate::Ties`]); else 0.
    pub age: u32,
    /// While free: the searches of its pool before it came into the free list, for collection. While pending: its turn.
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

    /// Whether it is a part of its segment.
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

    /// Puts a new block between its neighbours; they are linked to it.
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
