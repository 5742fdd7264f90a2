//! Limits of peaks and of the memory that is reserved and not used.

use std::cmp::Reverse;

use memctl_model::HumanBytes;

use super::{Checked, Outcome, Terms, checked, ends, named};
use crate::conditions::Limit;
use crate::report::{EpochEnd, Rank, Report};

/// A figure of epochs.
pub(super) type OfEpoch = fn(&EpochEnd) -> Option<u64>;
pub(super) const ALLOCATED: OfEpoch = |end| end.epoch_peak_allocated_bytes;
pub(super) const RESERVED: OfEpoch = |end| end.epoch_peak_reserved_bytes;

/// The peak of a rank: of the whole job, or of the epochs after the named one. `None` if it is not known.
fn peak_of(rank: &Rank, terms: &Terms, whole: fn(&Rank) -> Option<u64>, within: OfEpoch) -> Option<u64> {
    let Some(after) = terms.after_epoch else { return whole(rank) };
    // The peaks of later epochs only, because the named epoch precedes its own end.
    let later = rank.epoch_ends.iter().filter(|end| end.epoch > after);
    later.filter_map(within).filter(|&peak| peak > 0).max()
}

pub(super) fn peak(
    report: &Report,
    limit: Limit<u64>,
    terms: &Terms,
    whole: fn(&Rank) -> Option<u64>,
    within: OfEpoch,
) -> Checked {
    let of = |rank: &Rank| peak_of(rank, terms, whole, within).filter(|&peak| peak > 0);
    let known: Vec<(u64, u32)> = report.ranks.iter().filter_map(|rank| Some((of(rank)?, rank.rank))).collect();
    let Some(&(bytes, rank)) = known.iter().max_by_key(|&&(peak, rank)| (peak, Reverse(rank))) else {
        return checked(Outcome::Inconclusive, "no peak was recorded".to_owned());
    };
    let because = format!("{} at most, on rank {rank}", HumanBytes::of(bytes));
    let mut checked = Checked {
        is_peak: true,
        value_bytes: Some(bytes),
        rank: Some(rank),
        ..checked(Outcome::of(limit.holds(&bytes)), because)
    };
    // Known values decide against it at once; it holds only if every rank is known.
    if checked.verdict == Outcome::Holds && known.len() < report.ranks.len() {
        let missing: Vec<u32> = report.ranks.iter().filter(|rank| of(rank).is_none()).map(|rank| rank.rank).collect();
        checked.verdict = Outcome::Inconclusive;
        checked.because = format!("no peak was recorded of {}", named(&missing));
    }
    checked
}

pub(super) fn reserved_to_allocated(report: &Report, limit: Limit<f64>, terms: &Terms) -> Checked {
    let of = |rank: &Rank| {
        let allocated = peak_of(rank, terms, |rank| rank.peak_allocated_bytes, ALLOCATED).filter(|&bytes| bytes > 0)?;
        let reserved = peak_of(rank, terms, |rank| rank.peak_reserved_bytes, RESERVED)?;
        Some((reserved as f64 / allocated as f64, rank.rank))
    };
    let highest = report.ranks.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let Some((ratio, rank)) = highest else {
        return checked(Outcome::Inconclusive, "no peaks were recorded".to_owned());
    };
    of_every_rank(report, limit, (ratio, rank), &format!("{ratio:.3}"), |rank| of(rank).is_some())
}

/// Checks the highest ratio, which is shown as given. Known values decide against the condition at once; it holds only if every rank has a
/// value.
fn of_every_rank(
    report: &Report,
    limit: Limit<f64>,
    (ratio, rank): (f64, u32),
    shown: &str,
    is_known: impl Fn(&Rank) -> bool,
) -> Checked {
    let because = format!("{shown} at most, on rank {rank}");
    let mut checked =
        Checked { value_ratio: Some(ratio), rank: Some(rank), ..checked(Outcome::of(limit.holds(&ratio)), because) };
    let missing: Vec<u32> = report.ranks.iter().filter(|rank| !is_known(rank)).map(|rank| rank.rank).collect();
    if checked.verdict == Outcome::Holds && !missing.is_empty() {
        checked.verdict = Outcome::Inconclusive;
        checked.because = format!("no figure was recorded of {}", named(&missing));
    }
    checked
}

/// The share of reserved bytes that no live block uses: cache, which serves later requests, and holes.
pub(super) fn unused(report: &Report, limit: Limit<f64>, terms: &Terms) -> Checked {
    let of_end = |end: &EpochEnd| {
        let (allocated, reserved) = (end.allocated_bytes?, end.reserved_bytes.filter(|&bytes| bytes > 0)?);
        Some(1.0 - allocated as f64 / reserved as f64)
    };
    let of = |rank: &Rank| {
        let at_ends = ends(rank, terms).into_iter().filter_map(of_end).chain(rank.fragmentation_ratio);
        at_ends.max_by(f64::total_cmp).map(|ratio| (ratio, rank.rank))
    };
    let Some((ratio, rank)) = report.ranks.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
    else {
        return checked(Outcome::Inconclusive, "no figure was recorded".to_owned());
    };
    of_every_rank(report, limit, (ratio, rank), &format!("{:.1} %", ratio * 100.0), |rank| of(rank).is_some())
}
