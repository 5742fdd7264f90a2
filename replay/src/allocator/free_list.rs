//! The free blocks of a pool, in the order in which the allocator searches them: by stream, then size, then (from torch 2.12 on)
//! age, then address.
//!
//! A stream's blocks stand in leaves of up to [`LEAF`] keys, and one row of the leaves' last keys leads to them. Key is size, age
//! and address in one number, so that a search is two rows of comparisons without a branch to guess; this is most of what a
//! replayed event costs, and a pool has dozens of free blocks, seldom thousands.
//!
//! Guarantees: the smallest block of a stream that is large enough, of equal ones the oldest, of these the lowest;
//! memory follows the blocks that are listed; a step costs a leaf, and the logarithm of the leaves. Refuses to know what a block
//! is. Sizes and addresses are multiples of [`UNIT`] below [`BYTES_MAX`].

use super::slab::{Block, Slot};
use crate::sizes::MIN_BLOCK_BYTES;

/// What sizes and addresses are counted in: 48 bits of each and 32 of the age are one number.
const UNIT: u64 = MIN_BLOCK_BYTES;
/// No size and no address is as large: what a GPU's addresses have room for.
pub(super) const BYTES_MAX: u64 = UNIT << 48;
/// Keys of a leaf at most.
const LEAF: usize = 32;
/// A leaf of fewer keys is merged with the one beside it, where both have room in half of one.
const SPARSE: usize = LEAF / 4;

/// Where a free block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FreeKey {
    stream: u64,
    /// Size, then age, then address.
    place: u128,
}

impl FreeKey {
    pub fn of(block: &Block) -> Self {
        Self { stream: block.stream, place: place(block.size, block.age, block.addr) }
    }

    pub fn size(self) -> u64 {
        size(self.place)
    }
}

fn place(size: u64, age: u32, addr: u64) -> u128 {
    u128::from(size / UNIT) << 80 | u128::from(age) << 48 | u128::from(addr / UNIT)
}

fn size(place: u128) -> u64 {
    (place >> 80) as u64 * UNIT
}

/// A listed block, and where it was found: as long as nothing is put into its list or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub slot: Slot,
    lane: u32,
    leaf: u32,
    at: u32,
}

#[derive(Clone, Debug)]
struct Leaf {
    len: usize,
    keys: [u128; LEAF],
    slots: [Slot; LEAF],
}

impl Leaf {
    const EMPTY: Self = Self { len: 0, keys: [0; LEAF], slots: [0; LEAF] };

    fn keys(&self) -> &[u128] {
        &self.keys[..self.len.min(LEAF)]
    }

    fn slots(&self) -> &[Slot] {
        &self.slots[..self.len.min(LEAF)]
    }

    /// How many keys are below.
    fn rank(&self, key: u128) -> usize {
        self.keys().partition_point(|&it| it < key)
    }

    fn put(&mut self, at: usize, key: u128, slot: Slot) {
        self.keys.copy_within(at..self.len, at + 1);
        self.slots.copy_within(at..self.len, at + 1);
        (self.keys[at], self.slots[at]) = (key, slot);
        self.len += 1;
    }

    fn take(&mut self, at: usize) {
        self.keys.copy_within(at + 1..self.len, at);
        self.slots.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Takes the keys of the leaf behind.
    fn append(&mut self, other: &Self) {
        let both = self.len + other.len;
        self.keys[self.len..both].copy_from_slice(other.keys());
        self.slots[self.len..both].copy_from_slice(other.slots());
        self.len = both;
    }
}

/// The blocks of a stream. It has one leaf at least.
#[derive(Clone, Debug)]
struct Lane {
    stream: u64,
    /// The last key of each leaf, but for the last leaf: that takes whatever is above.
    ends: Vec<u128>,
    // Boxed: a leaf that comes between others moves pointers instead of 800 bytes for each that is behind it.
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

    /// The leaf in which a key belongs.
    fn leaf(&self, key: u128) -> usize {
        if self.ends.len() == 1 { 0 } else { self.ends.partition_point(|&end| end < key).min(self.ends.len() - 1) }
    }

    /// The first place at or above a key; it may be behind the last of its leaf only where nothing is above.
    fn lower(&self, key: u128) -> (usize, usize) {
        let leaf = self.leaf(key);
        let at = self.leaves[leaf].rank(key);
        if at == self.leaves[leaf].len && leaf + 1 < self.leaves.len() { (leaf + 1, 0) } else { (leaf, at) }
    }

    fn insert(&mut self, key: u128, slot: Slot) {
        let mut leaf = self.leaf(key);
        if self.leaves[leaf].len == LEAF {
            let (low, mut high) = (&mut self.leaves[leaf], Box::new(Leaf::EMPTY));
            let half = LEAF / 2;
            high.keys[..LEAF - half].copy_from_slice(&low.keys[half..]);
            high.slots[..LEAF - half].copy_from_slice(&low.slots[half..]);
            (low.len, high.len) = (half, LEAF - half);
            let end = low.keys[half - 1];
            self.leaves.insert(leaf + 1, high);
            self.ends.insert(leaf, end);
            leaf += usize::from(key > end);
        }
        let leaf = &mut self.leaves[leaf];
        let at = leaf.rank(key);
        leaf.put(at, key, slot);
    }

    fn take(&mut self, leaf: usize, at: usize) {
        self.leaves[leaf].take(at);
        let len = self.leaves[leaf].len;
        if len < SPARSE && self.leaves.len() > 1 {
            self.merge(if leaf + 1 < self.leaves.len() { leaf } else { leaf - 1 });
        }
    }

    /// A leaf takes the one behind it, where both have room in half of one, or one has nothing: no leaf of several is empty.
    fn merge(&mut self, leaf: usize) {
        let (low, high) = (self.leaves[leaf].len, self.leaves[leaf + 1].len);
        if low + high <= LEAF / 2 || low == 0 || high == 0 {
            let behind = self.leaves.remove(leaf + 1);
            self.leaves[leaf].append(&behind);
            self.ends.remove(leaf);
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeList {
    /// By stream. Most pools have one.
    lanes: Vec<Lane>,
}

impl FreeList {
    fn lane(&self, stream: u64) -> Result<usize, usize> {
        match self.lanes.first() {
            Some(first) if first.stream == stream => Ok(0),
            _ => self.lanes.binary_search_by_key(&stream, |lane| lane.stream),
        }
    }

    pub fn insert(&mut self, key: FreeKey, slot: Slot) {
        let lane = self.lane(key.stream).unwrap_or_else(|at| {
            self.lanes.insert(at, Lane::new(key.stream));
            at
        });
        self.lanes[lane].insert(key.place, slot);
    }

    pub fn remove(&mut self, key: FreeKey) {
        let Ok(lane) = self.lane(key.stream) else { return };
        let (leaf, at) = self.lanes[lane].lower(key.place);
        if self.lanes[lane].leaves[leaf].keys().get(at) == Some(&key.place) {
            self.take_at(lane, leaf, at);
        }
    }

    /// Takes out what was found.
    pub fn take(&mut self, found: Found) {
        self.take_at(found.lane as usize, found.leaf as usize, found.at as usize);
    }

    fn take_at(&mut self, lane: usize, leaf: usize, at: usize) {
        self.lanes[lane].take(leaf, at);
        // (Where there is but one, its leaf stays for the next block.)
        if self.lanes.len() > 1 && self.lanes[lane].is_empty() {
            self.lanes.remove(lane);
        }
    }

    pub fn get(&self, key: FreeKey) -> Option<Slot> {
        let lane = &self.lanes[self.lane(key.stream).ok()?];
        let (leaf, at) = lane.lower(key.place);
        let leaf = &lane.leaves[leaf];
        (leaf.keys().get(at) == Some(&key.place)).then(|| leaf.slots[at])
    }

    fn found(&self, lane: usize, leaf: usize, at: usize) -> Option<Found> {
        let slot = *self.lanes[lane].leaves.get(leaf)?.slots().get(at)?;
        Some(Found { slot, lane: lane as u32, leaf: leaf as u32, at: at as u32 })
    }

    /// The smallest block of a stream with at least this many bytes.
    pub fn best_fit(&self, stream: u64, size: u64) -> Option<Found> {
        let lane = self.lane(stream).ok().filter(|_| size < BYTES_MAX)?;
        let (leaf, at) = self.lanes[lane].lower(place(size, 0, 0));
        self.found(lane, leaf, at)
    }

    /// The next larger one of the same stream.
    pub fn after(&self, found: Found) -> Option<Found> {
        let (lane, leaf, at) = (found.lane as usize, found.leaf as usize, found.at as usize + 1);
        self.found(lane, leaf, at).or_else(|| self.found(lane, leaf + 1, 0))
    }

    /// Those of a stream that have fewer bytes, the largest first.
    pub fn below(&self, stream: u64, size: u64) -> impl Iterator<Item = (u64, Slot)> {
        let lane = self.lane(stream).ok().map(|lane| &self.lanes[lane]);
        let blocks = lane.into_iter().flat_map(move |lane| {
            let (last, at) = lane.lower(place(size.min(BYTES_MAX - UNIT), 0, 0));
            let leaves = lane.leaves[..=last].iter().enumerate().rev();
            leaves.flat_map(move |(leaf, it)| it.pairs(if leaf == last { at } else { LEAF }).rev())
        });
        blocks.map(|(place, slot)| (self::size(place), slot))
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (FreeKey, Slot)> {
        self.lanes.iter().flat_map(|lane| {
            let blocks = lane.leaves.iter().flat_map(|leaf| leaf.pairs(LEAF));
            blocks.map(|(place, slot)| (FreeKey { stream: lane.stream, place }, slot))
        })
    }

    /// All of them, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.iter().map(|(_, slot)| slot)
    }
}

impl Leaf {
    /// The first keys, with their slots.
    fn pairs(&self, count: usize) -> impl DoubleEndedIterator<Item = (u128, Slot)> {
        let count = count.min(self.len).min(LEAF);
        self.keys[..count].iter().copied().zip(self.slots[..count].iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;

    fn key(stream: u64, size: u64, addr: u64) -> FreeKey {
        // (Neighbours in address are of different ages, so that both decide.)
        FreeKey { stream, place: place(size * UNIT, (addr % 3) as u32, addr * UNIT) }
    }

    /// Puts and takes at random, and what a tree says of the same.
    fn plays(doings: &[(bool, u64, u64, u64)]) -> Result<(), TestCaseError> {
        let (mut list, mut tree) = (FreeList::default(), BTreeMap::new());
        for (number, &(puts, stream, size, addr)) in (0_u32..).zip(doings) {
            let key = key(stream, size, addr);
            if puts && !tree.contains_key(&key) {
                list.insert(key, number);
                tree.insert(key, number);
            } else if !puts {
                // What stands at or behind the key goes.
                let next = tree.range(key..).next().map(|(&next, _)| next);
                if let Some(next) = next {
                    prop_assert_eq!(list.get(next), tree.remove(&next));
                    list.remove(next);
                }
                list.remove(key);
                tree.remove(&key);
            }
            let mut behind = tree.range((Bound::Included(self::key(stream, size, 0)), Bound::Unbounded));
            let fit = behind.next().filter(|(it, _)| it.stream == stream);
            let found = list.best_fit(stream, size * UNIT);
            prop_assert_eq!(found.map(|it| it.slot), fit.map(|(_, &slot)| slot));
            let after = fit.and_then(|_| behind.next().filter(|(it, _)| it.stream == stream));
            prop_assert_eq!(found.and_then(|it| list.after(it)).map(|it| it.slot), after.map(|(_, &slot)| slot));
        }
        prop_assert!(list.iter().eq(tree.iter().map(|(&key, &slot)| (key, slot))));
        for stream in 0..3 {
            let below = tree.range(key(stream, 0, 0)..key(stream, 20, 0)).rev().map(|(it, &slot)| (it.size(), slot));
            prop_assert!(list.below(stream, 20 * UNIT).eq(below));
        }
        while let Some(found) = (0..3).find_map(|stream| list.best_fit(stream, 0)) {
            list.take(found);
        }
        prop_assert_eq!(list.iter().count(), 0);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_is_a_sorted_map(
            doings in prop::collection::vec((prop::bool::weighted(0.7), 0_u64..3, 0_u64..40, 0_u64..40), 0..900)
        ) {
            plays(&doings)?;
        }
    }
}
