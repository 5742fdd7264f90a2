//! Records the events of an allocator that is not hooked but reports its events. CuPy's memory pool does so: its own
//! hook calls Python.
//!
//! A session's rings have one source: either PyTorch's hook or this module, never both. Reports go through the same
//! [`Hook`] as PyTorch's events and also have Python stacks. Any thread may report, so reports are taken under one
//! lock.
//!
//! Guarantees: the recording never contradicts itself. If threads allocate without the pool's hook, some reports are
//! missing. Before an address is allocated again, a missing free is recorded. A free of a block whose allocation was
//! not seen is left out.
//! Refuses: to guess which allocation a free of an unknown address belongs to.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use memctl_model::allocator::segment_kind;
use memctl_model::{
    Action, BlockState, BlockUse, DeviceIndex, Keyframe, KeyframeReason, PoolId, SegmentState, StackId,
};

use super::{Live, LiveError};
use crate::clock::{now_ns, ticks};
use crate::hook::{Hook, RawEvent, RawNode, Shim};
use crate::region::Level;

/// A report of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorReport {
    /// `size` bytes at `addr` were allocated on `stream`.
    Alloc {
        /// Device address.
        addr: u64,
        /// Bytes.
        size: u64,
        /// The stream's handle.
        stream: u64,
    },
    /// The block at `addr` was freed.
    Free {
        /// Device address.
        addr: u64,
    },
    /// The pool got `size` bytes from the driver.
    SegmentAlloc {
        /// Device address.
        addr: u64,
        /// Bytes.
        size: u64,
        /// The stream's handle.
        stream: u64,
    },
    /// The pool holds `bytes` from the driver. Pools release segments without a report. If the known segments add up to
    /// more than `bytes`, segments without live blocks were released.
    Holds {
        /// Bytes.
        bytes: u64,
    },
    /// A request for `size` bytes failed while the device had `free` bytes.
    OutOfMemory {
        /// Bytes.
        size: u64,
        /// Bytes.
        free: u64,
    },
}

/// The size and the stream of a block or segment.
#[derive(Clone, Copy)]
struct Extent {
    size: u64,
    stream: u64,
}

/// Minimum interval between two requested states that are sent between steps. Making a state takes the trainer's time,
/// and its cost grows with the number of blocks.
const ANSWER_EVERY_NS: u64 = 1_000_000_000;

/// The blocks and segments of a device.
#[derive(Default)]
struct Book {
    /// When a state was last sent between steps.
    answered_ns: u64,
    live: BTreeMap<u64, Extent>,
    segments: BTreeMap<u64, Extent>,
    reserved: u64,
}

/// The state of a session whose events are reported.
pub(super) struct Foreign(Vec<Book>);

/// Addresses of the extents that overlap `start..end`. Extents of a map do not overlap each other.
fn overlapping(map: &BTreeMap<u64, Extent>, start: u64, end: u64) -> Vec<u64> {
    let below = map.range(..start).next_back().filter(|(addr, extent)| addr.saturating_add(extent.size) > start);
    below.into_iter().chain(map.range(start..end.max(start))).map(|(&addr, _)| addr).collect()
}

/// One event to push.
type Step = (Action, u64, Extent);

impl Book {
    /// The events for a report, in order; updates the state.
    fn take(&mut self, report: AllocatorReport) -> Vec<Step> {
        let mut steps = Vec::new();
        if let AllocatorReport::Alloc { addr, size, .. } | AllocatorReport::SegmentAlloc { addr, size, .. } = report
            && (size == 0 || addr.checked_add(size).is_none())
        {
            return steps;
        }
        match report {
            AllocatorReport::Alloc { addr, size, stream } => {
                self.clear(addr, addr.saturating_add(size), &mut steps);
                let extent = Extent { size, stream };
                self.live.insert(addr, extent);
                steps.push((Action::Alloc, addr, extent));
            }
            AllocatorReport::Free { addr } => self.free(addr, &mut steps),
            AllocatorReport::SegmentAlloc { addr, size, stream } => {
                for old in overlapping(&self.segments, addr, addr.saturating_add(size)) {
                    self.drop_segment(old, &mut steps);
                }
                self.clear(addr, addr.saturating_add(size), &mut steps);
                let extent = Extent { size, stream };
                self.segments.insert(addr, extent);
                self.reserved = self.reserved.saturating_add(size);
                steps.push((Action::SegmentAlloc, addr, extent));
            }
            AllocatorReport::Holds { bytes } => self.shrink_to(bytes, &mut steps),
            AllocatorReport::OutOfMemory { size, free } => steps.push((Action::Oom, free, Extent { size, stream: 0 })),
        }
        steps
    }

    fn free(&mut self, addr: u64, steps: &mut Vec<Step>) {
        if let Some(extent) = self.live.remove(&addr) {
            steps.push((Action::FreeRequested, addr, extent));
            steps.push((Action::FreeCompleted, addr, extent));
        }
    }

    fn clear(&mut self, start: u64, end: u64, steps: &mut Vec<Step>) {
        for addr in overlapping(&self.live, start, end) {
            self.free(addr, steps);
        }
    }

    fn drop_segment(&mut self, addr: u64, steps: &mut Vec<Step>) {
        if let Some(extent) = self.segments.remove(&addr) {
            self.clear(addr, addr.saturating_add(extent.size), steps);
            self.reserved = self.reserved.saturating_sub(extent.size);
            steps.push((Action::SegmentFree, addr, extent));
        }
    }

    fn shrink_to(&mut self, bytes: u64, steps: &mut Vec<Step>) {
        if self.reserved <= bytes {
            return;
        }
        let idle = |book: &Self, addr: u64, extent: Extent| {
            book.live.range(addr..addr.saturating_add(extent.size)).next().is_none()
        };
        let idle: Vec<u64> =
            self.segments.iter().filter(|(addr, extent)| idle(self, **addr, **extent)).map(|(addr, _)| *addr).collect();
        for addr in idle {
            let size = self.segments[&addr].size;
            if self.reserved.saturating_sub(size) >= bytes {
                self.drop_segment(addr, steps);
            }
        }
    }

    /// The device's state, for a host that lost events.
    fn keyframe(&self, device: DeviceIndex, reason: KeyframeReason) -> Keyframe {
        let mut loose: BTreeMap<u64, Extent> = self.live.clone();
        let mut segments = Vec::with_capacity(self.segments.len());
        for (&addr, &Extent { size, stream }) in &self.segments {
            let (end, mut at, mut blocks) = (addr.saturating_add(size), addr, Vec::new());
            for (&start, &extent) in self.live.range(addr..end) {
                loose.remove(&start);
                if start > at {
                    blocks.push(block(at, start - at, BlockUse::Inactive));
                }
                blocks.push(block(start, extent.size, BlockUse::Allocated));
                at = start.saturating_add(extent.size);
            }
            if at < end {
                blocks.push(block(at, end - at, BlockUse::Inactive));
            }
            let (pool, kind) = (PoolId { first: 0, second: 0 }, segment_kind(size));
            segments.push(SegmentState { addr, size, stream, pool, kind, expandable: false, blocks });
        }
        let loose = loose.iter().map(|(&addr, extent)| block(addr, extent.size, BlockUse::Allocated)).collect();
        Keyframe { device, at_event: 0, time_ns: now_ns(), reason, segments, loose }
    }
}

fn block(addr: u64, size: u64, usage: BlockUse) -> BlockState {
    let requested = if usage == BlockUse::Inactive { 0 } else { size };
    BlockState { addr, size, requested, usage, stack: StackId::NONE, birth_epoch: 0, birth_step: 0, birth_phase: None }
}

/// Replaces the shim's function, because there is no autograd.
extern "C" fn no_sequence() -> u64 {
    0
}

extern "C" fn no_node(_to: *mut RawNode) -> i32 {
    0
}

extern "C" fn no_type() -> *const std::ffi::c_char {
    std::ptr::null()
}

const NO_SHIM: Shim = Shim { sequence: no_sequence, node: no_node, node_type: no_type };

impl Live {
    pub(super) fn foreign(&self) -> MutexGuard<'_, Option<Foreign>> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches this session to events that are reported with [`Self::tell`]. Idempotent.
    ///
    /// # Errors
    /// [`LiveError::Hooked`] when PyTorch's hook feeds the rings.
    pub fn attach_foreign(&self) -> Result<(), LiveError> {
        let mut foreign = self.foreign();
        let mut slot = self.hook.write().unwrap_or_else(PoisonError::into_inner);
        if foreign.is_some() {
            return Ok(());
        }
        if slot.is_some() {
            return Err(LiveError::Hooked);
        }
        *slot = Some(Box::new(Hook::new(self.region.clone(), self.thread_state, NO_SHIM)));
        *foreign = Some(Foreign(self.session.devices.iter().map(|_| Book::default()).collect()));
        self.region.set_level(Level::Events);
        Ok(())
    }

    /// Records an allocator's report. Returns `false` when nothing is being recorded or the session has no such device.
    pub fn tell(&self, device: u32, report: AllocatorReport) -> bool {
        let mut foreign = self.foreign();
        let Some(book) = foreign.as_mut().and_then(|foreign| foreign.0.get_mut(device as usize)) else { return false };
        let steps = book.take(report);
        if let Some(hook) = self.hook().as_ref() {
            for (action, addr, Extent { size, stream }) in steps {
                let raw = RawEvent {
                    addr,
                    size,
                    stream,
                    ticks: ticks(),
                    pool: [0, 0],
                    action: action as i32,
                    device: device as i32,
                    owner: 0,
                    owner_bytes: 0,
                };
                // SAFETY: events are pushed one at a time. The lock on `foreign` is held, and PyTorch's callback does
                // not reach this hook.
                unsafe { hook.event(&raw) };
            }
        } else {
            return false;
        }
        if self.region.snapshot_wanted(device as usize) {
            let now_ns = now_ns();
            if now_ns.saturating_sub(book.answered_ns) >= ANSWER_EVERY_NS {
                book.answered_ns = now_ns;
                self.hand_over(device as usize, book, KeyframeReason::AfterDrop);
            }
        }
        true
    }

    /// Sends the state of every device for which it is requested. Returns `false` when no allocator reports or there
    /// was no room for a state.
    pub(super) fn foreign_states(&self, reason: KeyframeReason) -> bool {
        let foreign = self.foreign();
        let Some(Foreign(books)) = &*foreign else { return false };
        let mut all = true;
        for (device, book) in books.iter().enumerate() {
            if self.region.snapshot_wanted(device) {
                all &= self.hand_over(device, book, reason);
            }
        }
        all
    }

    /// Sends a device's state. The caller holds the lock on `foreign`, so no event is pushed between the state and the
    /// position.
    fn hand_over(&self, device: usize, book: &Book, reason: KeyframeReason) -> bool {
        let Some(&position) = self.positions().get(device) else { return false };
        self.state(&book.keyframe(DeviceIndex(device as u8), reason), position)
    }
}

#[cfg(test)]
mod tests;
