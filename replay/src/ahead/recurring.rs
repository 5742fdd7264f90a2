//! Which requests of a step recur: those that the steps before it made too, and occasional ones whose blocks stay.
//!
//! If two steps are the same except for what one of them made in between, that difference is chance.
//!
//! A block that stays was requested in addition to the step's own requests, or is one of these that is not freed: a
//! loss that is sometimes kept is requested in every step. A block that a step carries over (its loss lives until the
//! next one has another) is left behind if the next step does not free it; for the last step that is not known yet.
//!
//! Guarantees: a request counts if one of the two steps before it made it too, by its stack; staying blocks count if at
//! least [`TIMES_MIN`] steps left some of them, and none is overdue. Refuses to take a single event for a habit.

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::StackId;

use super::step::{Name, Step, Want};

/// Steps that have to have left something behind for it to be expected again.
const TIMES_MIN: usize = 3;
/// It is overdue, and expected no more, when it has not come for so many times as long as it took on average.
const OVERDUE: u64 = 2;
/// Steps that have to have left something behind at even distances for the next one to be known.
const EVEN_FROM: usize = 4;
/// Steps with requests in between that are remembered.
const EXTRAS_KEPT: usize = 16;

#[derive(Default)]
pub(super) struct Recurring {
    /// Requests of the step that neither of the two before it made.
    chances: HashSet<u32>,
    /// What comes now and then, by its place.
    stays: Vec<Stay>,
    /// The step itself left something behind that it asks for anyway and usually gives back.
    is_seldom: bool,
}

/// What comes now and then, and stays.
#[derive(Clone, Copy)]
pub(super) struct Stay {
    /// Its place among a step's own requests.
    pub place: u32,
    /// It comes so many steps after the last one, and every so many after that.
    first: u64,
    every: u64,
    pub want: Want,
    /// It is what a step asks for in that place anyway: it is not given back.
    pub is_own: bool,
    /// Each had a private pool of its own: a graph was captured.
    pub is_captured: bool,
}

impl Recurring {
    /// `odd` are two steps unlike those around them: what the later one left behind, and no step since the earlier one, comes with
    /// the next one like them. `is_last` says whether no step came behind this one.
    pub fn of(
        (step, is_last): (&Step, bool),
        before: [Option<&Step>; 2],
        (odd, extras): (Option<(u64, u64)>, &Extras),
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
        // Of several requests of a stack, how many are by chance says nothing of which.
        if let Some(inserted) = extras.of(step.number)
            && stacks(step, inserted) == stacks(step, &chances)
        {
            chances = inserted.iter().copied().collect();
        }
        let (stays, is_seldom) = stays((step, is_last), &chances, (odd, extras), live);
        Self { chances, stays, is_seldom }
    }

    /// Whether the step left something behind that it asks for anyway and usually gives back.
    pub fn is_seldom(&self) -> bool {
        self.is_seldom
    }

    /// Whether an allocation is expected whose time is unknown.
    pub fn is_open(&self) -> bool {
        self.stays.iter().any(|stay| stay.every > 1)
    }

    /// Requests of the step that neither of the two before it made.
    pub fn by_chance(step: &Step, before: [Option<&Step>; 2]) -> usize {
        Self::of((step, true), before, (None, &Extras::default()), std::iter::empty()).chances.len()
    }

    /// Of what the step handed on, that which the next one is expected to keep: places among the requests of `step`, whose these are.
    pub fn keeps(&self, step: &Step) -> Vec<u32> {
        let own: Vec<u32> = (0..step.wants.len() as u32).filter(|&index| !self.is_chance(index)).collect();
        let kept = self.due(0).filter(|stay| stay.is_own);
        kept.filter_map(|stay| own.get(stay.place as usize).copied()).collect()
    }

    /// The same of another step, which does more before it does what `step` does, so many steps later: each lies as far from the end,
    /// of those who ask.
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

    /// Whether a request of the step happened by chance.
    pub fn is_chance(&self, index: u32) -> bool {
        self.chances.contains(&index)
    }

    /// What is to be expected to come and to stay, so many steps later.
    pub fn due(&self, later: u64) -> impl Iterator<Item = Stay> {
        let is_due =
            move |stay: &Stay| later.checked_sub(stay.first).is_some_and(|since| since.is_multiple_of(stay.every));
        self.all().filter(is_due)
    }

    /// All that comes now and then and stays, by its place.
    pub fn all(&self) -> impl Iterator<Item = Stay> {
        self.stays.iter().copied()
    }
}

/// Requests that a step made in between those of the step before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// By the number of the step, ascending; their places, ascending.
    steps: VecDeque<(u64, Vec<u32>)>,
}

impl Extras {
    /// Takes a step that has ended, and the one before it.
    pub fn step(&mut self, ended: &Step, before: Option<&Step>) {
        let before = before.filter(|before| !before.is_cut && !ended.is_cut);
        let Some(inserted) = before.and_then(|before| inserted(&ended.wants, &before.wants)) else { return };
        if self.steps.len() == EXTRAS_KEPT {
            self.steps.pop_front();
        }
        self.steps.push_back((ended.number, inserted));
    }

    /// Those of a step, where they are known.
    fn of(&self, number: u64) -> Option<&[u32]> {
        let at = self.steps.binary_search_by_key(&number, |(of, _)| *of).ok()?;
        Some(&self.steps[at].1)
    }
}

/// The places of what has to be left out of `wants` to make it `before`; `None` where nothing has to, or where that is not enough.
/// (One pass over both, at each step's end; `fit`'s alignment, which finds what both sides lack, is five hundred times the work.)
fn inserted(wants: &[Want], before: &[Want]) -> Option<Vec<u32>> {
    if wants.len() <= before.len() {
        return None;
    }
    let mut own = before.iter().peekable();
    let mut inserted = Vec::new();
    for (place, (want, next)) in (0..).zip(wants.iter().zip(wants.iter().skip(1).map(Some).chain([None]))) {
        // (A size of its own may have changed; what follows decides.)
        let is_own = |&before: &&Want| before == want || before.stack == want.stack && Some(before) != next;
        if own.next_if(is_own).is_none() {
            inserted.push(place);
        }
    }
    own.next().is_none().then_some(inserted)
}

/// The requests of a step, the last one first, by their index: who asks, and how often the same one asks behind it.
fn from_the_end(step: &Step) -> impl Iterator<Item = (u32, StackId, u32)> {
    let mut seen: HashMap<StackId, u32> = HashMap::new();
    (0..step.wants.len() as u32).rev().map(move |index| {
        let stack = step.wants[index as usize].stack;
        let behind = seen.entry(stack).or_default();
        *behind += 1;
        (index, stack, *behind)
    })
}

/// Who made the requests in these places, in the order of their ids.
fn stacks<'a>(step: &Step, places: impl IntoIterator<Item = &'a u32>) -> Vec<StackId> {
    let of = |&place: &u32| step.wants.get(place as usize).map(|want| want.stack);
    let mut stacks: Vec<StackId> = places.into_iter().filter_map(of).collect();
    stacks.sort_unstable();
    stacks
}

/// What several steps left behind and the step's own requests do not; and whether these left what they seldom leave.
fn stays(
    (step, is_last): (&Step, bool),
    chances: &HashSet<u32>,
    (odd, extras): (Option<(u64, u64)>, &Extras),
    live: impl Iterator<Item = (Name, Want)>,
) -> (Vec<Stay>, bool) {
    let mut is_seldom = false;
    let mut by_stack: HashMap<StackId, Vec<(Name, Want)>> = HashMap::new();
    let handed = step.hands_on();
    let is_handed = |name: Name| name.step == step.number && handed.contains(&name.index);
    // (Blocks that the last step carries over may stay or not: that is not known yet.)
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
        // The step's own requests leave it behind every time.
        let is_own = |name: Name| name.step == step.number && !chances.contains(&name.index) && !is_handed(name);
        // (Places in a step that does more than others are no places in these.)
        let is_odd = |step: &u64| odd.is_some_and(|(first, odd)| [first, odd].contains(step));
        let example = steps.iter().rev().find(|step| !is_odd(step)).copied().unwrap_or(last);
        let newest = left.iter().rev().filter(|(name, _)| name.step == example);
        let is_rare = (last - first) * 2 >= (steps.len() as u64 - 1) * 3;
        is_seldom |= is_rare && newest.clone().any(|(name, _)| is_own(*name));
        // What comes at even distances comes when it is due; anything else may come at once.
        let is_even = steps.len() >= EVEN_FROM && steps.windows(2).all(|pair| pair[1] - pair[0] == every);
        let is_open = is_last && newest.clone().all(|(name, _)| handed.contains(&name.index));
        let first = if is_even { (last + every).saturating_sub(step.number).max(u64::from(!is_open)) } else { 1 };
        let is_captured = left.windows(2).any(|pair| pair[0].1.requested.pool != pair[1].1.requested.pool);
        let stay =
            |name: Name, want| (name.step, Stay { place: name.index, first, every, want, is_own: false, is_captured });
        stays.extend(newest.filter(|(name, _)| !is_own(*name)).map(|&(name, want)| stay(name, want)));
    }
    // (A hash table has no fixed order.)
    stays.sort_unstable_by_key(|(step, stay)| (*step, stay.place));
    // Places were counted among all requests of a step: what comes by chance, and what stays, are not a step's own.
    let mut by_chance: Vec<u32> = chances.iter().copied().collect();
    by_chance.sort_unstable();
    let own: Vec<&Want> =
        (0..).zip(&step.wants).filter(|(index, _)| !chances.contains(index)).map(|(_, want)| want).collect();
    for same in stays.chunk_by_mut(|(one, _), (other, _)| one == other) {
        for (before, (number, stay)) in (0..).zip(same) {
            let inserted = if *number == step.number { Some(by_chance.as_slice()) } else { extras.of(*number) };
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
