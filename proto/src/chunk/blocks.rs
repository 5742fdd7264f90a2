//! The block model: a small replica of the caching allocator, learned from the events of one chunk alone,
//! that says where the next allocation will be. Encoder and decoder run it in step.
//!
//! Guarantees: the prediction is a pure function of the events so far; no event, however absurd, makes
//! it panic or grow beyond a constant per event. A wrong model costs bytes, never correctness.
//! Refuses: blocks of 2^32 granules (2 TiB) and more, and arenas beyond [`ARENAS_MAX`]: those are not modelled.
//!
//! Known blocks form chains of neighbours in address order. Blocks are learned independently of each other, so
//! each end of a chain is registered as an *edge* under its address, where the next block learned finds it.
//! The rules are written down in FORMAT.md, section "Block model", and are part of the format.
//! One long file, because it is one state machine: every method keeps the links of all others right.

use memctl_model::{Action, Event, PoolId};

use super::addresses::AddressMap;
use super::bins::{Bins, GRANULE_BYTES, Hole, NO_BLOCK, NOT_OFFERED, class_of};

/// Arenas modelled in one chunk; a process uses two (small, large) for each stream and pool.
pub(super) const ARENAS_MAX: usize = 64;
/// Stands for "not modelled".
pub(super) const NO_ARENA: u8 = u8::MAX;
/// Requests of up to 1 MiB are served from small segments.
const SMALL_GRANULES_MAX: u32 = 2048;
/// Segments for small blocks have 2 MiB.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// A large block is split only if more than 1 MiB would remain.
const LARGE_REST_GRANULES: u32 = 2048;
/// The owner of a block that is free.
const NOBODY: u32 = u32::MAX;
/// A link with this bit is the index of an edge, without it the index of a block.
const EDGE: u32 = 1 << 31;
/// The link at the border of a segment: nothing is ever joined across.
const WALL: u32 = u32::MAX;

/// A stretch of addresses that is handed out or free as a whole.
#[derive(Clone, Copy)]
struct Block {
    addr: u64,
    /// Link to what ends where this begins.
    prev: u32,
    /// Link to what begins where this ends.
    next: u32,
    /// Granules.
    len: u32,
    /// Position in its bin, [`NOT_OFFERED`] if not there.
    position: u32,
    /// Number of the allocation that holds it, [`NOBODY`] if it is free.
    owner: u32,
    arena: u8,
}

/// An end of a chain: the block that ends here or the block that begins here, else [`NO_BLOCK`].
#[derive(Clone, Copy)]
struct Edge {
    before: u32,
    after: u32,
}

struct Arena {
    stream: u64,
    pool: PoolId,
    small: bool,
    bins: Bins,
    /// End of the block handed out last; 0 before the first.
    next_addr: u64,
}

/// See the module.
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// Indexes of blocks that no longer exist, to be used again.
    spare: Vec<u32>,
    edges: Vec<Edge>,
    edge_at: AddressMap,
    arenas: Vec<Arena>,
    /// Arenas in use; those behind are kept for their memory.
    arenas_used: usize,
}

/// Where the next allocation of an arena may be.
#[derive(Clone, Copy)]
pub(super) struct Prediction {
    /// The free block that fits best.
    pub(super) best: Option<Hole>,
    /// The address behind the block handed out last; 0 before the first.
    pub(super) next_addr: u64,
}

/// Rounded length in granules of a request, if it can be modelled.
#[inline]
pub(super) fn granules(size_bytes: u64) -> Option<u32> {
    u32::try_from(size_bytes.div_ceil(GRANULE_BYTES).max(1)).ok()
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            spare: Vec::new(),
            edges: Vec::new(),
            edge_at: AddressMap::new(),
            arenas: Vec::new(),
            arenas_used: 0,
        }
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.spare.clear();
        self.edges.clear();
        self.edge_at.clear();
        self.arenas.iter_mut().for_each(|arena| arena.bins.clear());
        self.arenas_used = 0;
    }

    /// The arena that serves requests of `len` granules on a stream and pool.
    pub(super) fn arena_for_request(&mut self, stream: u64, pool: PoolId, len: u32) -> u8 {
        self.arena(stream, pool, len <= SMALL_GRANULES_MAX)
    }

    fn arena(&mut self, stream: u64, pool: PoolId, small: bool) -> u8 {
        let wanted = (stream, pool, small);
        let mut used = self.arenas[..self.arenas_used].iter();
        if let Some(index) = used.position(|arena| (arena.stream, arena.pool, arena.small) == wanted) {
            return index as u8;
        }
        if self.arenas_used == ARENAS_MAX {
            return NO_ARENA;
        }
        if self.arenas_used == self.arenas.len() {
            self.arenas.push(Arena { stream, pool, small, bins: Bins::new(), next_addr: 0 });
        } else {
            let arena = &mut self.arenas[self.arenas_used];
            (arena.stream, arena.pool, arena.small, arena.next_addr) = (stream, pool, small, 0);
        }
        self.arenas_used += 1;
        self.arenas_used as u8 - 1
    }

    /// Where the model expects the next allocation of `len` granules. The arena must be modelled.
    #[inline]
    pub(super) fn predict(&self, arena: u8, len: u32) -> Prediction {
        let arena = &self.arenas[usize::from(arena)];
        Prediction { best: arena.bins.best(len), next_addr: arena.next_addr }
    }

    /// The allocation `owner` took a free block of its arena, or what it needs of it. Returns the block it holds.
    #[inline]
    pub(super) fn take(&mut self, arena: u8, hole: Hole, len: u32, owner: u32) -> u32 {
        let state = &mut self.arenas[usize::from(arena)];
        let rest = hole.len - len;
        if rest <= if state.small { 0 } else { LARGE_REST_GRANULES } {
            state.next_addr = end_of(hole.addr, hole.len);
            self.withdraw(hole.block);
            self.blocks[hole.block as usize].owner = owner;
            return hole.block;
        }
        let end = end_of(hole.addr, len);
        state.next_addr = end;
        // The free block keeps its index and shrinks: its place in the bins often stays the same.
        let taken = self.spare.last().copied().unwrap_or(self.blocks.len() as u32);
        let free = &mut self.blocks[hole.block as usize];
        let prev = std::mem::replace(&mut free.prev, taken);
        (free.addr, free.len) = (end, rest);
        self.add(Block { addr: hole.addr, prev, next: hole.block, len, position: NOT_OFFERED, owner, arena });
        self.link_next(prev, taken);
        self.offer_again(hole.block, hole.len);
        taken
    }

    /// The allocation `owner` got `addr` against the prediction. Returns the block it holds.
    pub(super) fn place(&mut self, addr: u64, len: u32, arena: u8, owner: u32) -> u32 {
        if let Some(hole) = self.overlapping(arena, addr, len)
            && hole.addr == addr
            && hole.len >= len
        {
            return self.take(arena, hole, len, owner);
        }
        self.arenas[usize::from(arena)].next_addr = end_of(addr, len);
        self.learn(addr, len, arena, owner, false)
    }

    /// The block that allocation `owner` holds becomes free; nothing happens if it no longer holds it.
    #[inline]
    pub(super) fn release(&mut self, block: u32, owner: u32) {
        if let Some(held) = self.blocks.get_mut(block as usize)
            && held.owner == owner
        {
            held.owner = NOBODY;
            self.merge_and_offer(block);
        }
    }

    /// A block that the chunk never saw allocated becomes free.
    pub(super) fn release_unknown(&mut self, addr: u64, len: u32, arena: u8) {
        let block = self.learn(addr, len, arena, NOBODY, false);
        self.merge_and_offer(block);
    }

    /// Follows an event that is neither an allocation nor a free.
    pub(super) fn observe(&mut self, event: &Event) {
        let Event { addr, size, stream, pool, .. } = *event;
        let is_new = match event.action {
            Action::SegmentAlloc | Action::SegmentMap => true,
            Action::SegmentFree | Action::SegmentUnmap => false,
            _ => return,
        };
        let Some(len) = granules(size) else { return };
        let arena = self.arena(stream, pool, size <= SMALL_SEGMENT_BYTES);
        if arena == NO_ARENA {
            return;
        }
        if is_new {
            // Mapped pages join their neighbours, segments never do.
            let block = self.learn(addr, len, arena, NOBODY, event.action == Action::SegmentAlloc);
            self.merge_and_offer(block);
        } else if let Some(hole) = self.overlapping(arena, addr, len)
            && hole.addr == addr
        {
            self.forget(hole.block);
            if hole.len > len {
                self.release_unknown(end_of(addr, len), hole.len - len, arena);
            }
        }
    }

    /// The first free block offered by an arena that shares an address with these `len` granules.
    fn overlapping(&self, arena: u8, addr: u64, len: u32) -> Option<Hole> {
        let bytes = |len: u32| u64::from(len) * GRANULE_BYTES;
        self.arenas[usize::from(arena)]
            .bins
            .all()
            .find(|hole| hole.addr.wrapping_sub(addr) < bytes(len) || addr.wrapping_sub(hole.addr) < bytes(hole.len))
    }

    /// Adds a block where no free one is known to be; free ones that contradict it are forgotten.
    fn learn(&mut self, addr: u64, len: u32, arena: u8, owner: u32, walls: bool) -> u32 {
        while let Some(hole) = self.overlapping(arena, addr, len) {
            self.forget(hole.block);
        }
        let block = self.add(Block { addr, prev: WALL, next: WALL, len, position: NOT_OFFERED, owner, arena });
        if !walls {
            self.connect_left(block, addr);
            self.connect_right(block, end_of(addr, len));
        }
        block
    }

    /// Links the beginning of a block with the chain that ends there, or makes it the beginning of one.
    fn connect_left(&mut self, block: u32, addr: u64) {
        let index = self.edge(addr);
        let edge = &mut self.edges[index as usize];
        let (before, after) = (edge.before, edge.after);
        if let Some(neighbour) = self.blocks.get_mut(before as usize) {
            edge.before = NO_BLOCK;
            neighbour.next = block;
            self.blocks[block as usize].prev = before;
        } else {
            edge.after = block;
            self.blocks[block as usize].prev = EDGE | index;
            if let Some(contradicted) = self.blocks.get_mut(after as usize) {
                contradicted.prev = WALL;
            }
        }
    }

    /// Links the end of a block with the chain that begins there, or makes it the end of one.
    fn connect_right(&mut self, block: u32, end: u64) {
        let index = self.edge(end);
        let edge = &mut self.edges[index as usize];
        let (before, after) = (edge.before, edge.after);
        if let Some(neighbour) = self.blocks.get_mut(after as usize) {
            edge.after = NO_BLOCK;
            neighbour.prev = block;
            self.blocks[block as usize].next = after;
        } else {
            edge.before = block;
            self.blocks[block as usize].next = EDGE | index;
            if let Some(contradicted) = self.blocks.get_mut(before as usize) {
                contradicted.next = WALL;
            }
        }
    }

    /// The edge at an address, which may have no block yet.
    fn edge(&mut self, addr: u64) -> u32 {
        if let Some(index) = self.edge_at.find(addr) {
            return index;
        }
        let index = self.edges.len() as u32;
        self.edges.push(Edge { before: NO_BLOCK, after: NO_BLOCK });
        self.edge_at.insert(addr, index);
        index
    }

    /// Joins a free block that is not offered yet with its free neighbours and offers the result.
    #[inline]
    fn merge_and_offer(&mut self, block: u32) {
        // Field by field here and below: loading a block as a whole would wait for the stores that just wrote its parts.
        let Block { addr, prev, next, len, arena, .. } = self.blocks[block as usize];
        let (mut merged, mut old_len, mut new_len) = (block, len, len);
        if let Some(left_len) = self.mergeable(prev, arena, len) {
            (merged, old_len, new_len) = (prev, left_len, left_len + len);
            let left = &mut self.blocks[prev as usize];
            (left.len, left.next) = (new_len, next);
            self.link_prev(next, prev);
            self.spare.push(block);
        }
        if let Some(right_len) = self.mergeable(next, arena, new_len) {
            if merged == block {
                // The right neighbour is offered already: it grows to the left.
                (merged, old_len) = (next, right_len);
                let right = &mut self.blocks[next as usize];
                (right.addr, right.len, right.prev) = (addr, right_len + len, prev);
                self.link_next(prev, next);
                self.spare.push(block);
            } else {
                self.withdraw(next);
                let after = self.blocks[next as usize].next;
                let left = &mut self.blocks[merged as usize];
                (left.len, left.next) = (new_len + right_len, after);
                self.link_prev(after, merged);
                self.spare.push(next);
            }
        }
        self.offer_again(merged, old_len);
    }

    /// The neighbour's length, if it is a free block of this arena and both together can be modelled.
    #[inline]
    fn mergeable(&self, neighbour: u32, arena: u8, len: u32) -> Option<u32> {
        // Edges and walls are beyond all blocks.
        let other = self.blocks.get(neighbour as usize)?;
        (other.owner == NOBODY && other.arena == arena && other.len.checked_add(len).is_some()).then_some(other.len)
    }

    /// What `link` leads to now has `block` as its next one.
    #[inline]
    fn link_next(&mut self, link: u32, block: u32) {
        if let Some(neighbour) = self.blocks.get_mut(link as usize) {
            neighbour.next = block;
        } else if let Some(edge) = self.edges.get_mut((link ^ EDGE) as usize) {
            edge.after = block;
        }
    }

    /// What `link` leads to now has `block` as its previous one.
    #[inline]
    fn link_prev(&mut self, link: u32, block: u32) {
        if let Some(neighbour) = self.blocks.get_mut(link as usize) {
            neighbour.prev = block;
        } else if let Some(edge) = self.edges.get_mut((link ^ EDGE) as usize) {
            edge.before = block;
        }
    }

    /// Offers a free block that had `old_len` granules when it was offered, if it was.
    #[inline]
    fn offer_again(&mut self, block: u32, old_len: u32) {
        let Block { addr, len, position, arena, .. } = self.blocks[block as usize];
        let bins = &mut self.arenas[usize::from(arena)].bins;
        let hole = Hole { addr, len, block };
        if position != NOT_OFFERED {
            if class_of(len) == class_of(old_len) {
                bins.replace(position, hole);
                return;
            }
            if let Some(moved) = bins.withdraw(old_len, position) {
                self.blocks[moved as usize].position = position;
            }
        }
        self.blocks[block as usize].position = bins.offer(hole);
    }

    #[inline]
    fn withdraw(&mut self, block: u32) {
        let Block { arena, len, position, .. } = self.blocks[block as usize];
        if position != NOT_OFFERED {
            if let Some(moved) = self.arenas[usize::from(arena)].bins.withdraw(len, position) {
                self.blocks[moved as usize].position = position;
            }
            self.blocks[block as usize].position = NOT_OFFERED;
        }
    }

    /// Removes a free block from the model. Its neighbours become ends of chains.
    fn forget(&mut self, block: u32) {
        self.withdraw(block);
        let Block { addr, prev, next, len, .. } = self.blocks[block as usize];
        self.link_next(prev, NO_BLOCK);
        self.link_prev(next, NO_BLOCK);
        self.spare.push(block);
        if (prev as usize) < self.blocks.len() {
            self.connect_right(prev, addr);
        }
        if (next as usize) < self.blocks.len() {
            self.connect_left(next, end_of(addr, len));
        }
    }

    #[inline]
    fn add(&mut self, block: Block) -> u32 {
        if let Some(index) = self.spare.pop() {
            self.blocks[index as usize] = block;
            return index;
        }
        self.blocks.push(block);
        self.blocks.len() as u32 - 1
    }
}

/// The address behind a block; wraps at the end of the address space, which only hostile input reaches.
#[inline]
fn end_of(addr: u64, len: u32) -> u64 {
    addr.wrapping_add(u64::from(len) * GRANULE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId::DEFAULT;

    fn segment(blocks: &mut Blocks, action: Action, addr: u64, size: u64) {
        blocks.observe(&Event { addr, size, action, ..Event::default() });
    }

    fn best(blocks: &Blocks, arena: u8, len: u32) -> Option<(u64, u32)> {
        blocks.predict(arena, len).best.map(|hole| (hole.addr, hole.len))
    }

    fn take(blocks: &mut Blocks, arena: u8, len: u32, owner: u32) -> (u64, u32) {
        let hole = blocks.predict(arena, len).best.unwrap();
        (hole.addr, blocks.take(arena, hole, len, owner))
    }

    #[test]
    fn small_blocks_are_carved_and_join_again() {
        let mut blocks = Blocks::new();
        segment(&mut blocks, Action::SegmentAlloc, 0x1000_0000, 2 << 20);
        let arena = blocks.arena_for_request(0, POOL, 1);
        let taken: Vec<_> = (0..4).map(|owner| take(&mut blocks, arena, 2, owner)).collect();
        assert_eq!(taken.iter().map(|&(addr, _)| addr - 0x1000_0000).collect::<Vec<_>>(), [0, 1024, 2048, 3072]);
        blocks.release(taken[1].1, 1);
        // The hole fits better than the rest of the segment.
        assert_eq!(best(&blocks, arena, 2), Some((0x1000_0400, 2)));
        assert_eq!(best(&blocks, arena, 3), Some((0x1000_1000, 4088)));
        blocks.release(taken[2].1, 2);
        assert_eq!(best(&blocks, arena, 3), Some((0x1000_0400, 4)));
        // Released by somebody else: nothing happens.
        blocks.release(taken[0].1, 3);
        blocks.release(taken[0].1, 0);
        blocks.release(taken[3].1, 3);
        assert_eq!(best(&blocks, arena, 1), Some((0x1000_0000, 4096)));
    }

    #[test]
    fn a_large_block_is_split_only_if_more_than_a_mebibyte_remains() {
        let mut blocks = Blocks::new();
        segment(&mut blocks, Action::SegmentAlloc, 0, 20 << 20);
        let arena = blocks.arena_for_request(0, POOL, 4000);
        let mebibyte = 2048;
        let (_, block) = take(&mut blocks, arena, 19 * mebibyte, 0);
        assert_eq!(best(&blocks, arena, 1), None);
        blocks.release(block, 0);
        take(&mut blocks, arena, 19 * mebibyte - 1, 1);
        assert_eq!(best(&blocks, arena, 1), Some(((19 << 20) - 512, mebibyte + 1)));
    }

    #[test]
    fn segments_have_walls_and_mapped_pages_do_not() {
        for (action, joined) in [(Action::SegmentAlloc, 4096), (Action::SegmentMap, 8192)] {
            let mut blocks = Blocks::new();
            segment(&mut blocks, action, 0, 2 << 20);
            segment(&mut blocks, action, 2 << 20, 2 << 20);
            let arena = blocks.arena_for_request(0, POOL, 1);
            assert_eq!(best(&blocks, arena, 1), Some((0, joined)));
        }
    }

    #[test]
    fn blocks_learned_apart_become_neighbours() {
        let mut blocks = Blocks::new();
        let arena = blocks.arena_for_request(0, POOL, 1);
        blocks.release_unknown(512, 1, arena);
        blocks.release_unknown(1536, 1, arena);
        let between = blocks.place(1024, 1, arena, 0);
        assert_eq!(blocks.predict(arena, 1).next_addr, 1536);
        blocks.release(between, 0);
        assert_eq!(best(&blocks, arena, 1), Some((512, 3)));
        // An allocation in the middle contradicts the model, which forgets the hole.
        blocks.place(1024, 1, arena, 1);
        assert_eq!(best(&blocks, arena, 1), None);
        blocks.release_unknown(512, 1, arena);
        assert_eq!(best(&blocks, arena, 1), Some((512, 1)));
    }

    #[test]
    fn a_segment_that_goes_back_takes_its_free_block_along() {
        let mut blocks = Blocks::new();
        segment(&mut blocks, Action::SegmentMap, 0, 2 << 20);
        segment(&mut blocks, Action::SegmentMap, 2 << 20, 2 << 20);
        segment(&mut blocks, Action::SegmentUnmap, 0, 2 << 20);
        let arena = blocks.arena_for_request(0, POOL, 1);
        assert_eq!(best(&blocks, arena, 1), Some((2 << 20, 4096)));
        segment(&mut blocks, Action::SegmentUnmap, 2 << 20, 2 << 20);
        assert_eq!(best(&blocks, arena, 1), None);
    }

    #[test]
    fn streams_pools_and_sizes_have_arenas_of_their_own_up_to_a_limit() {
        let mut blocks = Blocks::new();
        let small = blocks.arena_for_request(0, POOL, 2048);
        assert_ne!(small, blocks.arena_for_request(0, POOL, 2049));
        assert_ne!(small, blocks.arena_for_request(1, POOL, 2048));
        assert_ne!(small, blocks.arena_for_request(0, PoolId { first: 0, second: 1 }, 2048));
        assert_eq!(small, blocks.arena_for_request(0, POOL, 1));
        for stream in 0..100 {
            blocks.arena_for_request(stream, POOL, 1);
        }
        assert_eq!(blocks.arena_for_request(1000, POOL, 1), NO_ARENA);
        blocks.clear();
        assert_eq!(blocks.arena_for_request(1000, POOL, 1), 0);
    }
}
