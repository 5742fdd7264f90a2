//! A trial: the requests of a recording, served under other settings or another limit.
//!
//! Guarantees: deterministic. A trial ends with the first request that fails, as the training would. It does not
//! predict what a program would do after a failure. Nor does it predict what a program would do instead if only the
//! recording failed.

use memctl_model::{BlockUse, SegmentState};

use crate::allocator::{Allocator, BlockId, Counts, Hint, Limit};
use crate::bounds::Bounds;
use crate::names::{BlockName, Names, named};
use crate::request::{Request, Requested};
use crate::settings::Conf;

/// The state in which a trial begins if the recording did not begin with an empty allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The recording's segments: for settings that would have made the same segments.
    AsFound,
    /// The blocks that were live then, allocated again in the order of addresses, without the cached memory.
    Afresh,
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Index of the event in the recording.
    pub event: u64,
    /// The request.
    pub requested: Requested,
    /// Reserved bytes after everything possible was released.
    pub reserved_bytes: u64,
    /// Allocated bytes at that time.
    pub allocated_bytes: u64,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The counts of the allocator.
    pub counts: Counts,
    /// The failure at which it ended.
    pub out_of_memory: Option<Ending>,
    /// Requests that failed in the recording and not in the trial. What the program would have done after them is
    /// unknown.
    pub survived: u64,
    /// Lowest and highest peak of reserved bytes if nothing can be replayed ([`Trial::bounded`]). The counts contain
    /// the highest.
    pub bounds: Option<[u64; 2]>,
}

/// A trial; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Trial {
    allocator: Allocator,
    /// The live block of each name.
    live: Vec<Option<BlockId>>,
    /// The name of the block in each slot of the allocator.
    names: Vec<BlockName>,
    out_of_memory: Option<Ending>,
    survived: u64,
    bounded: Option<Bounded>,
}

/// A trial of an allocator that cannot be replayed: its live requests and its bounds.
#[derive(Clone, Debug)]
struct Bounded {
    bounds: Bounds,
    /// The request of the live block of each name.
    live: Vec<Option<Requested>>,
}

impl Trial {
    /// A trial that starts with the state in which the recording began.
    #[must_use]
    pub fn new(conf: Conf, limit: Limit, segments: &[SegmentState], start: Start) -> Self {
        let allocator = Allocator::new(conf, limit);
        let mut trial = Self::of(allocator);
        match start {
            Start::AsFound => {
                let names = Names::of(segments);
                for (addr, id) in trial.allocator.restore(segments).live {
                    if let Some(name) = names.get(addr) {
                        trial.enter(name, id);
                    }
                }
            }
            Start::Afresh => trial.ask_for_what_lived(segments),
        }
        trial
    }

    fn of(allocator: Allocator) -> Self {
        let (live, names) = (Vec::new(), Vec::new());
        Self { allocator, live, names, out_of_memory: None, survived: 0, bounded: None }
    }

    /// A trial of `backend:cudaMallocAsync` that starts with the blocks that were live when the recording began. Its
    /// result has only bounds.
    #[must_use]
    pub fn bounded(limit: Limit, segments: &[SegmentState]) -> Self {
        let mut trial = Self::of(Allocator::new(Conf::default(), Limit::None));
        let mut bounded = Bounded { bounds: Bounds::new(limit), live: Vec::new() };
        for (name, segment, block) in named(segments) {
            bounded.ask(name, Requested { bytes: block.requested, stream: segment.stream, pool: segment.pool });
        }
        trial.bounded = Some(bounded);
        trial
    }

    fn ask_for_what_lived(&mut self, segments: &[SegmentState]) {
        for (name, segment, block) in named(segments) {
            let requested = Requested { bytes: block.requested, stream: segment.stream, pool: segment.pool };
            self.alloc(0, name, requested);
            if block.usage == BlockUse::PendingFree
                && let Some(id) = self.block(name)
            {
                self.allocator.free_requested(id);
            }
        }
        self.allocator.forget_calls();
    }

    /// Serves the next request. `event` is the index of its event in the recording.
    pub fn request(&mut self, event: u64, request: &Request<'_>) {
        if self.out_of_memory.is_some() {
            return;
        }
        if self.bounded.is_some() {
            return self.bound(event, request);
        }
        match *request {
            Request::Alloc { block, requested, hints } => return self.ask(event, block, requested, hints),
            Request::Failed { requested } => self.failed(event, requested),
            Request::FreeRequested { block } => {
                if let Some(id) = self.block(block) {
                    self.allocator.free_requested(id);
                }
            }
            Request::FreeCompleted { block } => {
                if let Some(id) = self.leave(block) {
                    self.allocator.free_completed(id);
                }
            }
            Request::EmptyCache => self.allocator.empty_cache(),
            Request::PoolReleased(pool) => self.allocator.pool_is_released(pool),
        }
        self.forget_completed();
        self.allocator.forget_calls();
    }

    /// Serves a request for memory. No earlier request may have failed.
    pub(crate) fn ask(&mut self, event: u64, block: BlockName, requested: Requested, hints: &[Hint]) {
        if self.bounded.is_some() {
            return self.bound(event, &Request::Alloc { block, requested, hints });
        }
        self.allocator.hint(hints);
        self.alloc(event, block, requested);
        self.forget_completed();
        self.allocator.forget_calls();
    }

    /// Frees a block and completes the free in one call.
    pub(crate) fn free(&mut self, block: BlockName) {
        if let Some(bounded) = &mut self.bounded {
            return bounded.free(block);
        }
        if self.out_of_memory.is_none()
            && let Some(id) = self.leave(block)
        {
            self.allocator.free(id);
        }
    }

    /// Applies a request to the bounds of an allocator that cannot be replayed.
    fn bound(&mut self, event: u64, request: &Request<'_>) {
        let Some(bounded) = &mut self.bounded else { return };
        let failed = match *request {
            Request::Alloc { block, requested, .. } if !bounded.ask(block, requested) => Some(requested),
            Request::Failed { requested } if bounded.bounds.alloc(&requested) => {
                bounded.bounds.free(&requested);
                self.survived += 1;
                None
            }
            Request::Failed { requested } => Some(requested),
            Request::FreeCompleted { block } => {
                bounded.free(block);
                None
            }
            _ => None,
        };
        if let Some(requested) = failed {
            let [reserved_bytes, _] = bounded.bounds.peak_reserved();
            let allocated_bytes = bounded.bounds.live_requested();
            self.out_of_memory.get_or_insert(Ending { event, requested, reserved_bytes, allocated_bytes });
        }
    }

    fn block(&self, name: BlockName) -> Option<BlockId> {
        self.live.get(name as usize).copied().flatten()
    }

    fn leave(&mut self, name: BlockName) -> Option<BlockId> {
        self.live.get_mut(name as usize)?.take()
    }

    fn alloc(&mut self, event: u64, block: BlockName, requested: Requested) {
        match self.allocator.malloc(requested.bytes, requested.stream, requested.pool) {
            Ok(id) => {
                self.forget_completed();
                self.enter(block, id);
            }
            Err(failed) => self.end(event, requested, failed.reserved),
        }
    }

    fn failed(&mut self, event: u64, requested: Requested) {
        match self.allocator.malloc(requested.bytes, requested.stream, requested.pool) {
            Ok(id) => {
                self.survived += 1;
                self.allocator.free_requested(id);
                self.allocator.free_completed(id);
            }
            Err(failed) => self.end(event, requested, failed.reserved),
        }
    }

    fn end(&mut self, event: u64, requested: Requested, reserved_bytes: u64) {
        let allocated_bytes = self.allocator.counts().allocated_bytes;
        self.out_of_memory.get_or_insert(Ending { event, requested, reserved_bytes, allocated_bytes });
    }

    fn enter(&mut self, block: BlockName, id: BlockId) {
        let at = block as usize;
        if self.live.len() <= at {
            self.live.resize(at + 1, None);
        }
        // A recording with gaps may name a block twice; the earlier block no longer exists.
        if let Some(before) = self.live[at].replace(id) {
            self.allocator.free_requested(before);
            self.allocator.free_completed(before);
        }
        let slot = id.slot();
        if self.names.len() <= slot {
            self.names.resize(slot + 1, 0);
        }
        self.names[slot] = block;
    }

    /// Removes blocks that a retry waited for. The recording's own completion of them then has no effect.
    fn forget_completed(&mut self) {
        if !self.allocator.has_completed() {
            return;
        }
        for id in self.allocator.take_completed() {
            // Its slot may already hold another block with another name.
            if let Some(&name) = self.names.get(id.slot())
                && self.block(name) == Some(id)
            {
                self.leave(name);
            }
        }
    }

    /// Bytes that a block occupies; `None` if it is not live.
    #[must_use]
    pub fn size(&self, block: BlockName) -> Option<u64> {
        self.block(block).map(|id| self.allocator.size(id))
    }

    /// The allocator of the trial.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// The failure at which the trial ended, if it failed.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<Ending> {
        self.out_of_memory
    }

    /// The result so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let (out_of_memory, survived) = (self.out_of_memory, self.survived);
        let Some(Bounded { bounds, .. }) = &self.bounded else {
            return Outcome { counts: *self.allocator.counts(), out_of_memory, survived, bounds: None };
        };
        let (peak, [low, high]) = (bounds.peak_requested(), bounds.peak_reserved());
        // This allocator counts requested bytes as allocated.
        let counts = Counts {
            peak_allocated_bytes: peak,
            peak_requested_bytes: peak,
            peak_reserved_bytes: high,
            ..Counts::default()
        };
        Outcome { counts, out_of_memory, survived, bounds: Some([low, high]) }
    }
}

impl Bounded {
    /// Applies a request; returns whether it is served.
    fn ask(&mut self, block: BlockName, requested: Requested) -> bool {
        self.free(block);
        let is_served = self.bounds.alloc(&requested);
        if is_served {
            let at = block as usize;
            if self.live.len() <= at {
                self.live.resize(at + 1, None);
            }
            self.live[at] = Some(requested);
        }
        is_served
    }

    fn free(&mut self, block: BlockName) {
        if let Some(requested) = self.live.get_mut(block as usize).and_then(Option::take) {
            self.bounds.free(&requested);
        }
    }
}
