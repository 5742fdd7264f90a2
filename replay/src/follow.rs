//! Follows a recording under its own settings: derives requests from its events and compares the replay's results with
//! them.
//!
//! Segment events are consequences of a request, or of the program's `empty_cache()`, which has no event of its own.
//! They come before the event of the request, so they wait for it. Segments that are released directly before a
//! request belong to that request's retry or collection if the limit or the settings require one. Otherwise the
//! program emptied its cache.
//!
//! Guarantees: blocks are identified by recorded addresses (`names`), so that one difference does not cause others.
//! The number of waiting events is bounded. A limit is never guessed. Without one, a retry that releases the whole
//! cache cannot be distinguished from `empty_cache()`; [`Agreement::flushes`] counts these.

use foldhash::HashSet;
use memctl_model::{Action, AllocatorSettings, Event, PoolId, SegmentState};

use crate::allocator::{Allocator, BlockId, Counts, DriverCall, DriverEvent, Hint, Limit};
use crate::names::{BlockName, Names};
use crate::request::{Request, Requested};
use crate::settings::{Conf, Version};

/// Maximum number of waiting segment events: as many as a process with 16 TiB in small segments could have.
const WAITING_MAX: usize = 1 << 23;

/// What is known about the limit under which the recording ran.
pub type KnownLimit = Limit;

/// How far the replay agrees with the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Number of events compared.
    pub events: u64,
    /// Segment events among them.
    pub segment_events: u64,
    /// Segment events of the recording that the replay lacks or has elsewhere, and those that only the replay has.
    pub differing_segment_events: u64,
    /// Number of allocated blocks.
    pub blocks: u64,
    /// Number of blocks that the replay put at another address.
    pub differing_blocks: u64,
    /// Index of the first event that differs.
    pub differs_at: Option<u64>,
    /// Frees of blocks whose allocation was not seen; they are skipped.
    pub unknown_frees: u64,
    /// Releases of segments without a request: `empty_cache()`, or a retry under an unknown limit.
    pub flushes: u64,
    /// Segments of the initial state that contradict themselves and were left out.
    pub segments_left_out: u64,
}

impl Agreement {
    /// Whether the replay agrees with the recording completely.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.differs_at.is_none() && self.segments_left_out == 0
    }
}

/// A followed recording; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Follow {
    allocator: Allocator,
    limit: KnownLimit,
    collects_garbage: bool,
    /// The smallest sum of reserved and requested bytes that the driver is known to have refused.
    refused_bytes: u64,
    names: Names,
    /// The live block of each name.
    live: Vec<Option<BlockId>>,
    /// The address and name of the block whose free was requested last.
    going: Option<(u64, BlockName)>,
    waiting: Vec<Event>,
    hints: Vec<Hint>,
    at: u64,
    agreement: Agreement,
}

impl Follow {
    /// Follows a recording from the state in which it began.
    #[must_use]
    pub fn new(conf: Conf, limit: KnownLimit, segments: &[SegmentState]) -> Self {
        let collects_garbage = conf.garbage_collection_threshold > 0.0;
        let mut allocator = Allocator::new(conf, limit);
        let restored = allocator.restore(segments);
        let agreement = Agreement { segments_left_out: restored.left_out, ..Agreement::default() };
        let names = Names::of(segments);
        let mut live = Vec::new();
        for (addr, id) in restored.live {
            if let Some(name) = names.get(addr) {
                enter(&mut live, name, id);
            }
        }
        Self {
            allocator,
            limit,
            collects_garbage,
            refused_bytes: u64::MAX,
            names,
            live,
            going: None,
            waiting: Vec::new(),
            hints: Vec::new(),
            at: 0,
            agreement,
        }
    }

    /// The version whose rules a recording is followed by. If the session names one, it is that version. Otherwise it
    /// is the likeliest version, or the one with the other rule if only that one reproduces the recording.
    pub fn version(
        framework: Option<&str>,
        settings: &AllocatorSettings,
        segments: &[SegmentState],
        events: impl Iterator<Item = Event> + Clone,
    ) -> Version {
        let likely = Version::of_framework(framework);
        if Version::is_named(framework) {
            return likely;
        }
        let repeats = |version: Version| {
            let mut follow = Self::new(Conf::recorded(settings, version), Limit::None, segments);
            events.clone().for_each(|event| follow.event(&event, |_, _| {}));
            follow.finish(|_, _| {});
            follow.agreement().is_exact()
        };
        let other = likely.by_another_rule();
        if !repeats(likely) && repeats(other) { other } else { likely }
    }

    /// Applies the next event. Passes each request that is derived from it, with the event's index, to `tell`.
    pub fn event(&mut self, event: &Event, mut tell: impl FnMut(u64, &Request<'_>)) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentFree | Action::SegmentMap | Action::SegmentUnmap => {
                self.agreement.segment_events += 1;
                if self.waiting.len() >= WAITING_MAX {
                    self.settle(&mut tell);
                }
                self.waiting.push(*event);
            }
            Action::Alloc => self.alloc(event, &mut tell),
            Action::Oom => self.failed(event, &mut tell),
            Action::FreeRequested => {
                self.settle(&mut tell);
                let name = self.names.get(event.addr);
                match name.and_then(|name| self.block(name)) {
                    Some(id) => self.allocator.free_requested(id),
                    None => self.agreement.unknown_frees += 1,
                }
                self.going = name.map(|name| (event.addr, name));
                if let Some(block) = name {
                    tell(self.at, &Request::FreeRequested { block });
                }
            }
            Action::FreeCompleted => {
                self.settle(&mut tell);
                // Most frees complete directly after they were requested.
                let name = match self.going.take() {
                    Some((addr, name)) if addr == event.addr => Some(name),
                    _ => self.names.get(event.addr),
                };
                if let Some(block) = name {
                    if let Some(id) = self.live.get_mut(block as usize).and_then(Option::take) {
                        self.allocator.free_completed(id);
                    }
                    self.names.end(block);
                    tell(self.at, &Request::FreeCompleted { block });
                }
            }
            Action::Snapshot | Action::Annotate => {}
        }
        self.at += 1;
        self.agreement.events = self.at;
    }

    /// Must be called after the last event.
    pub fn finish(&mut self, mut tell: impl FnMut(u64, &Request<'_>)) {
        self.settle(&mut tell);
    }

    fn alloc(&mut self, event: &Event, tell: &mut impl FnMut(u64, &Request<'_>)) {
        let requested = Requested { bytes: event.size, stream: event.stream, pool: event.pool };
        let refusals = self.refusals(&requested);
        if refusals == 0 && self.gives_back_first() && !self.is_part_of(&requested) {
            let given = self.waiting.iter().position(|event| !gives_back(event)).unwrap_or(self.waiting.len());
            let rest = self.waiting.split_off(given);
            self.settle(tell);
            self.waiting = rest;
        }
        self.released_pools(tell);
        self.hints.clear();
        self.hints.extend(self.waiting.iter().filter(|event| !gives_back(event)).map(hint));
        self.allocator.hint(&self.hints);
        self.allocator.refuse(refusals);
        let served = self.allocator.malloc(event.size, event.stream, event.pool);
        self.compare_calls();
        self.forget_completed();
        self.agreement.blocks += 1;
        let block = self.names.begin(event.addr);
        self.going = None;
        match served {
            Ok(id) => {
                if self.allocator.address(id) != event.addr {
                    self.agreement.differing_blocks += 1;
                    self.differs();
                }
                if let Some(before) = enter(&mut self.live, block, id) {
                    self.allocator.free_requested(before);
                    self.allocator.free_completed(before);
                }
            }
            Err(_) => self.differs(),
        }
        tell(self.at, &Request::Alloc { block, requested, hints: &self.hints });
    }

    fn failed(&mut self, event: &Event, tell: &mut impl FnMut(u64, &Request<'_>)) {
        let requested = Requested { bytes: event.size, stream: event.stream, pool: event.pool };
        self.released_pools(tell);
        self.allocator.hint(&[]);
        if self.limit == Limit::None {
            // The limit is not known, but the effect of a failure on the cache is.
            let wanted = self.allocator.counts().reserved_bytes.saturating_add(event.size);
            self.refused_bytes = self.refused_bytes.min(wanted);
            self.allocator.fail();
        } else if let Ok(id) = self.allocator.malloc(event.size, event.stream, event.pool) {
            self.differs();
            self.allocator.free_requested(id);
            self.allocator.free_completed(id);
        }
        self.compare_calls();
        self.forget_completed();
        tell(self.at, &Request::Failed { requested });
    }

    /// Handles released segments that belong to no request: the program emptied its cache.
    fn settle(&mut self, tell: &mut impl FnMut(u64, &Request<'_>)) {
        if self.waiting.is_empty() {
            return;
        }
        self.released_pools(tell);
        if self.gives_back_first() {
            self.agreement.flushes += 1;
            self.allocator.empty_cache();
            tell(self.at, &Request::EmptyCache);
        }
        self.compare_calls();
        self.forget_completed();
    }

    fn gives_back_first(&self) -> bool {
        self.waiting.first().is_some_and(gives_back)
    }

    /// How often the driver refused a request under an unknown limit. With a `max_split_size`, a refusal releases one
    /// or a few oversize blocks. If these are exactly the segments that `empty_cache()` releases, in its order, it was
    /// `empty_cache()`. It was a refusal if the driver has refused as many bytes before.
    fn refusals(&mut self, requested: &Requested) -> u32 {
        if self.limit != Limit::None || !self.gives_back_first() || self.waiting.last().is_none_or(gives_back) {
            return 0;
        }
        let given_back: Vec<u64> =
            self.waiting.iter().take_while(|event| gives_back(event)).map(|event| event.addr).collect();
        let times = self.allocator.refusals(requested, &given_back);
        if times == 0 {
            return 0;
        }
        let wanted = self.allocator.counts().reserved_bytes.saturating_add(requested.bytes);
        if wanted < self.refused_bytes && self.allocator.cached_segments().eq(given_back.iter().copied()) {
            return 0;
        }
        self.refused_bytes = self.refused_bytes.min(wanted);
        times
    }

    /// Whether segments that were released directly before a request belong to its own collection or retry.
    fn is_part_of(&mut self, requested: &Requested) -> bool {
        if self.waiting.last().is_none_or(gives_back) {
            return false;
        }
        match self.limit {
            Limit::None => self.collects_garbage && !self.allocator.serves_from_cache(requested),
            _ => self.allocator.releases_for(requested),
        }
    }

    /// Marks private pools as unused whose segments are released.
    fn released_pools(&mut self, tell: &mut impl FnMut(u64, &Request<'_>)) {
        for event in &self.waiting {
            if gives_back(event) && event.pool != PoolId::DEFAULT {
                self.allocator.pool_is_released(event.pool);
                tell(self.at, &Request::PoolReleased(event.pool));
            }
        }
    }

    /// Compares the driver calls of the replay with the waiting events.
    fn compare_calls(&mut self) {
        let calls = self.allocator.calls();
        let differing = if calls.len() == self.waiting.len() {
            calls.iter().zip(&self.waiting).filter(|&(call, event)| *call != driver_event(event)).count()
        } else {
            calls.len().max(self.waiting.len())
        };
        self.allocator.forget_calls();
        self.waiting.clear();
        if differing > 0 {
            self.agreement.differing_segment_events += differing as u64;
            self.differs();
        }
    }

    fn differs(&mut self) {
        self.agreement.differs_at.get_or_insert(self.at);
    }

    /// Removes blocks that the replay completed early. The recording's own completion of them has come already, or
    /// comes with the next events and finds nothing to do.
    fn forget_completed(&mut self) {
        if self.allocator.has_completed() {
            let completed: HashSet<BlockId> = self.allocator.take_completed().into_iter().collect();
            for live in &mut self.live {
                live.take_if(|id| completed.contains(id));
            }
        }
    }

    /// How far the replay agrees with the recording.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// The counts under the recorded settings.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.allocator.counts()
    }

    /// The block with a name, if it is live.
    pub(crate) fn block(&self, name: BlockName) -> Option<BlockId> {
        self.live.get(name as usize).copied().flatten()
    }

    /// The allocator of the replay.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }
}

/// Enters a live block under a name; returns the block that had the name before.
fn enter(live: &mut Vec<Option<BlockId>>, name: BlockName, id: BlockId) -> Option<BlockId> {
    let at = name as usize;
    if live.len() <= at {
        live.resize(at + 1, None);
    }
    live[at].replace(id)
}

fn gives_back(event: &Event) -> bool {
    matches!(event.action, Action::SegmentFree | Action::SegmentUnmap)
}

fn driver_event(event: &Event) -> DriverEvent {
    let call = match event.action {
        Action::SegmentAlloc => DriverCall::Alloc,
        Action::SegmentFree => DriverCall::Free,
        Action::SegmentMap => DriverCall::Map,
        _ => DriverCall::Unmap,
    };
    DriverEvent { call, addr: event.addr, size: event.size }
}

fn hint(event: &Event) -> Hint {
    let DriverEvent { call, addr, size } = driver_event(event);
    Hint { call, addr, size }
}
