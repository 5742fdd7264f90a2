//! The pattern of the leaking code, as far as its blocks show it.
//!
//! Guarantees: a pattern is named only if figures or stacks show it. All other leaks have [`Pattern::TensorsKept`].

use memctl_model::{FindingKind, Pattern};

use super::candidate::Shape;
use super::group::Group;
use super::history::Per;
use super::series::Point;
use super::watch::RankWatch;

/// Blocks per step that hooks left behind: epoch and number, for the first and for the last epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hooks {
    pub first: (u32, f64),
    pub last: (u32, f64),
}

/// Minimum number of epochs over which calls must increase.
const EPOCHS_MIN: usize = 3;
/// Minimum factor by which they must increase.
const MORE: f64 = 1.6;

/// The pattern of a group.
pub(super) fn pattern(watch: &RankWatch, kind: FindingKind, group: &Group) -> (Pattern, Option<Hooks>) {
    match kind {
        FindingKind::PrivatePools => return (Pattern::GraphsCaptured, None),
        FindingKind::EvalGraph if group.lead().per == Per::Window => return (Pattern::TensorsKept, None),
        FindingKind::EvalGraph => return (Pattern::EvalGraph, None),
        FindingKind::GraphKept => return (Pattern::GraphKept, None),
        FindingKind::HiddenChain => return (Pattern::HiddenChain, None),
        _ => {}
    }
    let lead = group.lead();
    if lead.shape == Shape::Larger {
        return (Pattern::ReplacedByLarger, None);
    }
    if of_optimizer(watch, group) {
        // Only holders show whether one optimizer or several have it.
        return (Pattern::OptimizerState, None);
    }
    match hooks(watch.sites[lead.site].series(Per::Step).points()) {
        Some(hooks) => (Pattern::HooksPileUp, Some(hooks)),
        None => (Pattern::TensorsKept, None),
    }
}

/// Whether it grows by whole sets of an optimizer's state: several blocks per rise, all requested by the optimizer.
fn of_optimizer(watch: &RankWatch, group: &Group) -> bool {
    let lead = group.lead();
    let asked = |frame: &memctl_model::Frame| frame.file.contains("/torch/optim/");
    let all = || group.members.iter().flat_map(|member| &member.stacks);
    let by_optimizer = all().filter(|&&stack| watch.frames_of(stack).any(|frame| asked(frame))).count();
    by_optimizer > 0
        && by_optimizer == all().count()
        && lead.blocks_gained >= u64::from(lead.growth.rises.max(1)).saturating_mul(2)
}

/// Whether blocks per step increase from epoch to epoch, as they do if hooks are registered repeatedly.
fn hooks(points: &[Point]) -> Option<Hooks> {
    let mut rates: Vec<(u32, f64)> = Vec::new();
    let mut before = points.first()?;
    for epoch in points.chunk_by(|a, b| a.epoch == b.epoch) {
        let last = epoch.last()?;
        let (steps, blocks) = (last.at.saturating_sub(before.at), last.blocks.saturating_sub(before.blocks));
        if steps > 0 && epoch.len() > 1 {
            rates.push((last.epoch, f64::from(blocks) / f64::from(steps)));
        }
        before = last;
    }
    let (&first, &last) = (rates.first()?, rates.last()?);
    let rising = rates.windows(2).all(|pair| pair[1].1 >= pair[0].1 * 0.95);
    let often = rates.windows(2).filter(|pair| pair[1].1 > pair[0].1 * 1.05).count() * 2 >= rates.len();
    let several = rates.len() >= EPOCHS_MIN && rising && often && first.1 > 0.0 && last.1 >= first.1 * MORE;
    several.then_some(Hooks { first, last })
}
