//! The requests of a recording, kept: what is aligned with another recording and replayed with other bytes.
//!
//! Guarantees: at most [`REQUESTS_MAX`] requests in memory. Refuses longer recordings: some steps say what all of them would.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use memctl_model::{BlockUse, Frame, PoolId, SegmentState};

use crate::request::{Request, Requested};
use crate::trial::Trial;

/// Requests that are kept at most, frees included: some 200 MB.
pub const REQUESTS_MAX: usize = 6_000_000;

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

/// A step of a script.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The next request for memory.
    Alloc {
        block: u64,
        stream: u64,
        pool: PoolId,
    },
    FreeRequested(u64),
    FreeCompleted(u64),
    EmptyCache,
    PoolReleased(PoolId),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Script {
    segments: Vec<SegmentState>,
    acts: Vec<Act>,
    wanted: Vec<Wanted>,
}

impl Script {
    /// A script that begins with these segments.
    #[must_use]
    pub fn new(segments: Vec<SegmentState>) -> Self {
        Self { segments, acts: Vec::new(), wanted: Vec::new() }
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
            Request::Alloc { block, requested, .. } => self.alloc(block, requested, stack),
            Request::Failed { requested } => {
                // It would have been the next: it counts, and nothing lives of it.
                self.alloc(u64::MAX, requested, stack);
                self.acts.push(Act::FreeRequested(u64::MAX));
                self.acts.push(Act::FreeCompleted(u64::MAX));
            }
            Request::FreeRequested { block } => self.acts.push(Act::FreeRequested(block)),
            Request::FreeCompleted { block } => self.acts.push(Act::FreeCompleted(block)),
            Request::EmptyCache => self.acts.push(Act::EmptyCache),
            Request::PoolReleased(pool) => self.acts.push(Act::PoolReleased(pool)),
        }
        Ok(())
    }

    fn alloc(&mut self, block: u64, requested: Requested, stack: u64) {
        let Requested { bytes, stream, pool } = requested;
        // Streams and pools have other names in every process.
        let elsewhere = u64::from(stream != 0) | u64::from(pool != PoolId::DEFAULT) << 1;
        self.wanted.push(Wanted { key: stack.rotate_left(2) ^ elsewhere, bytes });
        self.acts.push(Act::Alloc { block, stream, pool });
    }

    /// Bytes that were in use when it began.
    #[must_use]
    pub fn began_with_bytes(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.usage != BlockUse::Inactive);
        live.fold(0, |sum: u64, block| sum.saturating_add(block.size))
    }

    pub(super) fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    pub(super) fn segments(&self) -> &[SegmentState] {
        &self.segments
    }

    /// Plays the requests with the bytes that `bytes` gives each.
    pub(super) fn play(&self, bytes: impl Fn(usize) -> u64, trial: &mut Trial) {
        let mut next = 0;
        for (at, act) in (0..).zip(&self.acts) {
            let request = match *act {
                Act::Alloc { block, stream, pool } => {
                    let requested = Requested { bytes: bytes(next), stream, pool };
                    next += 1;
                    Request::Alloc { block, requested, hints: &[] }
                }
                Act::FreeRequested(block) => Request::FreeRequested { block },
                Act::FreeCompleted(block) => Request::FreeCompleted { block },
                Act::EmptyCache => Request::EmptyCache,
                Act::PoolReleased(pool) => Request::PoolReleased(pool),
            };
            trial.request(at, &request);
            if trial.out_of_memory().is_some() {
                return;
            }
        }
    }
}
