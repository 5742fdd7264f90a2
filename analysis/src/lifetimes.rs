//! The lifetimes of blocks and segments within a range of a device's events. With them, every moment of the range can
//! be drawn without another replay.
//!
//! Guarantees: the blocks and segments that exist after the n-th event are those with `from <= n < to`. Memory is
//! proportional to the initial state and the events of the range. An allocation at an address that is in use ends
//! the lifetime there. Other contradictions are not resolved: they give lifetimes that overlap.

use std::collections::BTreeMap;

use memctl_model::allocator::segment_kind;
use memctl_model::{Action, BlockState, BlockUse, Event, Keyframe, PoolId, SegmentKind, StackId};

use crate::Birth;

/// The end of a lifetime that ends after the range.
pub const OPEN: u64 = u64::MAX;

/// A block and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLife {
    /// Device address.
    pub addr: u64,
    /// Bytes of the block, which may be larger than the request.
    pub bytes: u64,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// The stack that allocated it.
    pub stack: StackId,
    /// Epoch, step and phase of the allocation.
    pub birth: Birth,
    /// The event after which it exists; 0 if it existed before the range.
    pub from: u64,
    /// The event that requests its free. Another stream may still use it after that.
    pub freed: u64,
    /// The event after which it no longer exists.
    pub to: u64,
}

/// A segment, or a mapped range of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// Device address.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
    /// Stream its blocks belong to.
    pub stream: u64,
    /// Pool it belongs to.
    pub pool: PoolId,
    /// Small or large blocks.
    pub kind: SegmentKind,
    /// Whether it is mapped in pages and not allocated as a whole.
    pub expandable: bool,
    /// The event after which it exists; 0 if it existed before the range.
    pub from: u64,
    /// The event after which it no longer exists.
    pub to: u64,
}

impl SegmentLife {
    fn end(&self) -> u64 {
        self.addr.saturating_add(self.bytes)
    }
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The number of its event.
    pub event: u64,
    /// The rounded request.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: u64,
}

/// All lifetimes of a range; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    /// Every block that is live at some time in the range.
    pub blocks: Vec<BlockLife>,
    /// Every segment that exists at some time in the range.
    pub segments: Vec<SegmentLife>,
    /// Requests that failed.
    pub failures: Vec<Failure>,
    /// The blocks that are live now, by address; `held` are the segments that exist now.
    living: BTreeMap<u64, usize>,
    held: BTreeMap<u64, usize>,
}

impl Lives {
    /// Starts with the state at the begin of the range.
    #[must_use]
    pub fn new(state: &Keyframe) -> Self {
        let mut lives = Self::default();
        for segment in &state.segments {
            lives.hold(SegmentLife {
                addr: segment.addr,
                bytes: segment.size,
                stream: segment.stream,
                pool: segment.pool,
                kind: segment.kind,
                expandable: segment.expandable,
                from: 0,
                to: OPEN,
            });
        }
        let blocks = state.segments.iter().flat_map(|segment| &segment.blocks).chain(&state.loose);
        for block in blocks.filter(|block| block.usage != BlockUse::Inactive) {
            lives.add_existing(block);
        }
        lives
    }

    fn add_existing(&mut self, block: &BlockState) {
        let birth = Birth { epoch: block.birth_epoch, step: block.birth_step, phase: block.birth_phase };
        self.live(BlockLife {
            addr: block.addr,
            bytes: block.size,
            requested_bytes: block.requested,
            stack: block.stack,
            birth,
            from: 0,
            freed: if block.usage == BlockUse::PendingFree { 0 } else { OPEN },
            to: OPEN,
        });
    }

    /// Applies the event with this number. `bytes` is the size of a block that it allocates, if known.
    pub fn event(&mut self, number: u64, event: &Event, bytes: Option<u64>, birth: Birth) {
        match event.action {
            Action::Alloc => self.live(BlockLife {
                addr: event.addr,
                bytes: bytes.unwrap_or(event.size),
                requested_bytes: event.size,
                stack: event.stack,
                birth,
                from: number,
                freed: OPEN,
                to: OPEN,
            }),
            Action::FreeRequested => {
                if let Some(&at) = self.living.get(&event.addr) {
                    self.blocks[at].freed = number;
                }
            }
            Action::FreeCompleted => self.gone(event.addr, number),
            Action::SegmentAlloc => self.hold(SegmentLife { from: number, ..segment(event, false) }),
            Action::SegmentFree => {
                if let Some(at) = self.held.remove(&event.addr) {
                    self.segments[at].to = number;
                }
            }
            Action::SegmentMap => {
                let beside = self.held.range(..=event.addr).next_back().map(|(_, &at)| self.segments[at]);
                let mut mapped = SegmentLife { from: number, ..segment(event, true) };
                if let Some(beside) = beside.filter(|beside| beside.expandable && beside.end() == event.addr) {
                    mapped.kind = beside.kind;
                }
                self.hold(mapped);
            }
            Action::SegmentUnmap => self.unmap(event, number),
            Action::Oom => self.failures.push(Failure { event: number, bytes: event.size, stream: event.stream }),
            Action::Annotate => {
                if let Some(&at) = self.living.get(&event.addr).filter(|_| event.stack.is_some()) {
                    self.blocks[at].stack = event.stack;
                }
            }
            Action::Snapshot => {}
        }
    }

    fn live(&mut self, block: BlockLife) {
        self.gone(block.addr, block.from);
        self.living.insert(block.addr, self.blocks.len());
        self.blocks.push(block);
    }

    fn gone(&mut self, addr: u64, number: u64) {
        if let Some(at) = self.living.remove(&addr) {
            let block = &mut self.blocks[at];
            (block.to, block.freed) = (number, block.freed.min(number));
        }
    }

    fn hold(&mut self, segment: SegmentLife) {
        if let Some(at) = self.held.insert(segment.addr, self.segments.len()) {
            self.segments[at].to = segment.from;
        }
        self.segments.push(segment);
    }

    /// Pages may be unmapped in other ranges than they were mapped in. The rest of a partly unmapped range becomes a
    /// segment of its own.
    fn unmap(&mut self, event: &Event, number: u64) {
        let end = event.addr.saturating_add(event.size);
        let mut touched: Vec<usize> = self.held.range(event.addr..end).map(|(_, &at)| at).collect();
        let before = self.held.range(..event.addr).next_back().map(|(_, &at)| at);
        touched.extend(before.filter(|&at| self.segments[at].end() > event.addr));
        for at in touched {
            let whole = self.segments[at];
            self.held.remove(&whole.addr);
            self.segments[at].to = number;
            if whole.addr < event.addr {
                self.hold(SegmentLife { bytes: event.addr - whole.addr, from: number, ..whole });
            }
            if whole.end() > end {
                self.hold(SegmentLife { addr: end, bytes: whole.end() - end, from: number, ..whole });
            }
        }
    }
}

fn segment(event: &Event, expandable: bool) -> SegmentLife {
    SegmentLife {
        addr: event.addr,
        bytes: event.size,
        stream: event.stream,
        pool: event.pool,
        kind: segment_kind(event.size),
        expandable,
        from: 0,
        to: OPEN,
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{DeviceIndex, KeyframeReason, SegmentState};

    use super::*;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { addr, size, action, ..Event::default() }
    }

    fn state() -> Keyframe {
        let block = |addr, usage| BlockState { addr, size: 512, requested: 500, usage, ..BlockState::default() };
        let blocks =
            vec![block(0, BlockUse::Allocated), block(512, BlockUse::Inactive), block(1024, BlockUse::PendingFree)];
        let segment = SegmentState { size: 2 << 20, kind: SegmentKind::Small, blocks, ..SegmentState::default() };
        Keyframe {
            device: DeviceIndex(0),
            at_event: 10,
            time_ns: 0,
            reason: KeyframeReason::Periodic,
            segments: vec![segment],
            loose: Vec::new(),
        }
    }

    fn alive(lives: &Lives, at: u64) -> Vec<u64> {
        lives.blocks.iter().filter(|block| block.from <= at && at < block.to).map(|block| block.addr).collect()
    }

    #[test]
    fn every_moment_of_the_stretch_has_its_blocks() {
        let mut lives = Lives::new(&state());
        let birth = Birth { epoch: 3, step: 7, phase: None };
        lives.event(11, &event(Action::Alloc, 512, 300), Some(512), birth);
        lives.event(12, &event(Action::FreeRequested, 0, 500), None, birth);
        lives.event(13, &event(Action::FreeCompleted, 0, 500), None, birth);
        lives.event(14, &event(Action::Alloc, 0, 9), None, birth);
        lives.event(15, &event(Action::FreeCompleted, 4096, 9), None, birth);
        assert_eq!([10, 11, 12, 13, 14, 15].map(|at| alive(&lives, at).len()), [2, 3, 3, 2, 3, 3]);
        assert_eq!(lives.blocks[0].freed, 12, "given back before it was gone");
        assert_eq!((lives.blocks[1].freed, lives.blocks[1].to), (0, OPEN));
        let born = lives.blocks[2];
        assert_eq!((born.bytes, born.requested_bytes, born.birth, born.from, born.to), (512, 300, birth, 11, OPEN));
        // An address is allocated twice. The first block must have ended, although the recording contains no free.
        lives.event(16, &event(Action::Alloc, 0, 8), None, birth);
        assert_eq!(alive(&lives, 16).len(), 3);
    }

    #[test]
    fn pages_may_be_unmapped_in_other_ranges_than_they_were_mapped() {
        let mut lives = Lives::new(&state());
        let birth = Birth::default();
        let page = 20 << 20;
        lives.event(11, &event(Action::SegmentAlloc, 8 << 20, 20 << 20), None, birth);
        lives.event(12, &event(Action::SegmentFree, 8 << 20, 20 << 20), None, birth);
        lives.event(13, &event(Action::SegmentMap, 1 << 40, 2 * page), None, birth);
        lives.event(14, &event(Action::SegmentMap, (1 << 40) + 2 * page, 2 << 20), None, birth);
        lives.event(15, &event(Action::SegmentUnmap, (1 << 40) + page, page), None, birth);
        let held = |at: u64| -> Vec<(u64, u64)> {
            let alive = lives.segments.iter().filter(|segment| segment.from <= at && at < segment.to);
            alive.map(|segment| (segment.addr, segment.bytes)).collect()
        };
        assert_eq!(held(11), [(0, 2 << 20), (8 << 20, 20 << 20)]);
        assert_eq!(held(12), [(0, 2 << 20)]);
        assert_eq!(held(15), [(0, 2 << 20), ((1 << 40) + 2 * page, 2 << 20), (1 << 40, page)]);
        assert!(lives.segments.iter().skip(2).all(|segment| segment.kind == SegmentKind::Large && segment.expandable));
    }

    #[test]
    fn failed_requests_are_kept() {
        let mut lives = Lives::new(&state());
        lives.event(11, &event(Action::Oom, 5, 77), None, Birth::default());
        assert_eq!(lives.failures, [Failure { event: 11, bytes: 77, stream: 0 }]);
    }
}
