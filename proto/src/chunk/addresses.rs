//! A map from device addresses to the latest allocations that began and ended there.
//!
//! Guarantees: a lookup or an insertion is usually one probe of an open-addressed table. A sender does not know the
//! process's random multiplier, so it cannot choose addresses that collide. Entries are overwritten, and only
//! [`AddressMap::clear`] removes them. The map is not part of the format.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Initial number of slots. A training step of a large model touches a few thousand distinct addresses.
const SLOTS_MIN: usize = 1 << 12;

/// The allocations at an address, as their numbers plus one; 0 when there is none.
#[derive(Clone, Copy, Default)]
pub(super) struct AddressEntry {
    addr: u64,
    /// The latest allocation that begins here.
    pub(super) begins: u32,
    /// The latest allocation that ends here.
    pub(super) ends: u32,
}

impl AddressEntry {
    const fn is_empty(&self) -> bool {
        self.begins | self.ends == 0
    }
}

/// The map; see the module's documentation.
pub(super) struct AddressMap {
    /// The slots. Their number is a power of two, and at most half are used.
    slots: Vec<AddressEntry>,
    used: usize,
    /// 64 minus the binary logarithm of the number of slots.
    shift: u32,
    /// An odd random factor.
    multiplier: u64,
}

impl AddressMap {
    pub(super) fn new() -> Self {
        let multiplier = RandomState::new().build_hasher().finish() | 1;
        Self {
            slots: vec![AddressEntry::default(); SLOTS_MIN],
            used: 0,
            shift: 64 - SLOTS_MIN.trailing_zeros(),
            multiplier,
        }
    }

    /// Removes all entries and keeps the memory.
    pub(super) fn clear(&mut self) {
        if self.used > 0 {
            self.slots.fill(AddressEntry::default());
            self.used = 0;
        }
    }

    /// The allocations at an address.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> AddressEntry {
        self.slots[self.slot(addr)]
    }

    /// Stores the addresses where allocation `number` (plus one) begins and ends. Returns the previous entry of the
    /// first address.
    #[inline]
    pub(super) fn note(&mut self, begin: u64, end: u64, number: u32) -> AddressEntry {
        let slot = self.slot(begin);
        let before = self.slots[slot];
        self.used += usize::from(before.is_empty());
        self.slots[slot] = AddressEntry { addr: begin, begins: number, ends: before.ends };
        let slot = self.slot(end);
        self.used += usize::from(self.slots[slot].is_empty());
        (self.slots[slot].addr, self.slots[slot].ends) = (end, number);
        if self.used * 2 > self.slots.len() {
            self.grow();
        }
        before
    }

    /// The slot where the address is, or where it will be added.
    #[inline]
    fn slot(&self, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        // CUDA blocks are at multiples of 512, so the low bits are always zero. The high bits of the product depend on
        // all bits.
        let mut slot = (addr.wrapping_mul(self.multiplier) >> self.shift) as usize & mask;
        while self.slots[slot].addr != addr && !self.slots[slot].is_empty() {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![AddressEntry::default(); slots]);
        self.shift -= 1;
        for known in old.into_iter().filter(|known| !known.is_empty()) {
            let slot = self.slot(known.addr);
            self.slots[slot] = known;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_the_latest_of_both() {
        let mut map = AddressMap::new();
        for round in 0..2u32 {
            for n in 0..20_000u32 {
                let begin = u64::from(n) * 512;
                let before = map.note(begin, begin + 512, n + 1 + round);
                assert_eq!(before.begins, if round == 0 { 0 } else { n + 1 });
                assert_eq!(before.ends, if n == 0 { 0 } else { n + round });
            }
        }
        for n in 0..20_000 {
            let known = map.find(u64::from(n) * 512);
            assert_eq!((known.begins, known.ends), (n + 2, if n == 0 { 0 } else { n + 1 }));
        }
        assert_eq!(map.find(20_000 * 512).begins, 0);
        assert!(map.find(1).is_empty());
        map.clear();
        assert!(map.find(512).is_empty());
    }

    #[test]
    fn a_block_that_ends_where_it_begins_is_noted_as_both() {
        let mut map = AddressMap::new();
        map.note(7, 7, 3);
        assert_eq!((map.find(7).begins, map.find(7).ends), (3, 3));
    }
}
