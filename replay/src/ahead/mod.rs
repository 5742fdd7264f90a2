//! The out-of-memory forecast: recorded steps are replayed from the state after the last step, under the device's
//! limit.
//!
//! Two kinds of steps are replayed. The first is the last step, as often as requested. Occasional allocations that
//! stay are added to it. If steps grow by even stages, it gets the sizes of the next stage. An outlier step replaces
//! it at the outlier's turn. The second is the largest step among the last [`SPAN`] to twice as many. It is replayed
//! as the next step, and again after [`STEPS_AHEAD`] others with all occasional allocations. If steps differ in their
//! needs, the largest step has precedence: it is replayed as the next step, or after as many others as fit. A failure
//! is reported if two consecutive step ends forecast it, or if the next step fails.
//!
//! Guarantees: pure and deterministic. A forecast is based on recorded requests in their order and on the allocator's
//! own rules. Memory is proportional to the live blocks and the requests of ten steps (more if the steps are short),
//! and of 16 more steps for the places of some requests.
//!
//! The caller decides whether a process grows and passes only processes that do: a cache that fills looks like a leak
//! until it is full. Nothing is forecast from a warm-up: before [`STEPS_MIN`] whole steps, the content of a step is
//! unknown. Work that a program has not done yet (a longer batch, a validation) is not foreseen.

mod growing;
mod naming;
mod plan;
mod play;
mod recurring;
mod step;
#[cfg(test)]
mod tests;
mod unlike;

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt};
use memctl_model::{Action, Event, SegmentState, Sight, StackId};

use crate::allocator::{Counts, Limit};
use crate::follow::{Agreement, Follow};
use crate::names::{BlockName, named};
use crate::request::{Request, Requested};
use crate::settings::Conf;
use growing::Stages;
use plan::Plan;
use recurring::Recurring;
use step::{Act, Name, Rises, Step, Want};

/// Minimum number of whole steps before a forecast.
pub const STEPS_MIN: u64 = 4;
/// Number of steps that are compared: the last one and the two before it.
const STEPS_COMPARED: usize = 3;
/// Maximum number of kept steps, if they are short. The next step may be like any of them.
const STEPS_KEPT: usize = 8;
/// Maximum acts in the kept steps, if more than [`STEPS_COMPARED`] are kept.
const ACTS_KEPT: usize = 1 << 17;
/// Minimum number of steps that are replayed. Two step ends must forecast a failure, and then a step or two must
/// remain.
pub const STEPS_AHEAD: u32 = 4;
/// Maximum acts that are replayed to look further ahead than that.
const ACTS_PLAYED: usize = 1 << 17;
/// Number of steps among which the largest is searched: these, and as many before them.
const SPAN: u64 = 32;
/// Number of steps without a report after a failure was forecast for the next step and did not happen.
const MISSED_FOR: u64 = 2;
/// Share of the limit. While every step's reserved peak is below it, nothing can fail within a few steps.
const FAR: (u64, u64) = (3, 4);

/// Why a request will fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Live memory and the request together exceed the limit.
    Capacity,
    /// The free memory would suffice in one piece.
    Fragmentation,
}

/// The recorded step whose replay fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The last step.
    Last,
    /// The largest step: the one that needed most.
    Most,
}

/// A request that is forecast to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fails {
    /// Number of steps until it fails; 1 is the next step.
    pub steps: u32,
    /// The recorded step that it belongs to.
    pub of: Of,
    /// Its place among the requests of its step.
    pub index: u64,
    /// The request.
    pub requested: Requested,
    /// The requesting stack.
    pub stack: StackId,
    /// The reason of the failure.
    pub shortage: Shortage,
    /// Allocated bytes at that time.
    pub allocated_bytes: u64,
    /// Reserved bytes after everything possible is released.
    pub reserved_bytes: u64,
    /// Whether the forecast is independent of allocations at unknown times.
    pub is_certain: bool,
}

impl Fails {
    /// The properties of the forecast by which the caller decides how far to trust it.
    #[must_use]
    pub fn sight(&self) -> Sight {
        Sight { steps: self.steps, is_of_last: self.of == Of::Last, is_certain: self.is_certain }
    }
}

/// The forecast for one device, whose events must be passed in order; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Ahead {
    follow: Follow,
    live: HashMap<BlockName, Live>,
    /// Bytes of segments that were requested since the last request.
    segments_asked: u64,
    /// Whole steps, the newest last.
    steps: VecDeque<Step>,
    running: Step,
    stages: Stages,
    /// The largest step of the previous [`SPAN`], and of the current one.
    most: [Option<Step>; 2],
    /// The last two outlier steps; `odd_before` is the number of the outlier before them.
    odd: [Option<Step>; 2],
    odd_before: Option<u64>,
    /// The forecast at the last step's end.
    before: Option<StepForecast>,
    /// The step at which a forecast failure last did not happen.
    missed_at: Option<u64>,
    /// Whether the last look replayed steps and none of them failed.
    has_room: bool,
    /// The requests that were named last, newest first, one per place; each with the number of the step after the
    /// look.
    named: VecDeque<(u64, Fails)>,
}

/// The forecast at a step's end.
#[derive(Clone, Copy, Debug)]
struct StepForecast {
    /// The number of the following step.
    number: u64,
    fails: Fails,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    name: Name,
    want: Want,
}

impl Ahead {
    /// Starts with a state at the end of a step, or before the first step.
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
        Self {
            follow,
            live,
            segments_asked: 0,
            steps: VecDeque::new(),
            running,
            stages: Stages::default(),
            most: [None, None],
            odd: [None, None],
            odd_before: None,
            before: None,
            missed_at: None,
            has_room: false,
            named: VecDeque::new(),
        }
    }

    /// Applies the next event.
    pub fn event(&mut self, event: &Event) {
        let Self { follow, live, running, segments_asked, .. } = self;
        let wanted = follow.counts().reserved_bytes.saturating_add(*segments_asked);
        *segments_asked = match event.action {
            Action::SegmentAlloc | Action::SegmentMap => segments_asked.saturating_add(event.size),
            Action::SegmentFree | Action::SegmentUnmap => *segments_asked,
            _ => 0,
        };
        follow.event(event, |_, request| take(live, running, (request, wanted), event.stack));
        running.peak_allocated = running.peak_allocated.max(follow.counts().allocated_bytes);
        running.peak_reserved = running.peak_reserved.max(follow.counts().reserved_bytes);
    }

    /// Ends a step. Events between two steps belong to the later one.
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
        self.stages.step(&ended);
        if self.is_odd(&ended) {
            self.odd_before = self.odd[0].as_ref().map(|odd| odd.number);
            self.odd = [self.odd[1].take(), Some(ended.clone())];
        }
        if ended.number.is_multiple_of(SPAN) {
            self.most = [self.most[1].take(), None];
        }
        if is_known(&ended) && self.most[1].as_ref().is_none_or(|most| most.needs() <= ended.needs()) {
            self.most[1] = Some(ended.clone());
        }
        self.steps.push_back(ended);
        let acts = |steps: &VecDeque<Step>| steps.iter().map(|step| step.acts.len()).sum::<usize>();
        while self.steps.len() > STEPS_KEPT || self.steps.len() > STEPS_COMPARED && acts(&self.steps) > ACTS_KEPT {
            self.steps.pop_front();
        }
    }

    /// The number of steps that can be replayed, of `steps` requested: at least [`STEPS_AHEAD`], and more only if they
    /// are replayed quickly.
    #[must_use]
    pub fn reach(&self, steps: u32) -> u32 {
        let acts = self.steps.back().map_or(1, |last| last.acts.len().max(1));
        steps.min(u32::try_from(ACTS_PLAYED / acts).unwrap_or(u32::MAX)).max(STEPS_AHEAD)
    }

    /// Whether the last look forecast a failure, whether reported or not.
    #[must_use]
    pub fn is_in_sight(&self) -> bool {
        self.before.is_some()
    }

    /// Whether the last look replayed steps and none of them failed. Far from the limit, and without whole steps, none
    /// are replayed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// The first request that will fail within `steps` steps, of which [`Self::reach`] are replayed. `limit` is the
    /// memory that the device has for this process. The process must be growing. Call this once at each step's end.
    pub fn look(&mut self, limit: Limit, steps: u32) -> Option<Fails> {
        let number = self.running.number;
        let now = self.foresee(limit, steps);
        let before = std::mem::replace(&mut self.before, now);
        // The failure that was forecast for the step that has just ended did not happen, so forecasts from here are
        // not trusted for a while.
        let is_next = |seen: StepForecast| seen.fails.is_certain && seen.fails.steps == 1 && seen.fails.of == Of::Last;
        if before.is_some_and(|seen| seen.number < number && is_next(seen)) {
            self.missed_at = Some(number);
        }
        let is_seen_twice = before.is_some_and(|seen| seen.number + 1 == number);
        let is_trusted = self.missed_at.is_none_or(|at| at + MISSED_FOR < number);
        // A failure in the very next step is reported at once, because there is no time for a second look.
        now.filter(|seen| is_trusted && (is_seen_twice || seen.fails.steps == 1)).map(|seen| seen.fails)
    }

    /// The first request that would fail if the coming steps were like the recorded ones.
    fn foresee(&mut self, limit: Limit, steps: u32) -> Option<StepForecast> {
        self.has_room = false;
        let last = self.steps.back().filter(|last| is_known(last) && !self.is_far(limit))?;
        let fails = self.plan(last, limit).first_to_fail(self.reach(steps));
        self.has_room = fails.is_none();
        Some(StepForecast { number: self.running.number, fails: fails? })
    }

    /// The requests of a step that recur, compared with the steps before it.
    fn recurring(&self, step: &Step, before: [Option<&Step>; 2]) -> Recurring {
        // Blocks of later steps are left out, because they do not belong to this step.
        let live = self.live.values().map(|known| (known.name, known.want));
        let live = live.filter(|(name, _)| name.step <= step.number);
        let is_last = self.steps.back().is_some_and(|last| last.number == step.number);
        let odd = self.odd_to_come().map(|odd| (odd.before, odd.step.number));
        Recurring::of((step, is_last), before, odd, live)
    }

    fn plan<'a>(&'a self, last: &'a Step, limit: Limit) -> Plan<'a> {
        let before = [self.step_before(1), self.step_before(2)];
        // The last step is no example if it is an outlier, or if it kept a block that it usually frees. The step
        // before it is then the example.
        let is_odd = self.odd_to_come().is_some_and(|odd| odd.step.number == last.number);
        let script = match (self.recurring(last, before), before[0].filter(|before| is_known(before))) {
            (of_last, Some(one)) if is_odd || of_last.is_seldom() => {
                (one, self.recurring(one, [before[1], Some(last)]))
            }
            (of_last, _) => (last, of_last),
        };
        let most = self.most.iter().flatten().max_by_key(|most| most.needs());
        Plan {
            from: (&self.follow, &self.live, limit),
            running: self.running.number,
            last,
            script,
            rises: Rises::of(last, before),
            stage: self.stages.next(self.running.number),
            odd: self.odd_to_come(),
            most: most.filter(|most| most.number < last.number),
            is_uneven: self.is_uneven(),
        }
    }

    /// The step that ended `back` steps before the last one.
    fn step_before(&self, back: usize) -> Option<&Step> {
        self.steps.len().checked_sub(back + 1).and_then(|at| self.steps.get(at))
    }

    /// Whether so little memory was reserved that a replay is not worthwhile. All kept steps are considered, because
    /// the last one may have little reserved only because a retry emptied the cache.
    fn is_far(&self, limit: Limit) -> bool {
        let (Limit::Share(bytes) | Limit::Device(bytes)) = limit else { return true };
        self.steps.iter().all(|step| step.peak_reserved < bytes / FAR.1 * FAR.0)
    }

    /// Number of whole steps seen.
    #[must_use]
    pub fn steps_seen(&self) -> u64 {
        self.running.number - 1
    }

    /// How far the replay agrees with the recording.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        self.follow.agreement()
    }

    /// The current counts.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        self.follow.counts()
    }
}

/// Whether a step is complete and late enough to be an example.
fn is_known(step: &Step) -> bool {
    step.number >= STEPS_MIN && !step.is_cut && !step.wants.is_empty()
}

/// Adds a request to the running step.
fn take(
    live: &mut HashMap<BlockName, Live>,
    running: &mut Step,
    (request, wanted): (&Request<'_>, u64),
    stack: StackId,
) {
    match *request {
        Request::Alloc { block, requested, .. } => {
            let name = Name { step: running.number, index: running.wants.len() as u32 };
            let want = Want { requested, stack };
            running.wants.push(want);
            running.push(Act::Ask);
            live.insert(block, Live { name, want });
        }
        // A failed request is not part of the script: the program repeats it if it catches the error, or the process
        // ends.
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
        Request::EmptyCache => running.push(Act::EmptyCache(wanted)),
        Request::PoolReleased(pool) => running.push(Act::PoolReleased(pool)),
    }
}
