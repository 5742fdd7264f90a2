//! Whether a finding is one that the other job has: by its place, by its rate, and by what holds it.
//!
//! Guarantees: a place is a function in a file; lines and folders do not count, and a function that was moved or renamed
//! keeps its findings. A rate is compared only with a rate of the same unit; growth that the other job has without a rate
//! is known by its place. If a place grows faster, the findings that are new or faster are those that the alignment of
//! its lines leaves over, and no others.

use std::collections::BTreeMap;

use memctl_analysis::proof_limits;
use memctl_model::HumanBytes;

use crate::alignment::{Hidden, Line, Pair, align};
use crate::baseline::Spread;
use crate::conditions::Per;
use crate::finding::Finding;
use crate::profile::{KnownFinding, KnownHolder, Profile, compared_holders};
use crate::report::Report;

/// Why a finding is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum New {
    /// The other job has none of its kind in its function and file.
    Place,
    /// The other job has one there that grows more slowly.
    Faster { per: Per, before: i64, after: i64, most: i64 },
    /// The other job has one there that another object holds.
    Holder { before: String, after: String },
    /// The other job has one there, and a further object holds a part of it here.
    FurtherHolder { before: String, after: String },
}

impl New {
    /// The reason with the finding's sentence.
    pub(super) fn words(&self, title: &str) -> String {
        match self {
            Self::Place => format!("new: {title}"),
            Self::Faster { per, before, after, most } => format!(
                "new, because it grows faster than before ({} per {} after {}, {} is allowed): {title}",
                HumanBytes(*after),
                per.name(),
                HumanBytes(*before),
                HumanBytes(*most),
            ),
            Self::Holder { before, after } => {
                format!("new, because another object holds it ({after}; before: {before}): {title}")
            }
            Self::FurtherHolder { before, after } => {
                format!("new, because a further object holds a part of it ({after}; before only {before}): {title}")
            }
        }
    }
}

/// The findings of a job beside those of another one.
pub(super) struct Beside<'a> {
    here: Vec<KnownFinding>,
    other: &'a Profile,
    spread: &'a Spread,
    steps_per_epoch: u64,
}

impl<'a> Beside<'a> {
    pub(super) fn new(report: &Report, findings: &[&Finding], other: &'a Profile, spread: &'a Spread) -> Self {
        let steps = report.ranks.iter().filter_map(|rank| rank.steps.checked_div(rank.epochs)).max();
        Self {
            here: findings.iter().map(|finding| KnownFinding::from(*finding)).collect(),
            other,
            spread,
            steps_per_epoch: steps.unwrap_or(0).max(1),
        }
    }

    /// Why a finding is new; `None` if the other job has it.
    pub(super) fn news(&self, finding: &Finding) -> Option<New> {
        let holders = compared_holders(finding);
        let finding = KnownFinding::from(finding);
        let there = finding.partners(&self.here, &self.other.findings);
        if there.is_empty() {
            return Some(New::Place);
        }
        if !finding.fills() {
            return None;
        }
        let here: Vec<&KnownFinding> = self.here.iter().filter(|other| other.is_same(&finding)).collect();
        self.faster(&finding, &here, &there).or_else(|| other_holder(&holders, &there))
    }

    /// Compares the sums of all findings of one place. It grows faster if its rates are higher both per epoch and per
    /// step, as far as both runs have them: a leak of each step grows more an epoch if epochs have more steps, and a leak
    /// of each epoch grows more a step if they have fewer. Minutes count only where there are neither.
    fn faster(&self, finding: &KnownFinding, here: &[&KnownFinding], there: &[&KnownFinding]) -> Option<New> {
        let compared = |per: Per| {
            let (after, before) = (sum(here, per)?, sum(there, per).or_else(|| self.by_site(there, per))?);
            Some((per, before, after, self.limit(there, per, before)))
        };
        let mut units: Vec<_> = [Per::Epoch, Per::Step].into_iter().filter_map(compared).collect();
        if units.is_empty() {
            units.extend(compared(Per::Minute));
        }
        let &(per, before, after, most) = units.first()?;
        if units.iter().any(|&(_, _, after, most)| after <= most) {
            return None;
        }
        let blamed = self.blamed(here, there, per);
        match here.iter().position(|one| *one == finding).and_then(|at| blamed.get(&at)) {
            Some(why) => Some(why.clone()),
            // Each of them is within its own limit, and all of them together are not.
            None if blamed.is_empty() => Some(New::Faster { per, before, after, most }),
            None => None,
        }
    }

    /// Which findings of a place that grows faster are new there, or grow faster themselves.
    fn blamed(&self, here: &[&KnownFinding], there: &[&KnownFinding], per: Per) -> BTreeMap<usize, New> {
        let before: Vec<Line<'_>> = there.iter().map(|finding| line(finding, per)).collect();
        let after: Vec<Line<'_>> = here.iter().map(|finding| line(finding, per)).collect();
        let why = |(was, is): Pair| {
            let after = here[is?].rate(per)?;
            let Some(was) = was else { return Some((is?, New::Place)) };
            // Without a rate of its own, only the sum of the place is known.
            let before = there[was].rate(per)?;
            let most = self.limit(there, per, before);
            (after > most).then_some((is?, New::Faster { per, before, after, most }))
        };
        align(&before, &after, Hidden::default()).into_iter().filter_map(why).collect()
    }

    /// The highest rate that counts as equal.
    fn limit(&self, there: &[&KnownFinding], per: Per, before: i64) -> i64 {
        let spread = there.first().map_or(0, |known| self.spread.rate(known, per));
        let steps = if per == Per::Epoch { self.steps_per_epoch } else { 1 };
        proof_limits::rate_limit(before, spread, steps)
    }

    /// The rate of a place by the growth of its sites: an older memctl saved no rates of findings.
    fn by_site(&self, there: &[&KnownFinding], per: Per) -> Option<i64> {
        let place = there.first()?.place().filter(|_| per == Per::Epoch)?;
        let growth = self.other.growth.iter();
        let rates =
            growth.filter(|growth| growth.place().as_ref() == Some(&place)).map(|growth| growth.bytes_per_epoch);
        rates.reduce(i64::saturating_add)
    }
}

/// A finding's line with its growth.
fn line(finding: &KnownFinding, per: Per) -> Line<'_> {
    let growth_bytes = finding.rate(per).unwrap_or(0).unsigned_abs();
    Line { site: finding.site.as_ref(), growth_bytes, ..Line::default() }
}

/// The sum of the rates; `None` if a finding has none in this unit.
fn sum(findings: &[&KnownFinding], per: Per) -> Option<i64> {
    findings.iter().try_fold(0_i64, |sum, finding| Some(sum.saturating_add(finding.rate(per)?)))
}

/// A holder that no finding of the place has in the other job, if the names of holders are known there.
fn other_holder(here: &[KnownHolder], there: &[&KnownFinding]) -> Option<New> {
    let is_known = there.iter().all(|known| !known.holders.is_empty());
    let holders_before = || there.iter().flat_map(|known| &known.holders);
    let is_same = |one: &&KnownHolder| holders_before().any(|known| known.is_same(one));
    let after = here.iter().find(|one| is_known && !is_same(one))?.words();
    let before: Vec<String> = holders_before().map(KnownHolder::words).collect();
    match here.iter().any(|one| is_same(&one)) {
        true => Some(New::FurtherHolder { before: before.join(", "), after }),
        false => Some(New::Holder { before: before.into_iter().next()?, after }),
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingKind, JobState, Severity};

    use super::*;
    use crate::assert::against::Against;
    use crate::assert::{Outcome, Terms, against};
    use crate::baseline::Baseline;
    use crate::finding::holders::{FindingHolders, GrowingHolder};
    use crate::holders::Holder;
    use crate::report::Rank;
    use crate::verdict::Verdict;
    use crate::{Completeness, Frame, Job};

    const KIB: i64 = 1 << 10;

    /// A leak of `main` with a rate a step, in a list.
    fn leak(line: u32, bytes_per_step: i64, list: Option<&str>) -> Finding {
        in_checkout(&format!("/checkout{line}"), line, bytes_per_step, list)
    }

    fn in_checkout(folder: &str, line: u32, bytes_per_step: i64, list: Option<&str>) -> Finding {
        let frame = Frame { function: "main".into(), file: format!("{folder}/train.py"), line: Some(line) };
        let holder = |name: &str| GrowingHolder {
            holder: Holder { type_name: "list".into(), name: Some(name.into()), blocks: 100, ..Holder::default() },
            ..GrowingHolder::default()
        };
        let variable = GrowingHolder { holder: Holder { blocks: 1, ..holder("out").holder }, ..holder("out") };
        let holders = list.map(|name| FindingHolders { holders: vec![holder(name), variable], ..Default::default() });
        Finding {
            kind: FindingKind::Leak.name().into(),
            title: format!("Live memory grows {} per step", HumanBytes(bytes_per_step)),
            site: crate::finding::Site::new(Some(frame), Vec::new()),
            bytes_per_step: Some(bytes_per_step),
            holders,
            cause_known: true,
            ..Finding::default()
        }
    }

    fn suspected(finding: Finding) -> Finding {
        Finding { suspected: true, severity: Severity::Info, ..finding }
    }

    fn report(findings: Vec<Finding>) -> Report {
        let mut report = Report {
            job: Job { state: JobState::Finished, ..Job::default() },
            completeness: Completeness { exact: true, ..Completeness::default() },
            ranks: vec![Rank { steps: 100, events: 1, ..Rank::default() }],
            ..Report::default()
        };
        let is_open = findings.iter().any(|finding| finding.suspected);
        let cause = if is_open { "open" } else { "known" };
        let site = findings.first().and_then(|finding| finding.site.as_ref()).map(|site| site.frame.clone());
        report.verdict =
            Some(Verdict { kind: "growing".into(), cause: Some(cause.into()), site, ..Verdict::default() });
        report.scope.judged.steps = 100;
        Report { findings, ..report }
    }

    fn compared(before: Vec<Finding>, after: Vec<Finding>, spread: Spread) -> (Outcome, String) {
        // Through the file, as it is committed.
        let file = Baseline::new(&[Profile::new(&report(before), None)]).unwrap();
        let file = Baseline::read(&serde_json::to_vec(&file).unwrap()).unwrap();
        let other = Against { name: "memory.json".into(), profile: file.profile, spread };
        let checked = against::findings(&report(after), &other, &Terms::default(), FindingKind::is_leak);
        (checked.verdict, checked.because)
    }

    #[test]
    fn a_known_leak_that_moved_is_known_and_one_elsewhere_is_new() {
        let judged = |before, after| compared(before, after, Spread::default());
        assert_eq!(judged(vec![leak(7, 64 * KIB, None)], vec![leak(9, 70 * KIB, None)]).0, Outcome::Holds);
        let (outcome, because) = judged(Vec::new(), vec![leak(9, 70 * KIB, None)]);
        assert_eq!((outcome, &*because), (Outcome::DoesNotHold, "new: Live memory grows 70.0 KiB per step"));
    }

    #[test]
    fn new_growth_with_an_open_cause_is_inconclusive() {
        let open = || vec![Finding { cause_known: false, ..leak(9, 70 * KIB, None) }];
        let (outcome, because) = compared(Vec::new(), open(), Spread::default());
        assert_eq!(outcome, Outcome::Inconclusive, "{because}");
        assert!(because.contains("no answer about what holds it is stored"), "{because}");
        assert_eq!(compared(open(), open(), Spread::default()).0, Outcome::Holds);
    }

    #[test]
    fn a_known_leak_that_grows_faster_is_new() {
        let known = || vec![leak(7, 64 * KIB, None)];
        let (outcome, because) = compared(known(), vec![leak(7, 640 * KIB, None)], Spread::default());
        assert_eq!(outcome, Outcome::DoesNotHold);
        assert!(
            because.contains("faster than before (640 KiB per step after 64.0 KiB, 80.0 KiB is allowed)"),
            "{because}"
        );
        // A second leak in the same function adds to the rate of the place.
        let second = || vec![leak(7, 64 * KIB, None), leak(8, 64 * KIB, None)];
        assert_eq!(compared(known(), second(), Spread::default()).0, Outcome::DoesNotHold);
        assert_eq!(compared(second(), second(), Spread::default()).0, Outcome::Holds);
        assert_eq!(compared(second(), known(), Spread::default()).0, Outcome::Holds, "it grows more slowly");
        // One block a step is rounding, and repeated runs widen what is allowed.
        assert_eq!(compared(vec![leak(7, 512, None)], vec![leak(7, 1024, None)], Spread::default()).0, Outcome::Holds);
        let runs = [64, 192].map(|kib| Profile::new(&report(vec![leak(7, kib * KIB, None)]), None));
        let spread = Baseline::new(&runs).unwrap().spread;
        assert_eq!(compared(known(), vec![leak(7, 200 * KIB, None)], spread).0, Outcome::Holds);
    }

    #[test]
    fn only_the_line_that_is_new_in_a_place_is_blamed() {
        let run = |checkout: &str, leaks: &[(u32, i64)]| {
            report(leaks.iter().map(|&(line, kib)| in_checkout(checkout, line, kib * KIB, None)).collect())
        };
        let news = |before: &[(u32, i64)], after: &[(u32, i64)]| {
            let (other, after) = (Profile::new(&run("/a", before), None), run("/b", after));
            let (spread, findings) = (Spread::default(), after.findings.iter().collect::<Vec<_>>());
            let beside = Beside::new(&after, &findings, &other, &spread);
            findings.iter().map(|finding| beside.news(finding)).collect::<Vec<_>>()
        };
        let faster = |before: i64, after: i64| {
            let most = proof_limits::rate_limit(before * KIB, 0, 1);
            Some(New::Faster { per: Per::Step, before: before * KIB, after: after * KIB, most })
        };
        // The known leak moved from line 7 to 9, and the new one has the line 7.
        assert_eq!(news(&[(7, 64)], &[(7, 640), (9, 64)]), [Some(New::Place), None]);
        assert_eq!(news(&[(7, 64)], &[(9, 64), (12, 640)]), [None, Some(New::Place)]);
        assert_eq!(news(&[(7, 64), (8, 32)], &[(7, 64), (8, 320)]), [None, faster(32, 320)]);
        assert_eq!(news(&[(7, 64), (8, 32)], &[(10, 64), (11, 320)]), [None, faster(32, 320)]);
    }

    #[test]
    fn a_known_leak_of_each_step_is_not_faster_because_epochs_have_more_steps() {
        let of = |bytes_per_epoch: i64, bytes_per_step: i64| {
            vec![Finding { bytes_per_epoch: Some(bytes_per_epoch), ..leak(7, bytes_per_step, None) }]
        };
        let judged = |before, after| compared(before, after, Spread::default()).0;
        // Twice the steps, and half of them; then a leak of each epoch with half the steps.
        assert_eq!(judged(of(640 * KIB, 32 * KIB), of(1280 * KIB, 32 * KIB)), Outcome::Holds);
        assert_eq!(judged(of(640 * KIB, 32 * KIB), of(320 * KIB, 32 * KIB)), Outcome::Holds);
        assert_eq!(judged(of(640 * KIB, 32 * KIB), of(640 * KIB, 64 * KIB)), Outcome::Holds);
        assert_eq!(judged(of(640 * KIB, 32 * KIB), of(1280 * KIB, 64 * KIB)), Outcome::DoesNotHold);
        assert_eq!(judged(of(640 * KIB, 32 * KIB), of(2560 * KIB, 64 * KIB)), Outcome::DoesNotHold);
    }

    #[test]
    fn a_leak_of_another_object_is_new_if_both_names_are_known() {
        let judged = |before, after| {
            compared(vec![leak(7, 64 * KIB, before)], vec![leak(7, 64 * KIB, after)], Spread::default())
        };
        let (outcome, because) = judged(Some("history"), Some("second"));
        assert_eq!(outcome, Outcome::DoesNotHold);
        assert!(because.contains("another object holds it (list second; before: list history)"), "{because}");
        for (before, after) in [(Some("history"), Some("history")), (None, Some("second")), (Some("history"), None)] {
            assert_eq!(judged(before, after).0, Outcome::Holds, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_further_object_at_a_known_place_is_new() {
        let with = |second: &str, blocks: u32| {
            let mut leak = leak(7, 64 * KIB, Some("history"));
            let holder = Holder { type_name: "list".into(), name: Some(second.into()), blocks, ..Holder::default() };
            let further = GrowingHolder { holder, ..GrowingHolder::default() };
            leak.holders.as_mut().unwrap().holders.insert(1, further);
            vec![leak]
        };
        let judged = |before, after| compared(before, after, Spread::default());
        let (outcome, because) = judged(vec![leak(7, 64 * KIB, Some("history"))], with("losses", 60));
        assert_eq!(outcome, Outcome::DoesNotHold);
        assert!(
            because.contains("a further object holds a part of it (list losses; before only list history)"),
            "{because}"
        );
        assert_eq!(judged(with("losses", 40), with("losses", 60)).0, Outcome::Holds, "a share near the limit");
        assert_eq!(judged(vec![leak(7, 64 * KIB, Some("history"))], with("losses", 40)).0, Outcome::Holds);
    }

    #[test]
    fn a_suspected_leak_is_known_to_its_own_baseline() {
        let one = |bytes| vec![suspected(leak(7, bytes, None))];
        assert_eq!(compared(one(64 * KIB), one(64 * KIB), Spread::default()).0, Outcome::Holds);
        assert_eq!(compared(Vec::new(), one(64 * KIB), Spread::default()).0, Outcome::Inconclusive);
        let (outcome, because) = compared(one(64 * KIB), one(640 * KIB), Spread::default());
        assert_eq!(outcome, Outcome::Inconclusive);
        assert!(because.starts_with("suspected and new, because it grows faster"), "{because}");
        let saved = Profile::new(&report(one(64 * KIB)), None);
        assert_eq!(serde_json::to_value(&saved.findings[0]).unwrap()["suspected"], true);
    }

    #[test]
    fn a_file_of_an_older_memctl_is_read_and_knows_leaks_by_their_place() {
        let known = KnownFinding::from(&leak(7, 64 * KIB, None));
        let mut old = serde_json::to_value(&known).unwrap();
        let fields = old.as_object_mut().unwrap();
        fields.retain(|name, _| ["kind", "site", "subject", "title"].contains(&&**name));
        let old: KnownFinding = serde_json::from_value(old).unwrap();
        assert!(old.is_warning_or_worse() && !old.suspected && old.is_same(&known));
        let profile = Profile { findings: vec![old], ..Profile::default() };
        let other = Against { name: "memory.json".into(), profile, spread: Spread::default() };
        let later = report(vec![leak(9, 640 * KIB, None)]);
        let checked = against::findings(&later, &other, &Terms::default(), FindingKind::is_leak);
        assert_eq!(checked.verdict, Outcome::Holds);
    }
}
