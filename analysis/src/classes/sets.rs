//! Parameters, gradients and optimizer states, recognised as sets of blocks with the same sizes.
//!
//! A model's parameters are made first. Its backward passes make one gradient of the same size for each trained
//! parameter. A step of any optimizer makes one set of states for each moment (such as Adam's running averages) and
//! keeps them. Therefore the blocks
//! that a backward pass made and left behind show the sizes. Earlier blocks of these sizes are the parameters. Blocks
//! that one line makes later and keeps are states if they form such a set.
//!
//! Guarantees: no more blocks of a size become parameters than there were gradients of it. Sizes are compared after
//! the allocator's rounding. Single blocks never count as states: a set must cover half of the parameters and contain
//! little else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use memctl_model::allocator::round_to_block;
use memctl_model::{Phase, StackId};

use super::passes::Passes;
use super::rules::{Reading, Says};
use super::{Class, MemoryRequest, OPEN, Stay};

/// Maximum number of optimizer moments (Adam has two) whose states one line makes.
const MOMENTS_MAX: u64 = 4;
/// Minimum number of blocks of a set: one or two can match another size by chance.
const SET_BLOCKS_MIN: u64 = 3;
/// Ratios of a state's size to its parameter's size: the same size; twice the size (single precision for parameters in
/// half precision); a quarter and a half (eight bits for parameters of 32 and 16 bits).
const RATIOS: [(u64, u64); 4] = [SAME, (2, 1), (1, 4), (1, 2)];
const SAME: (u64, u64) = (1, 1);

/// Number of blocks by their size.
type Sizes = BTreeMap<u64, u64>;

/// The size after the allocator's rounding.
pub(super) fn rounded(bytes: u64) -> u64 {
    round_to_block(bytes)
}

fn bytes_of(sizes: &Sizes) -> u64 {
    sizes.iter().fold(0, |sum, (bytes, blocks)| bytes.saturating_mul(*blocks).saturating_add(sum))
}

/// The facts about a recording's requests. Each list has one entry per request.
pub(super) struct RequestFacts<'a> {
    pub asked: &'a [MemoryRequest],
    pub read: &'a [Reading],
    pub stays: &'a [Stay],
    pub passes: &'a Passes,
}

impl RequestFacts<'_> {
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &MemoryRequest, Says, Stay)> {
        let beside = self.read.iter().zip(self.stays);
        self.asked.iter().zip(beside).enumerate().map(|(at, (one, (read, &stay)))| (at, one, read.says, stay))
    }

    /// Whether a block existed before the recording and nothing is known about it.
    pub(super) fn is_unknown_from_before(one: &MemoryRequest, says: Says) -> bool {
        says == Says::Nothing && one.born.is_none() && one.phase.is_none()
    }

    /// By size: how many blocks a backward pass made and left behind. The pass with most blocks of a size counts.
    fn left_by_backward(&self, workspaces: &[bool]) -> Sizes {
        let mut by_pass: HashMap<(u64, Option<usize>), u64> = HashMap::new();
        for (at, one, says, _) in self.each() {
            let made = matches!(says, Says::Autograd | Says::AccumulateGrad) && !workspaces[at];
            if made && self.passes.outlives(one) {
                let pass = one.born.map(|born| self.passes.before(born));
                *by_pass.entry((rounded(one.bytes), pass)).or_default() += 1;
            }
        }
        let mut sizes = Sizes::new();
        for ((bytes, _), blocks) in by_pass {
            let most = sizes.entry(bytes).or_default();
            *most = (*most).max(blocks);
        }
        sizes
    }

    /// The stacks and sizes of blocks that were freed in the step that made them, with the first such free.
    fn freed_within(&self) -> HashMap<(StackId, u64), u64> {
        let mut freed: HashMap<(StackId, u64), u64> = HashMap::new();
        for (_, one, _, stay) in self.each().filter(|(_, one, ..)| one.ended != OPEN) {
            if stay == Stay::Within {
                let first = freed.entry((one.stack, rounded(one.bytes))).or_insert(one.ended);
                *first = one.ended.min(*first);
            }
        }
        freed
    }

    /// Possible parameters: known ones first, then the others in the order in which they were made.
    fn candidates(&self, workspaces: &[bool]) -> Vec<(usize, bool)> {
        let first = self.passes.first();
        let highest = self.asked.len() as u64;
        let mut found: Vec<(u8, u64, usize, bool)> = Vec::new();
        for (at, one, says, stay) in self.each() {
            let before = one.born.is_some_and(|born| first.is_some_and(|first| born < first));
            let own = matches!(says, Says::Elsewhere | Says::Closure) && one.phase.is_none();
            let priority = match says {
                Says::Module => 0,
                _ if workspaces[at] => continue,
                _ if Self::is_unknown_from_before(one, says) && self.passes.are_survived_by(one) => 1,
                _ if own && before => 2,
                _ => continue,
            };
            if stay == Stay::Kept || self.passes.are_survived_by(one) {
                // Blocks from before the recording are listed by address, and the driver hands out the highest address
                // first.
                found.push((priority, one.born.unwrap_or(highest - at as u64), at, priority == 1));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, at, from_before)| (at, from_before)).collect()
    }
}

/// The class of each request's block, if sets of equal sizes show it.
pub(super) fn find<K: Hash + Eq>(
    facts: &RequestFacts<'_>,
    workspaces: &[bool],
    place: impl Fn(usize) -> K,
) -> Vec<Option<Class>> {
    let mut classes: Vec<Option<Class>> = vec![None; facts.asked.len()];
    let candidates = facts.candidates(workspaces);
    let mut trained = Sizes::new();
    let left = facts.left_by_backward(workspaces);
    for &(at, _) in &candidates {
        let bytes = rounded(facts.asked[at].bytes);
        let made = left.get(&bytes).copied().unwrap_or(0);
        let known = trained.entry(bytes).or_default();
        *known = (*known + 1).min(made);
    }
    trained.retain(|_, blocks| *blocks > 0);
    parameters(facts, &candidates, &trained, &mut classes);
    earlier_gradients(facts, &trained, &mut classes);
    states(facts, &trained, place, &mut classes);
    classes
}

/// For each size, at most as many blocks become parameters as there were gradients. The remaining blocks from before
/// the recording also belong to the model (frozen weights, buffers), unless they form whole sets.
fn parameters(facts: &RequestFacts<'_>, candidates: &[(usize, bool)], trained: &Sizes, classes: &mut [Option<Class>]) {
    let is_forward = facts.read.iter().any(|read| read.says == Says::Forward);
    let (mut room, mut rest) = (trained.clone(), Vec::new());
    for &(at, from_before) in candidates {
        match room.get_mut(&rounded(facts.asked[at].bytes)).filter(|room| **room > 0) {
            Some(room) => {
                *room -= 1;
                classes[at] = Some(Class::Parameters);
            }
            None if from_before => rest.push(at),
            None => {}
        }
    }
    if trained.is_empty() && !is_forward {
        return;
    }
    let states = whole_sets(facts, &rest, trained);
    for at in rest {
        let is_state = states.contains(&rounded(facts.asked[at].bytes));
        classes[at] = Some(if is_state { Class::OptimizerState } else { Class::Parameters });
    }
}

/// The sizes of those blocks that form whole sets beside the parameters. These are states from before the recording.
fn whole_sets(facts: &RequestFacts<'_>, blocks: &[usize], trained: &Sizes) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for ratio in RATIOS {
        let of_set: BTreeSet<u64> = trained.keys().map(|&bytes| scaled(bytes, ratio)).collect();
        let mut sizes = Sizes::new();
        for bytes in blocks.iter().map(|&at| rounded(facts.asked[at].bytes)).filter(|bytes| of_set.contains(bytes)) {
            *sizes.entry(bytes).or_default() += 1;
        }
        if is_set(&sizes, trained, ratio, Cover::Whole) {
            found.extend(of_set);
        }
    }
    found
}

fn scaled(bytes: u64, (of, to): (u64, u64)) -> u64 {
    rounded(bytes.saturating_mul(of) / to)
}

/// Blocks from before the recording that are freed before the first backward pass begins are gradients of the previous
/// step.
fn earlier_gradients(facts: &RequestFacts<'_>, trained: &Sizes, classes: &mut [Option<Class>]) {
    let Some(first) = facts.passes.first() else { return };
    let mut room = trained.clone();
    for (at, one, says, _) in facts.each() {
        let went = RequestFacts::is_unknown_from_before(one, says) && one.ended < first;
        if let Some(room) = room.get_mut(&rounded(one.bytes)).filter(|room| went && **room > 0) {
            *room -= 1;
            classes[at] = Some(Class::Gradients);
        }
    }
}

/// Blocks that one line makes and keeps beyond its step are states if they form a set. If an optimizer was seen at
/// work, its own code makes its states. A set that another line makes in the parameters' precision is then a copy of
/// them (the best weights so far, a moving average).
fn states<K: Hash + Eq>(
    facts: &RequestFacts<'_>,
    trained: &Sizes,
    place: impl Fn(usize) -> K,
    classes: &mut [Option<Class>],
) {
    let is_of_optimizer = |says: Says| matches!(says, Says::Optimizer | Says::OptimizerState);
    let is_seen = facts.read.iter().any(|read| is_of_optimizer(read.says));
    // In a step that never ends, because a request failed in it, temporaries are live like states. torch's optimizers make
    // all states in `_init_group`. Other optimizers freed their temporaries in the steps before.
    let makes_states = facts.read.iter().any(|read| read.says == Says::OptimizerState);
    let freed = facts.freed_within();
    let is_temporary = |one: &MemoryRequest| {
        let ended = freed.get(&(one.stack, rounded(one.bytes)));
        ended.zip(one.born).is_some_and(|(&ended, born)| facts.passes.before(ended) < facts.passes.before(born))
    };
    let mut groups: HashMap<K, Vec<usize>> = HashMap::new();
    for (at, one, says, stay) in facts.each() {
        let may_be = matches!(says, Says::Elsewhere | Says::Closure | Says::Optimizer)
            && matches!(one.phase, None | Some(Phase::Optimizer | Phase::Train));
        let stays = stay != Stay::Within
            || one.ended == OPEN && !is_temporary(one) && !(makes_states && says == Says::Optimizer);
        if may_be && stays && classes[at].is_none() {
            groups.entry(place(at)).or_default().push(at);
        }
    }
    for group in groups.into_values() {
        let sizes = sizes_between_steps(facts, &group);
        let is_own = group.iter().any(|&at| is_of_optimizer(facts.read[at].says));
        let is_copy = |ratio: (u64, u64)| is_seen && !is_own && ratio == SAME;
        if RATIOS.iter().any(|&ratio| !is_copy(ratio) && is_set(&sizes, trained, ratio, Cover::Half)) {
            group.into_iter().for_each(|at| classes[at] = Some(Class::OptimizerState));
        }
    }
}

/// The sizes of a group's blocks that exist between two steps: at the end, or when the last backward pass began,
/// whichever is larger. Times within a step do not count, because a line that remakes a state at each step briefly has
/// a few of its blocks twice.
fn sizes_between_steps(facts: &RequestFacts<'_>, group: &[usize]) -> Sizes {
    let sizes_at = |moment: u64| {
        let mut sizes = Sizes::new();
        for one in group.iter().map(|&at| &facts.asked[at]) {
            if one.born.is_none_or(|born| born < moment) && (one.ended == OPEN || one.ended > moment) {
                *sizes.entry(rounded(one.bytes)).or_default() += 1;
            }
        }
        sizes
    };
    let at_end = sizes_at(OPEN);
    let before = facts.passes.last().map(sizes_at).unwrap_or_default();
    if bytes_of(&before) > bytes_of(&at_end) { before } else { at_end }
}

/// The part of a set that must exist, in per cent of its bytes.
#[derive(Clone, Copy)]
enum Cover {
    /// For states: a line may make them for some of the parameters only (matrices, say).
    Half = 50,
    /// For blocks of which nothing else is known.
    Whole = 95,
}

/// Whether blocks form one set or a few, and little else.
fn is_set(sizes: &Sizes, trained: &Sizes, ratio: (u64, u64), cover: Cover) -> bool {
    let mut whole = Sizes::new();
    trained.iter().for_each(|(&bytes, &blocks)| *whole.entry(scaled(bytes, ratio)).or_default() += blocks);
    if [sizes, trained].into_iter().any(|set| set.values().sum::<u64>() < SET_BLOCKS_MIN) {
        return false;
    }
    let (all, one) = (bytes_of(sizes), bytes_of(&whole).max(1));
    let times = (all.saturating_add(one / 2) / one).clamp(1, MOMENTS_MAX);
    let alike = sizes.iter().fold(0_u64, |sum, (bytes, &blocks)| {
        let there = whole.get(bytes).map_or(0, |blocks| blocks.saturating_mul(times));
        bytes.saturating_mul(blocks.min(there)).saturating_add(sum)
    });
    alike >= all - all / 10 && alike >= one.saturating_mul(times) / 100 * cover as u64
}
