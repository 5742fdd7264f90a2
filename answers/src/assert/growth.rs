//! `growth<1MiB/epoch`: a limit for the fastest growth, of ranks at epoch ends or in findings.
//!
//! Guarantees: the absence of faster growth counts only if growth was analysed.

use std::cmp::Reverse;

use memctl_analysis::growth::{EpochBytes, growth_bytes_per_epoch};
use memctl_analysis::proof_limits;
use memctl_model::{FindingKind, HumanBytes};

use super::{Checked, Outcome, Terms, concerning, ends, not_judged, too_few, verdict};
use crate::conditions::{Limit, Per};
use crate::finding::Finding;
use crate::report::{EpochEnd, Rank, Report};

/// See the module.
pub(super) fn growth(report: &Report, limit: Limit<u64>, per: Per, terms: &Terms) -> Checked {
    match per {
        Per::Epoch => of_epochs(report, limit, terms),
        Per::Step => of_findings(report, limit, per, terms, |finding| finding.bytes_per_step),
        Per::Minute => of_findings(report, limit, per, terms, |finding| finding.bytes_per_minute),
    }
}

fn of_epochs(report: &Report, limit: Limit<u64>, terms: &Terms) -> Checked {
    let rates = report.ranks.iter().filter_map(|rank| Some((rate_of(rank, terms)?, rank.rank)));
    let fastest = rates.max_by_key(|&(rate, rank)| (rate, Reverse(rank)));
    let too_few = too_few(report, terms, proof_limits::GROWTH_ENDS_MIN);
    match (too_few, fastest) {
        (Some(inconclusive), _) => inconclusive,
        (None, None) => verdict(Outcome::Inconclusive, "no growth was measured at epoch ends".to_owned()),
        (None, Some((rate, rank))) => {
            let checked = told(limit, Per::Epoch, rate, Some(rank));
            let grows = concerning(report, terms, FindingKind::is_leak);
            let against = grows.into_iter().filter(|_| checked.verdict == Outcome::DoesNotHold);
            Checked { findings: against.map(|finding| finding.id.clone()).collect(), ..checked }
        }
    }
}

/// The growth of a rank between the selected epoch ends.
fn rate_of(rank: &Rank, terms: &Terms) -> Option<i64> {
    if terms.after_epoch.is_none() {
        return rank.growth_bytes_per_epoch;
    }
    let bytes = |end: &EpochEnd| Some(EpochBytes { epoch: end.epoch, bytes: end.allocated_bytes? });
    let series: Vec<EpochBytes> = ends(rank, terms).into_iter().filter_map(bytes).collect();
    growth_bytes_per_epoch(&series).map(|rate| rate as i64)
}

/// Growth per step or minute comes from findings, including suspected ones. Without a finding no growth was observed.
fn of_findings(
    report: &Report,
    limit: Limit<u64>,
    per: Per,
    terms: &Terms,
    rate: fn(&Finding) -> Option<i64>,
) -> Checked {
    let grows = concerning(report, terms, FindingKind::is_leak);
    let fastest = grows.into_iter().filter_map(|finding| Some((rate(finding)?, finding))).max_by_key(|(rate, _)| *rate);
    match fastest {
        Some((rate, finding)) => {
            let mut checked = told(limit, per, rate, finding.ranks.first().copied());
            // Growth above the limit fails at once. The condition holds only if the job was analysed.
            if let Some(open) = not_judged(report, terms).filter(|_| checked.verdict == Outcome::Holds) {
                checked = Checked { value_bytes: checked.value_bytes, rank: checked.rank, ..open };
            }
            Checked { findings: vec![finding.id.clone()], ..checked }
        }
        None => not_judged(report, terms).unwrap_or_else(|| told(limit, per, 0, None)),
    }
}

fn told(limit: Limit<u64>, per: Per, rate: i64, rank: Option<u32>) -> Checked {
    let grown = u64::try_from(rate).unwrap_or(0);
    let on = rank.map_or(String::new(), |rank| format!(", on rank {rank}"));
    let because = format!("{} per {} at most{on}", HumanBytes(rate), per.name());
    Checked { value_bytes: Some(grown), rank, ..verdict(Outcome::of(limit.holds(&grown)), because) }
}
