//! Compares the allocator with a naive one: a list of all blocks that is searched from end to end, written only from
//! PyTorch's rules.
//!
//! Guarantees: after every request of any program, under every kind of setting and limit, both have returned the same
//! addresses, made the same driver calls, and have the same counts. The placement of ordinary segments by the driver
//! is not tested: the naive allocator takes the addresses that the other one got.
//!
//! (Over 400 lines: it is all of an allocator, in one place to be read beside PyTorch's rules.)

use memctl_model::PoolId;
use memctl_replay::{Allocator, BlockId, Conf, DriverCall, DriverEvent, Limit, Ties, Version};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Allocated,
    Pending,
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// The segment or reservation that contains it.
    of: usize,
    /// Its number among all blocks that were made or split off.
    born: usize,
    addr: u64,
    size: u64,
    requested: u64,
    stream: u64,
    pool: (u32, bool),
    expandable: bool,
    state: State,
    /// While free: the searches of its pool before it became free. While waiting: its turn.
    since: u64,
}

#[derive(Default)]
struct Naive {
    conf: Conf,
    limit: Limit,
    /// Sorted by address.
    blocks: Vec<Block>,
    segments: usize,
    births: usize,
    searches: std::collections::HashMap<(u32, bool), u64>,
    turns: u64,
    reserved: u64,
    peak_reserved: u64,
    device_allocs: u64,
    device_frees: u64,
    retries: u64,
    ooms: u64,
    calls: Vec<DriverEvent>,
    /// The ordinary segments that the driver provided for the present request.
    given: Vec<DriverEvent>,
}

impl Naive {
    fn round(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(1);
        let power = 63 - bytes.leading_zeros();
        let divisions = u64::from(self.conf.roundup_power2_divisions[(power.max(20) - 20).min(15) as usize]);
        if divisions > 1 && bytes > 512 * divisions {
            // The smallest step between two powers of two that is large enough.
            let step = (1_u64 << power) / divisions;
            return (0..=divisions).map(|n| (1 << power) + n * step).find(|&size| size >= bytes).expect("a step");
        }
        bytes.div_ceil(512) * 512
    }

    fn collects(&self) -> Option<u64> {
        match self.limit {
            Limit::Share(share) if self.conf.garbage_collection_threshold > 0.0 => {
                Some((self.conf.garbage_collection_threshold * share as f64) as u64)
            }
            _ => None,
        }
    }

    /// The free blocks of a stream and a pool in the order of the best fit.
    fn free(&self, stream: u64, pool: (u32, bool)) -> Vec<Block> {
        let is_in = |it: &&Block| it.state == State::Free && it.stream == stream && it.pool == pool;
        let mut free: Vec<Block> = self.blocks.iter().filter(is_in).copied().collect();
        free.sort_by_key(|it| (it.size, self.age(it), it.addr));
        free
    }

    /// The age, which breaks ties between equally large blocks before the address does.
    fn age(&self, it: &Block) -> usize {
        match self.conf.ties {
            Ties::LowestAddress => 0,
            Ties::OlderBlock => it.born,
            Ties::OlderSegment => it.of,
        }
    }

    fn birth(&mut self) -> usize {
        self.births += 1;
        self.births
    }

    fn at(&self, addr: u64) -> usize {
        self.blocks.iter().position(|it| it.addr == addr).expect("a block")
    }

    fn beside(&self, at: usize, step: isize) -> Option<usize> {
        let other = at.checked_add_signed(step)?;
        (self.blocks.get(other)?.of == self.blocks[at].of).then_some(other)
    }

    fn is_whole(&self, it: &Block) -> bool {
        let at = self.at(it.addr);
        self.beside(at, -1).is_none() && self.beside(at, 1).is_none()
    }

    fn grown(&self, it: &Block) -> u64 {
        let next = self.beside(self.at(it.addr), 1).map(|next| self.blocks[next]);
        it.size + next.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.size)
    }

    fn find(&self, size: u64, stream: u64, pool: (u32, bool)) -> Option<Block> {
        let free: Vec<Block> = self.free(stream, pool).into_iter().filter(|it| it.size >= size).collect();
        let mut found = *free.first()?;
        if found.expandable && self.conf.expandable_segments {
            for next in &free[1..] {
                if !found.expandable || self.grown(next) >= self.grown(&found) {
                    break;
                }
                found = *next;
            }
        } else if found.expandable {
            found = *free.iter().find(|it| !it.expandable)?;
        }
        let split = self.conf.max_split_bytes.unwrap_or(u64::MAX);
        let is_kept = size < split && found.size >= split;
        let is_wasted = size >= split && found.size >= size.saturating_add(self.conf.max_non_split_rounding_bytes);
        (!is_kept && !is_wasted).then_some(found)
    }

    /// The address of the block that serves a request.
    fn malloc(&mut self, requested: u64, stream: u64, pool: u32) -> Option<u64> {
        let size = self.round(requested);
        let pool = (pool, size <= MIB);
        let segment = match size {
            _ if size <= MIB => 2 * MIB,
            _ if size < 10 * MIB => self.conf.large_segment_bytes,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        };
        if self.collects().is_some() {
            *self.searches.entry(pool).or_default() += 1;
        }
        let block = match self.find(size, stream, pool) {
            Some(found) => found.addr,
            None => self.obtain(size, segment, stream, pool)?,
        };
        let at = self.at(block);
        let rest = self.blocks[at].size - size;
        let splits = if pool.1 || self.conf.expandable_segments {
            rest >= 512
        } else {
            size < self.conf.max_split_bytes.unwrap_or(u64::MAX) && rest > MIB
        };
        if splits {
            let since = self.searches.get(&pool).copied().unwrap_or(0);
            let behind = Block { addr: block + size, size: rest, state: State::Free, since, ..self.blocks[at] };
            self.blocks[at].size = size;
            self.blocks[at].born = self.birth();
            self.blocks.insert(at + 1, behind);
        }
        let it = &mut self.blocks[at];
        (it.state, it.requested) = (State::Allocated, requested);
        Some(block)
    }

    fn obtain(&mut self, size: u64, segment: u64, stream: u64, pool: (u32, bool)) -> Option<u64> {
        self.collect();
        if let Some(addr) = self.driver(size, segment, stream, pool) {
            return Some(addr);
        }
        if self.release_oversize(size, stream, pool)
            && let Some(addr) = self.driver(size, segment, stream, pool)
        {
            return Some(addr);
        }
        self.empty();
        self.retries += 1;
        let served = self.driver(size, segment, stream, pool);
        self.ooms += u64::from(served.is_none());
        served
    }

    fn has_room(&self, bytes: u64) -> bool {
        !matches!(self.limit, Limit::Device(limit) if self.reserved + bytes > limit)
    }

    fn reserve(&mut self, call: DriverCall, addr: u64, size: u64) {
        self.reserved += size;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        self.device_allocs += 1;
        self.calls.push(DriverEvent { call, addr, size });
    }

    fn driver(&mut self, size: u64, segment: u64, stream: u64, pool: (u32, bool)) -> Option<u64> {
        if matches!(self.limit, Limit::Share(limit) if self.reserved + segment > limit) {
            return None;
        }
        if self.conf.expandable_segments {
            return self.expand(size, stream, pool);
        }
        if !self.has_room(segment) {
            return None;
        }
        // An address that the driver did not provide must differ from all others.
        let is_it = |it: &&DriverEvent| it.call == DriverCall::Alloc && it.size == segment;
        let addr = self.given.iter().find(is_it).map_or(1 << 62, |it| it.addr);
        self.given.retain(|it| it.addr != addr);
        self.insert(Block { expandable: false, ..Self::whole(addr, segment, stream, pool) });
        self.reserve(DriverCall::Alloc, addr, segment);
        Some(addr)
    }

    fn whole(addr: u64, size: u64, stream: u64, pool: (u32, bool)) -> Block {
        let (of, state) = (0, State::Free);
        Block { of, born: 0, addr, size, requested: 0, stream, pool, expandable: true, state, since: 0 }
    }

    fn insert(&mut self, block: Block) {
        self.segments += 1;
        let at = self.blocks.partition_point(|it| it.addr < block.addr);
        let born = self.birth();
        self.blocks.insert(at, Block { of: self.segments, born, ..block });
    }

    fn expand(&mut self, size: u64, stream: u64, pool: (u32, bool)) -> Option<u64> {
        let page = if pool.1 { 2 * MIB } else { self.conf.large_segment_bytes };
        let is_free = |it: &Block| matches!(it.state, State::Free | State::Unmapped);
        let mut first = None;
        for (at, it) in self.blocks.iter().enumerate() {
            if it.state != State::Unmapped || it.stream != stream || it.pool != pool {
                continue;
            }
            let begin = self.beside(at, -1).filter(|&before| is_free(&self.blocks[before])).unwrap_or(at);
            let run = self.blocks[begin..].iter().take_while(|other| other.of == it.of && is_free(other));
            if run.map(|other| other.size).sum::<u64>() >= size {
                first = Some(self.blocks[begin].addr);
                break;
            }
        }
        let addr = first.unwrap_or_else(|| {
            let device: u64 = match self.limit {
                Limit::None => 1 << 38,
                Limit::Share(bytes) => bytes.max(1 << 38),
                Limit::Device(bytes) => bytes,
            };
            let device = device.max(1 << 30);
            let bytes = ((device + device / 8).div_ceil(1 << 30) << 30).max(size.div_ceil(page) * page);
            let addr = self.blocks.last().map_or(0, |it| it.addr + it.size).max(1 << 50);
            self.insert(Block { state: State::Unmapped, ..Self::whole(addr, bytes, stream, pool) });
            addr
        });
        if self.blocks[self.at(addr)].state == State::Unmapped && !self.map(addr, size, page) {
            return None;
        }
        // Mapped pages join the free block in front of them, so the merged block begins there.
        let begin = |of: &Self| of.blocks.iter().rev().find(|it| it.addr <= addr).expect("it is there").addr;
        while self.blocks[self.at(begin(self))].size < size {
            let at = self.at(begin(self));
            let (missing, next) = (size - self.blocks[at].size, self.blocks[at + 1].addr);
            if !self.map(next, missing, page) {
                return None;
            }
        }
        Some(begin(self))
    }

    fn map(&mut self, addr: u64, bytes: u64, page: u64) -> bool {
        let at = self.at(addr);
        let mapped = bytes.min(self.blocks[at].size).div_ceil(page).saturating_mul(page).min(self.blocks[at].size);
        if !self.has_room(mapped) {
            return false;
        }
        if mapped < self.blocks[at].size {
            let born = self.birth();
            let behind = Block { addr: addr + mapped, size: self.blocks[at].size - mapped, born, ..self.blocks[at] };
            self.blocks.insert(at + 1, behind);
        }
        (self.blocks[at].size, self.blocks[at].state) = (mapped, State::Free);
        self.reserve(DriverCall::Map, addr, mapped);
        self.merge(addr);
        true
    }

    /// Merges a block that was freed or unmapped with its neighbours.
    fn merge(&mut self, addr: u64) {
        let mut at = self.at(addr);
        self.blocks[at].since = self.searches.get(&self.blocks[at].pool).copied().unwrap_or(0);
        for step in [-1, 1] {
            if let Some(other) = self.beside(at, step).filter(|&it| self.blocks[it].state == self.blocks[at].state) {
                let (low, high) = (at.min(other), at.max(other));
                let Block { since, born, .. } = self.blocks[at];
                self.blocks[low].born = born;
                self.blocks[low].size += self.blocks[high].size;
                self.blocks[low].since = since;
                self.blocks.remove(high);
                at = low;
            }
        }
    }

    fn free_requested(&mut self, addr: u64) {
        let at = self.at(addr);
        (self.blocks[at].state, self.blocks[at].since) = (State::Pending, self.turns);
        self.turns += 1;
    }

    fn free_completed(&mut self, addr: u64) {
        let at = self.at(addr);
        (self.blocks[at].state, self.blocks[at].requested) = (State::Free, 0);
        self.merge(addr);
    }

    fn release(&mut self, it: &Block) {
        let at = self.at(it.addr);
        self.blocks.remove(at);
        self.reserved -= it.size;
        self.device_frees += 1;
        self.calls.push(DriverEvent { call: DriverCall::Free, addr: it.addr, size: it.size });
    }

    fn collect(&mut self) {
        let Some(threshold) = self.collects() else { return };
        let target = self.reserved.saturating_sub(threshold);
        let pool = (0, false);
        let searches = self.searches.get(&pool).copied().unwrap_or(0);
        let idle = |of: &Self| -> Vec<Block> {
            let is_idle = |it: &&Block| it.state == State::Free && it.pool == pool && of.is_whole(it);
            let mut idle: Vec<Block> = of.blocks.iter().filter(is_idle).copied().collect();
            idle.sort_by_key(|it| (it.stream, it.size, of.age(it), it.addr));
            idle
        };
        let age = |it: &Block| (searches - it.since) as f64;
        let (mut ages, mut count) = (idle(self).iter().map(age).sum::<f64>(), idle(self).len());
        let mut reclaimed = 0;
        while reclaimed < target && count > 0 {
            let (old, before) = (ages / count as f64, reclaimed);
            for it in idle(self) {
                if !it.expandable && age(&it) >= old {
                    self.release(&it);
                    (reclaimed, ages, count) = (reclaimed + it.size, ages - age(&it), count - 1);
                }
            }
            if reclaimed == before {
                break;
            }
        }
    }

    fn release_oversize(&mut self, size: u64, stream: u64, pool: (u32, bool)) -> bool {
        let Some(limit) = self.conf.max_split_bytes else { return false };
        let wanted = size.max(limit);
        let free = self.free(stream, pool);
        if let Some(it) = free.iter().find(|it| it.size >= wanted)
            && !it.expandable
        {
            self.release(&it.clone());
            return true;
        }
        let mut released = 0;
        for it in free.iter().rev().filter(|it| it.size < wanted && it.size >= limit && !it.expandable) {
            if released < wanted {
                released += it.size;
                self.release(it);
            }
        }
        released >= wanted
    }

    /// Waits for pending frees and releases whole segments and whole pages. Private pools are in use all the time
    /// here.
    fn empty(&mut self) {
        let mut waiting: Vec<Block> = self.blocks.iter().filter(|it| it.state == State::Pending).copied().collect();
        waiting.sort_by_key(|it| it.since);
        waiting.iter().for_each(|it| self.free_completed(it.addr));
        for is_small in [false, true] {
            let is_in = |it: &&Block| it.state == State::Free && it.pool == (0, is_small);
            let free: Vec<Block> = self.blocks.iter().filter(is_in).copied().collect();
            for it in free {
                if !it.expandable && self.is_whole(&it) {
                    self.release(&it);
                } else if it.expandable {
                    self.unmap(&it);
                }
            }
        }
    }

    fn unmap(&mut self, it: &Block) {
        let page = if it.pool.1 { 2 * MIB } else { self.conf.large_segment_bytes };
        let base = self.blocks.iter().find(|other| other.of == it.of).expect("it is a part").addr;
        let pages = (0..).map(|n| base + n * page).skip_while(|&addr| addr < it.addr);
        let whole: Vec<u64> = pages.take_while(|&addr| addr + page <= it.addr + it.size).collect();
        let (Some(&begin), Some(&last)) = (whole.first(), whole.last()) else { return };
        let (end, at) = (last + page, self.at(it.addr));
        let since = self.searches.get(&it.pool).copied().unwrap_or(0);
        let mut parts = vec![Block { addr: begin, size: end - begin, state: State::Unmapped, ..*it }];
        if begin > it.addr {
            parts.insert(0, Block { size: begin - it.addr, since, born: self.birth(), ..*it });
        }
        if end < it.addr + it.size {
            parts.push(Block { addr: end, size: it.addr + it.size - end, since, born: self.birth(), ..*it });
        }
        self.blocks.splice(at..=at, parts);
        self.reserved -= end - begin;
        self.device_frees += 1;
        self.calls.push(DriverEvent { call: DriverCall::Unmap, addr: begin, size: end - begin });
        self.merge(begin);
        let of: Vec<usize> = (0..self.blocks.len()).filter(|&at| self.blocks[at].of == it.of).collect();
        if let [only] = of[..]
            && self.blocks[only].state == State::Unmapped
        {
            self.blocks.remove(only);
        }
    }

    fn sum(&self, is: impl Fn(&Block) -> bool, of: impl Fn(&Block) -> u64) -> u64 {
        self.blocks.iter().filter(|it| is(it)).map(of).sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Malloc { bytes: u64, stream: u64, pool: u32 },
    Free { which: usize },
    FreeAtOnce { which: usize },
    Complete { which: usize },
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A few sizes recur often, so that there are blocks of equal size to choose from.
    let bytes = prop_oneof![
        4 => prop::sample::select(vec![512, 4096, 300_000, MIB, 2 * MIB + 7, 3 * MIB, 5 * MIB, 24 * MIB, 40 * MIB]),
        1 => 1_u64..4096, 1 => 1_u64..(2 << 20), 2 => MIB..(48 << 20),
    ];
    let pool = prop_oneof![9 => Just(0), 1 => Just(1_u32)];
    let stream = prop_oneof![4 => Just(0), 1 => Just(7_u64)];
    let step = prop_oneof![
        9 => (bytes, stream, pool).prop_map(|(bytes, stream, pool)| Step::Malloc { bytes, stream, pool }),
        6 => any::<usize>().prop_map(|which| Step::FreeAtOnce { which }),
        2 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => any::<usize>().prop_map(|which| Step::Complete { which }),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..260)
}

const CONFS: [&str; 10] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:32,garbage_collection_threshold:0.4",
    "garbage_collection_threshold:0.3",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[4:2,16:8,>:1]",
    "expandable_segments:True,garbage_collection_threshold:0.5,max_split_size_mb:21",
    "large_segment_size_mb:64",
    "max_split_size_mb:30,max_non_split_rounding_mb:64",
];

fn sorted(calls: &[DriverEvent]) -> Vec<(u64, u64, bool)> {
    let mut all: Vec<_> =
        calls.iter().map(|it| (it.addr, it.size, matches!(it.call, DriverCall::Alloc | DriverCall::Map))).collect();
    all.sort_unstable();
    all
}

struct Pair {
    one: Allocator,
    naive: Naive,
    live: Vec<(BlockId, u64)>,
    pending: Vec<(BlockId, u64)>,
}

impl Pair {
    fn new(conf: &str, version: Version, limit: Limit) -> Self {
        let conf = Conf::parse(conf, version).unwrap_or_else(|error| panic!("{conf}: {error}")).0;
        let one = Allocator::new(conf.clone(), limit);
        Self { one, naive: Naive { conf, limit, ..Naive::default() }, live: Vec::new(), pending: Vec::new() }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Self { one, naive, live, pending } = self;
        match *step {
            Step::Malloc { bytes, stream, pool } => {
                let served = one.malloc(bytes, stream, PoolId { first: pool, second: 0 });
                naive.given = one.calls().to_vec();
                let theirs = naive.malloc(bytes, stream, pool);
                prop_assert_eq!(served.ok().map(|id| one.address(id)), theirs);
                live.extend(served.ok().zip(theirs));
            }
            Step::Free { which } | Step::FreeAtOnce { which } if !live.is_empty() => {
                let (id, addr) = live.swap_remove(which % live.len());
                one.free_requested(id);
                naive.free_requested(addr);
                if matches!(step, Step::FreeAtOnce { .. }) {
                    one.free_completed(id);
                    naive.free_completed(addr);
                } else {
                    pending.push((id, addr));
                }
            }
            Step::Complete { which } if !pending.is_empty() => {
                let (id, addr) = pending.swap_remove(which % pending.len());
                one.free_completed(id);
                naive.free_completed(addr);
            }
            Step::EmptyCache => {
                one.empty_cache();
                naive.empty();
            }
            _ => {}
        }
        let completed = one.take_completed();
        pending.retain(|(id, _)| !completed.contains(id));
        prop_assert_eq!(sorted(one.calls()), sorted(&naive.calls));
        one.forget_calls();
        naive.calls.clear();
        let allocated = |it: &Block| it.state == State::Allocated;
        let counts = *one.counts();
        prop_assert_eq!(
            [counts.allocated_bytes, counts.requested_bytes, counts.reserved_bytes, counts.peak_reserved_bytes],
            [
                naive.sum(allocated, |it| it.size),
                naive.sum(allocated, |it| it.requested),
                naive.reserved,
                naive.peak_reserved
            ]
        );
        prop_assert_eq!(
            [counts.device_allocs, counts.device_frees, counts.retries, counts.ooms],
            [naive.device_allocs, naive.device_frees, naive.retries, naive.ooms]
        );
        one.check().map_err(TestCaseError::fail)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_program_is_served_alike(
        steps in steps(),
        conf in 0..CONFS.len(),
        version in prop::sample::select(vec![Version::of(2, 11), Version::of(2, 12), Version::NEWEST]),
        limit in 0..4_usize,
    ) {
        let limit = [Limit::None, Limit::Share(200 * MIB), Limit::Share(420 * MIB), Limit::Device(150 * MIB)][limit];
        let mut pair = Pair::new(CONFS[conf], version, limit);
        for step in &steps {
            pair.step(step)?;
        }
    }
}
