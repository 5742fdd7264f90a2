//! The out-of-memory forecast: recorded steps are replayed from the state in which the last one ended, under the
//! device's limit.
//!
//! Replayed steps: the last one, as often as requested, with allocations that appear only in some steps and stay, with
//! the sizes of the next stage if steps grow by even stages, and with an outlier step at its turn; and the step that
//! needed most among the last [`SPAN`] to twice as many, as the next one, and after [`STEPS_AHEAD`] others with all
//! occasional allocations. If steps differ in their needs, the largest counts more than the last one: as the next one,
//! or after as many as fit. A failure is reported if two consecutive step ends forecast it, or if the next step is the
//! one that fails.
//!
//! Guarantees: pure and deterministic; a forecast rests on recorded requests, in their order, and on the allocator's
//! own rules; memory is proportional to the live blocks and the requests of ten steps (more if they are short), and of
//! 16 more for the places of some.
//! Refuses to say that anything grows: the caller knows that (a cache that fills repeats itself like a leak until it is
//! full), and passes only processes that grow. Refuses to forecast from a warm-up: before [`STEPS_MIN`] whole steps it
//! is unknown what a step is. Cannot see what a program has not done yet (a longer batch, a validation).

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
use recurring::{Extras, Recurring};
use step::{Act, Name, Rises, Step, Want};

/// Whole steps that have to have been seen.
pub const STEPS_MIN: u64 = 4;
/// Steps that are laid beside each other: the last one and the two before it.
const STEPS_COMPARED: usize = 3;
/// Steps whose requests are kept, where they are short: the next one may be like any of them.
const STEPS_KEPT: usize = 8;
/// Acts of steps that are kept at most, where these are more than [`STEPS_COMPARED`].
const ACTS_KEPT: usize = 1 << 17;
/// How far is looked ahead at least: two step ends have to foresee something, and a step or two have to be left then.
pub const STEPS_AHEAD: u32 = 4;
/// Acts of steps that are played at most to look further than that.
const ACTS_PLAYED: usize = 1 << 17;
/// Steps over which the one that needs most is looked for: these, and as many before them.
const SPAN: u64 = 32;
/// Steps without a report after a failure was forecast for the next step and did not happen.
const MISSED_FOR: u64 = 2;
/// Of the limit, the part of which nothing can fail within a few steps while less is reserved at the height of a step.
const FAR: (u64, u64) = (3, 4);

/// Why a request will fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// What lives and the request are more than there is.
    Capacity,
    /// There would be enough, were it one piece.
    Fragmentation,
}

/// Which step is seen to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The last one.
    Last,
    /// The one that needed most.
    Most,
}

/// A request that will fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fails {
    /// In how many steps: 1 is the one that comes next.
    pub steps: u32,
    /// Which step it is in.
    pub of: Of,
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
    /// Whether it rests on no allocation whose time is unknown.
    pub is_certain: bool,
}

impl Fails {
    /// What was forecast, for the caller that decides how much of it to believe.
    #[must_use]
    pub fn sight(&self) -> Sight {
        Sight { steps: self.steps, is_of_last: self.of == Of::Last, is_certain: self.is_certain }
    }
}

/// See the module. Takes the events of one device, in order.
#[derive(Clone, Debug)]
pub struct Ahead {
    follow: Follow,
    live: HashMap<BlockName, Live>,
    /// Bytes of segments that were asked for since the last request.
    segments_asked: u64,
    /// Whole steps, the last one last.
    steps: VecDeque<Step>,
    running: Step,
    stages: Stages,
    extras: Extras,
    /// The steps that needed most, of the [`SPAN`] before these and of these.
    most: [Option<Step>; 2],
    /// The last two steps that did what the steps around them do not, and the number of the one before them.
    odd: [Option<Step>; 2],
    odd_before: Option<u64>,
    /// What was seen at the last step's end.
    before: Option<Seen>,
    /// When something was seen last that did not come.
    missed_at: Option<u64>,
    /// Whether the last look played steps, and none of them failed.
    has_room: bool,
    /// What was named last, the newest first, one of each place; and before which step.
    named: VecDeque<(u64, Fails)>,
}

/// What was seen at a step's end.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The number of the step that followed.
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
        Self {
            follow,
            live,
            segments_asked: 0,
            steps: VecDeque::new(),
            running,
            stages: Stages::default(),
            extras: Extras::default(),
            most: [None, None],
            odd: [None, None],
            odd_before: None,
            before: None,
            missed_at: None,
            has_room: false,
            named: VecDeque::new(),
        }
    }

    /// Takes the next event.
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
        self.stages.step(&ended);
        self.extras.step(&ended, self.steps.back());
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

    /// How many steps can be looked over, of so many: never fewer than [`STEPS_AHEAD`], and only so many more as are played quickly.
    #[must_use]
    pub fn reach(&self, steps: u32) -> u32 {
        let acts = self.steps.back().map_or(1, |last| last.acts.len().max(1));
        steps.min(u32::try_from(ACTS_PLAYED / acts).unwrap_or(u32::MAX)).max(STEPS_AHEAD)
    }

    /// Whether the last look forecast a failure, reported or not.
    #[must_use]
    pub fn is_in_sight(&self) -> bool {
        self.before.is_some()
    }

    /// Whether the last look played steps and saw none of them fail. (Far from the limit, and without whole steps, it plays none.)
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// The first request that will fail within so many steps, of which [`Self::reach`] are looked over, when the device has so much for
    /// this process, which grows. For each step's end once.
    pub fn look(&mut self, limit: Limit, steps: u32) -> Option<Fails> {
        let number = self.running.number;
        let now = self.foresee(limit, steps);
        let before = std::mem::replace(&mut self.before, now);
        // What was to fail in the step that has just ended did not: what is seen from here is not what happens there.
        let is_next = |seen: Seen| seen.fails.is_certain && seen.fails.steps == 1 && seen.fails.of == Of::Last;
        if before.is_some_and(|seen| seen.number < number && is_next(seen)) {
            self.missed_at = Some(number);
        }
        let is_seen_twice = before.is_some_and(|seen| seen.number + 1 == number);
        let is_trusted = self.missed_at.is_none_or(|at| at + MISSED_FOR < number);
        // (A failure in the very next step cannot wait for a second look.)
        now.filter(|seen| is_trusted && (is_seen_twice || seen.fails.steps == 1)).map(|seen| seen.fails)
    }

    /// The first request that would fail, were the steps that come like those that were.
    fn foresee(&mut self, limit: Limit, steps: u32) -> Option<Seen> {
        self.has_room = false;
        let last = self.steps.back().filter(|last| is_known(last) && !self.is_far(limit))?;
        let fails = self.plan(last, limit).first_to_fail(self.reach(steps));
        self.has_room = fails.is_none();
        Some(Seen { number: self.running.number, fails: fails? })
    }

    /// What comes again of a step, with those before it.
    fn recurring(&self, step: &Step, before: [Option<&Step>; 2]) -> Recurring {
        // (What later steps left is theirs.)
        let live = self.live.values().map(|known| (known.name, known.want));
        let live = live.filter(|(name, _)| name.step <= step.number);
        let is_last = self.steps.back().is_some_and(|last| last.number == step.number);
        let odd = self.odd_to_come().map(|odd| (odd.before, odd.step.number));
        Recurring::of((step, is_last), before, (odd, &self.extras), live)
    }

    fn plan<'a>(&'a self, last: &'a Step, limit: Limit) -> Plan<'a> {
        let before = [self.step_before(1), self.step_before(2)];
        // A step that is unlike those around it, or has just kept what it asks for anyway and usually gives back, is no example: the
        // one before it is.
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
            rises: Rises::of(last, self.steps.iter().rev().skip(1)),
            stage: self.stages.next(self.running.number),
            odd: self.odd_to_come(),
            most: most.filter(|most| most.number < last.number),
            is_uneven: self.is_uneven(),
        }
    }

    /// The step that ended so many steps before the last one.
    fn step_before(&self, back: usize) -> Option<&Step> {
        self.steps.len().checked_sub(back + 1).and_then(|at| self.steps.get(at))
    }

    /// Whether so much less than there is was reserved that nothing is worth a look. (Where little is, because a request that
    /// found no room had the cache emptied, the steps before that had more.)
    fn is_far(&self, limit: Limit) -> bool {
        let (Limit::Share(bytes) | Limit::Device(bytes)) = limit else { return true };
        self.steps.iter().all(|step| step.peak_reserved < bytes / FAR.1 * FAR.0)
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
}

/// Whether a step is whole and late enough to represent steps.
fn is_known(step: &Step) -> bool {
    step.number >= STEPS_MIN && !step.is_cut && !step.wants.is_empty()
}

/// Notes a request of the running step.
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
        // The program repeats a failed request if it catches the error, or the process ends.
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
