//! The blocks' storage: fixed slots that are reused, linked to their neighbours in address order.
//!
//! Guarantees: a slot's number stays valid until the slot is vacated. No memory is allocated while a vacant slot
//! remains. The slab does not check that the layout is consistent.

use memctl_model::{BlockState, BlockUse, Phase, SegmentKind, StackId};

use super::sites::SiteId;

/// A slot's number.
pub(super) type Slot = u32;
/// No slot.
pub(super) const NIL: Slot = u32::MAX;

/// Whether and how a slot's block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Use {
    /// Free, and part of a segment.
    Free,
    /// Allocated.
    Allocated,
    /// Freed by the program, waiting for another stream.
    Pending,
    /// The slot holds no block.
    Vacant,
}

impl Use {
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::Allocated | Self::Pending)
    }
}

/// One block. The alignment ensures that an access touches one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    pub addr: u64,
    pub size: u64,
    pub requested: u64,
    pub birth_step: u64,
    /// Neighbour below in the same segment.
    pub prev: Slot,
    /// Neighbour above in the same segment. For a vacant slot: the next vacant slot.
    pub next: Slot,
    pub stack: StackId,
    pub birth_epoch: u32,
    pub birth_phase: Option<Phase>,
    pub usage: Use,
    pub kind: SegmentKind,
    pub expandable: bool,
    /// Whether the block is outside every known segment.
    pub loose: bool,
    /// Whether the slot is in the list of touched slots.
    pub is_listed: bool,
    /// The site that counts this block, if it is allocated; meaningless otherwise.
    pub site: SiteId,
}

impl Block {
    /// A free block without neighbours.
    pub(super) fn free(addr: u64, size: u64, kind: SegmentKind, expandable: bool) -> Self {
        Self {
            addr,
            size,
            requested: 0,
            birth_step: 0,
            prev: NIL,
            next: NIL,
            stack: StackId::NONE,
            birth_epoch: 0,
            birth_phase: None,
            usage: Use::Free,
            kind,
            expandable,
            loose: false,
            is_listed: false,
            site: SiteId::MAX,
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.addr + self.size
    }

    /// The bytes that this block adds to `inactive_split_bytes`: its size if it is free and its segment is not wholly
    /// free. PyTorch excludes expandable segments, because their free pages can be unmapped.
    #[inline]
    pub(super) fn inactive_split_bytes(&self) -> u64 {
        if self.usage == Use::Free && !self.expandable && (self.prev != NIL || self.next != NIL) {
            self.size
        } else {
            0
        }
    }

    /// The block in the form in which a keyframe stores it.
    pub(super) fn state(&self) -> BlockState {
        let usage = match self.usage {
            // A free slot may still hold values of its last block; they are not reported.
            Use::Free | Use::Vacant => return BlockState { addr: self.addr, size: self.size, ..BlockState::default() },
            Use::Allocated => BlockUse::Allocated,
            Use::Pending => BlockUse::PendingFree,
        };
        BlockState {
            addr: self.addr,
            size: self.size,
            requested: self.requested,
            usage,
            stack: self.stack,
            birth_epoch: self.birth_epoch,
            birth_step: self.birth_step,
            birth_phase: self.birth_phase,
        }
    }
}

/// All slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    slots: Vec<Block>,
    /// First vacant slot plus one, or 0 if there is none. With this encoding `Default` is an empty slab.
    vacant: u32,
    /// Slots touched since they were last taken; `None` before listing begins.
    touched: Option<Vec<Slot>>,
}

impl Slab {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.vacant = 0;
        self.touched = None;
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> &Block {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Block {
        let block = &mut self.slots[slot as usize];
        if let Some(touched) = &mut self.touched
            && !std::mem::replace(&mut block.is_listed, true)
        {
            touched.push(slot);
        }
        block
    }

    /// Number of slots, vacant ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The bytes of a slot's block if it is free, else 0.
    pub(super) fn free_bytes(&self, slot: Slot) -> u64 {
        let block = self.get(slot);
        if block.usage == Use::Free { block.size } else { 0 }
    }

    /// Starts the list of touched slots.
    pub(super) fn list_touched(&mut self) {
        self.take_touched(|_, _| {});
        self.touched.get_or_insert_default();
    }

    /// Passes each slot that was touched since the last call, with its free bytes, to `each`.
    pub(super) fn take_touched(&mut self, mut each: impl FnMut(Slot, u64)) {
        let Some(mut touched) = self.touched.take() else { return };
        for slot in touched.drain(..) {
            self.slots[slot as usize].is_listed = false;
            each(slot, self.free_bytes(slot));
        }
        self.touched = Some(touched);
    }

    /// The block of a slot that may no longer exist.
    #[inline]
    pub(super) fn try_get(&self, slot: Slot) -> Option<&Block> {
        self.slots.get(slot as usize)
    }

    /// All slots that hold a block, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter(|block| block.usage != Use::Vacant)
    }

    #[inline]
    pub(super) fn insert(&mut self, block: Block) -> Slot {
        if self.vacant != 0 {
            let slot = self.vacant - 1;
            let place = self.get_mut(slot);
            let (next, is_listed) = (place.next, place.is_listed);
            *place = Block { is_listed, ..block };
            self.vacant = next.wrapping_add(1);
            return slot;
        }
        // 2^32 blocks of 64 bytes would be 256 GiB. The push below fails long before this conversion wraps.
        let slot = self.slots.len() as Slot;
        self.slots.push(Block { is_listed: false, ..block });
        self.get_mut(slot);
        slot
    }

    #[inline]
    pub(super) fn remove(&mut self, slot: Slot) {
        let vacant = self.vacant;
        let place = self.get_mut(slot);
        place.usage = Use::Vacant;
        place.next = vacant.wrapping_sub(1);
        self.vacant = slot + 1;
    }
}
