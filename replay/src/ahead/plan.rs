//! The order in which recorded steps are replayed: the last step again and again, then the largest one.
//!
//! Guarantees: each replay starts with the state after the last step, or with the state after a few more steps like
//! it. The time of the next outlier step may be unknown; the replay only shows whether there would be room for it.

use foldhash::HashMap;

use super::growing::Next;
use super::play::{Play, Stays};
use super::recurring::{Recurring, Stay};
use super::step::{Rises, Step};
use super::{Fails, Live, Of, STEPS_AHEAD};
use crate::allocator::Limit;
use crate::follow::Follow;
use crate::names::BlockName;

pub(super) struct Plan<'a> {
    /// The state from which steps are replayed, and the limit.
    pub from: (&'a Follow, &'a HashMap<BlockName, Live>, Limit),
    /// The number of the coming step.
    pub running: u64,
    pub last: &'a Step,
    /// The step that is the example for the coming ones, usually the last, and its recurring requests.
    pub script: (&'a Step, Recurring),
    pub rises: Rises,
    /// The coming stage, if steps grow by stages.
    pub stage: Option<Next<'a>>,
    pub odd: Option<Outlier<'a>>,
    /// The largest step, unless it is the last one.
    pub most: Option<&'a Step>,
    /// Whether steps differ in their needs, so that the needs of the next one are unknown.
    pub is_uneven: bool,
}

/// An outlier step that is expected again.
pub(super) struct Outlier<'a> {
    pub step: &'a Step,
    /// The number of the outlier step before it.
    pub before: u64,
    /// The number of the step in which it is expected.
    pub next: u64,
    /// The number of steps between further recurrences, if it is constant.
    pub every: Option<u64>,
}

impl Outlier<'_> {
    fn is_due(&self, number: u64) -> bool {
        number == self.next
            || self.every.is_some_and(|every| number > self.next && (number - self.next).is_multiple_of(every))
    }
}

impl Plan<'_> {
    /// The first request that fails within this many steps.
    pub fn first_to_fail(&self, steps: u32) -> Option<Fails> {
        // If steps differ, the next one may be as large as any of them. This is checked before small steps are
        // replayed several times.
        let one_more = || self.next_like_last(&mut self.play(), 1).map(|fails| Fails { steps: 1, ..fails });
        let next = self.is_uneven.then(|| one_more().or_else(|| self.of_most())).flatten();
        if let Some(fails) = next {
            return Some(self.with_certainty(fails));
        }
        let (of_last, later_on, behind) = self.of_last(steps);
        let of_most = || if self.is_uneven { None } else { self.of_most() };
        let first = of_last.map(|fails| behind.unwrap_or(fails)).or_else(of_most);
        Some(self.with_certainty(first.or_else(|| self.of_most_later_on(later_on?))?))
    }

    /// A forecast is certain if it is independent of allocations at unknown times.
    fn with_certainty(&self, fails: Fails) -> Fails {
        Fails { is_certain: !self.script.1.is_open(), ..fails }
    }

    fn play(&self) -> Play {
        let (follow, live, limit) = self.from;
        let mut play = Play::new(follow, limit, live);
        let (script, recurring) = &self.script;
        play.keep(script.number, recurring.keeps(script));
        if script.number < self.last.number {
            play.keep(self.last.number, recurring.keeps_of(script, self.last, self.last.number - script.number));
        }
        play
    }

    /// Replays steps like the example. Returns their failure, the state after [`STEPS_AHEAD`] of them, and, if steps
    /// differ, the failure of the largest step. The largest step is tried after 1, 2, 4, … such
    /// steps, and finally after all that do not fail.
    fn of_last(&self, steps: u32) -> (Option<Fails>, Option<Play>, Option<Fails>) {
        let (mut play, mut later_on) = (self.play(), None);
        let mut behind: Option<(u32, Play)> = None;
        let mut of_most = None;
        let fails = (1..=steps).find_map(|later| {
            let fails = self.next_like_last(&mut play, later);
            if later == STEPS_AHEAD && fails.is_none() {
                later_on = Some(play.clone());
            }
            let is_tried = self.is_uneven && later.is_power_of_two();
            if is_tried && fails.is_none() && of_most.is_none() {
                of_most = self.largest_after(play.clone(), later);
                behind = Some((later, play.clone()));
            }
            Some(Fails { steps: later, ..fails? })
        });
        if let (Some(fails), None, Some((from, mut play))) = (fails, of_most, behind) {
            (from + 1..fails.steps).for_each(|later| _ = self.next_like_last(&mut play, later));
            of_most = self.largest_after(play, fails.steps - 1);
        }
        (fails, later_on, of_most)
    }

    /// The failure of the largest step after `later` other steps.
    fn largest_after(&self, mut play: Play, later: u32) -> Option<Fails> {
        let most = self.most?;
        let fails =
            play.step(most, (&self.rises, None), Stays::Never, self.running + u64::from(later) - most.number)?;
        Some(Fails { steps: later + 1, of: Of::Most, ..fails })
    }

    /// Replays one step like the example as the `later`th coming step.
    fn next_like_last(&self, play: &mut Play, later: u32) -> Option<Fails> {
        let number = self.running + u64::from(later) - 1;
        if let Some(Outlier { step: odd, .. }) = self.odd.as_ref().filter(|odd| odd.is_due(number)) {
            return self.next_odd(play, odd, number);
        }
        let (script, recurring) = &self.script;
        let stage = self.stage.as_ref().filter(|stage| stage.from <= number);
        play.step(script, (&self.rises, stage), Stays::Due(recurring), number - script.number)
    }

    /// Replays the outlier step. Like any other step, it also leaves the blocks that are due then.
    fn next_odd(&self, play: &mut Play, odd: &Step, number: u64) -> Option<Fails> {
        let (script, recurring) = &self.script;
        let later = number - script.number;
        play.keep(number, recurring.keeps_of(script, odd, later));
        // The outlier's own requests already leave their blocks.
        let is_new = |stay: &Stay| !stay.is_own && odd.wants.iter().all(|want| want.stack != stay.want.stack);
        let besides: Vec<Stay> = recurring.due(later).filter(is_new).collect();
        play.step(odd, (&self.rises, None), Stays::Besides(&besides), number - odd.number)
    }

    /// Other requests that may fail in the step of `fails`. `like` are the recent steps with their recurring requests,
    /// the newest first; `most` are the largest steps. If `fails` is of the largest step, that step is also tried some
    /// steps later.
    pub fn other_failures<'s>(
        &self,
        fails: &Fails,
        like: impl Iterator<Item = (&'s Step, Recurring)>,
        most: impl Iterator<Item = &'s Step>,
    ) -> Vec<Fails> {
        let (mut before, at) = (self.play(), self.running + u64::from(fails.steps) - 1);
        for later in 1..fails.steps {
            self.next_like_last(&mut before, later);
        }
        let (mut others, mut played) = (Others { than: fails, found: Vec::new() }, Vec::<&Step>::new());
        let would_fail =
            |step: &Step, stays: Stays<'_>| before.clone().step(step, (&self.rises, None), stays, at - step.number);
        for (step, recurring) in like {
            if played.iter().all(|other| other.wants != step.wants) {
                others.add(would_fail(step, Stays::Due(&recurring)));
                others.add(would_fail(step, Stays::Never));
                played.push(step);
            }
        }
        let all: Vec<Stay> = self.script.1.all().collect();
        most.for_each(|step| others.add(would_fail(step, Stays::Besides(&all))));
        for later in (fails.steps..).take(STEPS_AHEAD as usize).take_while(|_| fails.of == Of::Most) {
            if self.next_like_last(&mut before, later).is_some() {
                break;
            }
            others.add(self.largest_after(before.clone(), later));
        }
        others.found
    }

    /// The failure of the largest step as the next one.
    fn of_most(&self) -> Option<Fails> {
        let most = self.most?;
        let fails = self.play().step(most, (&self.rises, None), Stays::Never, self.running - most.number)?;
        Some(Fails { steps: 1, of: Of::Most, ..fails })
    }

    /// The failure of the largest step some steps later. Memory has grown until then, so all occasional allocations
    /// are requested once more.
    fn of_most_later_on(&self, mut play: Play) -> Option<Fails> {
        let most = self.most.unwrap_or(self.last);
        let later = self.running + u64::from(STEPS_AHEAD) - most.number;
        let all: Vec<Stay> = self.script.1.all().collect();
        let fails = play.step(most, (&self.rises, None), Stays::Besides(&all), later)?;
        Some(Fails { steps: STEPS_AHEAD + 1, of: Of::Most, ..fails })
    }
}

/// Other requests that may fail, one per place.
struct Others<'a> {
    than: &'a Fails,
    found: Vec<Fails>,
}

impl Others<'_> {
    fn add(&mut self, failed: Option<Fails>) {
        let Fails { steps, of, is_certain, stack, .. } = *self.than;
        let is_new = |it: &Fails| it.stack != stack && self.found.iter().all(|other| other.stack != it.stack);
        let failed = failed.filter(is_new).map(|failed| Fails { steps, of, is_certain, ..failed });
        self.found.extend(failed);
    }
}
