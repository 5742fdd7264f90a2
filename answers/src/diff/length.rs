//! What the lengths of two runs say about their differences: a short run shows no leak, and is no proof that one is gone.

use memctl_analysis::proof_limits::{LEAK_ENDS_MIN, LEAK_STEPS_MIN, differ_in_length};
use memctl_model::FindingKind;

use super::UnjudgedFinding;
use crate::format::text::plural;
use crate::profile::{KnownFinding, Profile};

/// Divides findings that the second run lacks into those that are gone, and those that it was not judged for.
pub(super) fn gone(
    lacked: Vec<KnownFinding>,
    name: &str,
    after: &Profile,
) -> (Vec<KnownFinding>, Vec<UnjudgedFinding>) {
    let (mut gone, mut open) = (Vec::new(), Vec::new());
    for finding in lacked {
        match too_short(&finding, name, after) {
            Some(reason) => open.push(UnjudgedFinding { finding, reason }),
            None => gone.push(finding),
        }
    }
    (gone, open)
}

/// Why a run does not show whether it has a finding; `None` if it was long enough. A leak of epochs needs epochs, every
/// other leak needs steps.
fn too_short(finding: &KnownFinding, name: &str, after: &Profile) -> Option<String> {
    let is_leak = FindingKind::of_name(&finding.kind).is_some_and(FindingKind::fills);
    if !is_leak {
        return None;
    }
    let ends_min = LEAK_ENDS_MIN as u64;
    let (epochs, steps) = (epochs(after), steps(after));
    let reason = |found: u64, needed: u64, unit: &str| {
        Some(format!("not judged in {name}: {found} of {}", plural(needed, unit)))
    };
    match (finding.bytes_per_epoch, finding.bytes_per_step) {
        (Some(_), _) if epochs < ends_min && epochs > 0 => reason(epochs, ends_min, "epoch"),
        _ if epochs >= ends_min => None,
        (_, Some(_)) | (Some(_), None) if steps < LEAK_STEPS_MIN => reason(steps, LEAK_STEPS_MIN, "step"),
        _ if !after.judged.contains(&finding.kind) => Some(format!("not judged in {name}")),
        _ => None,
    }
}

/// A sentence with both lengths, if they differ by more than a quarter.
pub(super) fn apart(before: (&str, &Profile), after: (&str, &Profile)) -> Option<String> {
    let both = [(epochs as fn(&Profile) -> u64, "epoch"), (steps, "step")];
    let length = both.into_iter().map(|(of, unit)| (of(before.1), of(after.1), unit));
    let (was, is, unit) = length.into_iter().find(|&(was, is, _)| was > 0 && is > 0)?;
    let lengths = format!("{} has {} and {} has {}.", before.0, plural(was, unit), after.0, plural(is, unit));
    differ_in_length(was, is).then_some(lengths)
}

fn epochs(profile: &Profile) -> u64 {
    profile.most(|rank| Some(rank.epochs)).unwrap_or(0)
}

fn steps(profile: &Profile) -> u64 {
    profile.most(|rank| Some(rank.steps)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{Conclusion, Diff};
    use crate::profile::RankProfile;

    fn run(epochs: u64, steps: u64, findings: Vec<KnownFinding>) -> Profile {
        let rank = RankProfile { epochs, steps, peak_allocated_bytes: Some(1 << 20), ..RankProfile::default() };
        let judged = if steps < 30 { Vec::new() } else { vec!["leak".to_owned()] };
        Profile { ranks: vec![rank], findings, judged, ..Profile::default() }
    }

    fn leak(bytes_per_epoch: Option<i64>, bytes_per_step: Option<i64>) -> KnownFinding {
        KnownFinding {
            kind: "leak".into(),
            title: "It grows".into(),
            bytes_per_epoch,
            bytes_per_step,
            ..Default::default()
        }
    }

    fn diff(before: &Profile, after: &Profile) -> Diff {
        Diff::new(("a", before), ("b", after), 0)
    }

    #[test]
    fn a_leak_is_gone_only_if_the_second_run_would_have_shown_it() {
        let of_epochs = run(12, 120, vec![leak(Some(1024), None)]);
        let short = diff(&of_epochs, &run(3, 30, Vec::new()));
        assert_eq!(
            (short.gone_findings.len(), &*short.not_judged_findings[0].reason),
            (0, "not judged in b: 3 of 6 epochs")
        );
        assert!(short.sentence.starts_with("a has 12 epochs and b has 3 epochs. "), "{}", short.sentence);
        let long = diff(&of_epochs, &run(11, 110, Vec::new()));
        assert_eq!((long.gone_findings.len(), long.not_judged_findings.len()), (1, 0));
        assert!(!long.sentence.contains("11 epochs"), "{}", long.sentence);
        let of_steps = run(0, 120, vec![leak(None, Some(512))]);
        let short = diff(&of_steps, &run(0, 24, Vec::new()));
        assert_eq!(short.not_judged_findings[0].reason, "not judged in b: 24 of 30 steps");
        assert_eq!(diff(&of_steps, &run(0, 100, Vec::new())).gone_findings.len(), 1);
    }

    #[test]
    fn a_suspected_leak_is_listed_and_decides_nothing() {
        let suspected =
            KnownFinding { suspected: true, severity: memctl_model::Severity::Info, ..leak(None, Some(512)) };
        let with = diff(&run(0, 100, Vec::new()), &run(0, 100, vec![suspected]));
        assert_eq!((with.conclusion, &*with.new_findings[0].words()), (Conclusion::Same, "suspected: It grows"));
    }
}
