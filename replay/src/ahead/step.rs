//! One step as a script: its requests in order and the blocks that it freed, named so that the step can be replayed.
//!
//! A block is identified by the step that requested it and by its place among that step's requests. When a script is
//! replayed as a later step, it frees the block in the same place of the step that is as far back. So blocks carried
//! over from the previous step, and blocks that leave a queue of the last eight steps, are freed as recorded.
//!
//! Guarantees: the number of requests is bounded. A block whose allocation was not seen has no name.

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::{PoolId, StackId};

use crate::request::Requested;

/// Maximum number of acts of one step. A longer step is not replayed.
pub(super) const ACTS_MAX: usize = 1 << 17;

/// A block: the step that requested it, and its place among that step's requests.
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

/// One act of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The next request.
    Ask,
    /// A block is freed; the request that allocated it is included.
    FreeRequested(Name, Want),
    /// No stream uses the block any more.
    FreeCompleted(Name),
    /// The cache is emptied. The number is the bytes that the directly following request would have brought the
    /// reserved memory to without that.
    EmptyCache(u64),
    /// A private pool is no longer used.
    PoolReleased(PoolId),
}

/// A recorded step.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub number: u64,
    pub acts: Vec<Act>,
    pub wants: Vec<Want>,
    /// Allocated bytes at its begin and at its end.
    pub allocated: (u64, u64),
    /// The highest allocated bytes during the step.
    pub peak_allocated: u64,
    /// The highest reserved bytes during the step.
    pub peak_reserved: u64,
    /// Whether it had more acts than are kept.
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

    /// Bytes that it needed in addition to those allocated at its begin.
    pub fn needs(&self) -> u64 {
        self.peak_allocated.saturating_sub(self.allocated.0)
    }

    /// Places among the requests of the previous step of the blocks that it carried over and that this step frees.
    /// This step carries its own blocks over in the same places.
    pub fn hands_on(&self) -> HashSet<u32> {
        let before = self.acts.iter().filter_map(|act| match act {
            Act::FreeRequested(name, _) if name.step + 1 == self.number => Some(name.index),
            _ => None,
        });
        before.collect()
    }

    /// The bytes of its requests by stack, in order.
    pub fn asked(&self) -> HashMap<StackId, Vec<u64>> {
        let mut asked: HashMap<StackId, Vec<u64>> = HashMap::new();
        self.wants.iter().for_each(|want| asked.entry(want.stack).or_default().push(want.requested.bytes));
        asked
    }
}

/// The amounts by which requests of the last steps rise from step to step.
#[derive(Default)]
pub(super) struct Rises {
    /// The rise by stack and by the place among the stack's requests.
    rises: HashMap<(StackId, usize), u64>,
}

impl Rises {
    /// The rises of the last step over the two before it, the newest first. If the three steps rose by equal amounts,
    /// the rise is that amount.
    pub fn of(last: &Step, before: [Option<&Step>; 2]) -> Self {
        let [Some(one), Some(two)] = before.map(|step| step.map(Step::asked)) else {
            return Self::default();
        };
        let mut rises = HashMap::new();
        for (stack, now) in last.asked() {
            // If a stack has more requests in one step than in another, they cannot be matched.
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

    /// Additional bytes of a request when its step is replayed `later` steps later.
    pub fn later(&self, stack: StackId, place: usize, later: u64) -> u64 {
        self.rises.get(&(stack, place)).map_or(0, |rise| rise.saturating_mul(later))
    }
}
