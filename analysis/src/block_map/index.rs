//! An open-addressing hash table that finds the slot of the block that starts at an address.
//!
//! Addresses are multiples of 512 and come in long arithmetic sequences. Hash tables that use the low bits of a
//! product put such sequences into few buckets. This table uses the *top* bits, which a multiplication by the golden
//! ratio spreads evenly. An entry has eight bytes: 32 bits of hash and a slot. A look-up without a match therefore
//! seldom reads memory outside the table.
//!
//! Guarantees: the table allocates only to grow, is at most half full, and leaves no tombstones on removal. The caller
//! must not insert an address twice; it looks the address up first.

use super::slab::{Slab, Slot};

/// No slot has the number `u32::MAX`, so no entry has this value.
const EMPTY: u64 = u64::MAX;
/// A small table fits in the first-level cache and serves most jobs' live blocks.
const SLOTS_MIN: usize = 1024;

/// The table.
#[derive(Clone, Debug)]
pub(super) struct AddressIndex {
    /// Upper half: the hash; lower half: the slot.
    entries: Vec<u64>,
    /// 32 minus the base-two logarithm of the number of entries.
    shift: u32,
    len: usize,
}

impl Default for AddressIndex {
    fn default() -> Self {
        Self { entries: vec![EMPTY; SLOTS_MIN], shift: 32 - SLOTS_MIN.ilog2(), len: 0 }
    }
}

/// The upper half of the product of the address and 2^64 / golden ratio. The fold by 32 bits is needed because the
/// upper half of the address would otherwise reach only the lowest of these bits.
#[inline]
fn hash(addr: u64) -> u32 {
    ((addr ^ (addr >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

impl AddressIndex {
    pub(super) fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.len = 0;
    }

    #[inline]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// The slot of the block that starts at `addr`.
    #[inline]
    pub(super) fn find(&self, slab: &Slab, addr: u64) -> Option<Slot> {
        let hash = hash(addr);
        let mask = self.mask();
        let mut place = self.home(hash);
        loop {
            // The mask keeps `place` in bounds. It is applied here so that the compiler sees this and drops the bounds
            // check.
            let entry = self.entries[place & mask];
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == hash && slab.get(entry as Slot).addr == addr {
                return Some(entry as Slot);
            }
            place = (place + 1) & mask;
        }
    }

    /// Adds a block that is not in the table yet.
    #[inline]
    pub(super) fn insert(&mut self, addr: u64, slot: Slot) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.len += 1;
        self.place(hash(addr), slot);
    }

    #[inline]
    fn place(&mut self, hash: u32, slot: Slot) {
        let mask = self.mask();
        let mut place = self.home(hash);
        while self.entries[place & mask] != EMPTY {
            place = (place + 1) & mask;
        }
        self.entries[place & mask] = u64::from(hash) << 32 | u64::from(slot);
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = vec![EMPTY; self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, doubled);
        // 31 bits of table would be 16 GiB of entries. The allocation above fails long before that, so `shift` never
        // reaches zero.
        self.shift -= 1;
        for entry in old.into_iter().filter(|&entry| entry != EMPTY) {
            self.place((entry >> 32) as u32, entry as Slot);
        }
    }

    /// Removes a block. Does nothing if the block is not in the table.
    #[inline]
    pub(super) fn remove(&mut self, addr: u64, slot: Slot) {
        let hash = hash(addr);
        let mask = self.mask();
        let wanted = u64::from(hash) << 32 | u64::from(slot);
        let mut hole = self.home(hash);
        loop {
            let entry = self.entries[hole & mask];
            if entry == EMPTY {
                return;
            }
            if entry == wanted {
                break;
            }
            hole = (hole + 1) & mask;
        }
        self.len -= 1;
        // Entries behind the hole move up, unless the move would put them before their home.
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let entry = self.entries[next & mask];
            if entry == EMPTY {
                break;
            }
            let home = self.home((entry >> 32) as u32);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.entries[hole & mask] = entry;
                hole = next;
            }
        }
        self.entries[hole & mask] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Block;
    use super::*;
    use memctl_model::SegmentKind;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_an_ordered_map_through_growth_and_removal() {
        let (mut slab, mut index, mut model) = (Slab::default(), AddressIndex::default(), BTreeMap::new());
        let mut state = 1_u64;
        for _ in 0..60_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let addr = 0x7f00_0000_0000 + (state >> 33) % 8_000 * 512;
            if let Some(slot) = model.remove(&addr) {
                index.remove(addr, slot);
                slab.remove(slot);
            } else {
                let slot = slab.insert(Block::free(addr, 512, SegmentKind::Small, false));
                index.insert(addr, slot);
                model.insert(addr, slot);
            }
        }
        assert_eq!(index.len, model.len());
        for block in 0..8_000 {
            let addr = 0x7f00_0000_0000 + block * 512;
            assert_eq!(index.find(&slab, addr), model.get(&addr).copied());
        }
    }

    #[test]
    fn runs_of_addresses_do_not_pile_up() {
        for stride in [512_u64, 4096, 2 << 20, 20 << 20] {
            let mut index = AddressIndex::default();
            for block in 0..4_000 {
                index.insert(0x7f12_3400_0000 + u64::from(block) * stride, block);
            }
            let farthest = index
                .entries
                .iter()
                .enumerate()
                .filter(|&(_, &entry)| entry != EMPTY)
                .map(|(place, &entry)| place.wrapping_sub(index.home((entry >> 32) as u32)) & index.mask())
                .max();
            assert!(farthest < Some(64), "stride {stride}: {farthest:?} places from home");
        }
    }
}
