//! One step ahead: the last step's requests, served again from the state in which it ended, under what the device has.
//!
//! Guarantees: pure and deterministic; what it says of a step rests on requests that were seen, in their order, and on the
//! allocator's own rules; memory in proportion to the live blocks and the requests of [`STEPS_KEPT`] steps.
//! Refuses to look ahead from a warm-up: before [`STEPS_MIN`] whole steps nobody knows what a step is. What a program will do
//! that it has not done yet (a longer batch, a validation) is not seen.
//!
//! The daemon does not ask it: `memctl-bench leakbench --ahead` says how often it is right, which is not often enough for an alert.

mod play;
mod recurring;
mod step;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt};
use memctl_model::{Event, SegmentState, StackId};

use crate::allocator::{Counts, Limit};
use crate::follow::{Agreement, Follow};
use crate::names::{BlockName, named};
use crate::request::{Request, Requested};
use crate::settings::Conf;
use play::Play;
use recurring::Recurring;
use step::{Act, Name, Step, Want};

/// Whole steps that have to have been seen.
pub const STEPS_MIN: u64 = 4;
/// Steps whose requests are kept.
pub const STEPS_KEPT: usize = 3;
/// Steps for which nothing is told after something was foreseen that did not come.
const MISSED_FOR: u64 = 16;

/// Why a request will fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// What lives and the request are more than there is.
    Capacity,
    /// There would be enough, were it one piece.
    Fragmentation,
}

/// A request that will fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fails {
    /// In how many steps: 1 is the one that comes next.
    pub steps: u32,
    /// Its place among the requests of its step.
    pub index: u64,
    /// What it will ask for.
    pub requested: Requested,
    /// Where.
    pub stack: StackId,
    /// Why it fails.
    pub shortage: Shortage,
    /// Bytes that will be handed out then.
    pub allocated_bytes: u64,
    /// Bytes that will be reserved when all that can be released is.
    pub reserved_bytes: u64,
}

/// See the module. Takes the events of one device, in order.
#[derive(Clone, Debug)]
pub struct Ahead {
    follow: Follow,
    live: HashMap<BlockName, Live>,
    /// Whole steps, the last one last.
    steps: VecDeque<Step>,
    running: Step,
    /// What was seen at the last step's end, by the number of the step that followed.
    before: Option<(u64, Fails)>,
    /// When something was seen last that did not come.
    missed_at: Option<u64>,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    name: Name,
    want: Want,
}

impl Ahead {
    /// From a state on, which lies at the end of a step, or before the first one.
    #[must_use]
    pub fn new(conf: Conf, segments: &[SegmentState]) -> Self {
        let follow = Follow::new(conf, Limit::None, segments);
        let mut live = HashMap::new();
        for (block_name, segment, block) in named(segments) {
            let name = Name { step: 0, index: live.len() as u32 };
            let requested = Requested { bytes: block.requested, stream: segment.stream, pool: segment.pool };
            live.insert(block_name, Live { name, want: Want { requested, stack: block.stack } });
        }
        let allocated = follow.counts().allocated_bytes;
        let running = Step { number: 1, allocated: (allocated, 0), peak_allocated: allocated, ..Step::default() };
        Self { follow, live, steps: VecDeque::new(), running, before: None, missed_at: None }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event) {
        let Self { follow, live, running, .. } = self;
        follow.event(event, |_, request| take(live, running, request, event.stack));
        running.peak_allocated = running.peak_allocated.max(follow.counts().allocated_bytes);
    }

    /// A step has ended. What comes between two steps belongs to the later one.
    pub fn step_ends(&mut self) {
        let allocated = self.follow.counts().allocated_bytes;
        let next = Step {
            number: self.running.number + 1,
            allocated: (allocated, 0),
            peak_allocated: allocated,
            ..Step::default()
        };
        let mut ended = std::mem::replace(&mut self.running, next);
        ended.allocated.1 = allocated;
        if self.steps.len() == STEPS_KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back(ended);
    }

    /// The first request that will fail within so many steps when the device has so much for this process. For each step's end
    /// once: told is what comes closer from step to step, by a process in which nothing was foreseen that did not come.
    pub fn look(&mut self, limit: Limit, steps: u32) -> Option<Fails> {
        let now = self.foresee(limit, steps);
        let number = self.running.number;
        // What was to fail in the step that has just ended did not: what is seen from here is not what happens there.
        if self.before.is_some_and(|(at, fails)| at + u64::from(fails.steps) <= number) {
            self.missed_at = Some(number);
        }
        let comes_closer =
            |fails: &Fails| self.before.is_some_and(|(at, before)| at + 1 == number && before.steps > fails.steps);
        let is_trusted = self.missed_at.is_none_or(|at| at + MISSED_FOR < number);
        let told = now.filter(|fails| is_trusted && comes_closer(fails));
        self.before = now.map(|fails| (number, fails));
        told
    }

    /// The first request that would fail within so many steps, were they like the last one.
    fn foresee(&self, limit: Limit, steps: u32) -> Option<Fails> {
        let last =
            self.steps.back().filter(|last| last.number >= STEPS_MIN && !last.is_cut && !last.wants.is_empty())?;
        let before = |back: usize| self.steps.len().checked_sub(back + 1).and_then(|at| self.steps.get(at));
        let before = [before(1), before(2)];
        let recurring = Recurring::of(last, before, self.live.values().map(|known| (known.name, known.want)));
        let mut play = Play::new(&self.follow, limit, &self.live);
        (1..=steps).find_map(|later| {
            play.step(last, before, &recurring, u64::from(later)).map(|fails| Fails { steps: later, ..fails })
        })
    }

    /// Whole steps that were seen.
    #[must_use]
    pub fn steps_seen(&self) -> u64 {
        self.running.number - 1
    }

    /// How far the replay did what was recorded.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        self.follow.agreement()
    }

    /// The figures as they are now.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.follow.counts()
    }

    /// Most bytes that were handed out in the last whole step.
    #[must_use]
    pub fn last_peak_bytes(&self) -> Option<u64> {
        self.steps.back().map(|step| step.peak_allocated)
    }
}

/// Notes a request of the running step.
fn take(live: &mut HashMap<BlockName, Live>, running: &mut Step, request: &Request<'_>, stack: StackId) {
    match *request {
        Request::Alloc { block, requested, .. } => {
            let name = Name { step: running.number, index: running.wants.len() as u32 };
            let want = Want { requested, stack };
            running.wants.push(want);
            running.push(Act::Ask);
            live.insert(block, Live { name, want });
        }
        // What failed is asked for again by whoever catches it, or the process ends.
        Request::Failed { .. } => {}
        Request::FreeRequested { block } => {
            if let Some(known) = live.get(&block) {
                running.push(Act::FreeRequested(known.name, known.want));
            }
        }
        Request::FreeCompleted { block } => {
            if let Some(known) = live.remove(&block) {
                running.push(Act::FreeCompleted(known.name));
            }
        }
        Request::EmptyCache => running.push(Act::EmptyCache),
        Request::PoolReleased(pool) => running.push(Act::PoolReleased(pool)),
    }
}
