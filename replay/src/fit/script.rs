//! The requests of a recording, kept: what is aligned with another recording, changed, and replayed with other bytes.
//!
//! What lived when the recording began is asked for first, in the order of addresses ([`found`]).
//!
//! Guarantees: at most [`REQUESTS_MAX`] requests in memory. Refuses longer recordings: some steps say what all of them would.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use memctl_model::{BlockState, BlockUse, Frame, PoolId, SegmentState};

use crate::allocator::{Hint, Limit};
use crate::names::{BlockName, named};
use crate::request::{Request, Requested};
use crate::settings::Conf;
use crate::trial::{Outcome, Start, Trial};

/// Requests that are kept at most, frees included: some 300 MB.
pub const REQUESTS_MAX: usize = 6_000_000;

/// The name of what was asked for and not got.
pub(super) const NOT_SERVED: BlockName = 0;

/// A recording has more requests than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has more than {REQUESTS_MAX} requests; record fewer steps: those that reach the peak will do")]
pub struct TooLong;

/// A request for memory, as far as it is compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// What made it: stack, and whether on a stream and in a pool of its own.
    pub(super) key: u64,
    /// Bytes.
    pub(super) bytes: u64,
    /// Which request of the recording it is, or repeats.
    pub(super) origin: u32,
}

/// What stands for a stack, innermost frame first: the same for the same frames, wherever their files lie.
#[must_use]
pub fn stack_key<'f>(frames: impl Iterator<Item = &'f Frame>) -> u64 {
    // (Fixed keys: two recordings are compared within one process.)
    let mut hasher = DefaultHasher::new();
    for Frame { function, file, line } in frames {
        let file = file.rsplit(['/', '\\']).next().unwrap_or_default();
        (&**function, file, line).hash(&mut hasher);
    }
    hasher.finish()
}

/// The blocks that lived when a recording began, in the order in which a [`Script`] asks for them.
pub fn found(segments: &[SegmentState]) -> impl Iterator<Item = &BlockState> {
    named(segments).map(|(_, _, block)| block)
}

/// A step of a script.
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

/// From where to where in a script a request's block is in use: indexes of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The step that asks for it.
    pub born: u32,
    /// The step that gives it back; `u32::MAX` where none does.
    pub ended: u32,
}

impl Life {
    /// Whether it is in use before a step and behind it.
    pub(super) fn outlasts(self, step: u32) -> bool {
        self.born < step && self.ended > step
    }
}

/// What lives when most is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// What the replay came to.
    pub outcome: Outcome,
    /// The request at which it is reached; `None` where nothing was asked for.
    pub request: Option<usize>,
    /// The requests that live then, and the bytes that their blocks occupy.
    pub live: Vec<(usize, u64)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Script {
    pub(super) acts: Vec<Act>,
    pub(super) wanted: Vec<Wanted>,
    /// How many of the first requests are for what lived when it began.
    pub(super) found: usize,
    pub(super) began_with_bytes: u64,
    /// By request of the recording: where the driver put what it gave for it. Addresses break ties of the best fit.
    pub(super) hints: Arc<HashMap<u32, Box<[Hint]>>>,
}

impl Script {
    /// A script that begins with these segments.
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
        script.found = script.wanted.len();
        script
    }

    /// How many of the first requests are for what lived when it began.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }

    /// Takes the next request; `stack` stands for the stack of a request for memory, equal in two recordings where it is the same.
    ///
    /// # Errors
    /// There are too many.
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
                // It would have been the next: it counts, and nothing lives of it.
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
        // (There are no more than REQUESTS_MAX, and what lived when it began.)
        let origin = u32::try_from(self.wanted.len()).unwrap_or(u32::MAX);
        self.wanted.push(Wanted { key: stack.rotate_left(2) ^ elsewhere, bytes, origin });
        self.acts.push(Act::Alloc { block, stream, pool });
    }

    /// Bytes that were in use when it began.
    #[must_use]
    pub fn began_with_bytes(&self) -> u64 {
        self.began_with_bytes
    }

    /// How many steps it has so far: what [`Life`] counts in.
    #[must_use]
    pub fn length(&self) -> u32 {
        u32::try_from(self.acts.len()).unwrap_or(u32::MAX)
    }

    /// How many requests for memory it has, those for what lived when it began among them.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.wanted.len()
    }

    /// Recorded bytes of a request; 0 for one that is not there.
    #[must_use]
    pub fn bytes(&self, request: usize) -> u64 {
        self.wanted.get(request).map_or(0, |wanted| wanted.bytes)
    }

    /// The request of the recording that a request is, or repeats.
    #[must_use]
    pub fn origin(&self, request: usize) -> usize {
        self.wanted.get(request).map_or(request, |wanted| wanted.origin as usize)
    }

    /// When the block of each request lives.
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

    /// What it comes to with the recorded bytes.
    #[must_use]
    pub fn outcome(&self, conf: &Conf, limit: Limit) -> Outcome {
        self.outcome_with(conf, limit, |request| self.bytes(request), |_| None)
    }

    /// What it comes to with the bytes that `bytes` gives each request, and with what `behind` asks for behind some of them and gives
    /// back at once.
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

    /// What lives when most is allocated, with the recorded bytes.
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
        // Once more, as far as there: what lives then, and how large its blocks are.
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

    /// By request, the bytes that its block occupies when all are replayed with the recorded bytes.
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

    /// Plays the requests with the bytes that `bytes` gives each and with what comes `behind` them, until one fails or `goes_on`,
    /// asked behind each step, does not.
    pub(super) fn play(
        &self,
        bytes: impl Fn(usize) -> u64,
        behind: impl Fn(usize) -> Option<u64>,
        trial: &mut Trial,
        mut goes_on: impl FnMut(usize, &Trial) -> bool,
    ) {
        let (mut next, mut origins) = (0, 0);
        let passing = self.unused_name();
        for (at, act) in self.acts.iter().enumerate() {
            let mut comes_behind = None;
            let request = match *act {
                Act::Alloc { block, stream, pool } => {
                    let requested = Requested { bytes: bytes(next), stream, pool };
                    comes_behind = behind(next).map(|bytes| Requested { bytes, stream, pool });
                    // (What is asked for again lies elsewhere.)
                    let origin = u32::try_from(self.origin(next)).unwrap_or(u32::MAX);
                    let hints = self.hints.get(&origin).filter(|_| origin >= origins);
                    origins = origins.max(origin.saturating_add(1));
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
