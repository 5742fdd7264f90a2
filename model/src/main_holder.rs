//! Which of the holders in an answer holds the memory of a finding.
//!
//! Guarantees: what a training has once for each parameter, gradients and optimizer state, is not named beside a leak.

use crate::finding::{Finding, Pattern};
use crate::holders::{HolderBound, HolderKind, HoldersFound, TensorHolder, is_main};

impl Finding {
    /// The holder of most of the requested blocks that can grow, its index, and the answer. If several containers without a
    /// bound hold most of them together, it is the one with most blocks.
    #[must_use]
    pub fn main_holder(&self) -> Option<(usize, &TensorHolder, &HoldersFound)> {
        let found = self.holders.as_ref()?.asked.outcome.as_ref().ok()?;
        let of_optimizer = self.pattern.is_some_and(Pattern::is_of_optimizer);
        let main = |is_constant: &dyn Fn(&TensorHolder) -> bool| {
            let all = found.holders.iter().enumerate();
            let constant: u32 =
                found.holders.iter().filter(|holder| is_constant(holder)).map(|holder| holder.blocks).sum();
            let (asked, known) =
                (found.asked_blocks.saturating_sub(constant), found.found_blocks.saturating_sub(constant));
            let is_most = |holder: &TensorHolder| {
                let is_bounded = matches!(holder.bound, HolderBound::Bounded { .. });
                !is_constant(holder) && is_main(holder.blocks, asked, known, is_bounded)
            };
            all.into_iter().find(|(_, holder)| is_most(holder)).map(|(at, holder)| (at, holder, found))
        };
        // An optimizer's state is constant as well, unless it is the memory that grows.
        let beside_state = (!of_optimizer).then(|| main(&TensorHolder::holds_constant_set)).flatten();
        beside_state.or_else(|| main(&TensorHolder::holds_gradients)).or_else(|| self.first_of_several(found))
    }

    /// The graph that holds most of the blocks that a search traced before it ended early. It may hold the others, too: a
    /// search follows a graph step by step. One or two blocks are those of the step that runs.
    #[must_use]
    pub fn traced_graph(&self) -> Option<(&TensorHolder, &HoldersFound)> {
        let found = self.holders.as_ref()?.asked.outcome.as_ref().ok().filter(|found| !found.complete)?;
        let is_most = |holder: &&TensorHolder| {
            holder.holder == HolderKind::Graph
                && holder.blocks >= TRACED_MIN
                && u64::from(holder.blocks) * 4 >= u64::from(found.found_blocks) * 3
        };
        found.holders.iter().find(is_most).map(|holder| (holder, found))
    }

    /// The largest of several containers, and of the graphs that they keep, that hold most of the blocks together.
    fn first_of_several<'a>(&self, found: &'a HoldersFound) -> Option<(usize, &'a TensorHolder, &'a HoldersFound)> {
        let is_full = |holder: &TensorHolder| {
            let is_graph = holder.holder == HolderKind::Graph;
            let has_one_each = holder.length.is_some_and(|length| length >= u64::from(holder.blocks));
            let is_unbounded = matches!(holder.bound, HolderBound::Unbounded);
            !holder.holds_constant_set() && (is_graph || (holder.may_pile_up() && is_unbounded && has_one_each))
        };
        let several: Vec<(usize, &TensorHolder)> =
            found.holders.iter().enumerate().filter(|(_, holder)| is_full(holder)).collect();
        let blocks = several.iter().fold(0_u32, |sum, (_, holder)| sum.saturating_add(holder.blocks));
        let containers = several.iter().filter(|(_, holder)| holder.holder != HolderKind::Graph);
        let most = containers.max_by_key(|(at, holder)| (holder.blocks, std::cmp::Reverse(*at)))?;
        is_main(blocks, found.asked_blocks, found.found_blocks, false).then_some((most.0, most.1, found))
    }

    /// Holders that have a significant part of the blocks that the main holder does not hold, and whose memory may grow
    /// as well. One that holds at most `constant_bytes`, the bytes of the place that do not grow, shows nothing.
    #[must_use]
    pub fn holders_beside(&self, constant_bytes: u64) -> Vec<&TensorHolder> {
        let (Some(holders), Some((main, _, found))) = (self.holders.as_ref(), self.main_holder()) else {
            return Vec::new();
        };
        let grows = |at: usize, holder: &TensorHolder| {
            let stays =
                holders.pace.get(at).copied().flatten().is_some_and(|pace| pace.length_now <= pace.length_before);
            !stays && holder.may_pile_up() && !holder.holds_constant_set() && holder.bytes > constant_bytes
        };
        let others = found.holders.iter().enumerate().filter(|&(at, holder)| at != main && grows(at, holder));
        let others = others.map(|(_, holder)| holder);
        others.filter(|holder| holder.blocks.saturating_mul(BESIDE) >= found.asked_blocks.max(1)).collect()
    }
}

/// A further holder is named beside the main one only if it holds at least one part in this many of the requested
/// blocks.
const BESIDE: u32 = 8;
/// The fewest blocks of a graph that an incomplete search reports as a possible holder.
const TRACED_MIN: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{FindingKind, Severity};
    use crate::holders::{FindingHolders, GRADIENT, HoldersAsked, STATE, is_of_gradients, is_of_optimizer_state};
    use crate::stack::Frame;

    fn chain(steps: &[&str]) -> Vec<String> {
        steps.iter().map(|&step| step.to_owned()).collect()
    }

    fn held(name: &str, steps: &[&str], blocks: u32, bytes: u64) -> TensorHolder {
        let (name, chain) = (Some(name.to_owned()), chain(steps));
        TensorHolder { holder: HolderKind::Container, name, chain, blocks, bytes, ..TensorHolder::default() }
    }

    fn finding(pattern: Pattern, holders: Vec<TensorHolder>) -> Finding {
        let blocks = holders.iter().map(|holder| holder.blocks).sum();
        let found = HoldersFound { asked_blocks: blocks, found_blocks: blocks, holders, ..HoldersFound::default() };
        let asked = HoldersAsked {
            rank: 0,
            process: "rank 0".to_owned(),
            asked_ns: 1,
            unasked: true,
            budget_ms: 100,
            site: Frame { function: "train".into(), file: "train.py".into(), line: 7 },
            lines: Vec::new(),
            finding: String::new(),
            outcome: Ok(found),
        };
        let holders = FindingHolders { asked, growth: Vec::new(), pace: Vec::new(), sentence: String::new() };
        Finding {
            pattern: Some(pattern),
            holders: Some(holders),
            ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
        }
    }

    const PREDS: [&str; 4] = ["module `__main__`", "global `PREDS`", "list, 4 items", "Tensor"];
    const GRADS: [&str; 6] =
        ["local `opt` of function `main`", "`AdamW` object", STATE, "dict, 6 items", "Parameter", GRADIENT];
    const ADAM: [&str; 8] = [
        "global `opt`",
        "`Adam` object",
        STATE,
        "dict, 14 items",
        "key `a Parameter`",
        "dict, 3 items",
        "key `exp_avg`",
        "Tensor",
    ];

    #[test]
    fn gradients_and_optimizer_state_differ_from_containers_that_grow() {
        assert!(is_of_gradients(&chain(&GRADS)) && !is_of_optimizer_state(&chain(&GRADS)));
        assert!(is_of_optimizer_state(&chain(&ADAM)) && !is_of_gradients(&chain(&ADAM)));
        assert!(is_of_gradients(&chain(&["local `net` of function `main`", "`Net` object", "Parameter", GRADIENT])));
        let kept = ["global `OLD`", "list, 7 items", "`Net` object", "Parameter", GRADIENT];
        assert!(!is_of_gradients(&chain(&kept)), "models that are kept keep their gradients");
        let own = ["`Tracker` object", STATE, "dict, 7 items", "key `loss`", "Tensor"];
        assert!(!is_of_optimizer_state(&chain(&own)), "a dict of this name without parameters as keys");
        assert!(!is_of_optimizer_state(&chain(&PREDS)) && !is_of_gradients(&chain(&[])));
    }

    #[test]
    fn several_containers_hold_most_together() {
        let list = |name: &str, blocks: u32| TensorHolder {
            length: Some(u64::from(blocks) + 2),
            bound: HolderBound::Unbounded,
            ..held(name, &PREDS, blocks, u64::from(blocks) << 20)
        };
        let main = |holders: Vec<TensorHolder>, asked: u32| {
            let mut finding = finding(Pattern::TensorsKept, holders);
            if let Some(Ok(found)) = finding.holders.as_mut().map(|holders| &mut holders.asked.outcome) {
                found.asked_blocks = asked;
            }
            (finding.main_holder().map(|main| main.0), finding.holders_beside(0).len())
        };
        let three = || vec![list("energy", 30), list("recon", 30), list("sparse", 30)];
        assert_eq!(main(three(), 90), (Some(0), 2));
        assert_eq!(main(three(), 400), (None, 0), "others hold most of them");
        let graph = TensorHolder { holder: HolderKind::Graph, ..held("graph", &PREDS, 6, 6 << 20) };
        assert_eq!(main(vec![graph.clone(), list("img_list", 6)], 14), (Some(1), 1));
        assert_eq!(main(vec![graph; 2], 14), (None, 0), "a graph that no container keeps");
        let short = TensorHolder { length: Some(3), ..list("layers", 30) };
        assert_eq!(main(vec![short; 3], 90), (None, 0), "a few items that hold many blocks may never grow");
    }

    #[test]
    fn only_a_holder_whose_memory_may_grow_is_named() {
        let (preds, grads) = (held("PREDS", &PREDS, 4, 8 << 20), held("state", &GRADS, 2, 8 << 20));
        let beside = |finding: &Finding, constant| finding.holders_beside(constant).len();
        let leak = finding(Pattern::TensorsKept, vec![preds.clone(), grads.clone()]);
        assert_eq!((leak.main_holder().map(|main| main.0), beside(&leak, 0)), (Some(0), 0));
        // More gradients than kept tensors.
        let many = TensorHolder { blocks: 20, ..grads.clone() };
        let leak = finding(Pattern::TensorsKept, vec![many, preds.clone()]);
        assert_eq!(leak.main_holder().map(|main| main.0), Some(1));
        assert_eq!(finding(Pattern::TensorsKept, vec![grads]).main_holder(), None, "gradients alone are no leak");
        // Two lists grow; a list with at most the bytes that do not grow shows nothing.
        let other = held("LABELS", &PREDS, 4, 1 << 20);
        let leak = finding(Pattern::TensorsKept, vec![preds.clone(), other.clone()]);
        assert_eq!((beside(&leak, 0), beside(&leak, 1 << 20)), (1, 0));
        let variable = TensorHolder { holder: HolderKind::Variable, ..other };
        assert_eq!(beside(&finding(Pattern::TensorsKept, vec![preds.clone(), variable]), 0), 0);
        // An optimizer's state is constant, unless it is the memory that grows.
        let state = held("state", &ADAM, 20, 1 << 20);
        let of = |pattern| finding(pattern, vec![state.clone(), preds.clone()]);
        let main = |finding: &Finding| finding.main_holder().map(|main| main.0);
        assert_eq!((main(&of(Pattern::TensorsKept)), main(&of(Pattern::OptimizerState))), (Some(1), Some(0)));
        assert_eq!(beside(&of(Pattern::TensorsKept), 0), 0);
        assert_eq!(main(&finding(Pattern::TensorsKept, vec![state])), Some(0), "nothing else holds it");
    }
}
