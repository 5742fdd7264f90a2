//! Calls of the driver for segments and pages under a limit, and the `memory_stats()` counts that result from them.
//!
//! Guarantees: nothing is reserved above the limit. Every call is counted and returned in order. Other users of a real
//! device are not known: their memory must be subtracted from the limit.

use memctl_model::Action;

use super::slab::{Block, Slot};
use super::{Allocator, Ask};

/// The available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Limit {
    /// No limit.
    #[default]
    None,
    /// The process's share, `set_per_process_memory_fraction`. PyTorch compares it before it calls the driver. It
    /// enables garbage collection.
    Share(u64),
    /// The device's own memory, beyond which the driver refuses.
    Device(u64),
}

impl Limit {
    /// The limit in bytes; `None` without a limit.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Share(bytes) | Self::Device(bytes) => Some(bytes),
        }
    }
}

/// Upper bound of a device's memory for the layout of addresses: 16 TiB.
const DEVICE_BYTES_MAX: u64 = 1 << 44;
/// Upper bound on the reserved bytes of a process, even if its recording has more: 32 TiB.
const RESERVED_BYTES_MAX: u64 = 1 << 45;
/// The size used for address reservations if the device's size is unknown.
const DEVICE_BYTES: u64 = 1 << 38;

impl Limit {
    /// Bytes of addresses for an expandable segment: PyTorch reserves 1 1/8 of the device's memory. A share is only a
    /// lower bound of the device's memory.
    pub(super) fn reservation_bytes(self) -> u64 {
        let device = match self {
            Self::None => DEVICE_BYTES,
            Self::Share(bytes) => bytes.max(DEVICE_BYTES),
            Self::Device(bytes) => bytes,
        };
        let device = device.clamp(1 << 30, DEVICE_BYTES_MAX);
        (device + device / 8).next_multiple_of(1 << 30)
    }
}

/// The kind of a driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCall {
    /// A segment was allocated.
    Alloc,
    /// A segment was freed.
    Free,
    /// Pages of an expandable segment were mapped.
    Map,
    /// Pages were unmapped.
    Unmap,
}

impl DriverCall {
    /// The action of the corresponding event in a recording.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::Alloc => Action::SegmentAlloc,
            Self::Free => Action::SegmentFree,
            Self::Map => Action::SegmentMap,
            Self::Unmap => Action::SegmentUnmap,
        }
    }
}

/// One call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    /// Its kind.
    pub call: DriverCall,
    /// Its address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

/// The values of `memory_stats()` that a replay can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// `allocated_bytes.all.current`.
    pub allocated_bytes: u64,
    /// `active_bytes.all.current`.
    pub active_bytes: u64,
    /// `requested_bytes.all.current`.
    pub requested_bytes: u64,
    /// `reserved_bytes.all.current`.
    pub reserved_bytes: u64,
    /// `allocated_bytes.all.peak`.
    pub peak_allocated_bytes: u64,
    /// `requested_bytes.all.peak`.
    pub peak_requested_bytes: u64,
    /// `reserved_bytes.all.peak`.
    pub peak_reserved_bytes: u64,
    /// `num_device_alloc`.
    pub device_allocs: u64,
    /// `num_device_free`.
    pub device_frees: u64,
    /// `num_alloc_retries`.
    pub retries: u64,
    /// `num_ooms`.
    pub ooms: u64,
}

impl Counts {
    pub(super) fn hand_out(&mut self, size: u64, requested: u64) {
        self.allocated_bytes += size;
        self.active_bytes += size;
        self.requested_bytes += requested;
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(self.allocated_bytes);
        self.peak_requested_bytes = self.peak_requested_bytes.max(self.requested_bytes);
    }

    pub(super) fn take_back(&mut self, size: u64, requested: u64) {
        self.allocated_bytes -= size;
        self.requested_bytes -= requested;
    }

    pub(super) fn reserve(&mut self, size: u64) {
        self.reserved_bytes += size;
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.reserved_bytes);
    }
}

impl Allocator {
    /// A new block for the request, in no list; `None` if the limit leaves no room.
    pub(super) fn ask_driver(&mut self, ask: &Ask) -> Option<Slot> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return None;
        }
        let segment = self.segment_bytes(ask);
        let wanted = self.counts.reserved_bytes.saturating_add(segment);
        // PyTorch compares the size of an ordinary segment here even if pages are mapped.
        if matches!(self.limit, Limit::Share(share) if wanted > share) {
            return None;
        }
        if wanted > RESERVED_BYTES_MAX {
            return None;
        }
        if self.conf.expandable_segments {
            return self.expand(ask);
        }
        if !self.device_has_room(segment) {
            return None;
        }
        let addr = self.addresses.place(segment)?;
        self.counts.device_allocs += 1;
        self.counts.reserve(segment);
        self.calls.push(DriverEvent { call: DriverCall::Alloc, addr, size: segment });
        let age = self.next_age();
        Some(self.blocks.insert(Block { age, ..Block::free(addr, segment, ask.stream, ask.pool as u32, None) }))
    }

    pub(super) fn device_has_room(&self, bytes: u64) -> bool {
        !matches!(self.limit, Limit::Device(limit) if self.counts.reserved_bytes.saturating_add(bytes) > limit)
    }

    /// Frees a whole segment, which is one free block of its pool's list.
    pub(super) fn release_segment(&mut self, slot: Slot) {
        let Block { addr, size, .. } = *self.blocks.get(slot);
        self.unlist(slot);
        self.blocks.remove(slot);
        self.addresses.give_back(addr, size);
        self.counts.device_frees += 1;
        self.counts.reserved_bytes -= size;
        self.calls.push(DriverEvent { call: DriverCall::Free, addr, size });
    }
}
