//! The segments while a trace is read backwards: provided memory is removed, released memory is added again.
//!
//! Guarantees: ranges never overlap and lie within 64 bits. Adding a range that would overlap another returns `false`.

use std::collections::BTreeMap;

use memctl_model::allocator::segment_kind;
use memctl_model::{AllocatorSettings, PoolId, SegmentKind, SegmentState};

/// One segment or contiguous mapped range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub size: u64,
    pub stream: u64,
    pub pool: PoolId,
    pub kind: SegmentKind,
    /// Whether the kind is derived from the size alone. A block in the range shows the true kind.
    pub kind_is_guessed: bool,
    pub expandable: bool,
}

impl From<&SegmentState> for Range {
    fn from(segment: &SegmentState) -> Self {
        let &SegmentState { addr: _, size, stream, pool, kind, expandable, blocks: _ } = segment;
        Self { size, stream, pool, kind, kind_is_guessed: false, expandable }
    }
}

impl Range {
    /// A segment of which only the event is known.
    pub(super) fn of_segment(size: u64, stream: u64, pool: PoolId) -> Self {
        Self { size, stream, pool, kind: segment_kind(size), kind_is_guessed: false, expandable: false }
    }

    /// Pages that were unmapped together. Several small pages may look like a large one, so the kind is guessed.
    pub(super) fn of_pages(size: u64, stream: u64, pool: PoolId, settings: &AllocatorSettings) -> Self {
        let large = settings.large_segment_size > 0 && size.is_multiple_of(settings.large_segment_size);
        let kind = if large { SegmentKind::Large } else { SegmentKind::Small };
        Self { size, stream, pool, kind, kind_is_guessed: true, expandable: true }
    }

    /// Joins two adjacent ranges if they are parts of one expandable segment. Traces up to torch 2.11 do not name the
    /// pool, so the default pool means "not known".
    fn joined(&self, upper: &Self) -> Option<Self> {
        let pools_agree = self.pool == upper.pool || self.pool == PoolId::DEFAULT || upper.pool == PoolId::DEFAULT;
        let kinds_agree = self.kind == upper.kind || self.kind_is_guessed || upper.kind_is_guessed;
        if !(self.expandable && upper.expandable && self.stream == upper.stream && pools_agree && kinds_agree) {
            return None;
        }
        Some(Self {
            size: self.size + upper.size,
            pool: self.pool.max(upper.pool),
            kind: if self.kind_is_guessed { upper.kind } else { self.kind },
            kind_is_guessed: self.kind_is_guessed && upper.kind_is_guessed,
            ..*self
        })
    }
}

/// All ranges by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    by_addr: BTreeMap<u64, Range>,
    /// Number of ranges mapped so far with a guessed kind. If it is 0, as in most traces, the search is skipped.
    guessed: usize,
}

impl Ranges {
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Range)> {
        self.by_addr.iter().map(|(&addr, range)| (addr, range))
    }

    /// The range that contains `addr`, with its address.
    pub(super) fn containing(&self, addr: u64) -> Option<(u64, &Range)> {
        let (&start, range) = self.by_addr.range(..=addr).next_back()?;
        (addr - start < range.size).then_some((start, range))
    }

    /// Corrects the kind of the range that contains `addr`, if it was only guessed.
    pub(super) fn set_kind(&mut self, addr: u64, kind: SegmentKind) {
        if self.guessed == 0 {
            return;
        }
        let found = self.by_addr.range_mut(..=addr).next_back().filter(|(start, range)| addr - **start < range.size);
        if let Some((_, range)) = found.filter(|(_, range)| range.kind_is_guessed) {
            (range.kind, range.kind_is_guessed) = (kind, false);
        }
    }

    /// Adds a range; `false` if it is empty, exceeds 64 bits or overlaps another.
    pub(super) fn insert(&mut self, addr: u64, range: Range) -> bool {
        let Some(end) = addr.checked_add(range.size) else { return false };
        let free = range.size > 0 && self.containing(addr).is_none() && self.by_addr.range(addr..end).next().is_none();
        if free {
            self.by_addr.insert(addr, range);
        }
        free
    }

    /// Removes the segment that starts at `addr`; `false` if there is none of this size.
    pub(super) fn remove(&mut self, addr: u64, size: u64) -> bool {
        let found = self.by_addr.get(&addr).is_some_and(|range| range.size == size && !range.expandable);
        if found {
            self.by_addr.remove(&addr);
        }
        found
    }

    /// Unmaps `start..end`; `false` if not all of it was mapped.
    pub(super) fn unmap(&mut self, start: u64, end: u64) -> bool {
        let below = self.containing(start).map(|(addr, _)| addr).filter(|&addr| addr < start);
        let inside = self.by_addr.range(start..end).map(|(&addr, _)| addr);
        // A segment that is not expandable ends the mapping, so nothing beyond it can belong to it.
        let expandable = |addr: &u64| self.by_addr.get(addr).is_some_and(|range| range.expandable);
        let hit: Vec<u64> = below.into_iter().chain(inside).take_while(expandable).collect();
        let mut unmapped = 0;
        for addr in hit {
            let Some(range) = self.by_addr.remove(&addr) else { continue };
            let range_end = addr + range.size;
            let (low, high) = (start.max(addr), end.min(range_end));
            if low > addr {
                self.by_addr.insert(addr, Range { size: low - addr, ..range });
            }
            if high < range_end {
                self.by_addr.insert(high, Range { size: range_end - high, ..range });
            }
            unmapped += high - low;
        }
        unmapped == end - start
    }

    /// Maps pages and joins them with adjacent ranges; `false` as for [`insert`](Self::insert).
    pub(super) fn map(&mut self, addr: u64, pages: Range) -> bool {
        if !self.insert(addr, pages) {
            return false;
        }
        self.guessed += usize::from(pages.kind_is_guessed);
        self.join_with_next(addr);
        if let Some((&below, range)) = self.by_addr.range(..addr).next_back()
            && below + range.size == addr
        {
            self.join_with_next(below);
        }
        true
    }

    fn join_with_next(&mut self, addr: u64) {
        let Some(&lower) = self.by_addr.get(&addr) else { return };
        let next = addr + lower.size;
        if let Some(joined) = self.by_addr.get(&next).and_then(|upper| lower.joined(upper)) {
            self.by_addr.remove(&next);
            self.by_addr.insert(addr, joined);
        }
    }
}
