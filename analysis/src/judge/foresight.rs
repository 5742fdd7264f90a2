//! How much growth supports the forecast that a request of a coming step will fail (see [`Foresight`]).
//!
//! | growth | supports forecasts for |
//! |---|---|
//! | nothing bounded explains it, not even a long queue, apart from the limit being near; it does not slow down | all steps |
//! | the same, and it slows down | the very next step, of any kind |
//! | several blocks remain with every rise, over 3 epochs: whole sets of tensors, and caches do not keep five of those | all steps |
//! | dozens of blocks remain with every rise, 4 times over 3 epochs: sets of gradients, weights or optimizer state | all steps |
//! | suspected for 4 epochs, every few steps, and it hardly slows down | the very next step, of any kind |
//! | suspected for 4 epochs, more and more blocks, and it hardly slows down | the very next step, if it is like the last |
//! | only a long queue could explain it: it grows every few steps, for 4 epochs | the very next step, if it is like the last |
//! | it does not slow down at all over 3 epochs | the very next step, if like the last and nothing in it is uncertain |
//!
//! Guarantees: looks at one group alone. Refuses growth that is confirmed only because the limit is near: a cache that
//! fills close to a full device looks the same, and one in eleven of those forecasts would be false. BENCHMARKS.md has
//! the false forecasts of these rules, and how the rules were found.

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
