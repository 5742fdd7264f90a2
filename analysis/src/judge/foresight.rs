//! How far growth vouches for a request that a replay sees fail in a step to come (see [`Foresight`]).
//!
//! | growth | vouches for |
//! |---|---|
//! | nothing bounded explains it, however near the end is, not even a long queue, and it does not come slower and slower | all steps |
//! | the same, and it comes slower and slower | the very next step, whichever that is like |
//! | several blocks remain with every rise, over 3 epochs: whole sets of tensors, of which nobody caches five | all steps |
//! | dozens of blocks remain with every rise, 4 times over 3 epochs: sets of gradients, of weights or of optimizer state | all steps |
//! | suspected for 4 epochs, with every few steps, and it hardly slows down | the very next step, whichever that is like |
//! | suspected for 4 epochs, more and more blocks, and it hardly slows down | the very next step, if that is like the last |
//! | nothing bounded explains it but a long queue: it comes with every few steps, for 4 epochs | likewise |
//! | it does not slow down at all over 3 epochs | likewise, where nothing in it is uncertain |
//!
//! Guarantees: looks at one group alone. Refuses what is confirmed only because the end is near: a cache that fills close to a full
//! device looks the same, and of those that a replay sees fail one in eleven would not. What these rules tell falsely is in
//! BENCHMARKS.md, with how they were found.

use memctl_model::{FindingKind, Foresight};

use super::candidate::Shape;
use super::evidence::{NOT_SLOWER, is_dense, is_steady, laplace, may_be_long_buffer};
use super::group::Group;

/// Rises below which nothing is vouched for that is not confirmed.
const RISES_MIN: u32 = 5;
/// Epochs with rises, of what does not slow down at all or leaves several blocks each time,
const EPOCHS_FEW: usize = 3;
/// and of anything else.
const EPOCHS_MIN: usize = 4;
/// Blocks a rise from which it leaves several, after [`RISES_MIN`].
const SEVERAL: u64 = 4;
/// Blocks a rise from which it leaves dozens, and the rises that suffice then: the best three of a training may be kept.
const DOZENS: (u64, u32) = (40, 4);

/// Laplace's statistic from which growth hardly slows down.
const HARDLY_SLOWER: f64 = -0.5;

/// See the module; `is_confirmed` says whether nothing bounded explains it.
pub(super) fn foresight(kind: FindingKind, group: &Group, is_confirmed: bool) -> Foresight {
    let lead = group.lead();
    if is_confirmed && !(kind == FindingKind::Leak && may_be_long_buffer(lead)) {
        return if is_steady(lead) { Foresight::AllSteps } else { Foresight::AnyNextStep };
    }
    let (rises, epochs) = (lead.growth.rises, lead.growth.epochs.len());
    // (What leaves whole sets is no such queue; one block that is replaced by larger ones leaves none.)
    let leaves = |several: u64, rises_min: u32| {
        rises >= rises_min && group.live_blocks() >= several * u64::from(rises) && epochs >= EPOCHS_FEW
    };
    let is_of_sets = leaves(SEVERAL, RISES_MIN) || leaves(DOZENS.0, DOZENS.1);
    if is_of_sets && (lead.shape != Shape::Larger || is_steady(lead)) {
        return Foresight::AllSteps;
    }
    if !is_confirmed && rises < RISES_MIN {
        return Foresight::Nothing;
    }
    let goes_on = epochs >= EPOCHS_MIN && laplace(lead) >= HARDLY_SLOWER;
    if goes_on && !is_confirmed && is_dense(lead) {
        Foresight::AnyNextStep
    } else if goes_on && lead.shape == Shape::More || is_confirmed && epochs >= EPOCHS_MIN {
        Foresight::NextStep
    } else if !is_confirmed && epochs >= EPOCHS_FEW && laplace(lead) >= NOT_SLOWER {
        Foresight::CertainStep
    } else {
        Foresight::Nothing
    }
}
