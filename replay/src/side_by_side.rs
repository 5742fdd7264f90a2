//! Replays one recording and all its trials in one pass.
//!
//! The recording's requests are collected into batches. Each trial serves a whole batch before the next trial does, so
//! a trial's lists stay in the processor's cache meanwhile. If there are several cores, trials run at the same time.
//!
//! Guarantees: every trial serves every request once, in order. The results do not depend on the number of cores.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use memctl_model::{Event, PoolId, StackId};

use crate::allocator::Hint;
use crate::follow::Follow;
use crate::names::BlockName;
use crate::request::{Request, Requested};
use crate::trial::{Ending, Trial};

/// Requests of a batch: a few hundred kilobytes and some milliseconds of work.
const BATCH: usize = 1 << 13;

/// The failure at which a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialFailure {
    /// The failed request.
    pub ending: Ending,
    /// The requesting stack.
    pub stack: StackId,
    /// The time of the request in the recording.
    pub time_ns: u64,
}

/// A recording and its trials; see the module's documentation.
#[derive(Clone, Debug)]
pub struct SideBySide {
    follow: Follow,
    trials: Vec<(Trial, Option<TrialFailure>)>,
    batch: Batch,
    threads: usize,
}

impl SideBySide {
    /// Starts with a recording that is followed from its begin, and trials from the same state.
    #[must_use]
    pub fn new(follow: Follow, trials: Vec<Trial>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::on(threads, follow, trials)
    }

    /// The same, on this many cores.
    #[must_use]
    pub fn on(threads: usize, follow: Follow, trials: Vec<Trial>) -> Self {
        let threads = threads.clamp(1, trials.len().max(1));
        Self {
            follow,
            trials: trials.into_iter().map(|trial| (trial, None)).collect(),
            batch: Batch::default(),
            threads,
        }
    }

    /// Applies the next event of the recording.
    pub fn event(&mut self, event: &Event) {
        let Self { follow, batch, .. } = self;
        follow.event(event, |at, request| batch.push(at, request, event.stack, event.time_ns));
        if self.batch.requests.len() >= BATCH {
            self.serve();
        }
    }

    /// The recording as followed so far. The trials may lag by one batch.
    #[must_use]
    pub fn follow(&self) -> &Follow {
        &self.follow
    }

    /// Must be called after the last event. Returns the recording and each trial with its failure, if it failed.
    #[must_use]
    pub fn finish(mut self) -> (Follow, Vec<(Trial, Option<TrialFailure>)>) {
        let Self { follow, batch, .. } = &mut self;
        follow.finish(|at, request| batch.push(at, request, StackId::NONE, 0));
        self.serve();
        (self.follow, self.trials)
    }

    fn serve(&mut self) {
        let Self { trials, batch, threads, .. } = self;
        if *threads == 1 {
            trials.iter_mut().for_each(|trial| batch.serve(trial));
        } else {
            // A thread that has finished a trial takes the next one: trials differ in cost, and cores in their other
            // load.
            let next = Mutex::new(trials.iter_mut());
            let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let work = || {
                while let Some(trial) = take() {
                    batch.serve(trial);
                }
            };
            std::thread::scope(|scope| {
                (1..*threads).for_each(|_| drop(scope.spawn(work)));
                work();
            });
        }
        self.batch.clear();
    }
}

/// Requests that the trials have not served yet.
#[derive(Clone, Debug, Default)]
struct Batch {
    requests: Vec<BatchEntry>,
    /// For each request: the facts that are needed only if it fails.
    origins: Vec<Origin>,
    hints: Vec<Hint>,
}

#[derive(Clone, Copy, Debug)]
struct Origin {
    at: u64,
    time_ns: u64,
    stack: StackId,
}

/// A [`Request`] whose hints are stored in the batch. A free that completes at once is one entry.
#[derive(Clone, Copy, Debug)]
enum BatchEntry {
    Alloc { block: BlockName, requested: Requested },
    Hinted { block: BlockName, requested: Requested, hints: (u32, u32) },
    Failed { requested: Requested },
    Free { block: BlockName },
    FreeRequested { block: BlockName },
    FreeCompleted { block: BlockName },
    EmptyCache,
    PoolReleased(PoolId),
}

impl Batch {
    fn push(&mut self, at: u64, request: &Request<'_>, stack: StackId, time_ns: u64) {
        let kept = match *request {
            Request::Alloc { block, requested, hints: [] } => BatchEntry::Alloc { block, requested },
            Request::Alloc { block, requested, hints } => {
                let first = self.hints.len() as u32;
                self.hints.extend_from_slice(hints);
                BatchEntry::Hinted { block, requested, hints: (first, self.hints.len() as u32) }
            }
            Request::Failed { requested } => BatchEntry::Failed { requested },
            Request::FreeRequested { block } => BatchEntry::FreeRequested { block },
            Request::FreeCompleted { block } => {
                if let Some(last) = self.requests.last_mut()
                    && matches!(*last, BatchEntry::FreeRequested { block: requested } if requested == block)
                {
                    *last = BatchEntry::Free { block };
                    return;
                }
                BatchEntry::FreeCompleted { block }
            }
            Request::EmptyCache => BatchEntry::EmptyCache,
            Request::PoolReleased(pool) => BatchEntry::PoolReleased(pool),
        };
        self.requests.push(kept);
        self.origins.push(Origin { at, time_ns, stack });
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.origins.clear();
        self.hints.clear();
    }

    fn serve(&self, (trial, ended): &mut (Trial, Option<TrialFailure>)) {
        if ended.is_some() {
            return;
        }
        for (kept, origin) in self.requests.iter().zip(&self.origins) {
            if trial.out_of_memory().is_none() {
                self.serve_one(trial, origin.at, kept);
            }
            if let Some(ending) = trial.out_of_memory() {
                *ended = Some(TrialFailure { ending, stack: origin.stack, time_ns: origin.time_ns });
                return;
            }
        }
    }

    fn serve_one(&self, trial: &mut Trial, at: u64, kept: &BatchEntry) {
        let request = match *kept {
            // Nearly all requests are of these kinds and take the short path.
            BatchEntry::Alloc { block, requested } => return trial.ask(at, block, requested, &[]),
            BatchEntry::Free { block } => return trial.free(block),
            BatchEntry::Hinted { block, requested, hints: (first, end) } => {
                Request::Alloc { block, requested, hints: &self.hints[first as usize..end as usize] }
            }
            BatchEntry::Failed { requested } => Request::Failed { requested },
            BatchEntry::FreeRequested { block } => Request::FreeRequested { block },
            BatchEntry::FreeCompleted { block } => Request::FreeCompleted { block },
            BatchEntry::EmptyCache => Request::EmptyCache,
            BatchEntry::PoolReleased(pool) => Request::PoolReleased(pool),
        };
        trial.request(at, &request);
    }
}
