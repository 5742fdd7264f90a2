//! The allocator of one device: PyTorch's `DeviceCachingAllocator`, without a device.
//!
//! Guarantees: blocks tile their segments exactly. No two free neighbours are both mapped or both unmapped. Reserved ≥
//! active ≥ allocated. The same calls give the same results. A request above the limit fails, but only after the
//! allocator's whole chain of retries.
//!
//! | file | PyTorch |
//! |---|---|
//! | `mod.rs` | `malloc`, `free`, `alloc_found_block`, `free_block`, `try_merge_blocks` |
//! | `find.rs` | `get_free_block`, `should_split` |
//! | `driver.rs` | `alloc_block`, `release_block`, limits |
//! | `expandable.rs` | `try_allocate_expandable_block`, `map_block`, `unmap_block` |
//! | `release.rs` | `garbage_collect_cached_blocks`, `release_available_cached_blocks`, `release_cached_blocks` |

mod address;
mod check;
mod driver;
mod expandable;
mod find;
mod free_list;
mod leaf;
mod pending;
mod pool;
mod release;
mod restore;
mod rooms;
mod slab;
mod space;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use memctl_model::{PoolId, allocator};

use crate::settings::{Conf, Ties};
pub use address::Hint;
use address::{Addresses, ReservationId};
pub use driver::{Counts, DriverCall, DriverEvent, Limit};
use expandable::Reservation;
use pending::{Pending, Waiting};
use pool::Pool;
use slab::{Block, NIL, Slab, Slot, Use};

/// An allocated block. The value is meaningless once the block's free has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(Slot);

impl BlockId {
    /// A small number that no other existing block has.
    pub(crate) fn slot(self) -> usize {
        self.0 as usize
    }
}

/// A request that failed after all retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Rounded bytes of the request.
    pub rounded: u64,
    /// Bytes that the driver would have had to provide.
    pub segment: u64,
    /// Reserved bytes after everything possible was released.
    pub reserved: u64,
}

/// A request while the allocator handles it.
#[derive(Clone, Copy, Debug)]
struct Ask {
    size: u64,
    stream: u64,
    pool: usize,
}

/// The allocator; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Allocator {
    conf: Conf,
    limit: Limit,
    /// Bytes of addresses that an expandable segment occupies.
    reservation_bytes: u64,
    blocks: Slab,
    pools: Vec<Pool>,
    pool_of: BTreeMap<(PoolId, bool), usize>,
    reservations: BTreeMap<ReservationId, Reservation>,
    reservations_made: u32,
    /// Number of segments of either kind made so far; also of blocks, if their age breaks ties.
    blocks_made: u32,
    pending: Pending,
    turns: u64,
    /// How many more times the driver refuses.
    refusals: u32,
    addresses: Addresses,
    counts: Counts,
    /// Driver calls since [`Self::forget_calls`].
    calls: Vec<DriverEvent>,
    /// Blocks whose free a retry waited for, since [`Self::take_completed`].
    completed: Vec<BlockId>,
}

impl Allocator {
    /// An allocator without any memory.
    #[must_use]
    pub fn new(conf: Conf, limit: Limit) -> Self {
        let pools = vec![Pool::new(PoolId::DEFAULT, false), Pool::new(PoolId::DEFAULT, true)];
        let pool_of = [((PoolId::DEFAULT, false), 0), ((PoolId::DEFAULT, true), 1)].into();
        Self {
            conf,
            limit,
            reservation_bytes: limit.reservation_bytes(),
            blocks: Slab::default(),
            pools,
            pool_of,
            reservations: BTreeMap::new(),
            reservations_made: 0,
            blocks_made: 0,
            pending: Pending::default(),
            turns: 0,
            refusals: 0,
            addresses: Addresses::default(),
            counts: Counts::default(),
            calls: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// Serves a request.
    ///
    /// # Errors No block of the cache fits, and the limit leaves no room even after the cache is released.
    pub fn malloc(&mut self, requested: u64, stream: u64, pool: PoolId) -> Result<BlockId, OutOfMemory> {
        let ask = self.ask(requested, stream, pool);
        let slot = match self.take_free(&ask) {
            Some(slot) => slot,
            None => self.obtain(&ask)?,
        };
        Ok(BlockId(self.hand_out(slot, &ask, requested)))
    }

    fn ask(&mut self, requested: u64, stream: u64, pool: PoolId) -> Ask {
        let size = allocator::round(&self.conf.roundup_power2_divisions, requested);
        let pool = self.pool(pool, size <= allocator::SMALL_BYTES_MAX);
        Ask { size, stream, pool }
    }

    /// Bytes of the segment that the driver must provide for the request.
    fn segment_bytes(&self, ask: &Ask) -> u64 {
        allocator::segment_bytes(ask.size, self.conf.large_segment_bytes)
    }

    /// The age of a segment or block that is made now, or 0 if ages do not matter.
    fn next_age(&mut self) -> u32 {
        self.blocks_made = self.blocks_made.saturating_add(1);
        if self.conf.ties == Ties::LowestAddress { 0 } else { self.blocks_made }
    }

    /// The age of a block that is split off another.
    fn age_beside(&mut self, other: u32) -> u32 {
        if self.conf.ties == Ties::OlderBlock { self.next_age() } else { other }
    }

    /// The index of a pool, which is created if it is new.
    fn pool(&mut self, id: PoolId, is_small: bool) -> usize {
        if id == PoolId::DEFAULT {
            return usize::from(is_small);
        }
        let (pools, next) = (&mut self.pools, self.pool_of.len());
        *self.pool_of.entry((id, is_small)).or_insert_with(|| {
            pools.push(Pool::new(id, is_small));
            next
        })
    }

    /// Marks a private pool as unused: from now on its cache may be released.
    pub fn pool_is_released(&mut self, id: PoolId) {
        for is_small in [false, true] {
            let pool = self.pool(id, is_small);
            self.pools[pool].is_releasable = true;
        }
    }

    /// PyTorch's sequence of steps if the cache has no suitable block: garbage collection, the driver, releasing one
    /// oversize block, releasing everything.
    fn obtain(&mut self, ask: &Ask) -> Result<Slot, OutOfMemory> {
        self.collect_garbage();
        if let Some(slot) = self.ask_driver(ask) {
            return Ok(slot);
        }
        if self.release_oversize(ask)
            && let Some(slot) = self.ask_driver(ask)
        {
            return Ok(slot);
        }
        self.release_cached();
        self.counts.retries += 1;
        // Memory that became free in a split segment meanwhile is not searched again: PyTorch issue 189504.
        self.ask_driver(ask).ok_or_else(|| {
            self.counts.ooms += 1;
            OutOfMemory { rounded: ask.size, segment: self.segment_bytes(ask), reserved: self.counts.reserved_bytes }
        })
    }

    /// Allocates a free block, which is in no list any more, to the request. The low part is used; the rest stays
    /// free.
    fn hand_out(&mut self, slot: Slot, ask: &Ask, requested: u64) -> Slot {
        let mut given = slot;
        if self.should_split(self.blocks.get(slot).size, ask) {
            let rest = self.blocks.get_mut(slot);
            let low = Block { size: ask.size, ..*rest };
            rest.addr += ask.size;
            rest.size -= ask.size;
            let low = Block { age: self.age_beside(low.age), ..low };
            given = self.blocks.splice(low.prev, low, slot);
            self.insert_free(slot);
        }
        let block = self.blocks.get_mut(given);
        block.usage = Use::Allocated;
        block.requested = requested;
        let size = block.size;
        self.counts.hand_out(size, requested);
        given
    }

    /// The program frees a block. The block stays active until [`Self::free_completed`]. In any other state of the
    /// block nothing happens.
    pub fn free_requested(&mut self, id: BlockId) {
        let block = self.blocks.get_mut(id.0);
        if block.usage != Use::Allocated {
            return;
        }
        block.usage = Use::Pending;
        block.since = self.turns;
        let (size, requested) = (block.size, block.requested);
        self.counts.take_back(size, requested);
        self.pending.push(Waiting { turn: self.turns, slot: id.0 });
        self.turns += 1;
    }

    /// No stream uses a freed block any more. In any other state of the block nothing happens.
    pub fn free_completed(&mut self, id: BlockId) {
        let block = self.blocks.get(id.0);
        if block.usage != Use::Pending {
            return;
        }
        self.counts.active_bytes -= block.size;
        self.pending.complete(block.since, |waiting| waits(&self.blocks, waiting));
        self.become_free(id.0);
    }

    /// Frees a block and completes the free at once, as for most blocks. In any other state of the block nothing
    /// happens.
    pub(crate) fn free(&mut self, id: BlockId) {
        let block = self.blocks.get(id.0);
        if block.usage != Use::Allocated {
            return self.free_completed(id);
        }
        let (size, requested) = (block.size, block.requested);
        self.counts.take_back(size, requested);
        self.counts.active_bytes -= size;
        self.become_free(id.0);
    }

    /// Merges a block with its free neighbours and puts it into the free list.
    fn become_free(&mut self, slot: Slot) {
        let block = self.blocks.get_mut(slot);
        block.usage = Use::Free;
        block.requested = 0;
        self.merge(slot);
        self.insert_free(slot);
    }

    /// Absorbs the neighbours that are in a list and are mapped or unmapped like the block. `slot` itself is in no
    /// list.
    fn merge(&mut self, slot: Slot) {
        let Block { prev, next, mapped, .. } = *self.blocks.get(slot);
        if self.may_merge(prev, mapped) {
            let before = *self.blocks.get(prev);
            self.unlist(prev);
            let block = self.blocks.get_mut(slot);
            block.addr = before.addr;
            block.size += before.size;
            block.prev = before.prev;
            if before.prev != NIL {
                self.blocks.get_mut(before.prev).next = slot;
            }
            self.blocks.remove(prev);
        }
        if self.may_merge(next, mapped) {
            let after = *self.blocks.get(next);
            self.unlist(next);
            let block = self.blocks.get_mut(slot);
            block.size += after.size;
            block.next = after.next;
            if after.next != NIL {
                self.blocks.get_mut(after.next).prev = slot;
            }
            self.blocks.remove(next);
        }
    }

    fn may_merge(&self, slot: Slot, mapped: bool) -> bool {
        slot != NIL && self.blocks.get(slot).usage == Use::Free && self.blocks.get(slot).mapped == mapped
    }

    /// Puts a free block into its pool's list. Its idle time begins.
    fn insert_free(&mut self, slot: Slot) {
        let block = self.blocks.get_mut(slot);
        let pool = &mut self.pools[block.pool as usize];
        block.since = pool.searches;
        pool.free.insert(slot, &self.blocks);
    }

    /// Removes a free block from its list.
    fn unlist(&mut self, slot: Slot) {
        let block = self.blocks.get(slot);
        let pool = &mut self.pools[block.pool as usize];
        if block.mapped {
            pool.free.remove(slot, &self.blocks);
        } else {
            pool.unmapped.remove(&(block.stream, block.addr));
        }
    }

    /// Releases the cache to the driver, as the program does with `torch.cuda.empty_cache()`.
    pub fn empty_cache(&mut self) {
        self.release_cached();
    }

    /// The counts of memory and calls.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The address of a block.
    #[must_use]
    pub fn address(&self, id: BlockId) -> u64 {
        self.blocks.get(id.0).addr
    }

    /// The size of a block.
    #[must_use]
    pub fn size(&self, id: BlockId) -> u64 {
        self.blocks.get(id.0).size
    }

    /// The driver calls since [`Self::forget_calls`], in order.
    pub fn calls(&self) -> &[DriverEvent] {
        &self.calls
    }

    /// Clears the list of driver calls.
    pub fn forget_calls(&mut self) {
        self.calls.clear();
    }

    /// Whether [`Self::take_completed`] would return any block.
    #[must_use]
    pub fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Returns blocks that a retry's synchronisation freed before [`Self::free_completed`] was called.
    pub fn take_completed(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.completed)
    }

    /// Makes the driver refuse this many times, regardless of the limit.
    pub(crate) fn refuse(&mut self, times: u32) {
        self.refusals = times;
    }

    /// Changes the limit from now on.
    pub(crate) fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    /// Sets the segments that the recording's driver provided for the next request. Nearly all requests have none.
    #[inline]
    pub(crate) fn hint(&mut self, hints: &[Hint]) {
        if !hints.is_empty() || !self.addresses.hints.is_empty() {
            self.addresses.hints.clear();
            self.addresses.hints.extend(hints);
        }
    }
}

/// Whether a block still waits. Its slot may already belong to another block, which has another turn.
fn waits(blocks: &Slab, waiting: &Waiting) -> bool {
    let block = blocks.get(waiting.slot);
    block.usage == Use::Pending && block.since == waiting.turn
}
