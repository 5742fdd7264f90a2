//! `stable`: no memory grows, and the levels at epoch ends stay within a tolerance.

use std::cmp::Reverse;

use memctl_analysis::proof_limits;
use memctl_model::{HumanBytes, VerdictKind};

use super::leaks::{no_leak, suspected};
use super::levels::Levels;
use super::{Checked, Outcome, Terms, checked, ends, found, hurting, too_few};
use crate::conditions::Tolerance;
use crate::format::text::plural;
use crate::leaks::grows;
use crate::report::{Rank, Report};

/// `no-leak` holds, no other memory grows, and the levels stay within the tolerance.
pub(super) fn stable(report: &Report, terms: &Terms) -> Checked {
    let leak = no_leak(report, terms);
    let checked = found(&hurting(report, terms, grows))
        .or_else(|| Some(leak.clone()).filter(|leak| leak.verdict == Outcome::DoesNotHold))
        .or_else(|| suspected(report, terms, grows))
        .or_else(|| without_epochs(report, terms))
        .or_else(|| too_few(report, terms, proof_limits::STABLE_ENDS_MIN))
        .or_else(|| last_unknown(report, terms))
        .unwrap_or_else(|| level(report, terms));
    if checked.verdict == Outcome::Holds && leak.verdict == Outcome::Inconclusive { leak } else { checked }
}

/// Inconclusive if so few epoch ends are known that the last one would have to be, unless that is allowed.
fn last_unknown(report: &Report, terms: &Terms) -> Option<Checked> {
    let fewest = report.ranks.iter().map(|rank| Levels::new(rank, terms).known()).min().unwrap_or(0);
    (fewest < proof_limits::STABLE_ENDS_MIN && !terms.allow_incomplete).then(|| {
        let why =
            "needs 2 epoch ends, found 1: the last one may lie within a step, and nothing is left that confirms it";
        checked(Outcome::Inconclusive, why.to_owned())
    })
}

/// Whether allocated memory at epoch ends stays within the tolerance.
fn level(report: &Report, terms: &Terms) -> Checked {
    let rises = report.ranks.iter().filter_map(|rank| rise(rank, terms));
    // The rank that exceeds its tolerance most decides, not the rank that rose most.
    let Some(worst) = rises.max_by_key(|rise| (rise.by.saturating_sub(rise.tolerance), rise.by, Reverse(rise.rank)))
    else {
        return checked(Outcome::Inconclusive, "no epoch end has a figure".to_owned());
    };
    let because = format!(
        "allocated memory at {} rises by {} at most, from {} (rank {}; tolerance {})",
        plural(worst.ends as u64, "epoch end"),
        HumanBytes::of(worst.by),
        HumanBytes::of(worst.first),
        worst.rank,
        HumanBytes::of(worst.tolerance),
    );
    let holds = worst.by <= worst.tolerance;
    Checked { value_bytes: Some(worst.by), rank: Some(worst.rank), ..checked(Outcome::of(holds), because) }
}

/// A loop without epochs has no epoch ends to compare: the verdict decides whether its memory was flat.
fn without_epochs(report: &Report, terms: &Terms) -> Option<Checked> {
    let has_epochs = report.ranks.iter().any(|rank| rank.epoch_ends.len() >= proof_limits::STABLE_ENDS_MIN);
    let known = report.verdict.as_ref().filter(|_| !has_epochs && terms.after_epoch.is_none())?;
    let because = format!("without epochs, its verdict decides: {}", known.sentence.trim_end_matches('.'));
    match known.known_kind()? {
        VerdictKind::Steady | VerdictKind::LevelledOff | VerdictKind::Released => {
            Some(checked(Outcome::Holds, because))
        }
        VerdictKind::Growing if known.is_leak() => Some(checked(Outcome::DoesNotHold, because)),
        VerdictKind::Growing | VerdictKind::Filling => Some(checked(Outcome::Inconclusive, because)),
        VerdictKind::OutOfMemory | VerdictKind::NotEnoughData => None,
    }
}

/// How far a rank's allocated bytes rise above those of the first epoch end that counts.
struct Rise {
    rank: u32,
    ends: usize,
    first: u64,
    by: u64,
    tolerance: u64,
}

fn rise(rank: &Rank, terms: &Terms) -> Option<Rise> {
    let values = Levels::new(rank, terms).bytes;
    let (&first, &highest) = (values.first()?, values.iter().max()?);
    let share = |share: f64| (first as f64 * share) as u64;
    let tolerance = match terms.tolerance {
        None => proof_limits::tolerance(first),
        Some(Tolerance::Share(wanted)) => share(wanted),
        Some(Tolerance::Bytes(bytes)) => bytes,
    };
    Some(Rise { rank: rank.rank, ends: values.len(), first, by: highest - first, tolerance })
}

/// The first epoch from whose end every rank's level is stable: the value for `stable --after-epoch` in a similar job.
#[must_use]
pub fn settled_after(report: &Report) -> Option<u32> {
    let series = |rank: &Rank| -> Vec<(u32, u64)> {
        let known = ends(rank, &Terms::default()).into_iter().filter(|end| end.allocated_bytes.is_some());
        known.map(|end| end.epoch).zip(Levels::new(rank, &Terms::default()).bytes).collect()
    };
    let all: Vec<Vec<(u32, u64)>> = report.ranks.iter().map(series).collect();
    let latest =
        all.iter().map(|ends| proof_limits::settled_after(ends)).try_fold(0, |latest, at| Some(latest.max(at?)))?;
    (latest > 0 && all.iter().all(|ends| proof_limits::is_stable_from(ends, latest))).then_some(latest)
}
