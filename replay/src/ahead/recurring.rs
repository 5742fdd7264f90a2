//! The requests of a step that recur: requests that the steps before it made too, and occasional requests whose blocks
//! stay.
//!
//! A block that stays was requested in addition to the step's own requests, or by one of them and then not freed. For
//! example, a loss that is kept occasionally is requested in every step. A step may carry a block over: its loss is
//! live until the next step has another. Such a block stays if the next step does not free it. For the last step this
//! is not known yet.
//!
//! Guarantees: a request counts as recurring if one of the two steps before it had a request of the same stack. Blocks
//! that stay are expected if at least [`TIMES_MIN`] steps left some of them and they are not overdue. A single
//! occurrence is never expected again.

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::StackId;

use super::step::{Name, Step, Want};

/// Minimum number of steps that left a block behind before it is expected again.
const TIMES_MIN: usize = 3;
/// A block is overdue and no longer expected after this many times its average distance.
const OVERDUE: u64 = 2;
/// Minimum number of steps that left a block behind at even distances before the next such step is known.
const EVEN_FROM: usize = 4;

#[derive(Default)]
pub(super) struct Recurring {
    /// Requests of the step that neither of the two steps before it made.
    chances: HashSet<u32>,
    /// Occasional blocks that stay, by place.
    stays: Vec<Stay>,
    /// Whether the step kept a block of its own requests that it usually frees.
    is_seldom: bool,
}

/// An occasional block that stays.
#[derive(Clone, Copy)]
pub(super) struct Stay {
    /// Its place among a step's own requests.
    pub place: u32,
    /// The distance of its first recurrence from the step; `every` is the distance of the following ones.
    first: u64,
    every: u64,
    pub want: Want,
    /// Whether one of the step's own requests made it. It is then not requested again but only not freed.
    pub is_own: bool,
    /// Whether each such block had a private pool of its own, because a graph was captured.
    pub is_captured: bool,
}

impl Recurring {
    /// The recurring requests of a step. `odd` are two outlier steps: a block that the later one left, and no other
    /// step since the earlier one, comes with the next outlier. `is_last` is whether no step has followed this one.
    pub fn of(
        (step, is_last): (&Step, bool),
        before: [Option<&Step>; 2],
        odd: Option<(u64, u64)>,
        live: impl Iterator<Item = (Name, Want)>,
    ) -> Self {
        let asked = before.map(|step| step.map(Step::asked).unwrap_or_default());
        let mut seen: HashMap<StackId, usize> = HashMap::new();
        let mut chances = HashSet::default();
        for (index, want) in (0..).zip(&step.wants) {
            let seen = seen.entry(want.stack).or_default();
            *seen += 1;
            if asked.iter().all(|asked| asked.get(&want.stack).map_or(0, Vec::len) < *seen) {
                chances.insert(index);
            }
        }
        let (stays, is_seldom) = stays((step, is_last), &chances, odd, live);
        Self { chances, stays, is_seldom }
    }

    /// Whether the step kept a block of its own requests that it usually frees.
    pub fn is_seldom(&self) -> bool {
        self.is_seldom
    }

    /// Whether an allocation at an unknown time is expected.
    pub fn is_open(&self) -> bool {
        self.stays.iter().any(|stay| stay.every > 1)
    }

    /// Number of requests of the step that neither of the two steps before it made.
    pub fn by_chance(step: &Step, before: [Option<&Step>; 2]) -> usize {
        Self::of((step, true), before, None, std::iter::empty()).chances.len()
    }

    /// Places among the requests of `step`, to which these recurring requests belong: blocks that it carried over and
    /// that the next step is expected to keep.
    pub fn keeps(&self, step: &Step) -> Vec<u32> {
        let own: Vec<u32> = (0..step.wants.len() as u32).filter(|&index| !self.is_chance(index)).collect();
        let kept = self.due(0).filter(|stay| stay.is_own);
        kept.filter_map(|stay| own.get(stay.place as usize).copied()).collect()
    }

    /// The same for a step `other`, which does additional work before it does the work of `step`, after `later` steps.
    /// Places are matched by stack, counted from the end of each step.
    pub fn keeps_of(&self, step: &Step, other: &Step, later: u64) -> Vec<u32> {
        let own: Vec<u32> = (0..step.wants.len() as u32).filter(|&index| !self.is_chance(index)).collect();
        let due = self.due(later).filter(|stay| stay.is_own);
        let kept: HashSet<u32> = due.filter_map(|stay| own.get(stay.place as usize).copied()).collect();
        let is_kept = |(index, _, _): &(u32, StackId, u32)| kept.contains(index);
        let places: HashSet<(StackId, u32)> =
            from_the_end(step).filter(is_kept).map(|(_, stack, behind)| (stack, behind)).collect();
        let is_same = |&(_, stack, behind): &(u32, StackId, u32)| places.contains(&(stack, behind));
        from_the_end(other).filter(is_same).map(|(index, _, _)| index).collect()
    }

    /// Whether a request of the step is chance.
    pub fn is_chance(&self, index: u32) -> bool {
        self.chances.contains(&index)
    }

    /// The occasional blocks that are expected `later` steps after this one.
    pub fn due(&self, later: u64) -> impl Iterator<Item = Stay> {
        let is_due =
            move |stay: &Stay| later.checked_sub(stay.first).is_some_and(|since| since.is_multiple_of(stay.every));
        self.all().filter(is_due)
    }

    /// All occasional blocks that stay, by place.
    pub fn all(&self) -> impl Iterator<Item = Stay> {
        self.stays.iter().copied()
    }
}

/// The requests of a step, last one first: the index, the stack, and its position among the stack's requests counted
/// from the end.
fn from_the_end(step: &Step) -> impl Iterator<Item = (u32, StackId, u32)> {
    let mut seen: HashMap<StackId, u32> = HashMap::new();
    (0..step.wants.len() as u32).rev().map(move |index| {
        let stack = step.wants[index as usize].stack;
        let behind = seen.entry(stack).or_default();
        *behind += 1;
        (index, stack, *behind)
    })
}

/// The blocks that several steps left and that the step's own requests do not leave. The second result is whether the
/// step's own requests left blocks that they seldom leave.
fn stays(
    (step, is_last): (&Step, bool),
    chances: &HashSet<u32>,
    odd: Option<(u64, u64)>,
    live: impl Iterator<Item = (Name, Want)>,
) -> (Vec<Stay>, bool) {
    let mut is_seldom = false;
    let mut by_stack: HashMap<StackId, Vec<(Name, Want)>> = HashMap::new();
    let handed = step.hands_on();
    let is_handed = |name: Name| name.step == step.number && handed.contains(&name.index);
    // Blocks that the last step carries over are left out, because it is not known yet whether they stay.
    for (name, want) in live.filter(|(name, _)| name.step > 0 && !(is_last && is_handed(*name))) {
        by_stack.entry(want.stack).or_default().push((name, want));
    }
    let mut stays: Vec<(u64, Stay)> = Vec::new();
    for mut left in by_stack.into_values() {
        left.sort_unstable_by_key(|(name, _)| (name.step, name.index));
        let mut steps: Vec<u64> = left.iter().map(|(name, _)| name.step).collect();
        steps.dedup();
        let (Some(&first), Some(&last)) = (steps.first(), steps.last()) else { continue };
        let every = (last - first).div_ceil((steps.len() as u64 - 1).max(1)).max(1);
        let comes_with_odd =
            |(first, odd): (u64, u64)| odd == last && !steps.iter().any(|it| (first + 1..odd).contains(it));
        if steps.len() < TIMES_MIN || step.number - last > OVERDUE * every || odd.is_some_and(comes_with_odd) {
            continue;
        }
        // A block that the step's own requests leave every time is not occasional.
        let is_own = |name: Name| name.step == step.number && !chances.contains(&name.index) && !is_handed(name);
        // Places in an outlier step do not apply to other steps.
        let is_odd = |step: &u64| odd.is_some_and(|(first, odd)| [first, odd].contains(step));
        let example = steps.iter().rev().find(|step| !is_odd(step)).copied().unwrap_or(last);
        let newest = left.iter().rev().filter(|(name, _)| name.step == example);
        let is_rare = (last - first) * 2 >= (steps.len() as u64 - 1) * 3;
        is_seldom |= is_rare && newest.clone().any(|(name, _)| is_own(*name));
        // Blocks at even distances come when they are due. Other blocks may come in any step.
        let is_even = steps.len() >= EVEN_FROM && steps.windows(2).all(|pair| pair[1] - pair[0] == every);
        let is_open = is_last && newest.clone().all(|(name, _)| handed.contains(&name.index));
        let first = if is_even { (last + every).saturating_sub(step.number).max(u64::from(!is_open)) } else { 1 };
        let is_captured = left.windows(2).any(|pair| pair[0].1.requested.pool != pair[1].1.requested.pool);
        let stay =
            |name: Name, want| (name.step, Stay { place: name.index, first, every, want, is_own: false, is_captured });
        stays.extend(newest.filter(|(name, _)| !is_own(*name)).map(|&(name, want)| stay(name, want)));
    }
    // Sorted, because a hash table has no fixed order.
    stays.sort_unstable_by_key(|(step, stay)| (*step, stay.place));
    // Places so far count all requests of a step. Chance requests and occasional blocks must not count, because they
    // are not the step's own.
    let mut by_chance: Vec<u32> = chances.iter().copied().collect();
    by_chance.sort_unstable();
    let own: Vec<&Want> =
        (0..).zip(&step.wants).filter(|(index, _)| !chances.contains(index)).map(|(_, want)| want).collect();
    for same in stays.chunk_by_mut(|(one, _), (other, _)| one == other) {
        for (before, (number, stay)) in (0..).zip(same) {
            let inserted = (*number == step.number).then_some(by_chance.as_slice());
            let is_handed = *number == step.number && !chances.contains(&stay.place);
            stay.is_own = is_handed;
            if inserted.is_none() && own.get(stay.place as usize).is_some_and(|own| own.stack == stay.want.stack) {
                stay.is_own = true;
                continue;
            }
            let others = inserted.map_or(before, |all| all.partition_point(|&it| it < stay.place) as u32);
            stay.place = stay.place.saturating_sub(others);
        }
    }
    stays.sort_by_key(|(_, stay)| stay.place);
    (stays.into_iter().map(|(_, stay)| stay).collect(), is_seldom)
}
