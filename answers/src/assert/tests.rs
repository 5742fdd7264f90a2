//! Conditions on reports made by hand.

use memctl_model::{JobState, Severity};

use super::leaks::{no_findings, no_leak};
use super::peaks::unused;
use super::stable::stable;
use super::*;
use crate::conditions::{Limit, Per};
use crate::report::EpochEnd;
use crate::verdict::Verdict;
use crate::{Completeness, Job};

const MIB: u64 = 1 << 20;

/// A job whose rank has these bytes at its epoch ends, and 42 MiB after the last one.
fn report(kind: &str, ends: &[u64]) -> Report {
    let end = |(epoch, &bytes): (usize, &u64)| EpochEnd {
        epoch: epoch as u32,
        allocated_bytes: Some(bytes * MIB),
        ..EpochEnd::default()
    };
    let rank = Rank {
        epoch_ends: ends.iter().enumerate().map(end).collect(),
        end_allocated_bytes: Some(42 * MIB),
        ..Rank::default()
    };
    Report {
        job: Job { state: JobState::Finished, ..Job::default() },
        completeness: Completeness { exact: true, ..Completeness::default() },
        ranks: vec![rank],
        verdict: Some(Verdict { kind: kind.into(), ..Verdict::default() }),
        ..Report::default()
    }
}

#[test]
fn what_each_epoch_gives_back_is_stable() {
    let judged = |kind, ends: &[u64]| stable(&report(kind, ends), &Terms::default()).verdict;
    let held = [42, 42, 42, 42, 42, 81];
    assert_eq!(judged("released", &held), Outcome::Holds, "the last end is that of the last step");
    assert_eq!(judged("steady", &held), Outcome::Holds, "what is left at the end confirms the levels before");
    assert_eq!(judged("steady", &[42, 60, 81]), Outcome::DoesNotHold);
    assert_eq!(judged("steady", &[42, 81]), Outcome::Inconclusive, "nothing confirms the second one");
    assert_eq!(judged("released", &[42, 42, 42, 81, 42, 81]), Outcome::DoesNotHold);
}

#[test]
fn stable_is_open_if_no_leak_is() {
    let mut short = report("steady", &[42, 42]);
    let not = crate::judged::NotJudged {
        kind: FindingKind::Leak.name().into(),
        reason: "needs 30 steps or 3 epoch ends".into(),
        remedy: None,
        gap: "whole".into(),
        decides: true,
    };
    short.scope.not_judged = vec![not];
    let judged =
        |report: &Report| (no_leak(report, &Terms::default()).verdict, stable(report, &Terms::default()).verdict);
    assert_eq!(judged(&short), (Outcome::Inconclusive, Outcome::Inconclusive));
    short.ranks = report("steady", &[42, 60, 60]).ranks;
    assert_eq!(judged(&short).1, Outcome::DoesNotHold, "a level that rose is evidence");
}

#[test]
fn a_few_levels_that_rise_after_the_first_epoch_are_no_pass_and_no_zero() {
    // What is kept after the last epoch is in no epoch end.
    let short = |ends: &[u64], left| {
        let mut report = report("steady", ends);
        (report.ranks[0].end_allocated_bytes, report.ranks[0].growth_bytes_per_epoch) = (Some(left * MIB), Some(0));
        (report.ranks[0].epochs, report.ranks[0].steps) = (ends.len() as u64, ends.len() as u64 * 10);
        report
    };
    let limit = crate::conditions::Limit { most: MIB, inclusive: false };
    let rate = |report: &Report, per| growth::growth(report, limit, per, &Terms::default());
    for (ends, left) in [(&[43, 45, 45][..], 47), (&[43, 45, 47], 47), (&[43, 45, 47, 49, 49], 49)] {
        let report = short(ends, left);
        let checked = no_leak(&report, &Terms::default());
        assert_eq!(checked.verdict, Outcome::Inconclusive, "{ends:?}: {}", checked.because);
        for per in [Per::Epoch, Per::Step] {
            let checked = rate(&report, per);
            assert_eq!(checked.verdict, Outcome::Inconclusive, "{ends:?}: {}", checked.because);
            assert!(!checked.because.contains("0 B"), "{}", checked.because);
        }
    }
    for (ends, left) in [(&[42, 42, 42][..], 50), (&[41, 45, 45], 45), (&[41, 45, 44, 45], 45)] {
        let report = short(ends, left);
        let checked = no_leak(&report, &Terms::default());
        assert_eq!(checked.verdict, Outcome::Holds, "{ends:?}: {}", checked.because);
        assert_eq!(rate(&report, Per::Epoch).verdict, Outcome::Holds);
    }
}

#[test]
fn a_rate_of_another_unit_is_converted_by_the_steps_per_epoch() {
    let mut report = report("growing", &[40, 42, 44, 46, 48]);
    let rank = &mut report.ranks[0];
    (rank.growth_bytes_per_epoch, rank.epochs, rank.steps) = (Some(2 << 20), 5, 50);
    report.scope.judged.steps = 50;
    let limit = |kib: u64| crate::conditions::Limit { most: kib << 10, inclusive: false };
    let of = |report: &Report, kib, per| growth::growth(report, limit(kib), per, &Terms::default());
    let checked = of(&report, 1, Per::Step);
    assert_eq!((checked.verdict, checked.value_bytes), (Outcome::DoesNotHold, Some((2 << 20) / 10)));
    assert_eq!(of(&report, 300, Per::Step).verdict, Outcome::Holds);
    report.ranks[0].epoch_ends.clear();
    report.ranks[0].growth_bytes_per_epoch = None;
    let finding = Finding { kind: "leak".into(), bytes_per_step: Some(64 << 10), ..Finding::default() };
    report.findings = vec![finding];
    let checked = of(&report, 1, Per::Epoch);
    assert_eq!((checked.verdict, checked.value_bytes), (Outcome::DoesNotHold, Some(640 << 10)));
    report.findings.clear();
    report.verdict = None;
    let checked = of(&report, 1, Per::Step);
    assert_eq!((checked.verdict, checked.value_bytes), (Outcome::Holds, None), "{}", checked.because);
}

#[test]
fn a_suspected_leak_leaves_no_findings_open() {
    let mut report = report("growing", &[40, 41, 42, 43, 44, 45]);
    if let Some(verdict) = &mut report.verdict {
        verdict.cause = Some("open".into());
    }
    let finding = Finding { kind: "leak".into(), severity: Severity::Info, suspected: true, ..Finding::default() };
    report.findings = vec![finding];
    assert_eq!(no_findings(&report, &Terms::default()).verdict, Outcome::Inconclusive);
    let accepting = Terms { allow_suspected: true, allow_incomplete: true, ..Terms::default() };
    assert_eq!(no_findings(&report, &accepting).verdict, Outcome::Holds);
}

#[test]
fn an_out_of_memory_that_was_caught_is_new_whatever_its_severity() {
    let mut report = report("steady", &[42; 6]);
    let finding = Finding { kind: FindingKind::Oom.name().into(), severity: Severity::Info, ..Finding::default() };
    report.findings = vec![finding];
    let of = |profile| {
        let other = Against { name: "memory.json".into(), profile, spread: Default::default() };
        against::findings(&report, &other, &Terms { allow_incomplete: true, ..Terms::default() }, |_| true).verdict
    };
    assert_eq!(of(crate::profile::Profile::default()), Outcome::DoesNotHold);
}

#[test]
fn a_small_leak_is_a_leak_if_its_holder_is_known() {
    let holder = |bound: &'static str| crate::finding::holders::GrowingHolder {
        holder: crate::holders::Holder { bound: bound.into(), ..Default::default() },
        ..Default::default()
    };
    let small = |holders: Vec<_>| {
        let mut report = report("steady", &[40, 40, 40, 40, 40, 40]);
        report.findings = vec![Finding {
            kind: FindingKind::Leak.name().into(),
            severity: Severity::Info,
            title: "Live memory grows 5.00 KiB per epoch".into(),
            holders: Some(crate::finding::holders::FindingHolders { holders, ..Default::default() }),
            ..Finding::default()
        }];
        no_leak(&report, &Terms::default())
    };
    let leak = small(vec![holder("unbounded")]);
    assert_eq!(leak.verdict, Outcome::DoesNotHold);
    assert_eq!(leak.because, "Live memory grows 5.00 KiB per epoch (small beside the peak)");
    // At a line that also has gradients or an optimizer's state, these are no holders of the leak.
    let through = |steps: &[&str]| {
        let mut constant = holder("unbounded");
        constant.holder.chain = steps.iter().map(|&step| step.to_owned()).collect();
        constant
    };
    let gradients = through(&["`Net` object", "Parameter", "attribute `grad`"]);
    let state = through(&["`Adam` object", "attribute `state`", "dict, 14 items", "key `a Parameter`", "Tensor"]);
    assert_eq!(small(vec![gradients.clone(), holder("unbounded")]).verdict, Outcome::DoesNotHold);
    let constant = small(vec![gradients, state]);
    for not_proven in [constant, small(vec![holder("bounded")]), small(Vec::new())] {
        assert_ne!(not_proven.verdict, Outcome::DoesNotHold, "{}", not_proven.because);
    }
}

#[test]
fn growth_with_an_open_cause_is_no_pass_for_no_new_leak_unless_the_other_job_has_it() {
    let site = crate::Frame { function: "keep".into(), file: "/a/train.py".into(), line: Some(3) };
    let mut report = report("growing", &[40, 41, 42, 43, 44, 45]);
    if let Some(verdict) = &mut report.verdict {
        (verdict.cause, verdict.site) = (Some("open".into()), Some(site.clone()));
        verdict.sentence = "Live memory has grown 480 KiB. It is a leak unless what holds it is bounded.".into();
    }
    let of = |growth: Vec<crate::profile::SiteGrowth>, terms: &Terms| {
        let profile = crate::profile::Profile { growth, ..Default::default() };
        let other = Against { name: "memory.json".into(), profile, spread: Default::default() };
        against::findings(&report, &other, terms, FindingKind::is_leak).verdict
    };
    assert_eq!(of(Vec::new(), &Terms::default()), Outcome::Inconclusive);
    let accepting = Terms { allow_suspected: true, allow_incomplete: true, ..Terms::default() };
    assert_eq!(of(Vec::new(), &accepting), Outcome::Holds);
    let elsewhere = crate::Frame { file: "/b/train.py".into(), line: Some(9), ..site.clone() };
    let known = crate::profile::SiteGrowth { site: Some(elsewhere), bytes_per_epoch: 1 };
    let complete = Terms { allow_incomplete: true, ..Terms::default() };
    assert_eq!(of(vec![known], &complete), Outcome::Holds, "it has that growth, too");
}

#[test]
fn a_share_is_shown_as_it_is_typed() {
    let mut report = report("steady", &[42; 6]);
    report.ranks[0].fragmentation_ratio = Some(0.841);
    let checked = unused(&report, Limit { most: 0.5, inclusive: false }, &Terms::default());
    assert_eq!((checked.verdict, &*checked.because), (Outcome::DoesNotHold, "84.1 % at most, on rank 0"));
}

#[test]
fn a_peak_that_only_the_spread_of_repeated_runs_allows_says_so() {
    let mut report = report("steady", &[42; 6]);
    report.ranks[0].peak_allocated_bytes = Some(50 * MIB);
    let rank = crate::profile::RankProfile { peak_allocated_bytes: Some(48 * MIB), ..Default::default() };
    let profile = crate::profile::Profile { ranks: vec![rank], ..Default::default() };
    let spread = crate::baseline::Spread { peak_allocated_bytes: 4 * MIB, ..Default::default() };
    let other = Against { name: "memory.json".into(), profile, spread };
    let of = |share| {
        let allowed = crate::conditions::Allowance(Tolerance::Share(share));
        against::over(&report, against::PEAK, &other, &Terms::default(), allowed)
    };
    assert!(of(0.0).because.ends_with("its runs differ by 4.00 MiB, which is allowed"), "{}", of(0.0).because);
    assert_eq!(of(0.0).verdict, Outcome::Holds);
    assert!(!of(0.1).because.contains("differ"), "{}", of(0.1).because);
}
