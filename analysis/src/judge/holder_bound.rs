//! The holder of growing memory decides whether the growth will stop.
//!
//! All rules apply to the answer of a process. A container without a bound is a leak if it has become longer or has an
//! item for each block. A container with a bound stops there. A cycle that the collector never frees is a leak, and so
//! are threads that wait and memory left behind by `backward(create_graph=True)` or by an autocast that is never left. A
//! graph that grows over many steps is a leak. If a tensor in a container is replaced by a larger one, the container's
//! length shows nothing. A dict may be the cache of a data set that the first epoch fills: over steps, it is a leak
//! only after growth over several epochs, and while its growth does not slow down. Guarantees: memory is called bounded
//! or unbounded only after an answer that found holders of most of the requested blocks.
//!
//! (Over 400 lines: the tests are next to the rules that they cover.)

use memctl_model::holders::BLOCKS_MAX;
use memctl_model::{
    Boundary, Collector, Finding, HolderBound, HolderKind, HoldersFound, Pattern, Severity, TensorHolder,
};

use super::holder_advice;
use super::optimizers::{self, Optimizers};
use super::second_holders::beside;
use crate::wording::CACHE_DOUBT;

/// Whether the holder of a finding's blocks has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Unknown.
    Unknown,
    /// The holder has no bound, and it has grown with the bytes.
    None,
    /// The growth stops by itself, at this many bytes if known.
    At(Option<u64>),
}

/// Minimum number of threads with the same memory before they count as piling up.
const THREADS_MIN: u32 = 3;
/// Minimum items of a container to decide by their number alone, if steps or epochs are marked: no other lists are
/// live at their ends.
const ITEMS_MIN: u64 = 2;
/// The same if only windows show growth. A window may end within a request, when the request's own lists are live.
/// Growth has this many rises, so a container that kept one block per rise has as many items.
const ITEMS_MIN_IN_WINDOWS: u64 = 8;
/// Rises over steps after which a graph that keeps growing is a leak. A graph ends with its backward pass, and few programs keep
/// one over several optimizer steps (accumulated gradients, inner loops); none keeps it over so many.
const GRAPH_RISES_MIN: u64 = 16;

/// The bound of the holder of a finding's blocks.
pub(super) fn bound(finding: &Finding) -> Bound {
    let in_windows = finding.first_seen.boundary == Some(Boundary::WindowEnd);
    let items_min = if in_windows { ITEMS_MIN_IN_WINDOWS } else { ITEMS_MIN };
    let outgrows_graphs = !in_windows && finding.rises.is_some_and(|rises| rises >= GRAPH_RISES_MIN);
    match of_holders(finding, items_min, outgrows_graphs) {
        Bound::None if may_fill_up(finding) => Bound::Unknown,
        bound => bound,
    }
}

/// Whether a dict holds most, and may be the cache of a finite set. Its growth slows down, as that of a cache whose keys are
/// drawn at random; or growth was not seen over several epochs, and it may be filled by the first one. (A program that
/// marks no epochs has none that fills it.)
fn may_fill_up(finding: &Finding) -> bool {
    let Some((_, holder, found)) = finding.main_holder().filter(|(_, holder, _)| holder.kind == "dict") else {
        return false;
    };
    let keeps_all = matches!(holder.bound, HolderBound::Unbounded);
    // Without steps there are no epochs either: a server's cache may fill at any time.
    let in_steps = finding.first_seen.boundary != Some(Boundary::WindowEnd);
    let in_first_epoch = in_steps && found.epoch.is_some() && finding.bytes_per_epoch.is_none();
    in_first_epoch || (keeps_all && finding.slows)
}

/// The same as [`bound`], for the holders alone.
fn of_holders(finding: &Finding, items_min: u64, outgrows_graphs: bool) -> Bound {
    let Some((at, holder, found)) = finding.main_holder() else { return Bound::Unknown };
    match optimizers::of(finding) {
        Some(Optimizers::Several) => return Bound::None,
        // The state of one optimizer grows until all of its parameters have state.
        Some(Optimizers::One | Optimizers::Unknown) => return Bound::Unknown,
        None => {}
    }
    // If a tensor is repeatedly replaced by a larger one, the number of tensors does not grow.
    let is_replaced = finding.pattern == Some(Pattern::ReplacedByLarger);
    let pace = finding.holders.as_ref().and_then(|holders| holders.pace.get(at).copied().flatten());
    let longer = pace.is_some_and(|pace| pace.grew_with_bytes());
    let is_bounded = |other: &&TensorHolder| matches!(other.bound, HolderBound::Bounded { .. });
    match (holder.holder, holder.bound) {
        // This holder's bound does not limit the memory of another holder.
        (_, HolderBound::Bounded { .. }) if !beside(finding).iter().all(is_bounded) => Bound::Unknown,
        (_, HolderBound::Bounded { limit }) => Bound::At(limit.and_then(|limit| bytes_at(found, holder, limit))),
        (HolderKind::Cycle, _) if matches!(holder.collector, Some(Collector::Off | Collector::Rare)) => Bound::None,
        (HolderKind::Thread, _) if holder.threads >= THREADS_MIN => Bound::None,
        (HolderKind::Cpp, _) if holder.pattern.is_some() => Bound::None,
        (HolderKind::Graph, _) if outgrows_graphs => Bound::None,
        (HolderKind::Container | HolderKind::Cache, HolderBound::Unbounded)
            if !is_replaced && (longer || has_one_each(holder, items_min)) =>
        {
            Bound::None
        }
        _ => Bound::Unknown,
    }
}

/// Whether a container has at least as many items as it holds blocks, and at least `items_min`.
fn has_one_each(holder: &TensorHolder, items_min: u64) -> bool {
    holder.length.is_some_and(|length| length >= u64::from(holder.blocks).max(items_min))
}

/// The bytes of a full holder with this limit of items.
///
/// Other memory at the same site, such as a library's workspace or an optimizer's state, is not an item. If the
/// process was queried about all blocks, an item is as large as the holder's own blocks. If there are more blocks,
/// only the oldest are known, and others may be larger. An item is then its share of the site's live bytes, without
/// those of other holders.
fn bytes_at(found: &HoldersFound, holder: &TensorHolder, limit: u64) -> Option<u64> {
    let length = holder.length.filter(|&length| length > 0)?;
    let (blocks, each) = (u64::from(holder.blocks), holder.bytes as f64 / f64::from(holder.blocks.max(1)));
    let held: u64 = found.holders.iter().fold(0, |sum, other| sum.saturating_add(other.bytes));
    let others = held.saturating_sub(holder.bytes);
    let item = match (found.asked_blocks as usize) < BLOCKS_MAX && blocks > 0 {
        true if blocks <= length => each,
        true => holder.bytes as f64 / length as f64,
        false => found.live_bytes.saturating_sub(others) as f64 / length as f64,
    };
    Some((item * limit as f64) as u64)
}

/// A bound counts as refuted when blocks and bytes exceed it by this factor. Items of different sizes exceed it in bytes
/// alone, and parts of items in blocks alone.
const REFUTED: f64 = 1.25;

/// Drops the bound of a holder that has outgrown it since its search: the code with the comparison does not run, or does
/// not limit the container.
fn drop_refuted(finding: &mut Finding) {
    let (Some(bytes), Some(blocks)) = (finding.live_bytes, finding.live_blocks) else { return };
    let Some((at, holder, found)) = finding.main_holder() else { return };
    let HolderBound::Bounded { limit: Some(limit) } = holder.bound else { return };
    let Some(length) = holder.length.filter(|&length| length > 0) else { return };
    let full = |now: u64| now as f64 / length as f64 * limit.max(length) as f64 * REFUTED;
    if blocks as f64 <= full(found.live_blocks) || bytes as f64 <= full(found.live_bytes) {
        return;
    }
    let holders = finding.holders.as_mut().and_then(|holders| holders.asked.outcome.as_mut().ok());
    if let Some(holder) = holders.and_then(|found| found.holders.get_mut(at)) {
        holder.bound = HolderBound::Unbounded;
    }
}

/// Applies the holders to findings about growth: a suspected finding may become a leak, a bounded one becomes
/// suspected, and the advice changes.
pub fn decide(findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|finding| finding.kind.is_leak()) {
        optimizers::name(finding);
        drop_refuted(finding);
        match bound(finding) {
            // Whatever would have stopped the growth came too late: the device was full before.
            _ if finding.filled_device => {}
            Bound::None if finding.is_suspected => {
                finding.is_suspected = false;
                finding.severity = finding.severity.max(Severity::Warning);
                // The holder has decided it.
                finding.explanation = finding.explanation.replace(CACHE_DOUBT, "");
            }
            Bound::At(_) => {
                finding.is_suspected = true;
                finding.severity = Severity::Info;
                // Growth either stops before the device is full, or the verdict reports that it does not.
                (finding.time_to_oom_seconds, finding.epochs_to_oom, finding.horizon) = (None, None, None);
            }
            _ if may_fill_up(finding) || optimizers::of(finding) == Some(Optimizers::One) => {
                finding.is_suspected = true;
                finding.severity = Severity::Info;
                (finding.time_to_oom_seconds, finding.epochs_to_oom, finding.horizon) = (None, None, None);
            }
            _ => {}
        }
        if let Some(advice) = holder_advice::advice(finding) {
            finding.advice = advice;
        }
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingHolders, FindingKind, Frame, HolderPace, HolderPattern, HoldersAsked};

    use super::*;

    fn answer(holder: TensorHolder, pace: Option<HolderPace>) -> FindingHolders {
        let found = HoldersFound { live_blocks: 40, live_bytes: 40 << 20, asked_blocks: 40, ..HoldersFound::default() };
        let site = Frame { function: "keep".into(), file: "train.py".into(), line: 3 };
        FindingHolders {
            asked: HoldersAsked {
                rank: 0,
                process: "rank 0".to_owned(),
                asked_ns: 1,
                unasked: true,
                budget_ms: 100,
                site,
                lines: vec![3],
                finding: String::new(),
                outcome: Ok(HoldersFound { holders: vec![holder], ..found }),
            },
            growth: vec![None],
            pace: vec![pace],
            sentence: String::new(),
        }
    }

    fn leak(holders: &FindingHolders) -> Finding {
        Finding { holders: Some(holders.clone()), ..Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0]) }
    }

    fn list(length: u64, bound: HolderBound) -> TensorHolder {
        let holder = HolderKind::Container;
        TensorHolder { holder, bound, length: Some(length), blocks: 40, bytes: 40 << 20, ..TensorHolder::default() }
    }

    #[test]
    fn a_bound_that_was_outgrown_is_none() {
        let bound = HolderBound::Bounded { limit: Some(60) };
        let after = |blocks: u64, bytes: u64| {
            let holders = answer(list(40, bound), None);
            let grown = Finding { live_blocks: Some(blocks), live_bytes: Some(bytes), ..leak(&holders) };
            let mut findings = [Finding { is_suspected: true, ..grown }];
            decide(&mut findings);
            findings[0].is_suspected
        };
        assert!(after(60, 60 << 20) && after(74, 74 << 20), "it may be full, with some blocks beside it");
        assert!(!after(449, 449 << 20), "it never was a bound");
        assert!(after(60, 449 << 20) && after(449, 60 << 20), "larger items, or parts of them");
    }

    #[test]
    fn a_container_decides_by_its_bound_and_by_what_it_holds() {
        let of = |holders: &FindingHolders| of_holders(&leak(holders), ITEMS_MIN, false);
        let limit = |items| HolderBound::Bounded { limit: Some(items) };
        assert_eq!(of(&answer(list(40, HolderBound::Unbounded), None)), Bound::None);
        assert_eq!(of(&answer(list(40, limit(64)), None)), Bound::At(Some(64 << 20)));
        assert_eq!(of(&answer(list(2, HolderBound::Unbounded), None)), Bound::Unknown, "it may never grow");
        let longer = HolderPace { since_ns: 0, length_before: 1, length_now: 2, bytes_before: 1, bytes_now: 2 };
        assert_eq!(of(&answer(list(2, HolderBound::Unbounded), Some(longer))), Bound::None);
        assert_eq!(of(&answer(TensorHolder { blocks: 4, ..list(40, limit(64)) }, None)), Bound::Unknown);
        let mut with_workspace = answer(list(40, limit(64)), None);
        if let Ok(found) = &mut with_workspace.asked.outcome {
            found.live_bytes += 32 << 20;
        }
        assert_eq!(of(&with_workspace), Bound::At(Some(64 << 20)), "a workspace at the same site is none of its items");
    }

    #[test]
    fn how_long_a_container_is_says_nothing_where_a_tensor_is_replaced_by_a_larger_one() {
        let mut finding = Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0]);
        finding.holders = Some(answer(list(40, HolderBound::Unbounded), None));
        assert_eq!(bound(&finding), Bound::None);
        finding.pattern = Some(Pattern::ReplacedByLarger);
        assert_eq!(bound(&finding), Bound::Unknown, "a window is as long, and stops");
    }

    /// Keys of four layers, queried in the middle of a request.
    #[test]
    fn a_short_list_of_a_request_is_no_leak() {
        let mut finding = Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0]);
        let keys = TensorHolder { blocks: 4, ..list(4, HolderBound::Unbounded) };
        let mut of_four = answer(keys, None);
        if let Ok(found) = &mut of_four.asked.outcome {
            (found.live_blocks, found.asked_blocks) = (4, 4);
        }
        finding.holders = Some(of_four);
        finding.first_seen.boundary = Some(Boundary::WindowEnd);
        assert_eq!(bound(&finding), Bound::Unknown);
        finding.first_seen.boundary = Some(Boundary::EpochEnd);
        assert_eq!(bound(&finding), Bound::None, "no request is under way at the end of an epoch");
        finding.holders = Some(answer(list(40, HolderBound::Unbounded), None));
        finding.first_seen.boundary = Some(Boundary::WindowEnd);
        assert_eq!(bound(&finding), Bound::None);
    }

    #[test]
    fn what_others_hold_at_a_site_is_no_item() {
        let full = list(466, HolderBound::Bounded { limit: Some(1_500) });
        let queue = TensorHolder { blocks: 252, bytes: 252 << 18, ..full };
        let state = TensorHolder { blocks: 4, bytes: 35 << 20, ..list(4, HolderBound::Unknown) };
        let mut answer = answer(queue, None);
        if let Ok(found) = &mut answer.asked.outcome {
            (found.asked_blocks, found.found_blocks) = (256, 256);
            (found.live_blocks, found.live_bytes) = (470, (466 << 18) + (35 << 20));
            found.holders.push(state);
        }
        assert_eq!(of_holders(&leak(&answer), ITEMS_MIN, false), Bound::At(Some(1_500 << 18)));
    }

    #[test]
    fn gradients_beside_a_bounded_container_do_not_hide_its_bound() {
        let mut with_gradients = answer(list(40, HolderBound::Bounded { limit: Some(64) }), None);
        let chain = ["`Net` object", "Parameter", "attribute `grad`"].map(str::to_owned).to_vec();
        let gradients = TensorHolder { chain, blocks: 20, holder: HolderKind::Graph, ..TensorHolder::default() };
        if let Ok(found) = &mut with_gradients.asked.outcome {
            (found.live_blocks, found.asked_blocks, found.found_blocks) = (60, 60, 60);
            found.holders.push(gradients);
        }
        assert_eq!(of_holders(&leak(&with_gradients), ITEMS_MIN, false), Bound::At(Some(64 << 20)));
    }

    #[test]
    fn the_state_of_one_optimizer_is_no_leak_and_is_not_to_be_bounded() {
        let chain = ["`Adam` object", "attribute `state`", "dict, 14 items", "key `a Parameter`", "dict", "Tensor"];
        let state = TensorHolder {
            kind: "dict".into(),
            name: Some("state".into()),
            chain: chain.map(str::to_owned).to_vec(),
            tensors: Some(60),
            ..list(40, HolderBound::Unbounded)
        };
        let of = |tensors| {
            let finding = leak(&answer(TensorHolder { tensors, ..state.clone() }, None));
            let advice = "as it is".to_owned();
            Finding { severity: Severity::Warning, pattern: Some(Pattern::TensorsKept), advice, ..finding }
        };
        let mut findings = [of(Some(60)), of(None), of(Some(10))];
        assert_eq!(findings.each_ref().map(bound), [Bound::Unknown, Bound::Unknown, Bound::None]);
        decide(&mut findings);
        assert_eq!(findings.each_ref().map(|finding| finding.is_suspected), [true, false, false]);
        assert!(findings.iter().all(|finding| finding.advice == "as it is"), "{findings:#?}");
    }

    #[test]
    fn a_dict_may_be_a_cache_that_the_first_epoch_fills() {
        let dict = TensorHolder { kind: "dict".into(), ..list(40, HolderBound::Unbounded) };
        let of = |epoch| {
            let mut holders = answer(dict.clone(), None);
            holders.asked.outcome.as_mut().unwrap().epoch = epoch;
            Finding { holders: Some(holders), ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0]) }
        };
        let mut in_first = [of(Some(0))];
        decide(&mut in_first);
        assert_eq!((in_first[0].severity, in_first[0].is_suspected), (Severity::Info, true));
        assert!(in_first[0].advice.contains("finite set"), "{}", in_first[0].advice);
        let rate = Some(memctl_model::Rate { value: 1e6, low: 1e6, high: 1e6 });
        let mut later = [Finding { bytes_per_epoch: rate, ..of(Some(2)) }, of(None)];
        decide(&mut later);
        assert!(later.iter().all(|finding| bound(finding) == Bound::None && finding.severity == Severity::Warning));
        // A cache whose keys are drawn at random from a finite set fills over several epochs, more and more slowly.
        let soon = Some(60.0);
        let mut slower = [Finding { bytes_per_epoch: rate, slows: true, time_to_oom_seconds: soon, ..of(Some(9)) }];
        decide(&mut slower);
        assert_eq!((slower[0].severity, slower[0].time_to_oom_seconds), (Severity::Info, None));
    }

    #[test]
    fn cycles_threads_and_graphs_are_leaks_where_nothing_frees_them() {
        let of = |holder, collector, threads| TensorHolder {
            holder,
            collector,
            threads,
            blocks: 40,
            ..TensorHolder::default()
        };
        let bound_of = |holder: TensorHolder| of_holders(&leak(&answer(holder, None)), ITEMS_MIN, false);
        assert_eq!(bound_of(of(HolderKind::Cycle, Some(Collector::Off), 0)), Bound::None);
        assert_eq!(bound_of(of(HolderKind::Cycle, Some(Collector::On), 0)), Bound::Unknown, "it will be freed");
        assert_eq!(bound_of(of(HolderKind::Thread, None, 7)), Bound::None);
        assert_eq!(bound_of(of(HolderKind::Thread, None, 1)), Bound::Unknown, "it may be at work");
        assert_eq!(bound_of(of(HolderKind::Cpp, None, 0)), Bound::Unknown);
        for pattern in HolderPattern::ALL {
            let left = TensorHolder { pattern: Some(pattern), ..of(HolderKind::Cpp, None, 0) };
            assert_eq!(bound_of(left), Bound::None, "{pattern:?}");
        }
    }

    #[test]
    fn a_graph_that_grows_over_many_steps_is_a_leak() {
        let graph = TensorHolder { holder: HolderKind::Graph, blocks: 40, ..TensorHolder::default() };
        let of = |rises, boundary| {
            let mut finding = Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0]);
            (finding.holders, finding.rises) = (Some(answer(graph.clone(), None)), Some(rises));
            finding.first_seen.boundary = Some(boundary);
            bound(&finding)
        };
        assert_eq!(of(GRAPH_RISES_MIN, Boundary::StepEnd), Bound::None);
        assert_eq!(of(GRAPH_RISES_MIN - 1, Boundary::StepEnd), Bound::Unknown);
        assert_eq!(of(GRAPH_RISES_MIN, Boundary::WindowEnd), Bound::Unknown, "a window is no optimizer step");
    }

    #[test]
    fn holders_make_a_leak_of_a_suspicion_and_a_suspicion_of_what_is_bounded() {
        let mut suspected = Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0]);
        suspected.is_suspected = true;
        suspected.holders = Some(answer(list(40, HolderBound::Unbounded), None));
        let mut confirmed = Finding::new(FindingKind::Leak, Severity::Critical, 0.9, vec![0]);
        confirmed.holders = Some(answer(list(40, HolderBound::Bounded { limit: None }), None));
        confirmed.title = "Live memory grows on rank 0".to_owned();
        confirmed.horizon = Some("in about 9 minutes".to_owned());
        confirmed.time_to_oom_seconds = Some(540.0);
        let mut findings = [suspected, confirmed];
        decide(&mut findings);
        assert_eq!((findings[0].severity, findings[0].is_suspected), (Severity::Warning, false));
        assert_eq!((findings[1].severity, findings[1].is_suspected), (Severity::Info, true));
        let said = (findings[1].headline(), findings[1].time_to_oom_seconds);
        assert_eq!(said, ("Live memory grows on rank 0".to_owned(), None), "it ends before");
    }

    #[test]
    fn a_bound_that_memory_did_not_reach_excuses_nothing() {
        let mut full = Finding::new(FindingKind::Leak, Severity::Critical, 0.9, vec![0]);
        full.holders = Some(answer(list(40, HolderBound::Bounded { limit: Some(600) }), None));
        full.filled_device = true;
        let mut findings = [full];
        decide(&mut findings);
        assert_eq!((findings[0].severity, findings[0].is_suspected), (Severity::Critical, false));
        let advice = &findings[0].advice;
        assert!(advice.contains("at most 600 items, but memory ran out before it was full"), "{advice}");
    }
}
