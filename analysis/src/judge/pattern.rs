//! What the leaking code does, as far as its blocks show.
//!
//! Guarantees: a pattern is named only where figures or stacks show it; the rest is [`Pattern::TensorsKept`].

use memctl_model::{FindingKind, Pattern};

use super::candidate::Shape;
use super::group::Group;
use super::history::Per;
use super::series::Point;
use super::watch::RankWatch;

/// Blocks a step that hooks left behind: in the first epoch and in the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hooks {
    pub first: (u32, f64),
    pub last: (u32, f64),
}

/// Epochs over which calls have to become more.
const EPOCHS_MIN: usize = 3;
/// How much more they have to become.
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
        return (Pattern::OptimizersMadeAnew, None);
    }
    match hooks(watch.sites[lead.site].series(Per::Step).points()) {
        Some(hooks) => (Pattern::HooksPileUp, Some(hooks)),
        None => (Pattern::TensorsKept, None),
    }
}

/// Whether it grows by whole sets of an optimizer's state: several blocks a time, all of them asked for by the optimizer.
fn of_optimizer(watch: &RankWatch, group: &Group) -> bool {
    let lead = group.lead();
    let asked = |frame: &memctl_model::Frame| frame.file.contains("/torch/optim/");
    let all = || group.members.iter().flat_map(|member| &member.stacks);
    let by_optimizer = all().filter(|&&stack| watch.frames_of(stack).any(|frame| asked(frame))).count();
    by_optimizer > 0
        && by_optimizer == all().count()
        && lead.blocks_gained >= u64::from(lead.growth.rises.max(1)).saturating_mul(2)
}

/// Whether blocks a step become more from epoch to epoch, step by step as hooks are registered again.
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
