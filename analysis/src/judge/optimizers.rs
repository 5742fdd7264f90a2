//! Growth of optimizer state: one optimizer that gets further parameters, or several optimizers.
//!
//! Blocks of optimizer state look the same in both cases, and rises of equal size show nothing, because layers are often
//! equal. Only the holders distinguish them. The `state` of one optimizer has a number of tensors, and it cannot hold
//! more blocks than tensors. If one path leads to far more blocks, several optimizers are kept.
//!
//! Guarantees: an optimizer is said to be recreated only if the answer of a process shows several.

use memctl_model::{EvidenceValue, Finding, HoldersFound, Pattern, TensorHolder};

/// The optimizers that hold the memory of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optimizers {
    /// Unknown.
    Unknown,
    /// One holds all of it.
    One,
    /// Several hold it.
    Several,
}

/// Several optimizers hold at least this many times the tensors of one. Two may be the two of a GAN. Of three, each with
/// a third of its tensors on the host (the steps of Adam), it is this many.
const SEVERAL: f64 = 2.0;

/// The optimizers that hold the memory of a finding; `None` if its main holder is no optimizer's state.
pub(super) fn of(finding: &Finding) -> Option<Optimizers> {
    let (at, holder, found) = finding.main_holder().filter(|(_, holder, _)| holder.is_optimizer_state())?;
    let pace = finding.holders.as_ref().and_then(|holders| holders.pace.get(at).copied().flatten());
    // The state of one optimizer has become longer, so that optimizer got parameters.
    if pace.is_some_and(|pace| pace.grew_with_bytes()) {
        return Some(Optimizers::One);
    }
    Some(match holder.tensors.map(|tensors| blocks(holder, found) / tensors.max(1) as f64) {
        Some(times) if times >= SEVERAL => Optimizers::Several,
        Some(times) if times <= 1.0 && holds_nearly_all(holder, found) => Optimizers::One,
        _ => Optimizers::Unknown,
    })
}

/// The blocks that a holder has if the requested blocks represent all blocks of the place.
fn blocks(holder: &TensorHolder, found: &HoldersFound) -> f64 {
    let share = f64::from(holder.blocks) / f64::from(found.asked_blocks.max(1));
    (found.live_blocks as f64 * share).max(f64::from(holder.blocks))
}

fn holds_nearly_all(holder: &TensorHolder, found: &HoldersFound) -> bool {
    10 * u64::from(holder.blocks) >= 9 * u64::from(found.found_blocks)
}

/// Sets the pattern of growth of optimizer state, and the sentences that depend on it.
pub(super) fn name(finding: &mut Finding) {
    if finding.pattern != Some(Pattern::OptimizerState) {
        return;
    }
    match of(finding) {
        Some(Optimizers::Several) => {
            finding.pattern = Some(Pattern::OptimizerRecreated);
            finding.title = finding.title.replace(TITLE_OPEN, TITLE_RECREATED);
            finding.explanation = finding.explanation.replace(WHY_OPEN, WHY_RECREATED);
            finding.advice = ADVICE_RECREATED.to_owned();
            for (name, value) in &mut finding.evidence {
                if name == "pattern" {
                    *value = EvidenceValue::Text(Pattern::OptimizerRecreated.name().to_owned());
                }
            }
        }
        Some(Optimizers::One) => {
            finding.explanation = finding.explanation.replace(WHY_OPEN, WHY_ONE);
            finding.advice = ADVICE_ONE.to_owned();
        }
        Some(Optimizers::Unknown) | None => {}
    }
}

/// The end of a title.
pub(super) const TITLE_OPEN: &str = "; it is optimizer state";
const TITLE_RECREATED: &str = "; a new optimizer is created each time while the old one is still referenced";

/// The end of an explanation.
pub(super) const WHY_OPEN: &str = " Either one optimizer gets further parameters (add_param_group, as in progressive \
                                   unfreezing), which ends when all parameters have state; or a new optimizer is created \
                                   each time while something still references the old one.";
const WHY_RECREATED: &str = " These are whole sets, which an optimizer allocates in its first step. Something still \
                             references the earlier optimizers.";
const WHY_ONE: &str = " One optimizer holds them: it gets further parameters (add_param_group, as in progressive \
                       unfreezing). The growth ends when all parameters have state.";

/// The advice.
pub(super) const ADVICE_OPEN: &str = "If the program adds parameters to one optimizer, nothing has to change. If it creates a new \
                                      optimizer each time, create one and keep it, or drop every reference to the old one \
                                      first (schedulers, lists and hooks hold it too).";
const ADVICE_RECREATED: &str = "Create one optimizer and keep it; where the program needs a new one, drop every reference to the \
                                old one first (schedulers, lists and hooks hold it too).";
const ADVICE_ONE: &str = "If parameters are added on purpose, nothing has to change: check that the device has room for the state of \
                          all parameters. Otherwise, look for parameters that are added repeatedly.";

#[cfg(test)]
mod tests {
    use memctl_model::{FindingHolders, FindingKind, Frame, HolderKind, HolderPace, HoldersAsked, Severity};

    use super::*;

    const CHAIN: [&str; 6] =
        ["`Adam` object", "attribute `state`", "dict, 14 items", "key `a Parameter`", "dict, 3 items", "Tensor"];

    /// Growth of optimizer state with this answer: the tensors of the `state`, its blocks among those asked about, and all.
    fn finding(tensors: u64, blocks: u32, asked: u32, live: u64, pace: Option<HolderPace>) -> Finding {
        let holder = TensorHolder {
            holder: HolderKind::Container,
            chain: CHAIN.map(str::to_owned).to_vec(),
            tensors: Some(tensors),
            blocks,
            ..TensorHolder::default()
        };
        let found = HoldersFound {
            live_blocks: live,
            asked_blocks: asked,
            found_blocks: blocks,
            holders: vec![holder],
            ..HoldersFound::default()
        };
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
        Finding {
            pattern: Some(Pattern::OptimizerState),
            title: format!("Live memory grows{TITLE_OPEN}"),
            explanation: format!("Blocks stayed.{WHY_OPEN}"),
            holders: Some(FindingHolders { asked, growth: vec![None], pace: vec![pace], sentence: String::new() }),
            ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
        }
    }

    #[test]
    fn only_an_answer_with_several_states_shows_an_optimizer_that_is_recreated() {
        // Recordings: seven Adams of 10 parameters that a list keeps, and one Adam that got all of 14 parameters.
        let (several, one) = (finding(30, 100, 121, 162, None), finding(42, 20, 21, 29, None));
        assert_eq!((of(&several), of(&one)), (Some(Optimizers::Several), Some(Optimizers::One)));
        // A large model: the 256 oldest blocks are of the first of several optimizers.
        assert_eq!(of(&finding(900, 256, 256, 6_000, None)), Some(Optimizers::Several));
        assert_eq!(of(&finding(900, 256, 256, 600, None)), Some(Optimizers::One));
        assert_eq!(of(&finding(30, 40, 40, 40, None)), Some(Optimizers::Unknown), "two, as of a GAN");
        let longer = HolderPace { since_ns: 0, length_before: 4, length_now: 9, bytes_before: 1, bytes_now: 2 };
        assert_eq!(of(&finding(30, 100, 121, 162, Some(longer))), Some(Optimizers::One), "this one got parameters");
    }

    #[test]
    fn the_sentences_follow_the_evidence() {
        let named = |mut finding: Finding| {
            name(&mut finding);
            finding
        };
        let several = named(finding(30, 100, 121, 162, None));
        assert_eq!(several.pattern, Some(Pattern::OptimizerRecreated));
        assert!(several.title.ends_with("the old one is still referenced"), "{}", several.title);
        assert!(several.explanation.contains("the earlier optimizers"), "{}", several.explanation);
        for open in [finding(42, 20, 21, 29, None), finding(30, 40, 40, 40, None)].map(named) {
            assert_eq!(open.pattern, Some(Pattern::OptimizerState));
            assert!(open.title.ends_with("it is optimizer state"), "{}", open.title);
            assert!(open.explanation.contains("all parameters have state"), "{}", open.explanation);
        }
    }
}
