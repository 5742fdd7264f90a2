//! A few free blocks of one stream, in no order: sizes beside sizes, slots beside slots.
//!
//! So a search compares all of them at once, without a branch to guess, and a block that comes or goes moves no other but one.
//! Where sizes are equal, the blocks themselves are asked.
//!
//! Guarantees: the least block at or above a key. Refuses to know of other leaves, and to grow beyond [`LEAF`]. Sizes and
//! addresses are multiples of [`UNIT`] below [`BYTES_MAX`].

use memctl_model::allocator::MIN_BLOCK_BYTES;

use super::slab::{Block, Slab, Slot};

/// What sizes and addresses are counted in: 48 bits of each and 32 of the age are one number.
pub(super) const UNIT: u64 = MIN_BLOCK_BYTES;
/// No size and no address is as large: what a GPU's addresses have room for.
pub(super) const BYTES_MAX: u64 = UNIT << 48;
/// Blocks of a leaf at most: as many as two lines of the processor's cache hold.
pub(super) const LEAF: usize = 16;
/// The size of a place where no block stands; and of blocks of 1 TiB and more, which are equal as far as a leaf goes.
const LARGEST: i32 = i32::MAX;

/// Size, then age, then address.
pub(super) fn key(size: u64, age: u32, addr: u64) -> u128 {
    u128::from(size / UNIT) << 80 | u128::from(age) << 48 | u128::from(addr / UNIT)
}

pub(super) fn key_of(block: &Block) -> u128 {
    key(block.size, block.age, block.addr)
}

/// A key's size, as a leaf has it.
fn size_in_leaf(key: u128) -> i32 {
    i32::try_from(key >> 80).unwrap_or(LARGEST)
}

/// See the module.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Leaf {
    /// What is behind the last block is [`LARGEST`].
    sizes: [i32; LEAF],
    slots: [Slot; LEAF],
    pub len: usize,
}

impl Leaf {
    pub const EMPTY: Self = Self { sizes: [LARGEST; LEAF], slots: [0; LEAF], len: 0 };

    /// Its slots, in no order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots[..self.len.min(LEAF)]
    }

    /// Its slots in the order of their keys.
    pub fn sorted(&self, blocks: &Slab) -> [Slot; LEAF] {
        let mut sorted = self.slots;
        sorted[..self.slots().len()].sort_unstable_by_key(|&slot| key_of(blocks.get(slot)));
        sorted
    }

    /// The places where something is so, a bit each.
    fn places(&self, is_so: impl Fn(usize) -> bool) -> u32 {
        let all = (0..LEAF).fold(0, |places, at| places | u32::from(is_so(at)) << at);
        all & !(u32::MAX << self.len)
    }

    /// Where a block stands.
    pub fn place_of(&self, slot: Slot) -> Option<usize> {
        let places = self.places(|at| self.slots[at] == slot);
        (places != 0).then_some(places.trailing_zeros() as usize)
    }

    /// Where the least block at or above a key stands.
    pub fn lowest(&self, from: u128, blocks: &Slab) -> Option<usize> {
        let size = size_in_leaf(from);
        let least = self.least(size);
        // (Of larger blocks, and where the key has no age and no address, these do not decide.)
        if (least > size || from << 48 == 0) && least < LARGEST {
            return self.first(self.places(|at| self.sizes[at] == least), blocks);
        }
        self.lowest_of_equal(from, blocks)
    }

    /// The same where blocks of the size that is asked for decide.
    fn lowest_of_equal(&self, from: u128, blocks: &Slab) -> Option<usize> {
        let above = self.slots().iter().enumerate().map(|(at, &slot)| (key_of(blocks.get(slot)), at));
        above.filter(|&(key, _)| key >= from).min().map(|(_, at)| at)
    }

    /// The least size from a size on; [`LARGEST`] where there is none. (Four at a time, as processors do that.)
    fn least(&self, from: i32) -> i32 {
        // What is large enough becomes a negative number, in the same order; what is not, a positive one.
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

    /// The block with the least key of those that stand in these places.
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

    /// A block comes, with its key.
    pub fn put(&mut self, key: u128, slot: Slot) {
        (self.sizes[self.len], self.slots[self.len]) = (size_in_leaf(key), slot);
        self.len += 1;
    }

    /// The block in a place goes.
    pub fn take(&mut self, at: usize) {
        self.len -= 1;
        (self.sizes[at], self.slots[at]) = (self.sizes[self.len], self.slots[self.len]);
        self.sizes[self.len] = LARGEST;
    }

    /// Its upper half goes to a new leaf; and the last key of what stays.
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

    /// Takes the blocks of another leaf.
    pub fn append(&mut self, other: &Self) {
        for (&size, &slot) in other.sizes.iter().zip(other.slots()) {
            (self.sizes[self.len], self.slots[self.len]) = (size, slot);
            self.len += 1;
        }
    }
}
