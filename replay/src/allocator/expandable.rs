//! Expandable segments: their addresses are reserved at once, and their memory is mapped page by page.
//!
//! Guarantees: pages are whole: 2 MiB in small pools, the size of a large segment in others. Only the bytes that a
//! request lacks beyond the free bytes before an unmapped range are mapped. The addresses of a wholly unmapped range
//! are freed. Nothing is mapped above the limit. If a request fails, pages that it has already mapped stay mapped, as
//! in PyTorch.

use std::num::NonZeroU32;

use memctl_model::allocator::SMALL_SEGMENT_BYTES;

use super::address::ReservationId;
use super::slab::{Block, NIL, Slot, Use};
use super::{Allocator, Ask, DriverCall, DriverEvent};

/// One expandable segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub addr: u64,
    pub bytes: u64,
    pub page_bytes: u64,
}

impl Allocator {
    /// Maps the bytes that the request lacks; returns the block, which is in no list.
    pub(super) fn expand(&mut self, ask: &Ask) -> Option<Slot> {
        let mut slot = self.expandable_place(ask)?;
        if !self.blocks.get(slot).mapped {
            let bytes = self.blocks.get(slot).size.min(ask.size);
            self.map(slot, bytes).then_some(())?;
        }
        while self.blocks.get(slot).size < ask.size {
            let missing = ask.size - self.blocks.get(slot).size;
            let next = self.blocks.get(slot).next;
            let bytes = self.blocks.get(next).size.min(missing);
            self.map(next, bytes).then_some(())?;
            slot = next;
        }
        self.unlist(slot);
        Some(slot)
    }

    /// The first place of the stream where the request fits: an unmapped range, or the free block before one.
    fn expandable_place(&mut self, ask: &Ask) -> Option<Slot> {
        let unmapped = &self.pools[ask.pool].unmapped;
        let ranges = unmapped.range((ask.stream, 0)..=(ask.stream, u64::MAX));
        for (_, &slot) in ranges {
            let before = self.blocks.get(slot).prev;
            let first = if self.is_allocatable(before) { before } else { slot };
            if self.has_room(first, ask.size) {
                return Some(first);
            }
        }
        self.end_reservations_before_hint();
        let least = ask.size.next_multiple_of(self.page_bytes(ask.pool));
        let (addr, bytes) = self.addresses.reserve(self.reservation_bytes.max(least), least)?;
        let number = self.add_reservation(addr, bytes, ask.pool);
        let age = self.next_age();
        let block = Block { mapped: false, age, ..Block::free(addr, bytes, ask.stream, ask.pool as u32, Some(number)) };
        let slot = self.blocks.insert(block);
        self.insert_unmapped(slot);
        Some(slot)
    }

    /// The address of the recording's next expandable segment is an upper bound of the end of those below it. Their
    /// common size depends on the device.
    fn end_reservations_before_hint(&mut self) {
        let Some(end) = self.addresses.hinted_map() else { return };
        let Some((&number, _)) = self.reservations.iter().find(|(_, it)| it.addr < end && end < it.addr + it.bytes)
        else {
            return;
        };
        let mut unmapped = self.pools.iter().flat_map(|pool| pool.unmapped.values().copied());
        let tail = unmapped.find(|&slot| {
            let block = self.blocks.get(slot);
            block.reservation == Some(number) && block.next == NIL && block.addr < end
        });
        drop(unmapped);
        if let (Some(tail), Some(reservation)) = (tail, self.reservations.get_mut(&number)) {
            reservation.bytes = end - reservation.addr;
            self.addresses.shorten(reservation.addr, end);
            let block = self.blocks.get_mut(tail);
            block.size = end - block.addr;
        }
    }

    pub(super) fn add_reservation(&mut self, addr: u64, bytes: u64, pool: usize) -> ReservationId {
        self.reservations_made += 1;
        let number = NonZeroU32::MIN.saturating_add(self.reservations_made);
        self.reservations.insert(number, Reservation { addr, bytes, page_bytes: self.page_bytes(pool) });
        number
    }

    pub(super) fn page_bytes(&self, pool: usize) -> u64 {
        if self.pools[pool].is_small { SMALL_SEGMENT_BYTES } else { self.conf.large_segment_bytes }
    }

    fn is_allocatable(&self, slot: Slot) -> bool {
        slot != NIL && self.blocks.get(slot).usage == Use::Free
    }

    fn has_room(&self, first: Slot, size: u64) -> bool {
        let (mut slot, mut bytes) = (first, 0);
        while bytes < size && self.is_allocatable(slot) {
            bytes += self.blocks.get(slot).size;
            slot = self.blocks.get(slot).next;
        }
        bytes >= size
    }

    /// Maps the low `bytes` of an unmapped range in whole pages and merges them with free neighbours.
    fn map(&mut self, slot: Slot, bytes: u64) -> bool {
        let block = *self.blocks.get(slot);
        let Some(reservation) = self.reservation(slot) else { return false };
        let mapped = bytes.next_multiple_of(reservation.page_bytes).min(block.size);
        if !self.device_has_room(mapped) {
            return false;
        }
        self.unlist(slot);
        self.blocks.get_mut(slot).mapped = true;
        if mapped < block.size {
            self.blocks.get_mut(slot).size = mapped;
            let age = self.age_beside(block.age);
            let rest = Block { addr: block.addr + mapped, size: block.size - mapped, age, ..block };
            let rest = self.blocks.splice(slot, rest, block.next);
            self.insert_unmapped(rest);
        }
        self.merge(slot);
        self.insert_free(slot);
        self.counts.device_allocs += 1;
        self.counts.reserve(mapped);
        self.calls.push(DriverEvent { call: DriverCall::Map, addr: block.addr, size: mapped });
        true
    }

    /// Unmaps the whole pages inside a free block. Its bytes beside these pages stay mapped and free.
    pub(super) fn unmap(&mut self, slot: Slot) {
        let block = *self.blocks.get(slot);
        let Some(Reservation { addr: base, page_bytes, .. }) = self.reservation(slot) else { return };
        let begin = base + (block.addr - base).next_multiple_of(page_bytes);
        let end = base + (block.addr + block.size - base) / page_bytes * page_bytes;
        if end <= begin {
            return;
        }
        self.unlist(slot);
        if begin > block.addr {
            let head = Block { size: begin - block.addr, age: self.age_beside(block.age), ..block };
            let head = self.blocks.splice(block.prev, head, slot);
            self.insert_free(head);
        }
        if end < block.addr + block.size {
            let age = self.age_beside(block.age);
            let tail = Block { addr: end, size: block.addr + block.size - end, age, ..block };
            let tail = self.blocks.splice(slot, tail, block.next);
            self.insert_free(tail);
        }
        let range = self.blocks.get_mut(slot);
        (range.addr, range.size, range.mapped) = (begin, end - begin, false);
        self.merge(slot);
        self.insert_unmapped(slot);
        self.counts.device_frees += 1;
        self.counts.reserved_bytes -= end - begin;
        self.calls.push(DriverEvent { call: DriverCall::Unmap, addr: begin, size: end - begin });
    }

    /// Frees the addresses of an expandable segment if none of it is mapped any more.
    pub(super) fn give_back_reservation(&mut self, slot: Slot) {
        let block = *self.blocks.get(slot);
        if block.mapped || block.is_split() {
            return;
        }
        if let Some(Reservation { addr, bytes, .. }) = self.reservation(slot) {
            self.addresses.give_back(addr, bytes);
        }
        self.unlist(slot);
        self.blocks.remove(slot);
        if let Some(number) = block.reservation {
            self.reservations.remove(&number);
        }
    }

    fn reservation(&self, slot: Slot) -> Option<Reservation> {
        self.reservations.get(&self.blocks.get(slot).reservation?).copied()
    }

    pub(super) fn insert_unmapped(&mut self, slot: Slot) {
        let block = self.blocks.get(slot);
        self.pools[block.pool as usize].unmapped.insert((block.stream, block.addr), slot);
    }
}
