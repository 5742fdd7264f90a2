//! Tests of the rhythm of growth: in an epoch's first step or in its middle, every two or three steps, hidden by
//! requests under way.
//!
//! Guarantees: each leak has a harmless counterpart with the same numbers.

use crate::support::watched;

use memctl_model::{Boundary, Frame};
use watched::{KIB, MIB, Process, frame};

fn stacks() -> Vec<Vec<Frame>> {
    vec![
        vec![frame("collect", "/home/user/train/metrics.py", 31), frame("main", "/home/user/train/train.py", 12)],
        vec![frame("forward", "/home/user/train/model.py", 40), frame("main", "/home/user/train/train.py", 10)],
    ]
}

/// A tensor that is replaced by a longer one once per epoch, in the step `of_epoch`. Epochs have ten steps.
fn replaced_in(of_epoch: u64, epochs: u64) -> Process {
    let mut process = Process::new(0, &stacks());
    for epoch in 0..epochs {
        for step in 0..10 {
            let times = epoch + u64::from(step >= of_epoch);
            process.step(&[(1, None, 1, (times + 1) * MIB), (2, None, 4, 8 * MIB)]);
        }
        process.epoch_end(&[(1, None, 1, (epoch + 2) * MIB), (2, None, 4, 8 * MIB)]);
    }
    process
}

#[test]
fn what_becomes_longer_amid_each_epoch_is_told_before_what_may_be_a_curriculum() {
    assert!(replaced_in(6, 9).warns(), "{:?}", replaced_in(6, 9).judge());
    for begins in [0, 1] {
        let curriculum = replaced_in(begins, 12);
        assert!(!curriculum.warns(), "{:?}", curriculum.judge());
    }
    assert!(replaced_in(0, 17).warns());
}

/// A recording with found steps and unknown epochs. A piece stays in each of the steps for which `stays` is true.
fn found(steps: u64, stays: impl Fn(u64) -> bool) -> Process {
    let mut process = Process::new(0, &stacks());
    let mut pieces = 0;
    for step in 0..steps {
        pieces += u64::from(stays(step));
        process.time_ns += 100_000_000;
        process.events += 500;
        let rows = [(1, None, 1, (pieces + 1) * 512 * KIB), (2, None, 4, 8 * MIB)];
        let table = process.table(Boundary::StepEnd, &rows);
        process.watch.table(&memctl_model::SiteTable { found: true, ..table });
        process.step += 1;
    }
    process
}

#[test]
fn a_history_whose_rounded_size_rises_every_two_or_three_steps_comes_at_a_rhythm() {
    // 200 KiB per step, rounded to 512 KiB: it rises after two, three, three, two, … steps.
    let history = |step: u64| (step + 1) * 200 / 512 > step * 200 / 512;
    assert!(found(120, history).warns(), "{:?}", found(120, history).judge());
    // The same number of rises at random (a multiplicative generator, because they only have to look random).
    let random = |step: u64| {
        (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(step ^ 0x2545_f491_4f6c_dd1d) >> 32 & 255 < 100
    };
    assert!((40..60).contains(&(0..120).filter(|&step| random(step)).count()));
    assert!(!found(120, random).warns(), "{:?}", found(120, random).judge());
}

/// A server whose requests under way hold 0 to 6 blocks of a line. `kept` returns the number of blocks of this line
/// that stay.
fn requests(seconds: u64, kept: impl Fn(u64) -> u64) -> Process {
    let mut process = Process::new(0, &stacks());
    for second in 0..seconds {
        let under_way = [3, 0, 6, 2, 5, 1, 4][second as usize % 7];
        let blocks = under_way + kept(second);
        process.window(&[(1, None, blocks, blocks * 256 * KIB), (2, None, 4, 8 * MIB)]);
    }
    process
}

#[test]
fn what_requests_under_way_hold_does_not_hide_what_stays_of_them() {
    let leaks = requests(150, |second| second / 6);
    assert!(leaks.warns(), "{:?}", leaks.judge());
    let serves = requests(600, |_| 0);
    assert!(serves.judge().is_empty(), "{:?}", serves.judge());
    let fills = requests(300, |second| second.min(40) / 6);
    assert!(!fills.warns(), "{:?}", fills.judge());
}
