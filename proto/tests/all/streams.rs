//! Event streams for the tests of the chunk codec: a small caching allocator under a small training loop.
//!
//! Guarantees: the same seed gives the same stream, on every machine.

use memctl_model::{Action, DeviceIndex, Event, Levels, PoolId, Rollup, StackId};
use memctl_proto::chunk::ChunkMeta;

/// SplitMix64: any seed works.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The same events with times floored to the grid.
pub fn floored(events: &[Event], resolution_ns: u32) -> Vec<Event> {
    let grid = u64::from(resolution_ns.max(1));
    events.iter().map(|event| Event { time_ns: event.time_ns / grid * grid, ..*event }).collect()
}

struct Block {
    addr: u64,
    len: u64,
    free: bool,
    small: bool,
    stream: u64,
}

/// A training loop of a few layers on a best-fit allocator with segments, splitting and joining.
pub struct Training {
    rng: Rng,
    second_stream: bool,
    now_ns: u64,
    next_segment: u64,
    /// In address order.
    blocks: Vec<Block>,
    /// Frees that wait for the other stream.
    waiting: Vec<(u64, u64, u64)>,
    out: Vec<Event>,
}

impl Training {
    pub fn new(seed: u64, second_stream: bool) -> Self {
        Self {
            rng: Rng(seed),
            second_stream,
            now_ns: 1_750_000_000_000_000_000,
            next_segment: 0x7f12_3400_0000,
            blocks: Vec::new(),
            waiting: Vec::new(),
            out: Vec::new(),
        }
    }

    /// The first `count` events.
    pub fn events(mut self, count: usize) -> Vec<Event> {
        let weights: Vec<_> = (0..6).map(|layer| self.alloc(3 << (16 + layer % 3), 0, 1 + layer)).collect();
        while self.out.len() < count {
            self.step();
        }
        assert_eq!(weights.len(), 6);
        self.out.truncate(count);
        self.out
    }

    /// One step: activations forward, gradients backward, each layer with temporaries.
    fn step(&mut self) {
        let rows = 16 + self.rng.below(2) * 4;
        let mut kept = Vec::new();
        for layer in 0..6u32 {
            let stream = if self.second_stream && layer == 3 { 0x55aa_0000_1230 } else { 0 };
            let temporary = self.alloc(rows * 1000, 0, 100 + layer);
            kept.push(self.alloc(rows * (70_000 >> (layer % 3)), stream, 200 + layer));
            self.free(temporary, 300 + layer);
        }
        for layer in (0..6u32).rev() {
            let gradient = self.alloc(rows * 9_000, 0, 400 + layer);
            if let Some(activation) = kept.pop() {
                self.free(activation, 500 + layer);
            }
            self.free(gradient, 600);
        }
        for (addr, size, stream) in std::mem::take(&mut self.waiting) {
            self.emit(Action::FreeCompleted, addr, size, stream, 0);
            self.release(addr);
        }
    }

    fn emit(&mut self, action: Action, addr: u64, size: u64, stream: u64, stack: u32) {
        self.now_ns += 900 + self.rng.below(5000);
        self.out.push(Event {
            time_ns: self.now_ns,
            addr,
            size,
            stream,
            pool: PoolId::DEFAULT,
            stack: StackId(stack),
            action,
        });
    }

    fn alloc(&mut self, size: u64, stream: u64, stack: u32) -> (u64, u64, u64) {
        let len = size.div_ceil(512).max(1) * 512;
        let small = len <= 1 << 20;
        let fits = |block: &Block| block.free && block.small == small && block.stream == stream && block.len >= len;
        let mut best = self.best(fits);
        if best.is_none() {
            let bytes = if small { 2 << 20 } else { len.max(20 << 20).next_multiple_of(2 << 20) };
            self.emit(Action::SegmentAlloc, self.next_segment, bytes, stream, stack);
            self.blocks.push(Block { addr: self.next_segment, len: bytes, free: true, small, stream });
            // A gap, so that segments do not join.
            self.next_segment += bytes + (2 << 20);
            best = self.best(fits);
        }
        let index = best.expect("a segment was just added");
        let block = &mut self.blocks[index];
        let (addr, rest) = (block.addr, block.len - len);
        block.free = false;
        if if small { rest > 0 } else { rest > 1 << 20 } {
            block.len = len;
            self.blocks.insert(index + 1, Block { addr: addr + len, len: rest, free: true, small, stream });
        }
        self.emit(Action::Alloc, addr, size, stream, stack);
        (addr, size, stream)
    }

    fn best(&self, fits: impl Fn(&Block) -> bool) -> Option<usize> {
        let candidates = self.blocks.iter().enumerate().filter(|(_, block)| fits(block));
        candidates.min_by_key(|(_, block)| (block.len, block.addr)).map(|(index, _)| index)
    }

    fn free(&mut self, (addr, size, stream): (u64, u64, u64), stack: u32) {
        self.emit(Action::FreeRequested, addr, size, stream, stack);
        if stream != 0 && self.rng.below(3) > 0 {
            self.waiting.push((addr, size, stream));
            return;
        }
        self.emit(Action::FreeCompleted, addr, size, stream, stack);
        self.release(addr);
    }

    fn release(&mut self, addr: u64) {
        let index = self.blocks.iter().position(|block| block.addr == addr).expect("it was allocated");
        self.blocks[index].free = true;
        for left in [index, index.saturating_sub(1)] {
            if let [a, b, ..] = &self.blocks[left..]
                && a.free
                && b.free
                && a.addr + a.len == b.addr
            {
                let len = b.len;
                self.blocks[left].len += len;
                self.blocks.remove(left + 1);
            }
        }
    }
}

/// The content of the golden file of version 1: training, then one of everything.
pub fn golden_events() -> (Vec<Event>, ChunkMeta) {
    let mut events = Training::new(42, true).events(1500);
    let mut time_ns = events.last().map_or(0, |event| event.time_ns);
    let mut rng = Rng(42);
    for action in Action::ALL.into_iter().cycle().take(60) {
        // Sometimes backwards.
        time_ns = time_ns + 10_000 - rng.below(11_000);
        events.push(Event {
            time_ns,
            addr: rng.below(8) * 512 + 0x7f12_3400_0000,
            size: rng.below(3) * 600,
            stream: rng.below(2),
            pool: PoolId { first: rng.below(2) as u32, second: 0 },
            stack: StackId(rng.below(4) as u32),
            action,
        });
    }
    let max = Levels { allocated_bytes: 3 << 30, active_bytes: 4 << 30, reserved_bytes: 5 << 30 };
    let rollup = Rollup { max, first_step: 17, last_step: 19, exact: true, ..Rollup::default() };
    (events, ChunkMeta { device: DeviceIndex(3), first_event: 1 << 33, rollup })
}
