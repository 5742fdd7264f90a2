//! One step as a script: what it asked for, in order, and which blocks it gave back, named so that the step can be played again.
//!
//! A block is known by the step that asked for it and by its place among that step's requests. Played again as a later step, a
//! script gives back the block in the same place of the step that lies as far behind: what a step takes over from the one before
//! it, and what a queue of the last eight steps lets go, go as they did.
//!
//! Guarantees: bounded in requests. Refuses to name a block that nobody saw come.

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
    /// The cache is returned.
    EmptyCache,
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

    /// Bytes of a request when the step is played `later` steps later: where the last three steps asked for the same amount
    /// more each time, that goes on.
    pub fn bytes(&self, index: usize, before: [Option<&Self>; 2], later: u64) -> u64 {
        let Some(&own) = self.wants.get(index) else { return 0 };
        let of = |step: Option<&Self>| {
            let step = step.filter(|step| step.wants.len() == self.wants.len())?;
            step.wants.get(index).filter(|want| want.stack == own.stack).map(|want| want.requested.bytes)
        };
        let bytes = own.requested.bytes;
        match before.map(of) {
            [Some(one), Some(two)] if bytes > one && one > two && bytes - one == one - two => {
                bytes.saturating_add((bytes - one).saturating_mul(later))
            }
            _ => bytes,
        }
    }
}
