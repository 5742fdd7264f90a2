//! The kept requests of a recording. They can be aligned with another recording, changed, and replayed with other
//! bytes.
//!
//! Blocks that were live when the recording began are requested first, in the order of addresses ([`initial_blocks`]).
//!
//! Guarantees: at most [`REQUESTS_MAX`] requests are in memory. Longer recordings are rejected, because a few steps
//! show as much as all of them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use memctl_model::{BlockState, BlockUse, Frame, PoolId, SegmentState};

use crate::allocator::{Hint, Limit};
use crate::names::{BlockName, named};
use crate::request::{Request, Requested};
use crate::settings::Conf;
use crate::trial::{Outcome, Start, Trial};

/// Maximum number of kept requests, including frees: some 300 MB.
pub const REQUESTS_MAX: usize = 6_000_000;

/// The name of a request that was not served.
pub(super) const NOT_SERVED: BlockName = 0;

/// The error for a recording with more requests than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has more than {REQUESTS_MAX} requests; record fewer steps: the steps up to the peak are enough")]
pub struct TooLong;

/// A request for memory, with the facts by which it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The origin of the request: its stack, and whether it has its own stream or pool.
    pub(super) key: u64,
    /// Bytes.
    pub(super) bytes: u64,
    /// The recorded request: this one itself, or the one that it repeats.
    pub(super) origin: u32,
}

/// A key of a stack, innermost frame first. Equal frames give equal keys, regardless of the folders of their files.
#[must_use]
pub fn stack_key<'f>(frames: impl Iterator<Item = &'f Frame>) -> u64 {
    // The hasher has fixed keys, and two recordings are compared within one process.
    let mut hasher = DefaultHasher::new();
    for Frame { function, file, line } in frames {
        let file = file.rsplit(['/', '\\']).next().unwrap_or_default();
        (&**function, file, line).hash(&mut hasher);
    }
    hasher.finish()
}

/// The blocks that were live when a recording began, in the order in which a [`Script`] requests them.
pub fn initial_blocks(segments: &[SegmentState]) -> impl Iterator<Item = &BlockState> {
    named(segments).map(|(_, _, block)| block)
}

/// One operation of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The next request for memory.
    Alloc {
        block: BlockName,
        stream: u64,
        pool: PoolId,
    },
    FreeRequested(BlockName),
    FreeCompleted(BlockName),
    EmptyCache,
    PoolReleased(PoolId),
}

/// The range of a script's operations in which a request's block is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The step that requests it.
    pub born: u32,
    /// The step that frees it; `u32::MAX` if none does.
    pub ended: u32,
}

impl Life {
    /// Whether it is in use before and after a step.
    pub(super) fn outlasts(self, step: u32) -> bool {
        self.born < step && self.ended > step
    }
}

/// The live memory at the moment when most is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The outcome of the replay.
    pub outcome: Outcome,
    /// The request at which the peak is reached; `None` if there are no requests.
    pub request: Option<usize>,
    /// The requests that are live then, and the bytes that their blocks occupy.
    pub live: Vec<(usize, u64)>,
}

/// The kept requests of a recording; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(super) acts: Vec<Act>,
    pub(super) wanted: Vec<Wanted>,
    /// Number of leading requests for blocks that were live when the recording began.
    pub(super) initial_count: usize,
    pub(super) began_with_bytes: u64,
    /// For each request of the recording: the addresses of the segments that the driver provided for it. Addresses
    /// break ties of the best fit.
    pub(super) hints: Arc<HashMap<u32, Box<[Hint]>>>,
}

impl Script {
    /// A script whose recording begins with these segments.
    #[must_use]
    pub fn new(segments: &[SegmentState]) -> Self {
        let mut script = Self::default();
        for (name, segment, block) in named(segments) {
            let requested = Requested { bytes: block.requested, stream: segment.stream, pool: segment.pool };
            script.alloc(name, requested, 0);
            if block.usage == BlockUse::PendingFree {
                script.acts.push(Act::FreeRequested(name));
            }
            script.began_with_bytes = script.began_with_bytes.saturating_add(block.size);
        }
        script.initial_count = script.wanted.len();
        script
    }

    /// Number of leading requests for blocks that were live when the recording began.
    #[must_use]
    pub fn initial_count(&self) -> usize {
        self.initial_count
    }

    /// Adds the next request. `stack` is a key of the stack of a request for memory; equal stacks of two recordings
    /// have equal keys.
    ///
    /// # Errors
    /// There are too many requests.
    pub fn push(&mut self, request: &Request<'_>, stack: u64) -> Result<(), TooLong> {
        if self.acts.len() >= REQUESTS_MAX {
            return Err(TooLong);
        }
        match *request {
            Request::Alloc { block, requested, hints } => {
                self.alloc(block, requested, stack);
                if let Some(wanted) = self.wanted.last().filter(|_| !hints.is_empty()) {
                    Arc::make_mut(&mut self.hints).insert(wanted.origin, hints.into());
                }
            }
            Request::Failed { requested } => {
                // The failed request is kept as one that is served and freed at once.
                self.alloc(NOT_SERVED, requested, stack);
                self.acts.push(Act::FreeRequested(NOT_SERVED));
                self.acts.push(Act::FreeCompleted(NOT_SERVED));
            }
            Request::FreeRequested { block } => self.acts.push(Act::FreeRequested(block)),
            Request::FreeCompleted { block } => self.acts.push(Act::FreeCompleted(block)),
            Request::EmptyCache => self.acts.push(Act::EmptyCache),
            Request::PoolReleased(pool) => self.acts.push(Act::PoolReleased(pool)),
        }
        Ok(())
    }

    fn alloc(&mut self, block: BlockName, requested: Requested, stack: u64) {
        let Requested { bytes, stream, pool } = requested;
        // Streams and pools have other names in every process.
        let elsewhere = u64::from(stream != 0) | u64::from(pool != PoolId::DEFAULT) << 1;
        // The number of requests is at most REQUESTS_MAX plus the initial blocks, so it fits.
        let origin = u32::try_from(self.wanted.len()).unwrap_or(u32::MAX);
        self.wanted.push(Wanted { key: stack.rotate_left(2) ^ elsewhere, bytes, origin });
        self.acts.push(Act::Alloc { block, stream, pool });
    }

    /// Bytes that were in use when the recording began.
    #[must_use]
    pub fn began_with_bytes(&self) -> u64 {
        self.began_with_bytes
    }

    /// Number of operations so far. A [`Life`] refers to them.
    #[must_use]
    pub fn length(&self) -> u32 {
        u32::try_from(self.acts.len()).unwrap_or(u32::MAX)
    }

    /// Number of requests for memory, including those for the initial blocks.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.wanted.len()
    }

    /// Recorded bytes of a request; 0 if the request does not exist.
    #[must_use]
    pub fn bytes(&self, request: usize) -> u64 {
        self.wanted.get(request).map_or(0, |wanted| wanted.bytes)
    }

    /// The recorded request: the request itself, or the one that it repeats.
    #[must_use]
    pub fn origin(&self, request: usize) -> usize {
        self.wanted.get(request).map_or(request, |wanted| wanted.origin as usize)
    }

    /// The lifetime of each request's block.
    #[must_use]
    pub fn lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::with_capacity(self.wanted.len());
        let mut owners = HashMap::new();
        for (at, act) in (0_u32..).zip(&self.acts) {
            match *act {
                Act::Alloc { block, .. } => {
                    owners.insert(block, lives.len());
                    lives.push(Life { born: at, ended: u32::MAX });
                }
                Act::FreeRequested(block) | Act::FreeCompleted(block) => {
                    if let Some(owner) = owners.remove(&block) {
                        lives[owner].ended = at;
                    }
                }
                Act::EmptyCache | Act::PoolReleased(_) => {}
            }
        }
        lives
    }

    /// A name that no block has.
    pub(super) fn unused_name(&self) -> BlockName {
        let names = self.acts.iter().filter_map(|act| match *act {
            Act::Alloc { block, .. } => Some(block),
            _ => None,
        });
        names.max().unwrap_or(NOT_SERVED).saturating_add(1)
    }

    /// The outcome of a replay with the recorded bytes.
    #[must_use]
    pub fn outcome(&self, conf: &Conf, limit: Limit) -> Outcome {
        self.outcome_with(conf, limit, |request| self.bytes(request), |_| None)
    }

    /// The outcome of a replay in which `bytes` returns the bytes of each request. `behind` returns the bytes of an
    /// additional request that follows a request and is freed at once.
    #[must_use]
    pub fn outcome_with(
        &self,
        conf: &Conf,
        limit: Limit,
        bytes: impl Fn(usize) -> u64,
        behind: impl Fn(usize) -> Option<u64>,
    ) -> Outcome {
        let mut trial = Trial::new(conf.clone(), limit, &[], Start::Afresh);
        self.play(bytes, behind, &mut trial, |_, _| true);
        trial.outcome()
    }

    /// The live memory at the allocated peak, in a replay with the recorded bytes.
    #[must_use]
    pub fn peak(&self, conf: &Conf) -> Peak {
        let mut trial = Trial::new(conf.clone(), Limit::None, &[], Start::Afresh);
        let (mut highest, mut reached, mut asked) = (0, None, 0);
        self.play(
            |request| self.bytes(request),
            |_| None,
            &mut trial,
            |at, trial| {
                asked += usize::from(matches!(self.acts[at], Act::Alloc { .. }));
                let peak = trial.allocator().counts().peak_allocated_bytes;
                if peak > highest {
                    (highest, reached) = (peak, Some((at, asked - 1)));
                }
                true
            },
        );
        let outcome = trial.outcome();
        let Some((until, request)) = reached else { return Peak { outcome, request: None, live: Vec::new() } };
        // The replay is repeated up to the peak, to get the live blocks and their sizes.
        let mut trial = Trial::new(conf.clone(), Limit::None, &[], Start::Afresh);
        self.play(|request| self.bytes(request), |_| None, &mut trial, |at, _| at < until);
        let lives = self.lives();
        let lives_then = |life: &&Life| (life.born as usize) <= until && life.ended as usize > until;
        let live = (0..).zip(&lives).filter(|(_, life)| lives_then(life)).map(|(request, life): (usize, &Life)| {
            let block = match self.acts[life.born as usize] {
                Act::Alloc { block, .. } => trial.size(block),
                _ => None,
            };
            (request, block.unwrap_or_else(|| self.bytes(request)))
        });
        Peak { outcome, request: Some(request), live: live.collect() }
    }

    /// For each request: the bytes that its block occupies in a replay with the recorded bytes.
    #[must_use]
    pub fn sizes(&self, conf: &Conf) -> Vec<u64> {
        let mut trial = Trial::new(conf.clone(), Limit::None, &[], Start::Afresh);
        let mut sizes = Vec::with_capacity(self.wanted.len());
        self.play(
            |request| self.bytes(request),
            |_| None,
            &mut trial,
            |at, trial| {
                if let Act::Alloc { block, .. } = self.acts[at] {
                    sizes.push(trial.size(block).unwrap_or_else(|| self.bytes(sizes.len())));
                }
                true
            },
        );
        sizes
    }

    /// Replays the requests. `bytes` and `behind` are as in [`Self::outcome_with`]. The replay ends when a request
    /// fails or when `goes_on`, called after each step, returns false.
    pub(super) fn play(
        &self,
        bytes: impl Fn(usize) -> u64,
        behind: impl Fn(usize) -> Option<u64>,
        trial: &mut Trial,
        mut goes_on: impl FnMut(usize, &Trial) -> bool,
    ) {
        let (mut next, mut next_origin) = (0, 0);
        let passing = self.unused_name();
        for (at, act) in self.acts.iter().enumerate() {
            let mut comes_behind = None;
            let request = match *act {
                Act::Alloc { block, stream, pool } => {
                    let requested = Requested { bytes: bytes(next), stream, pool };
                    comes_behind = behind(next).map(|bytes| Requested { bytes, stream, pool });
                    // A repeated request gets no hints, because its segments are placed elsewhere.
                    let origin = u32::try_from(self.origin(next)).unwrap_or(u32::MAX);
                    let hints = self.hints.get(&origin).filter(|_| origin >= next_origin);
                    next_origin = next_origin.max(origin.saturating_add(1));
                    next += 1;
                    Request::Alloc { block, requested, hints: hints.map_or(&[], |hints| &hints[..]) }
                }
                Act::FreeRequested(block) => Request::FreeRequested { block },
                Act::FreeCompleted(block) => Request::FreeCompleted { block },
                Act::EmptyCache => Request::EmptyCache,
                Act::PoolReleased(pool) => Request::PoolReleased(pool),
            };
            trial.request(at as u64, &request);
            if let Some(requested) = comes_behind.filter(|_| trial.out_of_memory().is_none()) {
                trial.request(at as u64, &Request::Alloc { block: passing, requested, hints: &[] });
                trial.request(at as u64, &Request::FreeRequested { block: passing });
                trial.request(at as u64, &Request::FreeCompleted { block: passing });
            }
            if trial.out_of_memory().is_some() || !goes_on(at, trial) {
                return;
            }
        }
    }
}
