//! Checks all invariants of the allocator, for tests.
//!
//! Guarantees: the first violated invariant is reported. Nothing is repaired.

use memctl_model::allocator::MIN_BLOCK_BYTES;

use super::slab::{NIL, Slot, Use};
use super::{Allocator, Block, waits};

impl Allocator {
    /// Checks every block.
    ///
    /// # Errors The first violated invariant, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut firsts: Vec<Slot> = Vec::new();
        let lists = self.pools.iter();
        let listed: Vec<Slot> =
            lists.flat_map(|pool| pool.free.slots(&self.blocks).chain(pool.unmapped.values().copied())).collect();
        let waiting = self.pending.slots(|waiting| waits(&self.blocks, waiting));
        for slot in listed.iter().copied().chain(waiting) {
            firsts.push(self.first_of(slot));
        }
        firsts.sort_unstable();
        firsts.dedup();
        let (mut allocated, mut pending, mut in_lists) = (0, 0, 0);
        for first in firsts {
            let mut slot = first;
            while slot != NIL {
                let block = self.blocks.get(slot);
                self.check_block(slot, block)?;
                match block.usage {
                    Use::Allocated => allocated += block.size,
                    Use::Pending => pending += block.size,
                    Use::Free => in_lists += 1,
                }
                slot = block.next;
            }
        }
        if in_lists != listed.len() {
            return Err(format!("{in_lists} free blocks, and other numbers in the lists"));
        }
        let counts = &self.counts;
        // Segments without a free byte are in no list. So only a lower bound of the allocated bytes is known.
        if allocated > counts.allocated_bytes || counts.allocated_bytes + pending != counts.active_bytes {
            return Err(format!("{allocated} allocated, {pending} pending, {counts:?}"));
        }
        if counts.active_bytes > counts.reserved_bytes || counts.reserved_bytes > counts.peak_reserved_bytes {
            return Err(format!("more in use than reserved: {counts:?}"));
        }
        let free: u64 = self
            .pools
            .iter()
            .flat_map(|pool| pool.free.slots(&self.blocks))
            .map(|slot| self.blocks.get(slot).size)
            .sum();
        if free + counts.active_bytes != counts.reserved_bytes {
            return Err(format!("{free} free bytes do not complete {counts:?}"));
        }
        Ok(())
    }

    fn first_of(&self, slot: Slot) -> Slot {
        let mut first = slot;
        while self.blocks.get(first).prev != NIL {
            first = self.blocks.get(first).prev;
        }
        first
    }

    fn check_block(&self, slot: Slot, block: &Block) -> Result<(), String> {
        if block.size == 0 || !block.addr.is_multiple_of(MIN_BLOCK_BYTES) || !block.size.is_multiple_of(MIN_BLOCK_BYTES)
        {
            return Err(format!("a block of {} bytes at {:#x}", block.size, block.addr));
        }
        if block.usage == Use::Free {
            let pool = &self.pools[block.pool as usize];
            let listed = if block.mapped {
                pool.free.get(slot, &self.blocks).map(|found| found.slot)
            } else {
                pool.unmapped.get(&(block.stream, block.addr)).copied()
            };
            if listed != Some(slot) {
                return Err(format!("the free block at {:#x} is not in its list", block.addr));
            }
        }
        if block.next == NIL {
            return Ok(());
        }
        let next = self.blocks.get(block.next);
        if next.prev != slot || next.addr != block.addr + block.size {
            return Err(format!("a gap or an overlap behind {:#x}", block.addr));
        }
        if block.usage == Use::Free && next.usage == Use::Free && block.mapped == next.mapped {
            return Err(format!("two free neighbours at {:#x}", block.addr));
        }
        Ok(())
    }
}
