//! Addresses: where the driver puts segments, and where expandable segments are placed.
//!
//! Addresses matter because they break ties of the best fit. As long as a trial's segments are those of the recording,
//! they get the recorded addresses (hints). After the first segment that only the trial has, the driver would have put
//! later ones elsewhere, too. They are then placed as the recording's driver places its own (`space`).
//!
//! Guarantees: no two segments overlap, even if hints do. Addresses are multiples of 512. A segment never moves.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use memctl_model::allocator::MIN_BLOCK_BYTES;

use super::DriverCall;
use super::leaf::BYTES_MAX;
use super::space::{Place, Space};

/// An expandable segment: its number.
pub(super) type ReservationId = NonZeroU32;

/// Expandable segments are placed from this address on.
const RESERVATIONS_FROM: u64 = 1 << 50;

/// A segment that the recording got for the present request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Whether it is a segment or the first pages of one.
    pub call: DriverCall,
    /// Its address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    /// The segments that the recording got for the present request.
    pub hints: VecDeque<Hint>,
    /// All ranges that are taken: begin and end.
    taken: BTreeMap<u64, u64>,
    /// The driver's layout of these ranges.
    space: Space,
    /// Whether a segment was placed that the recording does not have.
    is_on_its_own: bool,
}

impl Addresses {
    /// An address for an ordinary segment; `None` if there is no address left.
    pub fn place(&mut self, size: u64) -> Option<u64> {
        let hint = self.hints.front().copied().filter(|hint| hint.call == DriverCall::Alloc);
        let own = self.space.find(size);
        // If the driver had unrecorded room for the recorded size, it is assumed to have it for another size, too,
        // unless something contradicts this.
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
        // Ranges of the recording may be in the way, or there may be no room left below them.
        let highest = self.taken.last_key_value().map_or(0, |(_, &end)| end);
        self.take(highest, size).then_some(highest)
    }

    /// Places a segment at its recorded address, if that range is free.
    pub fn adopt(&mut self, addr: u64, size: u64) -> bool {
        let is_free = self.take(addr, size);
        if is_free {
            self.space.adopt(addr, size);
        }
        is_free
    }

    /// An address for an expandable segment, and its bytes; `None` if there is no address left. If the recording's
    /// segment begins below another range that is nearer than `size`, it ends there: all such segments have the size
    /// that depends on the device.
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

    /// The address that the recording mapped first for the present request, if it mapped any.
    pub fn hinted_map(&self) -> Option<u64> {
        self.hints.front().filter(|hint| hint.call == DriverCall::Map).map(|hint| hint.addr)
    }

    /// Ends a taken range earlier.
    pub fn shorten(&mut self, addr: u64, end: u64) {
        if let Some(taken) = self.taken.get_mut(&addr) {
            *taken = end;
        }
    }

    /// Takes a range if it is free.
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

    /// Frees a range.
    pub fn give_back(&mut self, addr: u64, size: u64) {
        self.taken.remove(&addr);
        self.space.give_back(addr, size);
    }
}
