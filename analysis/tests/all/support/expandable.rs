//! Expandable segments of the simulated allocator: a reserved range whose pages are mapped and unmapped.

use memctl_model::{Action, BlockUse, PoolId, SegmentKind};

use super::allocator::{Allocator, Blk, merge_free};

const RESERVED_BYTES: u64 = 2 << 30;

impl Allocator {
    fn page(&self, kind: SegmentKind) -> u64 {
        if kind == SegmentKind::Small { 2 << 20 } else { self.settings.large_segment_size }
    }

    /// Maps pages until a free block has `size` bytes. The pages follow the free block before the first suitable
    /// unmapped range, or begin with this range. Returns the indices of the region and of the block.
    pub fn map_pages(&mut self, size: u64, stream: u64, pool: PoolId, kind: SegmentKind) -> Option<(usize, usize)> {
        let owned =
            self.regions.iter().position(|region| (region.stream, region.pool, region.kind) == (stream, pool, kind));
        let region = owned.unwrap_or_else(|| {
            let addr = self.driver_addr(RESERVED_BYTES, false);
            self.add_region(addr, RESERVED_BYTES, stream, pool, kind, false);
            self.regions.len() - 1
        });
        let blocks = &self.regions[region].blocks;
        let start = (0..blocks.len()).find_map(|at| {
            if blocks[at].mapped {
                return None;
            }
            let first = if at > 0 && blocks[at - 1].allocatable() { at - 1 } else { at };
            let run = blocks[first..].iter().take_while(|blk| blk.allocatable());
            (run.map(|blk| blk.size).sum::<u64>() >= size).then_some(blocks[first].addr)
        })?;
        loop {
            let blocks = &self.regions[region].blocks;
            let at = blocks.iter().position(|blk| blk.addr == start)?;
            let candidate = &blocks[at];
            if candidate.mapped && candidate.size >= size {
                return Some((region, at));
            }
            let (unmapped, lacking) = if candidate.mapped { (at + 1, size - candidate.size) } else { (at, size) };
            self.map(region, unmapped, lacking);
        }
    }

    fn map(&mut self, region: usize, at: usize, lacking: u64) {
        let (stream, pool, kind) = (self.regions[region].stream, self.regions[region].pool, self.regions[region].kind);
        let page = self.page(kind);
        let blocks = &mut self.regions[region].blocks;
        let unmapped = blocks[at].clone();
        let size = lacking.min(unmapped.size).div_ceil(page) * page;
        blocks[at] = Blk { size, mapped: true, ..unmapped.clone() };
        if size < unmapped.size {
            blocks.insert(at + 1, Blk { addr: unmapped.addr + size, size: unmapped.size - size, ..unmapped.clone() });
        }
        merge_free(blocks);
        self.record(Action::SegmentMap, unmapped.addr, size, stream, pool, 0);
    }

    /// Unmaps the whole pages inside every free block.
    pub fn unmap_pages(&mut self) {
        for region in 0..self.regions.len() {
            let (stream, pool, kind) =
                (self.regions[region].stream, self.regions[region].pool, self.regions[region].kind);
            let (page, base) = (self.page(kind), self.regions[region].addr);
            if !self.regions[region].expandable {
                continue;
            }
            while let Some((at, low, high)) = first_free_pages(&self.regions[region].blocks, base, page) {
                let blocks = &mut self.regions[region].blocks;
                let free = blocks.remove(at);
                let part = |from: u64, to: u64, mapped| Blk {
                    addr: from,
                    size: to - from,
                    requested: 0,
                    usage: BlockUse::Inactive,
                    mapped,
                    stack: 0,
                };
                let end = free.addr + free.size;
                let parts = [part(free.addr, low, true), part(low, high, false), part(high, end, true)];
                blocks.splice(at..at, parts.into_iter().filter(|blk| blk.size > 0));
                merge_free(blocks);
                self.record(Action::SegmentUnmap, low, high - low, stream, pool, 0);
            }
        }
    }
}

fn first_free_pages(blocks: &[Blk], base: u64, page: u64) -> Option<(usize, u64, u64)> {
    blocks.iter().enumerate().filter(|(_, blk)| blk.mapped && blk.allocatable()).find_map(|(at, blk)| {
        let low = base + (blk.addr - base).div_ceil(page) * page;
        let high = base + (blk.addr + blk.size - base) / page * page;
        (low < high).then_some((at, low, high))
    })
}
