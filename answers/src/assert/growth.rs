//! `growth<1MiB/epoch`: a limit for the fastest growth, in findings or of ranks at epoch ends.
//!
//! Guarantees: no figure is shown that was not measured. A rate of another unit is converted by the steps per epoch.
//! Growth above the limit fails at once; a lower one counts only if there was enough to analyse.

use std::cmp::Reverse;

use memctl_analysis::growth::{EpochBytes, growth_bytes_per_epoch};
use memctl_analysis::proof_limits;
use memctl_model::{FindingKind, HumanBytes};

use super::levels::Levels;
use super::{Checked, Outcome, Terms, checked, concerning, ends, not_judged, too_few};
use crate::conditions::{Limit, Per};
use crate::finding::Finding;
use crate::report::{EpochEnd, Rank, Report};

/// A rate with its source.
struct Rate {
    bytes: i64,
    rank: Option<u32>,
    findings: Vec<String>,
}

/// See the module.
pub(super) fn growth(report: &Report, limit: Limit<u64>, per: Per, terms: &Terms) -> Checked {
    let (found, measured) = (of_findings(report, per, terms), of_ranks(report, per, terms));
    let too_few = match per {
        // (A finding of steps is a rate, too: it needs no epoch ends.)
        Per::Epoch if found.is_none() || terms.after_epoch.is_some() => {
            too_few(report, terms, proof_limits::GROWTH_ENDS_MIN)
        }
        _ => None,
    };
    let open = too_few
        .or_else(|| not_judged(report, terms).filter(|_| per != Per::Epoch || measured.is_none()))
        .or_else(|| super::leaks::rising(report, terms).filter(|_| measured.is_none()));
    let rate = match per {
        // The growth of a rank is that of all its memory, so it precedes that of a site.
        Per::Epoch if open.is_none() => measured.or(found),
        _ => found.or(measured),
    };
    let Some(rate) = rate else {
        return open.unwrap_or_else(|| unmeasured(report, per));
    };
    let checked = compared(limit, per, rate);
    match open.filter(|_| checked.verdict == Outcome::Holds) {
        Some(open) => {
            let because = format!("{}; {}", checked.because, open.because);
            Checked { verdict: Outcome::Inconclusive, because, ..checked }
        }
        None => checked,
    }
}

/// No finding has a rate and no rank has epoch ends. At steps and windows the judge found no growth, unless the verdict
/// says that memory grew.
fn unmeasured(report: &Report, per: Per) -> Checked {
    let grows = report.verdict.as_ref().filter(|verdict| verdict.is_leak() || verdict.is_open());
    match (per, grows) {
        (Per::Epoch, _) => checked(Outcome::Inconclusive, "no growth was measured at epoch ends".to_owned()),
        (_, Some(known)) => {
            let because = format!("no rate was measured: {}", known.sentence.trim_end_matches('.'));
            checked(Outcome::Inconclusive, because)
        }
        (_, None) => checked(Outcome::Holds, "no growth was found".to_owned()),
    }
}

/// The fastest growth in findings, suspected ones included, in the unit or converted to it.
fn of_findings(report: &Report, per: Per, terms: &Terms) -> Option<Rate> {
    let grows = concerning(report, terms, FindingKind::is_leak);
    let rate = |finding: &&Finding| Some((finding_rate(finding, report, per)?, Reverse(finding.id.clone())));
    let fastest = grows.into_iter().filter(|finding| rate(finding).is_some()).max_by_key(rate)?;
    let bytes = finding_rate(fastest, report, per)?;
    Some(Rate { bytes, rank: fastest.ranks.first().copied(), findings: vec![fastest.id.clone()] })
}

fn finding_rate(finding: &Finding, report: &Report, per: Per) -> Option<i64> {
    let of_it = |rank: &&Rank| finding.ranks.is_empty() || finding.ranks.contains(&rank.rank);
    let steps = || report.ranks.iter().filter(of_it).filter_map(steps_per_epoch).max_by(f64::total_cmp);
    match per {
        Per::Epoch => finding.bytes_per_epoch.or_else(|| Some((finding.bytes_per_step? as f64 * steps()?) as i64)),
        Per::Step => finding.bytes_per_step.or_else(|| Some((finding.bytes_per_epoch? as f64 / steps()?) as i64)),
        Per::Minute => finding.bytes_per_minute,
    }
}

/// Steps per epoch of a rank, where both are known.
fn steps_per_epoch(rank: &Rank) -> Option<f64> {
    (rank.epochs > 0 && rank.steps > 0).then(|| rank.steps as f64 / rank.epochs as f64)
}

/// The fastest growth of a rank between its epoch ends, converted to the unit.
fn of_ranks(report: &Report, per: Per, terms: &Terms) -> Option<Rate> {
    let leaks = concerning(report, terms, FindingKind::is_leak);
    let ids = |rank: u32| {
        let of_it = leaks.iter().filter(|finding| finding.ranks.is_empty() || finding.ranks.contains(&rank));
        of_it.map(|finding| finding.id.clone()).collect()
    };
    // One rise between two epoch ends is compared with a limit an epoch only.
    let has_enough = |rank: &&Rank| per == Per::Epoch || ends(rank, terms).len() >= proof_limits::GROWTH_ENDS_MIN;
    let ranks = report.ranks.iter().filter(has_enough);
    let rates = ranks.filter_map(|rank| Some((converted(rank_rate(rank, terms)?, rank, per)?, rank.rank)));
    let (bytes, rank) = rates.max_by_key(|&(rate, rank)| (rate, Reverse(rank)))?;
    Some(Rate { bytes, rank: Some(rank), findings: ids(rank) })
}

/// The growth of a rank between the selected epoch ends, in bytes an epoch.
fn rank_rate(rank: &Rank, terms: &Terms) -> Option<i64> {
    let bytes = |end: &EpochEnd| Some(EpochBytes { epoch: end.epoch, bytes: end.allocated_bytes? });
    let series: Vec<EpochBytes> = ends(rank, terms).into_iter().filter_map(bytes).collect();
    let known = match terms.after_epoch {
        None => rank.growth_bytes_per_epoch,
        Some(_) => growth_bytes_per_epoch(&series).map(|rate| rate as i64),
    };
    // Among few ends a rise may count as a single step. Then its rate is not 0 but unknown.
    let is_open = series.len() < proof_limits::LEAK_ENDS_MIN
        && proof_limits::rise_after_first(&Levels::new(rank, terms).bytes).is_some();
    known.filter(|&rate| rate > 0 || !is_open)
}

fn converted(rate: i64, rank: &Rank, per: Per) -> Option<i64> {
    match per {
        Per::Epoch => Some(rate),
        Per::Step => Some((rate as f64 / steps_per_epoch(rank)?) as i64),
        Per::Minute => {
            let (first, last) = (rank.epoch_ends.first()?, rank.epoch_ends.last()?);
            let minutes = last.at.0.saturating_sub(first.at.0) as f64 / 60e9;
            let epochs = f64::from(last.epoch.saturating_sub(first.epoch));
            (minutes > 0.0 && epochs > 0.0).then(|| (rate as f64 * epochs / minutes) as i64)
        }
    }
}

fn compared(limit: Limit<u64>, per: Per, rate: Rate) -> Checked {
    let grown = u64::try_from(rate.bytes).unwrap_or(0);
    let on = rate.rank.map_or(String::new(), |rank| format!(", on rank {rank}"));
    let because = format!("{} per {} at most{on}", HumanBytes(rate.bytes), per.name());
    let checked = checked(Outcome::of(limit.holds(&grown)), because);
    let findings = if checked.verdict == Outcome::Holds && per == Per::Epoch { Vec::new() } else { rate.findings };
    Checked { value_bytes: Some(grown), rank: rate.rank, findings, ..checked }
}
