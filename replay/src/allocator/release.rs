//! Releases memory to the driver: by garbage collection, one oversize block, or everything that is free.
//!
//! Guarantees: only whole segments and whole pages are released, in PyTorch's order. A private pool in use is never
//! touched.

use super::slab::{Block, Slot};
use super::{Allocator, Ask, BlockId, Limit, waits};
use crate::request::Requested;
use crate::settings::Conf;

impl Allocator {
    /// Whether garbage collection is on. It needs a share of the device as its limit.
    pub(super) fn collects_garbage(&self) -> bool {
        matches!(self.limit, Limit::Share(_)) && self.conf.garbage_collection_threshold > 0.0
    }

    /// Bytes of reserved memory above which garbage is collected.
    pub(super) fn collection_bytes(&self) -> Option<u64> {
        match self.limit {
            Limit::Share(share) if self.collects_garbage() => {
                Some((self.conf.garbage_collection_threshold * share as f64) as u64)
            }
            _ => None,
        }
    }

    /// Releases the segments of the default large pool that have been idle longest, until reserved memory is below the
    /// threshold.
    pub(super) fn collect_garbage(&mut self) {
        let Some(threshold) = self.collection_bytes() else { return };
        let reserved = self.counts.reserved_bytes;
        if reserved <= threshold {
            return;
        }
        let target = reserved - threshold;
        let searches = self.pools[0].searches;
        let age = |allocator: &Self, slot: Slot| (searches - allocator.blocks.get(slot).since) as f64;
        let mut idle: Vec<Slot> =
            self.pools[0].free.slots(&self.blocks).filter(|&slot| !self.blocks.get(slot).is_split()).collect();
        let mut ages: f64 = idle.iter().map(|&slot| age(self, slot)).sum();
        let (mut count, mut reclaimed, mut goes_on) = (idle.len(), 0, true);
        while reclaimed < target && goes_on && count > 0 {
            let old = ages / count as f64;
            goes_on = false;
            let mut kept = Vec::with_capacity(idle.len());
            for slot in idle {
                let block = *self.blocks.get(slot);
                let years = age(self, slot);
                if block.reservation.is_some() || years < old {
                    kept.push(slot);
                    continue;
                }
                goes_on = true;
                reclaimed += block.size;
                ages -= years;
                count -= 1;
                self.release_segment(slot);
            }
            idle = kept;
        }
    }

    /// With a `max_split_size`: releases one oversize block that is large enough, or several, the largest first.
    /// Returns whether this may suffice. With settings that PyTorch accepts, an oversize block is always a whole
    /// segment. A recording may claim otherwise.
    pub(super) fn release_oversize(&mut self, ask: &Ask) -> bool {
        let (going, is_enough) = self.oversize(ask);
        going.into_iter().for_each(|slot| self.release_segment(slot));
        is_enough
    }

    /// The blocks to release for a request, in order, and whether they suffice.
    fn oversize(&self, ask: &Ask) -> (Vec<Slot>, bool) {
        let Conf { max_split_bytes: Some(limit), .. } = self.conf else { return (Vec::new(), false) };
        let wanted = ask.size.max(limit);
        let pool = &self.pools[ask.pool];
        let is_segment = |block: &Block| block.reservation.is_none() && !block.is_split();
        if let Some(found) = pool.free.best_fit(ask.stream, wanted, &self.blocks)
            && is_segment(self.blocks.get(found.slot))
        {
            return (vec![found.slot], true);
        }
        let (mut released, mut going) = (0, Vec::new());
        for slot in pool.free.below(ask.stream, wanted, &self.blocks) {
            let block = self.blocks.get(slot);
            if released >= wanted || block.size < limit {
                break;
            }
            if is_segment(block) {
                released += block.size;
                going.push(slot);
            }
        }
        (going, released >= wanted)
    }

    /// How often the driver refused a request before which these segments were released in this order. It is 0 if they
    /// are not the segments that PyTorch releases for the request.
    pub(crate) fn refusals(&mut self, requested: &Requested, given_back: &[u64]) -> u32 {
        let ask = self.ask(requested.bytes, requested.stream, requested.pool);
        if self.conf.max_split_bytes.is_none() || self.candidate(&ask).is_some() {
            return 0;
        }
        let (going, is_enough) = self.oversize(&ask);
        let is_first = going.len() <= given_back.len()
            && going.iter().zip(given_back).all(|(&slot, &addr)| self.blocks.get(slot).addr == addr);
        match (going.len(), is_enough) {
            (0, _) => 0,
            _ if !is_first => 0,
            (going, true) if going < given_back.len() => 2,
            (..) => 1,
        }
    }

    /// The addresses of the cached segments of the default pools, in the order in which `empty_cache()` releases them.
    pub(crate) fn cached_segments(&self) -> impl Iterator<Item = u64> {
        let free = self.pools[..2].iter().flat_map(|pool| pool.free.slots(&self.blocks));
        let blocks = free.map(|slot| self.blocks.get(slot));
        blocks.filter(|block| block.reservation.is_none() && !block.is_split()).map(|block| block.addr)
    }

    /// Waits for pending frees, then releases every cached segment and every cached page.
    pub(super) fn release_cached(&mut self) {
        for slot in self.pending.take(|waiting| waits(&self.blocks, waiting)) {
            self.counts.active_bytes -= self.blocks.get(slot).size;
            self.become_free(slot);
            self.completed.push(BlockId(slot));
        }
        self.release_pool(0);
        self.release_pool(1);
        // PyTorch's own order of private pools is that of a hash table.
        let mut private: Vec<_> = self.pool_of.iter().map(|(&(id, is_small), &pool)| (id, !is_small, pool)).collect();
        private.sort_unstable();
        for (_, _, pool) in private {
            if pool > 1 && self.pools[pool].is_releasable {
                self.release_pool(pool);
            }
        }
    }

    /// Whether serving a request would begin with a release of memory: a collection or a retry.
    pub(crate) fn releases_for(&mut self, requested: &Requested) -> bool {
        let ask = self.ask(requested.bytes, requested.stream, requested.pool);
        if self.candidate(&ask).is_some() {
            return false;
        }
        let wanted = self.counts.reserved_bytes.saturating_add(self.segment_bytes(&ask));
        let is_above = match self.limit {
            Limit::None => false,
            Limit::Share(limit) | Limit::Device(limit) => wanted > limit,
        };
        is_above || self.collection_bytes().is_some_and(|bytes| self.counts.reserved_bytes > bytes)
    }

    /// Whether the cache has a block for a request.
    pub(crate) fn serves_from_cache(&mut self, requested: &Requested) -> bool {
        let ask = self.ask(requested.bytes, requested.stream, requested.pool);
        self.candidate(&ask).is_some()
    }

    /// Applies the effect of a failed request under an unknown limit: the cache is released.
    pub(crate) fn fail(&mut self) {
        self.release_cached();
        self.counts.retries += 1;
        self.counts.ooms += 1;
    }

    fn release_pool(&mut self, pool: usize) {
        let free: Vec<Slot> = self.pools[pool].free.slots(&self.blocks).collect();
        let mut expandable = Vec::new();
        for slot in free {
            let block = self.blocks.get(slot);
            if block.reservation.is_some() {
                expandable.push(slot);
            } else if !block.is_split() {
                self.release_segment(slot);
            }
        }
        for slot in expandable {
            self.unmap(slot);
            self.give_back_reservation(slot);
        }
    }
}
