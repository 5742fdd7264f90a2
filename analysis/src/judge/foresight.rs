//! Which out-of-memory forecasts the evidence of growth supports (see [`Foresight`]).
//!
//! | growth | supports forecasts for |
//! |---|---|
//! | nothing bounded explains it, not even a long queue, and it does not slow down | all steps |
//! | the same, but it slows down | the next step, whichever recorded step it resembles |
//! | several blocks remain with every rise, 5 times over 3 epochs (no cache keeps five such sets) | all steps |
//! | dozens of blocks remain with every rise, 4 times over 3 epochs: sets of gradients, weights or optimizer state | all steps |
//! | suspected for 4 epochs, it rises every few steps, it hardly slows down | the next step, whichever it resembles |
//! | suspected for 4 epochs, the number of blocks grows, and it hardly slows down | the next step, if it is like the last |
//! | only a long queue could explain it: it rises every few steps, for 4 epochs | the next step, if it is like the last |
//! | it does not slow down at all over 3 epochs | the next step, if it is like the last and no request in it has unknown timing |
//!
//! Guarantees: only one group is examined. Growth that is confirmed only because the limit is near supports nothing: a
//! cache that fills a nearly full device looks the same, and one in eleven of those forecasts would be false.
//! BENCHMARKS.md has the false forecasts of these rules, and how the rules were found.

use memctl_model::{FindingKind, Foresight};

use super::candidate::Shape;
use super::evidence::{NOT_SLOWER, is_dense, is_steady, laplace, may_be_long_buffer};
use super::group::Group;

/// Growth that is not confirmed supports a forecast only after this many rises, or those of [`DOZENS`].
const RISES_MIN: u32 = 5;
/// Minimum epochs with rises, if growth does not slow down at all or leaves several blocks each time.
const EPOCHS_FEW: usize = 3;
/// Minimum epochs with rises of all other growth.
const EPOCHS_MIN: usize = 4;
/// Minimum blocks per rise to count as several, after [`RISES_MIN`] rises.
const SEVERAL: u64 = 4;
/// Minimum blocks per rise to count as dozens, and the rises that suffice then. Three rises do not suffice, because a
/// training may keep its best three models.
const DOZENS: (u64, u32) = (40, 4);

/// Growth hardly slows down if Laplace's statistic is at least this.
const HARDLY_SLOWER: f64 = -0.5;

/// The forecasts that a group supports; `is_confirmed` is whether nothing bounded explains its growth.
pub(super) fn foresight(kind: FindingKind, group: &Group, is_confirmed: bool) -> Foresight {
    let lead = group.lead();
    if is_confirmed && !(kind == FindingKind::Leak && may_be_long_buffer(lead)) {
        return if is_steady(lead) { Foresight::AllSteps } else { Foresight::AnyNextStep };
    }
    let (rises, epochs) = (lead.growth.rises, lead.growth.epochs.len());
    // A queue does not grow by whole sets. One block that is replaced by larger ones leaves no set.
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
