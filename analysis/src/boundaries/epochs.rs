//! Epochs: rounds between two iterations of the outer loop, or between two releases of accumulated memory.
//!
//! Guarantees: epochs are in order and do not overlap; each ends with a round. Single releases and releases at
//! irregular intervals do not mark epochs.

use super::Span;
use super::rounds::Round;
use crate::statistics::upper_median;

/// Minimum range of live bytes between rounds. If the range is smaller, a fall of the level is no evidence of an
/// epoch.
const GATHERED_BYTES_MIN: i64 = 1 << 20;
/// Minimum number of rounds between two releases of memory.
const PERIOD_MIN: usize = 3;

/// The epochs of rounds.
pub(super) fn epochs(rounds: &[Round]) -> Vec<Span> {
    let Some(last) = rounds.len().checked_sub(1) else { return Vec::new() };
    let outer_ends: Vec<usize> = (0..last).filter(|&at| rounds[at].outer_ns.is_some()).collect();
    let ends = if outer_ends.is_empty() { let_go(rounds) } else { outer_ends };
    if ends.is_empty() {
        return Vec::new();
    }
    let mut epochs = Vec::with_capacity(ends.len() + 1);
    let mut begin = 0;
    for end in ends.into_iter().chain([last]) {
        if let (Some(first), Some(round)) = (rounds.get(begin), rounds.get(end)) {
            let end_ns = round.outer_ns.unwrap_or(round.span.end_ns);
            epochs.push(Span { begin_ns: first.span.begin_ns.min(end_ns), end_ns });
        }
        begin = end + 1;
    }
    epochs
}

/// The rounds after which live memory fell back after it had only grown, if this happened at regular intervals.
fn let_go(rounds: &[Round]) -> Vec<usize> {
    let lives = || rounds.iter().map(|round| round.live);
    let (Some(low), Some(high)) = (lives().min(), lives().max()) else { return Vec::new() };
    let range = high.saturating_sub(low);
    if range < GATHERED_BYTES_MIN {
        return Vec::new();
    }
    let change = |at: usize| rounds[at + 1].live.saturating_sub(rounds[at].live);
    let pairs = 0..rounds.len().saturating_sub(1);
    let falls: Vec<usize> = pairs.clone().filter(|&at| change(at) <= -(range / 2)).collect();
    let small = pairs.filter(|&at| change(at) < 0 && change(at) > -(range / 2)).count();
    let mut spacings: Vec<usize> = falls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spacings.sort_unstable();
    let Some(&period) = upper_median(&spacings) else { return Vec::new() };
    let even = spacings.iter().all(|spacing| spacing.abs_diff(period) <= (period / 10).max(1));
    let first = falls.first().is_some_and(|&at| at <= period + 1);
    if period >= PERIOD_MIN && even && first && small * 5 <= rounds.len() { falls } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(lives: &[i64]) -> Vec<Round> {
        let span = |at: u64| Span { begin_ns: at * 10, end_ns: at * 10 + 9 };
        (0..).zip(lives).map(|(at, &live)| Round { span: span(at), live: live << 20, outer_ns: None }).collect()
    }

    #[test]
    fn memory_that_is_let_go_every_so_often_makes_epochs() {
        let lives: Vec<i64> = (0..30).map(|at| at % 10).collect();
        let found = epochs(&rounds(&lives));
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], Span { begin_ns: 100, end_ns: 199 });
    }

    #[test]
    fn what_falls_once_or_irregularly_makes_none() {
        assert!(epochs(&rounds(&[0, 1, 2, 3, 4, 0, 1, 2])).is_empty());
        assert!(epochs(&rounds(&[0, 4, 0, 1, 2, 4, 0, 4, 4, 4, 4, 4, 4, 4, 0, 4])).is_empty());
        assert!(epochs(&rounds(&[5; 40])).is_empty());
        assert!(epochs(&[]).is_empty());
    }

    #[test]
    fn a_loop_around_is_told_by_itself() {
        let mut all = rounds(&[1; 6]);
        (all[1].outer_ns, all[3].outer_ns) = (Some(19), Some(39));
        let ends: Vec<u64> = epochs(&all).iter().map(|epoch| epoch.end_ns).collect();
        assert_eq!(ends, [19, 39, 59]);
    }
}
