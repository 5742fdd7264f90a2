//! A leaf: a few free blocks of one stream, unsorted. Its sizes are in one array and its slots in another.
//!
//! A search therefore compares all sizes at once without unpredictable branches, and an insertion or removal moves at
//! most one block. If sizes are equal, the blocks themselves are compared.
//!
//! Guarantees: the least block at or above a key is found. A leaf never exceeds [`LEAF`] blocks. Sizes and addresses
//! must be multiples of [`UNIT`] below [`BYTES_MAX`].

use memctl_model::allocator::MIN_BLOCK_BYTES;

use super::slab::{Block, Slab, Slot};

/// The unit of sizes and addresses in keys: 48 bits of each and 32 bits of the age form one number.
pub(super) const UNIT: u64 = MIN_BLOCK_BYTES;
/// Exclusive upper bound of sizes and addresses; a GPU's addresses are below it.
pub(super) const BYTES_MAX: u64 = UNIT << 48;
/// Maximum number of blocks in a leaf: as many as fit into two lines of the processor's cache.
pub(super) const LEAF: usize = 16;
/// The size of an empty place. Blocks of at least 1 TiB have this size, too, so a leaf cannot distinguish them.
const LARGEST: i32 = i32::MAX;

/// A key that is ordered by size, then age, then address.
pub(super) fn key(size: u64, age: u32, addr: u64) -> u128 {
    u128::from(size / UNIT) << 80 | u128::from(age) << 48 | u128::from(addr / UNIT)
}

pub(super) fn key_of(block: &Block) -> u128 {
    key(block.size, block.age, block.addr)
}

/// A key's size in the form in which a leaf stores it.
fn size_in_leaf(key: u128) -> i32 {
    i32::try_from(key >> 80).unwrap_or(LARGEST)
}

/// A leaf; see the module's documentation.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Leaf {
    /// Places behind the last block contain [`LARGEST`].
    sizes: [i32; LEAF],
    slots: [Slot; LEAF],
    pub len: usize,
}

impl Leaf {
    pub const EMPTY: Self = Self { sizes: [LARGEST; LEAF], slots: [0; LEAF], len: 0 };

    /// The slots, unsorted.
    pub fn slots(&self) -> &[Slot] {
        &self.slots[..self.len.min(LEAF)]
    }

    /// The slots in the order of their keys.
    pub fn sorted(&self, blocks: &Slab) -> [Slot; LEAF] {
        let mut sorted = self.slots;
        sorted[..self.slots().len()].sort_unstable_by_key(|&slot| key_of(blocks.get(slot)));
        sorted
    }

    /// The places for which a condition is true, one bit each.
    fn places(&self, is_so: impl Fn(usize) -> bool) -> u32 {
        let all = (0..LEAF).fold(0, |places, at| places | u32::from(is_so(at)) << at);
        all & !(u32::MAX << self.len)
    }

    /// The place of a block.
    pub fn place_of(&self, slot: Slot) -> Option<usize> {
        let places = self.places(|at| self.slots[at] == slot);
        (places != 0).then_some(places.trailing_zeros() as usize)
    }

    /// The place of the least block at or above a key.
    pub fn lowest(&self, from: u128, blocks: &Slab) -> Option<usize> {
        let size = size_in_leaf(from);
        let least = self.least(size);
        // Age and address do not matter for larger blocks, or if the key has neither.
        if (least > size || from << 48 == 0) && least < LARGEST {
            return self.first(self.places(|at| self.sizes[at] == least), blocks);
        }
        self.lowest_of_equal(from, blocks)
    }

    /// The same if blocks of exactly the requested size must be compared.
    fn lowest_of_equal(&self, from: u128, blocks: &Slab) -> Option<usize> {
        let above = self.slots().iter().enumerate().map(|(at, &slot)| (key_of(blocks.get(slot)), at));
        above.filter(|&(key, _)| key >= from).min().map(|(_, at)| at)
    }

    /// The least size that is at or above a size; [`LARGEST`] if there is none. Four sizes are compared at a time,
    /// because processors can do that in one instruction.
    fn least(&self, from: i32) -> i32 {
        // The bias makes sizes that are large enough negative, in the same order, and all others positive.
        let (bias, mut least) = (from.wrapping_add(i32::MIN), [0; 4]);
        for sizes in self.sizes.as_chunks::<4>().0 {
            for (least, &size) in least.iter_mut().zip(sizes) {
                *least = (*least).min(size.wrapping_sub(bias));
            }
        }
        let [a, b, c, d] = least;
        let least = a.min(b).min(c.min(d));
        if least < 0 { least.wrapping_add(bias) } else { LARGEST }
    }

    /// The place of the block with the least key among these places.
    fn first(&self, mut places: u32, blocks: &Slab) -> Option<usize> {
        let mut first = (places != 0).then_some(places.trailing_zeros() as usize)?;
        places &= places - 1;
        while places != 0 {
            let other = places.trailing_zeros() as usize;
            if key_of(blocks.get(self.slots[other])) < key_of(blocks.get(self.slots[first])) {
                first = other;
            }
            places &= places - 1;
        }
        Some(first)
    }

    /// Adds a block with its key.
    pub fn put(&mut self, key: u128, slot: Slot) {
        (self.sizes[self.len], self.slots[self.len]) = (size_in_leaf(key), slot);
        self.len += 1;
    }

    /// Removes the block in a place.
    pub fn take(&mut self, at: usize) {
        self.len -= 1;
        (self.sizes[at], self.slots[at]) = (self.sizes[self.len], self.slots[self.len]);
        self.sizes[self.len] = LARGEST;
    }

    /// Moves the upper half to a new leaf. Returns this leaf and the last key of the lower half.
    pub fn split_off(&mut self, blocks: &Slab) -> (Self, u128) {
        let (mut low, mut high) = (Self::EMPTY, Self::EMPTY);
        let sorted = self.sorted(blocks);
        for (at, &slot) in sorted[..self.len].iter().enumerate() {
            let half = if at < LEAF / 2 { &mut low } else { &mut high };
            half.put(key_of(blocks.get(slot)), slot);
        }
        *self = low;
        (high, key_of(blocks.get(sorted[LEAF / 2 - 1])))
    }

    /// Adds the blocks of another leaf.
    pub fn append(&mut self, other: &Self) {
        for (&size, &slot) in other.sizes.iter().zip(other.slots()) {
            (self.sizes[self.len], self.slots[self.len]) = (size, slot);
            self.len += 1;
        }
    }
}
