//! One step as a script: what it asked for, in order, and which blocks it gave back, named so that the step can be played again.
//!
//! A block is known by the step that asked for it and by its place among that step's requests. Played again as a later step, a
//! script gives back the block in the same place of the step that lies as far behind: what a step takes over from the one before
//! it, and what a queue of the last eight steps lets go, go as they did.
//!
//! Guarantees: bounded in requests. Refuses to name a block that nobody saw come.

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::{PoolId, StackId};

use crate::request::Requested;

/// Acts of one step that are kept; a longer step is not played again.
pub(super) const ACTS_MAX: usize = 1 << 17;

/// A block: the step that asked for it, and its place among that step's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub step: u64,
    pub index: u32,
}

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub requested: Requested,
    pub stack: StackId,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The next request.
    Ask,
    /// A block is given back, which was asked for like this.
    FreeRequested(Name, Want),
    /// No stream uses it any more.
    FreeCompleted(Name),
    /// The cache is returned; so many bytes would have been reserved, had it been kept, by the request that came right behind it.
    EmptyCache(u64),
    /// Nothing uses a private pool any more.
    PoolReleased(PoolId),
}

/// A step that was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub number: u64,
    pub acts: Vec<Act>,
    pub wants: Vec<Want>,
    /// Bytes that were handed out when it began, and when it ended.
    pub allocated: (u64, u64),
    /// Most of them in between.
    pub peak_allocated: u64,
    /// Most bytes that were reserved meanwhile.
    pub peak_reserved: u64,
    /// It has more acts than are kept.
    pub is_cut: bool,
}

impl Step {
    pub fn push(&mut self, act: Act) {
        if self.acts.len() < ACTS_MAX {
            self.acts.push(act);
        } else {
            self.is_cut = true;
        }
    }

    /// Bytes that it needed above those that were handed out when it began.
    pub fn needs(&self) -> u64 {
        self.peak_allocated.saturating_sub(self.allocated.0)
    }

    /// Places among the requests of the step before it, of what that one handed on and this one gives back: what this one hands on lies
    /// in the same places.
    pub fn hands_on(&self) -> HashSet<u32> {
        let before = self.acts.iter().filter_map(|act| match act {
            Act::FreeRequested(name, _) if name.step + 1 == self.number => Some(name.index),
            _ => None,
        });
        before.collect()
    }

    /// The bytes of its requests by who asked for them, in order.
    pub fn asked(&self) -> HashMap<StackId, Vec<u64>> {
        let mut asked: HashMap<StackId, Vec<u64>> = HashMap::new();
        self.wants.iter().for_each(|want| asked.entry(want.stack).or_default().push(want.requested.bytes));
        asked
    }
}

/// What the requests of the last three steps ask for more each time.
#[derive(Default)]
pub(super) struct Rises {
    /// By who asks, and the place among their requests.
    rises: HashMap<(StackId, usize), u64>,
}

impl Rises {
    /// Those of the last step over the two before it, the later one first.
    pub fn of(last: &Step, before: [Option<&Step>; 2]) -> Self {
        let [Some(one), Some(two)] = before.map(|step| step.map(Step::asked)) else { return Self::default() };
        let mut rises = HashMap::new();
        for (stack, now) in last.asked() {
            // (Where a step asks more often than another, nobody knows which of its requests is which.)
            let of =
                |asked: &HashMap<StackId, Vec<u64>>| asked.get(&stack).filter(|all| all.len() == now.len()).cloned();
            let (Some(one), Some(two)) = (of(&one), of(&two)) else { continue };
            for (place, ((now, one), two)) in now.into_iter().zip(one).zip(two).enumerate() {
                if now > one && one > two && now - one == one - two {
                    rises.insert((stack, place), now - one);
                }
            }
        }
        Self { rises }
    }

    /// How many bytes more a request asks for when its step is played `later` steps later: where the three asked for the same
    /// amount more each time, that goes on.
    pub fn later(&self, stack: StackId, place: usize, later: u64) -> u64 {
        self.rises.get(&(stack, place)).map_or(0, |rise| rise.saturating_mul(later))
    }
}
