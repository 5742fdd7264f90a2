//! The search of the cache: best fit, with the rules for expandable and oversize blocks.
//!
//! Guarantees: exactly one candidate is tested against the oversize rules, as in PyTorch. If it fails the test, the
//! search ends.

use memctl_model::allocator::{MIN_BLOCK_BYTES, SMALL_BYTES_MAX};

use super::free_list::ListedBlock;
use super::pool::Pool;
use super::slab::{NIL, Slot};
use super::{Allocator, Ask};

impl Allocator {
    /// Finds the block that serves the request and removes it from the cache.
    pub(super) fn take_free(&mut self, ask: &Ask) -> Option<Slot> {
        if self.collects_garbage() {
            self.pools[ask.pool].searches += 1;
        }
        let found = self.candidate(ask)?;
        self.pools[ask.pool].free.take(found);
        Some(found.slot)
    }

    /// The block that serves the request, if one does.
    pub(super) fn candidate(&self, ask: &Ask) -> Option<ListedBlock> {
        let pool = &self.pools[ask.pool];
        let mut found = pool.free.best_fit(ask.stream, ask.size, &self.blocks)?;
        if self.blocks.get(found.slot).reservation.is_some() {
            found = if self.conf.expandable_segments {
                self.least_expandable(pool, found)
            } else {
                self.beyond_expandable(pool, found)?
            };
        }
        let size = self.blocks.get(found.slot).size;
        let limit = self.conf.split_limit();
        let is_kept_for_large = ask.size < limit && size >= limit;
        let is_too_large = ask.size >= limit && size >= ask.size.saturating_add(self.conf.max_non_split_rounding_bytes);
        (!is_kept_for_large && !is_too_large).then_some(found)
    }

    /// The best of the expandable blocks: the size of a block includes its possible growth, so blocks before a large
    /// unmapped range come last.
    fn least_expandable(&self, pool: &Pool, first: ListedBlock) -> ListedBlock {
        let mut found = first;
        let mut least = self.expandable_size(found.slot);
        while let Some(next) = pool.free.after(found, &self.blocks)
            && self.blocks.get(found.slot).reservation.is_some()
        {
            let size = self.expandable_size(next.slot);
            if size >= least {
                break;
            }
            (found, least) = (next, size);
        }
        found
    }

    fn expandable_size(&self, slot: Slot) -> u64 {
        let block = self.blocks.get(slot);
        let grows = block.next != NIL && !self.blocks.get(block.next).mapped;
        block.size + if grows { self.blocks.get(block.next).size } else { 0 }
    }

    /// Skips expandable blocks, because the setting was switched off after they were made.
    fn beyond_expandable(&self, pool: &Pool, first: ListedBlock) -> Option<ListedBlock> {
        let mut found = first;
        while self.blocks.get(found.slot).reservation.is_some() {
            found = pool.free.after(found, &self.blocks)?;
        }
        Some(found)
    }

    pub(super) fn should_split(&self, block_bytes: u64, ask: &Ask) -> bool {
        let is_cut_finely = self.pools[ask.pool].is_small || self.conf.expandable_segments;
        let (least, limit) =
            if is_cut_finely { (MIN_BLOCK_BYTES, u64::MAX) } else { (SMALL_BYTES_MAX + 1, self.conf.split_limit()) };
        // Both comparisons are always evaluated, because one branch is easier to predict than two.
        (block_bytes - ask.size >= least) & (ask.size < limit)
    }
}
