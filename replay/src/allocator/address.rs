//! Addresses: where the driver puts segments, and where expandable segments lie.
//!
//! Addresses matter because they break ties of the best fit. While a trial has asked the driver for nothing but what
//! the recording asked for, the addresses are the recorded ones (hints). After its first own segment, the driver would
//! have put later ones elsewhere, too, so they are placed as the recording's driver places its own (`space`).
//!
//! Guarantees: no two segments overlap, even if hints do; addresses are multiples of 512. Refuses to move a segment.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use memctl_model::allocator::MIN_BLOCK_BYTES;

use super::DriverCall;
use super::leaf::BYTES_MAX;
use super::space::{Place, Space};

/// An expandable segment: its number.
pub(super) type ReservationId = NonZeroU32;

/// From here on expandable segments are made, this far from each other at least.
const RESERVATIONS_FROM: u64 = 1 << 50;

/// A segment that the recording got at this point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// A segment, or the first pages of one.
    pub call: DriverCall,
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// What the recording got while it served the present request.
    pub hints: VecDeque<Hint>,
    /// Everything that is taken: begin and end.
    taken: BTreeMap<u64, u64>,
    /// What the driver makes of it.
    space: Space,
    /// Whether a segment was placed that the recording does not have.
    is_on_its_own: bool,
}

impl Addresses {
    /// A place for an ordinary segment; `None` where there is no address left.
    pub fn place(&mut self, size: u64) -> Option<u64> {
        let hint = self.hints.front().copied().filter(|hint| hint.call == DriverCall::Alloc);
        let own = self.space.find(size);
        // (If the driver had room that is not recorded, it is taken to have it for another size, too, unless something
        // contradicts.)
        let may_follow = |hint: &Hint| match self.is_on_its_own || hint.size != size {
            true => !matches!(own, Place::Hole(_)) && self.space.is_old(hint.addr),
            false => true,
        };
        if let Some(Hint { addr, size: recorded, .. }) = hint.filter(may_follow)
            && self.adopt(addr, size)
        {
            self.hints.pop_front();
            self.is_on_its_own |= recorded != size;
            return Some(addr);
        }
        self.is_on_its_own = true;
        if let Place::Hole(addr) | Place::Old(addr) | Place::New(Some(addr)) = own
            && self.take(addr, size)
        {
            self.space.enter(own, size);
            return Some(addr);
        }
        // (What a recording claims to hold can be in the way, or nothing left below it.)
        let highest = self.taken.last_key_value().map_or(0, |(_, &end)| end);
        self.take(highest, size).then_some(highest)
    }

    /// A segment lies where the recording has it, if nothing is there.
    pub fn adopt(&mut self, addr: u64, size: u64) -> bool {
        let is_free = self.take(addr, size);
        if is_free {
            self.space.adopt(addr, size);
        }
        is_free
    }

    /// A place for an expandable segment, and its bytes; `None` where there is no address left. Where the recording's lies below
    /// another that is nearer, both are as large as that is far: their size is the device's.
    pub fn reserve(&mut self, size: u64, least: u64) -> Option<(u64, u64)> {
        if let Some(&Hint { call: DriverCall::Map, addr, .. }) = self.hints.front() {
            let above = self.taken.range(addr..).next().map(|(&begin, _)| begin - addr);
            let bytes = above.filter(|&room| room >= least).map_or(size, |room| room.min(size));
            if self.take(addr, bytes) {
                return Some((addr, bytes));
            }
        }
        let highest = self.taken.last_key_value().map_or(0, |(_, &end)| end);
        let addr = highest.max(RESERVATIONS_FROM);
        self.take(addr, size).then_some((addr, size))
    }

    /// Where the recording mapped first for the present request, if it did.
    pub fn hinted_map(&self) -> Option<u64> {
        self.hints.front().filter(|hint| hint.call == DriverCall::Map).map(|hint| hint.addr)
    }

    /// A taken range ends earlier.
    pub fn shorten(&mut self, addr: u64, end: u64) {
        if let Some(taken) = self.taken.get_mut(&addr) {
            *taken = end;
        }
    }

    /// Takes a range, if it is free.
    pub fn take(&mut self, addr: u64, size: u64) -> bool {
        let Some(end) = addr.checked_add(size).filter(|&end| end <= BYTES_MAX) else { return false };
        if !addr.is_multiple_of(MIN_BLOCK_BYTES) || !size.is_multiple_of(MIN_BLOCK_BYTES) {
            return false;
        }
        let is_free = self.taken.range(..end).next_back().is_none_or(|(_, &before)| before <= addr);
        if is_free {
            self.taken.insert(addr, end);
        }
        is_free
    }

    /// A range is free again.
    pub fn give_back(&mut self, addr: u64, size: u64) {
        self.taken.remove(&addr);
        self.space.give_back(addr, size);
    }
}
