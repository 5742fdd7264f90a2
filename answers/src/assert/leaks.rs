//! `no-leak` and `no-findings`: growth that is a leak, and growth that may turn out to be one.

use std::cmp::Reverse;

use memctl_analysis::proof_limits;
use memctl_model::holders::{is_of_gradients, is_of_optimizer_state};
use memctl_model::{FindingKind, HumanBytes, Pattern};

use super::beside::beside_tensors;
use super::levels::Levels;
use super::{Checked, Outcome, Terms, checked, concerning, found, hurting, not_judged};
use crate::finding::Finding;
use crate::report::{Rank, Report};
use crate::verdict::Verdict;

pub(super) fn no_findings(report: &Report, terms: &Terms) -> Checked {
    // Growth with an open cause may be a leak, as for `no-leak`.
    let open = || growing(report, terms).filter(|checked| checked.verdict == Outcome::Inconclusive);
    found(&hurting(report, terms, |_| true)).or_else(open).or_else(|| not_judged(report, terms)).unwrap_or_else(|| {
        let because = format!("nothing of severity warning or above was found{}", beside_tensors(report));
        checked(Outcome::Holds, because)
    })
}

/// Inconclusive if growth may still turn out to be a leak, unless that is allowed.
pub(super) fn suspected(report: &Report, terms: &Terms, counts: fn(FindingKind) -> bool) -> Option<Checked> {
    let findings = concerning(report, terms, counts);
    let worst = findings.first().filter(|_| !terms.allow_suspected)?;
    let ids = findings.iter().map(|finding| finding.id.clone()).collect();
    let because = format!("suspected: {} (--allow-suspected accepts it)", worst.title);
    Some(Checked { findings: ids, ..checked(Outcome::Inconclusive, because) })
}

/// The outcome if, by the verdict, memory grows for an open reason or fills a container that does not fit.
pub(super) fn growing(report: &Report, terms: &Terms) -> Option<Checked> {
    let Some(known) = &report.verdict else { return suspected(report, terms, FindingKind::fills) };
    let because = known.sentence.trim_end_matches('.').to_owned();
    let outcome = match known {
        known if known.is_leak() || known.overflows() => Outcome::DoesNotHold,
        known if known.is_open() && !terms.allow_suspected => Outcome::Inconclusive,
        _ => return None,
    };
    // Those of the verdict's place, if there are any: other growth may have another cause.
    let all = concerning(report, terms, FindingKind::fills);
    let of_site = |finding: &&Finding| finding.site.as_ref().map(|site| &site.frame) == known.site.as_ref();
    let findings: Vec<String> = all.into_iter().filter(of_site).map(|finding| finding.id.clone()).collect();
    Some(Checked { findings, site: known.site.clone(), ..checked(outcome, because) })
}

pub(super) fn no_leak(report: &Report, terms: &Terms) -> Checked {
    // Growth that certainly goes on is not accepted as suspected. With an open cause it proves no leak either.
    let is_open = report.verdict.as_ref().is_some_and(Verdict::is_open);
    let (leaks, unexplained): (Vec<&Finding>, Vec<&Finding>) =
        hurting(report, terms, FindingKind::fills).into_iter().partition(|finding| finding.cause_known || !is_open);
    let unexplained = found(&unexplained).map(|checked| Checked { verdict: Outcome::Inconclusive, ..checked });
    // A finding about growth with an open cause does not prove a leak.
    let open = growing(report, terms).filter(|checked| checked.verdict == Outcome::Inconclusive);
    open.or_else(|| found(&leaks))
        .or_else(|| growing(report, terms))
        .or(unexplained)
        .or_else(|| small_leak(report, terms))
        .or_else(|| not_judged(report, terms))
        .or_else(|| rising(report, terms))
        .unwrap_or_else(|| checked(Outcome::Holds, no_known_leak(report, terms)))
}

/// Inconclusive if the levels at epoch ends rise after the first epoch, by more than they fall in between, and there are
/// too few of them to distinguish a leak from a cache that still fills, unless that is allowed.
pub(super) fn rising(report: &Report, terms: &Terms) -> Option<Checked> {
    let by = |rank: &Rank| {
        let levels = Levels::new(rank, terms).bytes;
        let (found, by) = (levels.len(), proof_limits::rise_after_first(&levels)?);
        (found < proof_limits::LEAK_ENDS_MIN).then_some((by, Reverse(rank.rank), found))
    };
    let most = report.ranks.iter().filter_map(by).max().filter(|_| !terms.allow_incomplete && !terms.allow_suspected);
    let (by, Reverse(rank), found) = most?;
    let because = format!(
        "live memory at epoch ends rises by {} after the first epoch (rank {rank}); whether it goes on needs {} epoch ends, found {found}",
        HumanBytes::of(by),
        proof_limits::LEAK_ENDS_MIN
    );
    let site = report.growth.iter().find_map(|growth| growth.site.clone());
    Some(Checked { value_bytes: Some(by), rank: Some(rank), site, ..checked(Outcome::Inconclusive, because) })
}

/// A leak that is small beside the peak, if its holder is known and has no bound. A check runs for a short time on small
/// data, where a leak is small as well.
fn small_leak(report: &Report, terms: &Terms) -> Option<Checked> {
    let small = small(report, terms).find(|finding| is_small_leak(finding))?;
    let checked = found(&[small])?;
    let because = format!("{} (small beside the peak)", checked.because);
    Some(Checked { because, ..checked })
}

/// Whether growth is certain and too small for a warning, and its holder is known and has no bound.
pub(super) fn is_small_leak(finding: &Finding) -> bool {
    // Gradients and the state of one optimizer are constant sets, whatever else grows at their line.
    let is_constant = |chain: &[String]| match finding.pattern.as_deref().and_then(Pattern::of_name) {
        Some(Pattern::OptimizerRecreated) => is_of_gradients(chain),
        _ => is_of_gradients(chain) || is_of_optimizer_state(chain),
    };
    let holders = finding.holders.iter().flat_map(|found| &found.holders);
    let most = holders.map(|growing| &growing.holder).find(|holder| !is_constant(&holder.chain));
    let is_held = most.is_some_and(|most| !most.is_bounded());
    finding.known_kind().is_some_and(FindingKind::fills)
        && !finding.suspected
        && !finding.is_warning_or_worse()
        && is_held
}

/// Growth that is certain and too small for a warning.
fn small<'a>(report: &'a Report, terms: &Terms) -> impl Iterator<Item = &'a Finding> {
    let all = concerning(report, terms, FindingKind::fills).into_iter();
    all.filter(|finding| !finding.suspected && !finding.is_warning_or_worse())
}

/// Why `no-leak` holds: nothing grows, the growth is small, or it was accepted.
fn no_known_leak(report: &Report, terms: &Terms) -> String {
    let open = report.verdict.as_ref().filter(|verdict| verdict.is_open());
    match (open, small(report, terms).next()) {
        (Some(open), _) => {
            format!("suspected growth is accepted (--allow-suspected): {}", open.sentence.trim_end_matches('.'))
        }
        (None, Some(small)) => format!("no leak that matters was found; small beside the peak: {}", small.title),
        (None, None) => "no leak was found".to_owned(),
    }
}
