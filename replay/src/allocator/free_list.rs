//! The free blocks of a pool, in the order in which the allocator searches them: by stream, then size, then (from
//! torch 2.12 on) age, then address.
//!
//! A stream's blocks are in leaves ([`super::leaf`]), which are found through an array of their last keys. This search
//! is most of the cost of a replayed event, and a pool has dozens of free blocks, seldom thousands.
//!
//! Guarantees: the result is the smallest block of a stream that is large enough; among equal ones the oldest, and
//! among these the one with the lowest address. Memory is proportional to the listed blocks. An operation costs one
//! leaf plus the logarithm of the number of leaves. A block must not change while it is listed.

use super::leaf::{BYTES_MAX, LEAF, Leaf, UNIT, key, key_of};
use super::slab::{Slab, Slot};

/// A leaf with fewer blocks than this is merged with a neighbour if both together fit into half of a leaf.
const SPARSE: usize = LEAF / 4;

/// A listed block and its place, which is valid until its list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedBlock {
    pub slot: Slot,
    lane: u32,
    leaf: u32,
    at: u32,
}

/// The blocks of a stream, in at least one leaf.
#[derive(Clone, Debug)]
struct Lane {
    stream: u64,
    /// The last key of each leaf. The last leaf has no upper bound.
    ends: Vec<u128>,
    // Boxed, so that inserting a leaf moves pointers and not 192 bytes for each leaf behind it.
    #[expect(clippy::vec_box)]
    leaves: Vec<Box<Leaf>>,
}

impl Lane {
    fn new(stream: u64) -> Self {
        Self { stream, ends: vec![u128::MAX], leaves: vec![Box::new(Leaf::EMPTY)] }
    }

    fn is_empty(&self) -> bool {
        self.leaves.len() == 1 && self.leaves[0].len == 0
    }

    /// The leaf to which a key belongs.
    fn leaf(&self, key: u128) -> usize {
        if self.ends.len() == 1 { 0 } else { self.ends.partition_point(|&end| end < key).min(self.ends.len() - 1) }
    }

    /// The first block at or above a key: its leaf and its place in that leaf.
    fn lowest(&self, from: u128, blocks: &Slab) -> Option<(usize, usize)> {
        let leaf = self.leaf(from);
        if let Some(at) = self.leaves[leaf].lowest(from, blocks) {
            return Some((leaf, at));
        }
        // All keys of the next leaf are above.
        let next = self.leaves.get(leaf + 1)?;
        next.lowest(from, blocks).map(|at| (leaf + 1, at))
    }

    fn insert(&mut self, key: u128, slot: Slot, blocks: &Slab) {
        let mut leaf = self.leaf(key);
        if self.leaves[leaf].len == LEAF {
            let (high, end) = self.leaves[leaf].split_off(blocks);
            self.leaves.insert(leaf + 1, Box::new(high));
            self.ends.insert(leaf, end);
            leaf += usize::from(key > end);
        }
        self.leaves[leaf].put(key, slot);
    }

    fn take(&mut self, leaf: usize, at: usize) {
        self.leaves[leaf].take(at);
        let len = self.leaves[leaf].len;
        if len < SPARSE && self.leaves.len() > 1 {
            self.merge(if leaf + 1 < self.leaves.len() { leaf } else { leaf - 1 });
        }
    }

    /// Merges a leaf with the next one if both fit into half of a leaf, or if one is empty. So no leaf is empty if
    /// there are several.
    fn merge(&mut self, leaf: usize) {
        let (low, high) = (self.leaves[leaf].len, self.leaves[leaf + 1].len);
        if low + high <= LEAF / 2 || low == 0 || high == 0 {
            let behind = self.leaves.remove(leaf + 1);
            self.leaves[leaf].append(&behind);
            self.ends.remove(leaf);
        }
    }
}

/// The free blocks of a pool; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeList {
    /// One lane per stream, sorted. Most pools have only one.
    lanes: Vec<Lane>,
}

impl FreeList {
    fn lane(&self, stream: u64) -> Result<usize, usize> {
        match self.lanes.first() {
            Some(first) if first.stream == stream => Ok(0),
            _ => self.lanes.binary_search_by_key(&stream, |lane| lane.stream),
        }
    }

    /// Inserts a block that is in no list.
    pub fn insert(&mut self, slot: Slot, blocks: &Slab) {
        let block = blocks.get(slot);
        let lane = self.lane(block.stream).unwrap_or_else(|at| {
            self.lanes.insert(at, Lane::new(block.stream));
            at
        });
        self.lanes[lane].insert(key_of(block), slot, blocks);
    }

    /// Removes a block if it is listed.
    pub fn remove(&mut self, slot: Slot, blocks: &Slab) {
        if let Some(found) = self.get(slot, blocks) {
            self.take(found);
        }
    }

    /// Removes a block that was found.
    pub fn take(&mut self, found: ListedBlock) {
        let lane = found.lane as usize;
        self.lanes[lane].take(found.leaf as usize, found.at as usize);
        // The last lane keeps its leaf for the next block.
        if self.lanes.len() > 1 && self.lanes[lane].is_empty() {
            self.lanes.remove(lane);
        }
    }

    /// The place of a listed block.
    pub fn get(&self, slot: Slot, blocks: &Slab) -> Option<ListedBlock> {
        let block = blocks.get(slot);
        let lane = self.lane(block.stream).ok()?;
        let leaf = self.lanes[lane].leaf(key_of(block));
        let at = self.lanes[lane].leaves[leaf].place_of(slot)?;
        Some(ListedBlock { slot, lane: lane as u32, leaf: leaf as u32, at: at as u32 })
    }

    /// The first block of a stream at or above a key.
    fn lowest(&self, stream: u64, from: u128, blocks: &Slab) -> Option<ListedBlock> {
        let lane = self.lane(stream).ok()?;
        let (leaf, at) = self.lanes[lane].lowest(from, blocks)?;
        let slot = self.lanes[lane].leaves[leaf].slots()[at];
        Some(ListedBlock { slot, lane: lane as u32, leaf: leaf as u32, at: at as u32 })
    }

    /// The smallest block of a stream with at least this many bytes.
    pub fn best_fit(&self, stream: u64, size: u64, blocks: &Slab) -> Option<ListedBlock> {
        if size < BYTES_MAX { self.lowest(stream, key(size, 0, 0), blocks) } else { None }
    }

    /// The next larger block of the same stream.
    pub fn after(&self, found: ListedBlock, blocks: &Slab) -> Option<ListedBlock> {
        let block = blocks.get(found.slot);
        self.lowest(block.stream, key_of(block) + 1, blocks)
    }

    /// The blocks of a stream with fewer bytes than this, the largest first.
    pub fn below<'a>(&'a self, stream: u64, size: u64, blocks: &'a Slab) -> impl Iterator<Item = Slot> + use<'a> {
        let lane = self.lane(stream).ok().map(|lane| &self.lanes[lane]);
        let all = lane.into_iter().flat_map(move |lane| {
            let last = lane.leaf(key(size.min(BYTES_MAX - UNIT), 0, 0));
            sorted(&lane.leaves[..=last], blocks).rev()
        });
        all.filter(move |&slot| blocks.get(slot).size < size)
    }

    /// All blocks, in order.
    pub fn slots<'a>(&'a self, blocks: &'a Slab) -> impl Iterator<Item = Slot> + use<'a> {
        self.lanes.iter().flat_map(|lane| sorted(&lane.leaves, blocks))
    }
}

fn sorted<'a>(leaves: &'a [Box<Leaf>], blocks: &'a Slab) -> impl DoubleEndedIterator<Item = Slot> + use<'a> {
    leaves.iter().flat_map(|leaf| leaf.sorted(blocks).into_iter().take(leaf.len))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::super::slab::Block;
    use super::*;

    /// Blocks by stream and key, each in a slot of its own.
    #[derive(Default)]
    struct BlocksByKey {
        blocks: Slab,
        slots: BTreeMap<(u64, u128), Slot>,
    }

    impl BlocksByKey {
        fn slot(&mut self, (stream, size, addr): (u64, u64, u64)) -> Slot {
            // Blocks at neighbouring addresses have different ages, so that both keys matter. Some sizes are so large
            // that a leaf cannot distinguish them.
            let size = if size < 30 { size } else { size << 40 };
            let block = Block { age: (addr % 3) as u32, ..Block::free(addr * UNIT, size * UNIT, stream, 0, None) };
            let blocks = &mut self.blocks;
            *self.slots.entry((stream, key_of(&block))).or_insert_with(|| blocks.insert(block))
        }

        fn place(&self, slot: Slot) -> (u64, u128) {
            let block = self.blocks.get(slot);
            (block.stream, key_of(block))
        }
    }

    /// Inserts and removes blocks at random and compares the list with a tree.
    fn behaves_like_a_tree(operations: &[(bool, u64, u64, u64)]) -> Result<(), TestCaseError> {
        let (mut list, mut tree, mut known) = (FreeList::default(), BTreeMap::new(), BlocksByKey::default());
        for &(puts, stream, size, addr) in operations {
            let slot = known.slot((stream, size, addr));
            let place = known.place(slot);
            let blocks = &known.blocks;
            if puts && !tree.contains_key(&place) {
                list.insert(slot, blocks);
                tree.insert(place, slot);
            } else if !puts {
                // The block at or above this place is removed.
                let next = tree.range(place..).next().map(|(&next, &slot)| (next, slot));
                if let Some((next, slot)) = next {
                    prop_assert_eq!(list.get(slot, blocks).map(|it| it.slot), tree.remove(&next));
                    list.remove(slot, blocks);
                }
                list.remove(slot, blocks);
                tree.remove(&place);
            }
            let wanted = blocks.get(slot).size;
            let mut behind = tree.range((Bound::Included((stream, key(wanted, 0, 0))), Bound::Unbounded));
            let fit = behind.next().filter(|((it, _), _)| *it == stream);
            let found = list.best_fit(stream, wanted, blocks);
            prop_assert_eq!(found.map(|it| it.slot), fit.map(|(_, &slot)| slot));
            let after = fit.and_then(|_| behind.next().filter(|((it, _), _)| *it == stream));
            prop_assert_eq!(
                found.and_then(|it| list.after(it, blocks)).map(|it| it.slot),
                after.map(|(_, &slot)| slot)
            );
        }
        let blocks = &known.blocks;
        prop_assert!(list.slots(blocks).eq(tree.values().copied()));
        for stream in 0..3 {
            for wanted in [20 * UNIT, (33 * UNIT) << 40] {
                let below = tree.range((stream, 0)..(stream, key(wanted, 0, 0))).rev().map(|(_, &slot)| slot);
                prop_assert!(list.below(stream, wanted, blocks).eq(below));
            }
        }
        while let Some(found) = (0..3).find_map(|stream| list.best_fit(stream, 0, blocks)) {
            list.take(found);
        }
        prop_assert_eq!(list.slots(blocks).count(), 0);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_is_a_sorted_map(
            operations in prop::collection::vec((prop::bool::weighted(0.7), 0_u64..3, 0_u64..40, 0_u64..40), 0..900)
        ) {
            behaves_like_a_tree(&operations)?;
        }
    }
}
