//! Tests of long epochs: growth once per period, leaks of one step in hundreds, and courses of a million steps.

use crate::support::watched;

use memctl_model::{EvidenceValue, Finding, Severity};
use watched::{KIB, MIB, Process, Row, frame};

const KEPT: u32 = 2;

fn training() -> Process {
    let main = frame("main", "/home/me/train.py", 90);
    Process::new(
        0,
        &[
            vec![frame("build", "/home/me/model.py", 5), main.clone()],
            vec![frame("evaluate", "/home/me/train.py", 41), main],
        ],
    )
}

fn rows(kept: u64) -> Vec<Row> {
    vec![(1, None, 10, 100 * MIB), (KEPT, None, kept, kept * MIB)]
}

fn history(finding: &Finding) -> Vec<u64> {
    let series = finding.evidence.iter().find(|(name, _)| name == "live_bytes_series");
    match series {
        Some((_, EvidenceValue::Series(series))) => series.clone(),
        _ => Vec::new(),
    }
}

#[test]
fn what_an_evaluation_keeps_every_500_of_30_000_steps_is_told_over_periods() {
    let mut process = training();
    let mut warned = None;
    for step in 0..30_000_u64 {
        process.step(&rows((step + 1) / 500));
        if warned.is_none() && (step + 1) % 500 == 0 && process.warns() {
            warned = Some((step + 1) / 500);
        }
    }
    assert!(warned.is_some_and(|rises| (8..=12).contains(&rises)), "{warned:?}");
    let found = process.judge();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:#?}");
    assert_eq!(found[0].first_seen.step, Some(499));
    let slope = found[0].bytes_per_step.unwrap().value * 500.0 / MIB as f64;
    assert!((0.9..1.1).contains(&slope), "{slope}");
    assert_eq!(found[0].live_bytes, Some(60 * MIB));
}

#[test]
fn over_a_million_steps_beginning_slope_and_course_stay_true() {
    let mut process = training();
    for step in 0..1_000_000_u64 {
        process.step(&rows((step + 1) / 500));
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
    assert_eq!(found[0].first_seen.step, Some(499));
    let slope = found[0].bytes_per_step.unwrap().value * 500.0 / MIB as f64;
    assert!((0.9..1.1).contains(&slope), "{slope}");
    let history = history(&found[0]);
    let last = history.len() - 1;
    for (index, bytes) in history.iter().enumerate() {
        let truth = 2_000 * index as u64 / last as u64 * MIB;
        assert!(bytes.abs_diff(truth) <= 100 * MIB, "point {index} of {last}: {} MiB", bytes / MIB);
    }
}

#[test]
fn one_leak_in_hundreds_of_steps_at_random_is_told_within_30_rises() {
    for seed in 1..=20_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut process = training();
        let (mut kept, mut warned) = (0, None);
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let rises = (state >> 33) % 200 == 0;
            kept += u64::from(rises);
            process.step(&rows(kept));
            if rises && warned.is_none() && process.warns() {
                warned = Some((kept, step));
            }
        }
        assert!(warned.is_some_and(|(rises, _)| rises <= 30), "seed {seed}: {warned:?} of {kept}");
    }
}

#[test]
fn a_buffer_of_a_hundred_entries_in_one_long_epoch_is_quiet() {
    for every in [1, 3, 5] {
        let mut process = training();
        for step in 0..3_000_u64 {
            process.step(&rows((step / every).min(128)));
            assert!(step % 10 != 0 || !process.warns(), "one in {every}, step {step}");
        }
        assert_eq!(process.judge(), []);
    }
}

#[test]
fn a_block_replaced_by_a_longer_one_every_step_of_eight_short_epochs_is_a_leak() {
    let mut process = training();
    // Rests that the allocator does not split off hide most of the rises.
    let rounded = |step: u64| (step + 1) * 256 * KIB + (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) % MIB;
    for step in 0..48 {
        let rows = [(1, None, 10, 100 * MIB), (KEPT, None, 1, rounded(step))];
        process.step(&rows);
        if (step + 1) % 6 == 0 {
            process.epoch_end(&rows);
        }
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:#?}");
    assert!(found[0].rises.is_some_and(|rises| rises > 15), "{:?}", found[0].rises);
}

/// `self.stats = torch.cat([self.stats, …])` of a few kilobytes per step. Once the tensor is larger than a megabyte,
/// the old and the new block alternate, and one of them is 2 MiB that the allocator does not split.
#[test]
fn small_growth_that_takes_turns_with_an_unsplit_block_is_seen_and_taking_turns_alone_is_not() {
    let judged = |grows: u64| {
        let mut process = training();
        for step in 1..=120_u64 {
            let requested = if grows == 0 { MIB + 64 * KIB } else { step * grows };
            let unsplit = requested > MIB && step % 2 == 1;
            process.step(&[(1, None, 10, 100 * MIB), (KEPT, None, 1, if unsplit { 2 * MIB } else { requested })]);
        }
        process.judge()
    };
    let found = judged(16 * KIB);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].pattern, Some(memctl_model::Pattern::ReplacedByLarger), "{found:#?}");
    assert_eq!(judged(0), []);
}
