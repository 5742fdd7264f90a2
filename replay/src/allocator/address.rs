//! Addresses: where the driver puts segments, and where expandable segments lie.
//!
//! Addresses matter because ties of the best fit are broken by them. While a recording is followed, the addresses are the
//! recorded ones (hints); elsewhere they are made as CUDA's are seen to come: chunks of 32 MiB and more, each below the one before,
//! filled from their low end, holes first.
//!
//! Guarantees: no two segments overlap, whatever the hints say. Refuses to move a segment.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use super::DriverCall;

/// An expandable segment: its number.
pub(super) type ReservationId = NonZeroU32;

/// The driver reserves addresses in multiples of this many bytes.
const CHUNK_BYTES: u64 = 32 << 20;
/// Below here chunks are made; what CUDA gives lies above.
const CHUNKS_BELOW: u64 = 1 << 46;
/// No address lies above, so that none overflows.
const ADDRESSES_BELOW: u64 = 1 << 63;
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

#[derive(Clone, Debug)]
pub(super) struct Addresses {
    /// What the recording got while it served the present request.
    pub hints: VecDeque<Hint>,
    /// Everything that is taken: begin and end.
    taken: BTreeMap<u64, u64>,
    /// Free parts of chunks: begin and bytes.
    holes: BTreeMap<u64, u64>,
    lowest: u64,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { hints: VecDeque::new(), taken: BTreeMap::new(), holes: BTreeMap::new(), lowest: CHUNKS_BELOW }
    }
}

impl Addresses {
    /// A place for an ordinary segment.
    pub fn place(&mut self, size: u64) -> u64 {
        if let Some(&hint) = self.hints.front()
            && hint.call == DriverCall::Alloc
            && hint.size == size
            && self.take(hint.addr, size)
        {
            self.hints.pop_front();
            return hint.addr;
        }
        if let Some((addr, room)) =
            self.holes.iter().find(|&(_, &room)| room >= size).map(|(&addr, &room)| (addr, room))
            && self.take(addr, size)
        {
            self.holes.remove(&addr);
            self.add_hole(addr + size, room - size);
            return addr;
        }
        let chunk = size.next_multiple_of(CHUNK_BYTES);
        while self.lowest > chunk {
            self.lowest -= chunk;
            if self.take(self.lowest, size) {
                self.add_hole(self.lowest + size, chunk - size);
                return self.lowest;
            }
        }
        let highest = self.taken.last_key_value().map_or(0, |(_, &end)| end);
        self.take(highest, size);
        highest
    }

    /// A place for an expandable segment.
    pub fn reserve(&mut self, size: u64) -> u64 {
        if let Some(&hint) = self.hints.front()
            && hint.call == DriverCall::Map
            && self.take(hint.addr, size)
        {
            return hint.addr;
        }
        let highest = self.taken.last_key_value().map_or(0, |(_, &end)| end);
        let addr = highest.max(RESERVATIONS_FROM);
        self.take(addr, size);
        addr
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
        let Some(end) = addr.checked_add(size).filter(|&end| end <= ADDRESSES_BELOW) else { return false };
        let is_free = self.taken.range(..end).next_back().is_none_or(|(_, &before)| before <= addr);
        if is_free {
            self.taken.insert(addr, end);
        }
        is_free
    }

    /// A range is free again.
    pub fn give_back(&mut self, addr: u64, size: u64) {
        self.taken.remove(&addr);
        if (self.lowest..CHUNKS_BELOW).contains(&addr) {
            self.add_hole(addr, size);
        }
    }

    fn add_hole(&mut self, addr: u64, size: u64) {
        if size == 0 {
            return;
        }
        let (mut begin, mut end) = (addr, addr + size);
        if let Some((&before, &room)) = self.holes.range(..addr).next_back()
            && before + room == addr
        {
            self.holes.remove(&before);
            begin = before;
        }
        if let Some(room) = self.holes.remove(&end) {
            end += room;
        }
        self.holes.insert(begin, end - begin);
    }
}
