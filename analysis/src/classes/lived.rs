//! Requests derived from the lifetimes of a range's blocks, and how long a block stays if steps are marked.
//!
//! Guarantees: a recording's script and a device's replayed events give the same answer. A block that is never freed
//! in the recording counts as freed by its last step, because nothing later was seen.

use super::{MemoryRequest, OPEN, Stay};
use crate::lifetimes::BlockLife;

/// For each event from which a step is under way: the event and the step, in order. A step's range begins where the
/// previous step ends.
pub type Steps = [(u64, u64)];

/// The step at an event; `None` if no step is marked at all.
#[must_use]
pub fn step_at(steps: &Steps, event: u64) -> Option<u64> {
    let behind = steps.partition_point(|&(from, _)| from <= event);
    let before = behind.checked_sub(1).and_then(|at| steps.get(at));
    before.or(steps.first()).map(|&(_, step)| step)
}

impl Stay {
    /// How long a block stays that was requested in the step `born_step` and freed at the event `ended`, which may be
    /// [`OPEN`].
    #[must_use]
    pub fn of(steps: &Steps, born_step: u64, ended: u64) -> Option<Self> {
        let end = if ended == OPEN { steps.last().map(|&(_, step)| step) } else { step_at(steps, ended) };
        Some(match (ended == OPEN, end?.saturating_sub(born_step)) {
            (_, 0) => Self::Within,
            (false, 1) => Self::UntilNextStep,
            _ => Self::Kept,
        })
    }
}

impl MemoryRequest {
    /// The request of a block in a range.
    #[must_use]
    pub fn of_life(block: &BlockLife, steps: &Steps) -> Self {
        Self {
            stack: block.stack,
            bytes: block.requested_bytes,
            phase: block.birth.phase,
            born: (block.from > 0).then_some(block.from),
            ended: block.freed,
            stay: Stay::of(steps, block.birth.step, block.freed),
        }
    }
}
