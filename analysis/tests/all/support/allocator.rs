//! The simulated allocator: sizes, best fit, splitting, merging, pending frees, segments and their release.

use memctl_model::{
    Action, AllocatorSettings, BlockState, BlockUse, Event, PoolId, SegmentKind, SegmentState, StackId,
};

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Blk {
    pub addr: u64,
    pub size: u64,
    pub requested: u64,
    pub usage: BlockUse,
    pub mapped: bool,
    pub stack: u32,
}

impl Blk {
    pub fn allocatable(&self) -> bool {
        self.usage == BlockUse::Inactive
    }

    fn free_and_mapped(&self) -> bool {
        self.allocatable() && self.mapped
    }
}

/// A segment, or the whole reserved address range of an expandable segment.
#[derive(Clone, Debug)]
pub struct Region {
    pub addr: u64,
    pub stream: u64,
    pub pool: PoolId,
    pub kind: SegmentKind,
    pub expandable: bool,
    pub blocks: Vec<Blk>,
}

/// One recorded event and the state directly after it.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub event: Event,
    pub segments: Vec<SegmentState>,
}

pub struct Allocator {
    pub settings: AllocatorSettings,
    /// Whether events name the pool, as they do from torch 2.12 on.
    pub names_pools: bool,
    pub capacity: u64,
    pub regions: Vec<Region>,
    pub recorded: Vec<Recorded>,
    next_addr: u64,
    /// Segments that were released; the driver reuses their addresses.
    returned: Vec<(u64, u64)>,
    time: u64,
}

impl Allocator {
    pub fn new(settings: AllocatorSettings, names_pools: bool) -> Self {
        Self {
            settings,
            names_pools,
            capacity: 384 * MIB,
            regions: Vec::new(),
            recorded: Vec::new(),
            next_addr: 0x7f00_0000_0000,
            returned: Vec::new(),
            time: 0,
        }
    }

    pub fn record(&mut self, action: Action, addr: u64, size: u64, stream: u64, pool: PoolId, stack: u32) {
        self.time += 100;
        let pool = if self.names_pools { pool } else { PoolId::DEFAULT };
        let event = Event { time_ns: self.time, addr, size, stream, pool, stack: StackId(stack), action };
        let segments = self.snapshot();
        self.recorded.push(Recorded { event, segments });
    }

    /// Contiguous mapped ranges with their blocks, in address order.
    pub fn snapshot(&self) -> Vec<SegmentState> {
        let mut segments: Vec<SegmentState> = Vec::new();
        for region in &self.regions {
            let mut open = false;
            for blk in &region.blocks {
                if blk.mapped && !open {
                    let &Region { addr: _, stream, pool, kind, expandable, blocks: _ } = region;
                    let (addr, size, blocks) = (blk.addr, 0, Vec::new());
                    segments.push(SegmentState { addr, size, stream, pool, kind, expandable, blocks });
                }
                open = blk.mapped;
                if let Some(segment) = segments.last_mut().filter(|_| blk.mapped) {
                    segment.size += blk.size;
                    let live = blk.usage != BlockUse::Inactive;
                    segment.blocks.push(BlockState {
                        addr: blk.addr,
                        size: blk.size,
                        requested: if live { blk.requested } else { 0 },
                        usage: blk.usage,
                        stack: StackId(if live { blk.stack } else { 0 }),
                        ..BlockState::default()
                    });
                }
            }
        }
        segments.sort_by_key(|segment| segment.addr);
        segments
    }

    pub fn reserved(&self) -> u64 {
        self.regions.iter().flat_map(|region| &region.blocks).filter(|blk| blk.mapped).map(|blk| blk.size).sum()
    }

    fn round(&self, requested: u64) -> u64 {
        if requested < 512 {
            return 512;
        }
        let class = (0..16).rev().find(|&class| requested >> (20 + class) > 0).unwrap_or(0);
        let divisions = u64::from(self.settings.roundup_power2_divisions[class]);
        if divisions > 1 && requested > 512 * divisions {
            let mut below = 1;
            while below * 2 <= requested {
                below *= 2;
            }
            if below == requested {
                return requested;
            }
            let step = below / divisions;
            return if step == 0 { below * 2 } else { requested.div_ceil(step) * step };
        }
        requested.div_ceil(512) * 512
    }

    /// Serves a request, or records that it cannot be served. Returns the address.
    pub fn malloc(&mut self, requested: u64, stream: u64, pool: PoolId, stack: u32, gap: bool) -> Option<u64> {
        let size = self.round(requested);
        let kind = if size <= MIB { SegmentKind::Small } else { SegmentKind::Large };
        let found = self.best_fit(size, stream, pool, kind).or_else(|| self.grow(size, stream, pool, kind, gap));
        let found = found.or_else(|| {
            self.empty_cache();
            self.grow(size, stream, pool, kind, gap)
        });
        let Some((region, at)) = found else {
            self.record(Action::Oom, self.capacity.saturating_sub(self.reserved()), size, stream, pool, stack);
            return None;
        };
        let (splits_at_512, limit) = (
            kind == SegmentKind::Small || self.settings.expandable_segments,
            self.settings.max_split_size.unwrap_or(u64::MAX),
        );
        let blocks = &mut self.regions[region].blocks;
        let rest = blocks[at].size - size;
        let split = if splits_at_512 { rest >= 512 } else { size < limit && rest > MIB };
        if split {
            let upper = Blk { addr: blocks[at].addr + size, size: rest, ..blocks[at].clone() };
            blocks[at].size = size;
            blocks.insert(at + 1, upper);
        }
        let blk = &mut blocks[at];
        (blk.usage, blk.requested, blk.stack) = (BlockUse::Allocated, requested, stack);
        let addr = blk.addr;
        self.record(Action::Alloc, addr, requested, stream, pool, stack);
        Some(addr)
    }

    fn best_fit(&self, size: u64, stream: u64, pool: PoolId, kind: SegmentKind) -> Option<(usize, usize)> {
        let owned = |region: &Region| (region.stream, region.pool, region.kind) == (stream, pool, kind);
        let regions = self.regions.iter().enumerate().filter(|(_, region)| owned(region));
        let blocks = regions.flat_map(|(r, region)| region.blocks.iter().enumerate().map(move |(b, blk)| (r, b, blk)));
        let fitting = blocks.filter(|(_, _, blk)| blk.free_and_mapped() && blk.size >= size);
        let (region, at, blk) = fitting.min_by_key(|(_, _, blk)| (blk.size, blk.addr))?;
        if let Some(limit) = self.settings.max_split_size {
            let too_good = size < limit && blk.size >= limit;
            let too_big = size >= limit && blk.size >= size + self.settings.large_segment_size;
            if too_good || too_big {
                return None;
            }
        }
        Some((region, at))
    }

    fn grow(&mut self, size: u64, stream: u64, pool: PoolId, kind: SegmentKind, gap: bool) -> Option<(usize, usize)> {
        let segment_size = match size {
            0..=MIB => 2 * MIB,
            _ if size < 10 * MIB => self.settings.large_segment_size,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        };
        if self.reserved() + segment_size > self.capacity {
            return None;
        }
        if self.settings.expandable_segments {
            return self.map_pages(size, stream, pool, kind);
        }
        let addr = self.driver_addr(segment_size, gap);
        self.add_region(addr, segment_size, stream, pool, kind, true);
        self.record(Action::SegmentAlloc, addr, segment_size, stream, pool, 0);
        Some((self.regions.len() - 1, 0))
    }

    /// New addresses follow each other with or without a gap; released ones are reused.
    pub fn driver_addr(&mut self, size: u64, gap: bool) -> u64 {
        if let Some(again) = self.returned.iter().rposition(|&(_, returned)| returned == size) {
            return self.returned.remove(again).0;
        }
        let addr = self.next_addr + if gap { 2 * MIB } else { 0 };
        self.next_addr = addr + size;
        addr
    }

    pub fn add_region(&mut self, addr: u64, size: u64, stream: u64, pool: PoolId, kind: SegmentKind, mapped: bool) {
        let blk = Blk { addr, size, requested: 0, usage: BlockUse::Inactive, mapped, stack: 0 };
        self.regions.push(Region { addr, stream, pool, kind, expandable: !mapped, blocks: vec![blk] });
    }

    fn position(&self, addr: u64) -> (usize, usize) {
        let found = self.regions.iter().enumerate().find_map(|(r, region)| {
            let at = region.blocks.iter().position(|b| b.addr == addr && b.usage != BlockUse::Inactive)?;
            Some((r, at))
        });
        found.expect("the tests free what lives")
    }

    /// Frees a block. With `used_elsewhere` it stays pending until [`complete`](Self::complete).
    pub fn free(&mut self, addr: u64, used_elsewhere: bool, stack: u32) {
        let (region, at) = self.position(addr);
        let Region { stream, pool, .. } = self.regions[region];
        let blk = &mut self.regions[region].blocks[at];
        blk.usage = BlockUse::PendingFree;
        let requested = blk.requested;
        self.record(Action::FreeRequested, addr, requested, stream, pool, stack);
        if !used_elsewhere {
            self.complete(addr, stack);
        }
    }

    pub fn complete(&mut self, addr: u64, stack: u32) {
        let (region, at) = self.position(addr);
        let Region { stream, pool, .. } = self.regions[region];
        let blocks = &mut self.regions[region].blocks;
        blocks[at].usage = BlockUse::Inactive;
        let requested = blocks[at].requested;
        merge_free(blocks);
        self.record(Action::FreeCompleted, addr, requested, stream, pool, stack);
    }

    /// Releases every wholly free segment or page to the driver.
    pub fn empty_cache(&mut self) {
        while let Some(at) = self
            .regions
            .iter()
            .position(|region| !region.expandable && region.blocks.len() == 1 && region.blocks[0].free_and_mapped())
        {
            let region = self.regions.remove(at);
            let size = region.blocks[0].size;
            self.returned.push((region.addr, size));
            self.record(Action::SegmentFree, region.addr, size, region.stream, region.pool, 0);
        }
        self.unmap_pages();
    }
}

/// Joins free neighbours that are both mapped or both unmapped.
pub fn merge_free(blocks: &mut Vec<Blk>) {
    let mut at = 0;
    while at + 1 < blocks.len() {
        let (low, high) = (&blocks[at], &blocks[at + 1]);
        if low.allocatable() && high.allocatable() && low.mapped == high.mapped {
            blocks[at].size += blocks[at + 1].size;
            blocks.remove(at + 1);
        } else {
            at += 1;
        }
    }
}
