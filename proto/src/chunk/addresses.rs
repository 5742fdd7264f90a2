//! A map from device addresses to small numbers.
//!
//! Guarantees: looking up and inserting are one probe of an open-addressed table; nobody who does not know
//! the process's random multiplier can choose addresses that collide. Refuses to remove: entries are overwritten,
//! and all go with [`AddressMap::clear`]. Nothing of it is part of the format.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// The value of an empty slot; never a caller's value.
const EMPTY: u32 = u32::MAX;
/// Slots to begin with: a training step of a large model touches a few thousand distinct addresses.
const SLOTS_MIN: usize = 1 << 12;

/// See the module.
pub(super) struct AddressMap {
    /// A power of two, at most half of them used.
    slots: Vec<(u64, u32)>,
    used: usize,
    /// 64 minus the binary logarithm of the number of slots.
    shift: u32,
    /// Odd and random.
    multiplier: u64,
}

impl AddressMap {
    pub(super) fn new() -> Self {
        let multiplier = RandomState::new().build_hasher().finish() | 1;
        Self { slots: vec![(0, EMPTY); SLOTS_MIN], used: 0, shift: 64 - SLOTS_MIN.trailing_zeros(), multiplier }
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        if self.used > 0 {
            self.slots.fill((0, EMPTY));
            self.used = 0;
        }
    }

    /// The number of an address.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u32> {
        let (_, value) = self.slots[self.slot(addr)];
        (value != EMPTY).then_some(value)
    }

    /// Gives an address a number below `u32::MAX`, instead of the one it had.
    #[inline]
    pub(super) fn insert(&mut self, addr: u64, value: u32) {
        let slot = self.slot(addr);
        self.used += usize::from(self.slots[slot].1 == EMPTY);
        self.slots[slot] = (addr, value);
        if self.used * 2 > self.slots.len() {
            self.grow();
        }
    }

    /// The slot where the address is or belongs.
    #[inline]
    fn slot(&self, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        // CUDA blocks lie at multiples of 512, so the low bits carry nothing; the high bits of the product depend on all.
        let mut slot = (addr.wrapping_mul(self.multiplier) >> self.shift) as usize & mask;
        while self.slots[slot].1 != EMPTY && self.slots[slot].0 != addr {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![(0, EMPTY); slots]);
        self.shift -= 1;
        for (addr, value) in old.into_iter().filter(|&(_, value)| value != EMPTY) {
            let slot = self.slot(addr);
            self.slots[slot] = (addr, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map() {
        let mut map = AddressMap::new();
        for round in 0..2u32 {
            for n in 0..20_000u32 {
                map.insert(u64::from(n) * 512, n + round);
            }
        }
        assert!((0..20_000).all(|n| map.find(u64::from(n) * 512) == Some(n + 1)));
        assert_eq!(map.find(1), None);
        map.clear();
        assert_eq!(map.find(512), None);
    }
}
