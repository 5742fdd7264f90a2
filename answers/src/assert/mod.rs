//! `memctl assert` as data: each condition with the figure that decided it.
//!
//! Guarantees: a condition holds only on sufficient data: a pass is inconclusive on a job that still runs, ended badly,
//! was not recorded completely or could not be analysed, unless that is allowed; evidence against a condition counts at
//! once. A missing figure never passes, not even with `allow_incomplete`.
//!
//! (Over 400 lines: every condition is decided here, by the same few rules about which data suffices.)

pub mod against;
mod growth;
mod known;

use std::cmp::Reverse;

use memctl_analysis::coverage::MARK_EPOCHS;
use memctl_analysis::proof_limits;
use memctl_model::{FindingKind, HumanBytes, JobState, VerdictKind};
use serde::Serialize;

use against::Against;

use super::finding::Finding;
use super::judged::Scope;
use super::leaks::grows;
use super::report::{EpochEnd, Rank, Report};
use super::verdict::Verdict;
use super::{Completeness, Frame, Job, Listing, SCHEMA};
use crate::conditions::{Asks, Condition, Limit, Tolerance};
use crate::format::csv::Cell;
use crate::format::text::{plural, rank_list};

/// Options for the evaluation of conditions.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Only what comes once this epoch has ended.
    pub after_epoch: Option<u32>,
    /// For `stable`.
    pub tolerance: Option<Tolerance>,
    /// Accept incomplete data.
    pub allow_incomplete: bool,
    /// Accept suspected growth as harmless.
    pub allow_suspected: bool,
    /// The ranks that were chosen; all when empty.
    pub ranks: Vec<u32>,
}

/// Whether the conditions hold.
#[derive(Clone, Debug, Serialize)]
pub struct Verdicts {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// Whether all of them hold.
    pub holds: bool,
    /// Why the data does not suffice, in sentences; empty if it does.
    pub incomplete: Vec<String>,
    /// Whether that was allowed.
    pub incomplete_allowed: bool,
    /// The conditions, in their order.
    pub conditions: Vec<Checked>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// What the job's memory did; null from a daemon that does not say.
    pub verdict: Option<Verdict>,
}

/// A condition and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// As it was typed.
    pub condition: String,
    /// What came of it.
    pub verdict: Outcome,
    /// By what, in words.
    pub because: String,
    /// The figure that decided, where it is bytes.
    pub value_bytes: Option<u64>,
    /// The figure that decided, where it is a share.
    pub value_ratio: Option<f64>,
    /// The rank it is from.
    pub rank: Option<u32>,
    /// Ids of the findings against it.
    pub findings: Vec<String>,
    /// Where the memory was allocated that decided, if no finding names it.
    #[serde(skip)]
    pub site: Option<Frame>,
}

/// The outcome of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not.
    DoesNotHold,
    /// The data does not say.
    Inconclusive,
}

impl Outcome {
    /// The outcome in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Inconclusive => "inconclusive",
        }
    }

    const fn of(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::DoesNotHold }
    }
}

impl Verdicts {
    /// Checks the conditions on a report.
    #[must_use]
    pub fn new(report: Report, conditions: &[Condition], terms: &Terms, against: Option<&Against>) -> Self {
        let incomplete = incomplete(&report, terms);
        let only_complete = |mut checked: Checked| {
            if checked.verdict == Outcome::Holds && !incomplete.is_empty() && !terms.allow_incomplete {
                checked.verdict = Outcome::Inconclusive;
            }
            checked
        };
        // A condition about the other job replaces those that follow from it by default.
        let is_stated = conditions.iter().any(|condition| condition.asks.is_relative());
        let default = against.filter(|_| !is_stated);
        let compared = default.into_iter().flat_map(|other| against::checks(&report, other, terms));
        let checks = conditions.iter().map(|condition| check(&report, condition, terms, against)).chain(compared);
        let conditions: Vec<Checked> = checks.map(only_complete).collect();
        Self {
            schema: SCHEMA,
            holds: conditions.iter().all(|checked| checked.verdict == Outcome::Holds),
            job: report.job,
            completeness: report.completeness,
            incomplete,
            incomplete_allowed: terms.allow_incomplete,
            conditions,
            scope: report.scope,
            verdict: report.verdict,
        }
    }

    /// Whether all conditions hold.
    ///
    /// # Errors
    /// A sentence about a condition that does not hold or cannot be decided.
    pub fn outcome(&self) -> Result<(), String> {
        if self.holds {
            return Ok(());
        }
        let of = |verdict: Outcome| {
            let which = self.conditions.iter().filter(|checked| checked.verdict == verdict);
            which.map(|checked| checked.condition.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (broken, unknown) = (of(Outcome::DoesNotHold), of(Outcome::Inconclusive));
        if broken.is_empty() {
            let open = self.conditions.iter().find(|checked| checked.verdict == Outcome::Inconclusive);
            let why = self.incomplete.first().or(open.map(|checked| &checked.because)).map_or("", String::as_str);
            return Err(format!("inconclusive: {why} ({unknown})"));
        }
        let open = if unknown.is_empty() { String::new() } else { format!("; inconclusive: {unknown}") };
        Err(format!("does not hold: {broken}{open}"))
    }
}

/// The reasons why the data does not suffice.
fn incomplete(report: &Report, terms: &Terms) -> Vec<String> {
    let mut reasons = Vec::new();
    match report.job.state {
        JobState::Running => reasons.push("the job is still running".to_owned()),
        JobState::Finished => {}
        JobState::Failed => reasons.push("the job failed".to_owned()),
        JobState::Lost => reasons.push("the job ended without reporting its end".to_owned()),
    }
    if report.ranks.is_empty() {
        reasons.push("nothing was recorded in this part of the job".to_owned());
    }
    if !report.completeness.exact {
        reasons.push("the recording is incomplete (memctl query says what is missing)".to_owned());
    }
    let absent = if terms.ranks.is_empty() {
        let missing = report.job.world_size.map_or(0, |world| world.saturating_sub(report.job.ranks));
        (missing > 0).then(|| format!("{} of the job missing from the recording", plural(u64::from(missing), "rank")))
    } else {
        let there = |rank: &&u32| !report.ranks.iter().any(|other| other.rank == **rank);
        let missing: Vec<u32> = terms.ranks.iter().filter(there).copied().collect();
        (!missing.is_empty()).then(|| format!("nothing was recorded of {}", named(&missing)))
    };
    reasons.extend(absent);
    reasons
}

fn named(ranks: &[u32]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, rank_list(ranks))
}

/// The epoch ends that count.
fn ends<'a>(rank: &'a Rank, terms: &Terms) -> Vec<&'a EpochEnd> {
    rank.epoch_ends.iter().filter(|end| terms.after_epoch.is_none_or(|after| end.epoch >= after)).collect()
}

/// Findings that count against a condition.
fn against<'a>(report: &'a Report, terms: &Terms, counts: fn(FindingKind) -> bool) -> Vec<&'a Finding> {
    concerning(report, terms, counts).into_iter().filter(|finding| finding.hurts()).collect()
}

/// Findings of these kinds about the selected ranks.
fn concerning<'a>(report: &'a Report, terms: &Terms, counts: fn(FindingKind) -> bool) -> Vec<&'a Finding> {
    let chosen = |finding: &Finding| {
        terms.ranks.is_empty()
            || finding.ranks.is_empty()
            || finding.ranks.iter().any(|rank| terms.ranks.contains(rank))
    };
    let counts = |finding: &&Finding| finding.known_kind().is_some_and(counts) && chosen(finding);
    report.findings.iter().filter(counts).collect()
}

fn check(report: &Report, condition: &Condition, terms: &Terms, other: Option<&Against>) -> Checked {
    let to_other = |check: &dyn Fn(&Against) -> Checked| {
        let nothing = || verdict(Outcome::Inconclusive, "needs another job or a baseline: --against".to_owned());
        other.map_or_else(nothing, check)
    };
    let mut checked = match condition.asks {
        Asks::PeakOver(allowed) => to_other(&|other| against::over(report, against::PEAK, other, terms, allowed)),
        Asks::PeakReservedOver(allowed) => {
            to_other(&|other| against::over(report, against::PEAK_RESERVED, other, terms, allowed))
        }
        Asks::NoNewLeak => to_other(&|other| against::findings(report, other, terms, FindingKind::is_leak)),
        Asks::NoLeak => no_leak(report, terms),
        Asks::NoOom => no_oom(report, terms),
        Asks::NoFindings => no_findings(report, terms),
        Asks::Stable => stable(report, terms),
        Asks::Peak(limit) => peak(report, limit, terms, |rank| rank.peak_allocated_bytes, ALLOCATED),
        Asks::PeakReserved(limit) => peak(report, limit, terms, |rank| rank.peak_reserved_bytes, RESERVED),
        Asks::ReservedToAllocated(limit) => reserved_to_allocated(report, limit, terms),
        Asks::Growth(limit, per) => growth::growth(report, limit, per, terms),
        Asks::Unused(limit) => unused(report, limit, terms),
    };
    // Known evidence decides against a condition at once. If the condition holds or is undecided, this reason takes
    // precedence.
    if checked.verdict != Outcome::DoesNotHold
        && let Some(because) = nothing_follows(report, terms)
    {
        (checked.verdict, checked.because) = (Outcome::Inconclusive, because);
    }
    checked.condition.clone_from(&condition.text);
    checked
}

/// Why nothing is known after the named epoch: on some rank no later epoch has ended.
fn nothing_follows(report: &Report, terms: &Terms) -> Option<String> {
    let after = terms.after_epoch?;
    let last = |rank: &Rank| rank.epoch_ends.iter().map(|end| end.epoch).max();
    let lacking = report.ranks.iter().find(|rank| last(rank).is_none_or(|last| last <= after))?;
    let known = last(lacking).map_or("no epoch has ended".to_owned(), |last| format!("the last that ended is {last}"));
    Some(format!("nothing follows epoch {after} on rank {}: {known}", lacking.rank))
}

fn verdict(verdict: Outcome, because: String) -> Checked {
    Checked {
        condition: String::new(),
        verdict,
        because,
        value_bytes: None,
        value_ratio: None,
        rank: None,
        findings: Vec::new(),
        site: None,
    }
}

/// A condition that does not hold because of these findings.
fn found(findings: &[&Finding]) -> Option<Checked> {
    let worst = findings.first()?;
    let more = match findings.len() - 1 {
        0 => String::new(),
        more => format!(" (and {})", plural(more as u64, "more finding")),
    };
    let findings = findings.iter().map(|finding| finding.id.clone()).collect();
    Some(Checked { findings, ..verdict(Outcome::DoesNotHold, format!("{}{more}", worst.title)) })
}

/// The absence of failed requests is reported only if events were recorded.
fn no_oom(report: &Report, terms: &Terms) -> Checked {
    let fails = |finding: &&Finding| finding.known_kind() == Some(FindingKind::Oom) || finding.filled_device;
    let failed: Vec<&Finding> = concerning(report, terms, |_| true).into_iter().filter(fails).collect();
    let counted = || {
        let rank = report.ranks.iter().find(|rank| rank.ooms > 0)?;
        let requests = plural(rank.ooms, "request");
        Some(Checked {
            rank: Some(rank.rank),
            ..verdict(Outcome::DoesNotHold, format!("{requests} failed on rank {}", rank.rank))
        })
    };
    found(&failed)
        .or_else(counted)
        .or_else(|| no_events(report, terms))
        .unwrap_or_else(|| verdict(Outcome::Holds, "no request failed".to_owned()))
}

/// Inconclusive if a rank has no events, because its requests are unknown, unless that is allowed.
fn no_events(report: &Report, terms: &Terms) -> Option<Checked> {
    let rank = report.ranks.iter().find(|rank| rank.events == 0 && !terms.allow_incomplete)?;
    Some(verdict(Outcome::Inconclusive, format!("no event was recorded of rank {}", rank.rank)))
}

fn no_findings(report: &Report, terms: &Terms) -> Checked {
    // Growth with an open cause may be a leak, as for `no-leak`.
    let open = || growing(report, terms).filter(|checked| checked.verdict == Outcome::Inconclusive);
    found(&against(report, terms, |_| true))
        .or_else(open)
        .or_else(|| not_judged(report, terms))
        .unwrap_or_else(|| verdict(Outcome::Holds, "nothing of severity warning or above was found".to_owned()))
}

/// Inconclusive if there are too few epoch ends, unless that is allowed.
fn too_few(report: &Report, terms: &Terms, least: usize) -> Option<Checked> {
    let fewest = report.ranks.iter().map(|rank| ends(rank, terms).len()).min().unwrap_or(0);
    let after = terms.after_epoch.map(|epoch| format!(" from epoch {epoch} on")).unwrap_or_default();
    let has_none = report.ranks.iter().all(|rank| rank.epoch_ends.is_empty());
    let remedy = if has_none { format!("; {MARK_EPOCHS}") } else { String::new() };
    (fewest < least && !terms.allow_incomplete)
        .then(|| verdict(Outcome::Inconclusive, format!("needs {least} epoch ends{after}, found {fewest}{remedy}")))
}

/// Inconclusive if evidence against it could not have been found, unless that is allowed. (If nothing was looked at, it is
/// not allowed: a missing figure never passes.)
fn not_judged(report: &Report, terms: &Terms) -> Option<Checked> {
    let looked = report.scope.judged.steps + report.scope.judged.epoch_ends + report.scope.judged.windows > 0;
    let not = report.scope.inconclusive().filter(|_| !terms.allow_incomplete || !looked)?;
    let remedy = not.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
    Some(verdict(Outcome::Inconclusive, format!("{}{remedy}", not.reason)))
}

/// Inconclusive if growth may still turn out to be a leak, unless that is allowed.
fn suspected(report: &Report, terms: &Terms, counts: fn(FindingKind) -> bool) -> Option<Checked> {
    let findings = concerning(report, terms, counts);
    let worst = findings.first().filter(|_| !terms.allow_suspected)?;
    let ids = findings.iter().map(|finding| finding.id.clone()).collect();
    let because = format!("suspected: {} (--allow-suspected accepts it)", worst.title);
    Some(Checked { findings: ids, ..verdict(Outcome::Inconclusive, because) })
}

/// The outcome if, by the verdict, memory grows for an open reason or fills a container that does not fit.
fn growing(report: &Report, terms: &Terms) -> Option<Checked> {
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
    Some(Checked { findings, site: known.site.clone(), ..verdict(outcome, because) })
}

fn no_leak(report: &Report, terms: &Terms) -> Checked {
    let leaks = against(report, terms, FindingKind::fills);
    // A finding about growth with an open cause does not prove a leak.
    let open = growing(report, terms).filter(|checked| checked.verdict == Outcome::Inconclusive);
    open.or_else(|| found(&leaks))
        .or_else(|| growing(report, terms))
        .or_else(|| small_leak(report, terms))
        .or_else(|| not_judged(report, terms))
        .or_else(|| rising(report, terms))
        .unwrap_or_else(|| verdict(Outcome::Holds, no_known_leak(report, terms)))
}

/// Inconclusive if the levels at epoch ends rise after the first epoch, by more than they fall in between, and there are
/// too few of them to distinguish a leak from a cache that still fills, unless that is allowed.
fn rising(report: &Report, terms: &Terms) -> Option<Checked> {
    let by = |rank: &Rank| {
        let found = ends(rank, terms).len();
        let by = proof_limits::rise_after_first(&levels(rank, terms))?;
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
    Some(Checked { value_bytes: Some(by), rank: Some(rank), site, ..verdict(Outcome::Inconclusive, because) })
}

/// The levels at epoch ends. No epoch follows the last one, so its end is that of its last step, and what is kept after
/// each epoch is not yet in it. If earlier levels rise, the level at the end of the recording stands for it.
fn levels(rank: &Rank, terms: &Terms) -> Vec<u64> {
    let mut levels: Vec<u64> = ends(rank, terms).into_iter().filter_map(|end| end.allocated_bytes).collect();
    let rises = matches!(levels.as_slice(), [first, .., before, _] if before > first);
    if let (Some(last), Some(left)) = (levels.last_mut().filter(|_| rises), rank.end_allocated_bytes) {
        *last = left.max(*last);
    }
    levels
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
fn is_small_leak(finding: &Finding) -> bool {
    let most = finding.holders.as_ref().and_then(|found| found.holders.first());
    let is_held = most.is_some_and(|most| !most.holder.is_bounded());
    finding.known_kind().is_some_and(FindingKind::fills) && !finding.suspected && !finding.hurts() && is_held
}

/// Growth that is certain and too small for a warning.
fn small<'a>(report: &'a Report, terms: &Terms) -> impl Iterator<Item = &'a Finding> {
    let all = concerning(report, terms, FindingKind::fills).into_iter();
    all.filter(|finding| !finding.suspected && !finding.hurts())
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

/// `no-leak` holds, no other memory grows, and the levels stay within the tolerance.
fn stable(report: &Report, terms: &Terms) -> Checked {
    let leak = no_leak(report, terms);
    let checked = found(&against(report, terms, grows))
        .or_else(|| Some(leak.clone()).filter(|leak| leak.verdict == Outcome::DoesNotHold))
        .or_else(|| suspected(report, terms, grows))
        .or_else(|| without_epochs(report, terms))
        .or_else(|| too_few(report, terms, proof_limits::STABLE_ENDS_MIN))
        .unwrap_or_else(|| level(report, terms));
    if checked.verdict == Outcome::Holds && leak.verdict == Outcome::Inconclusive { leak } else { checked }
}

/// Whether allocated memory at epoch ends stays within the tolerance.
fn level(report: &Report, terms: &Terms) -> Checked {
    let is_released = report.verdict.as_ref().and_then(Verdict::known_kind) == Some(VerdictKind::Released);
    let rises = report.ranks.iter().filter_map(|rank| rise(rank, terms, is_released));
    // The rank that exceeds its tolerance most decides, not the rank that rose most.
    let Some(worst) = rises.max_by_key(|rise| (rise.by.saturating_sub(rise.tolerance), rise.by, Reverse(rise.rank)))
    else {
        return verdict(Outcome::Inconclusive, "no epoch end has a figure".to_owned());
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
    Checked { value_bytes: Some(worst.by), rank: Some(worst.rank), ..verdict(Outcome::of(holds), because) }
}

/// A loop without epochs has no epoch ends to compare: the verdict decides whether its memory was flat.
fn without_epochs(report: &Report, terms: &Terms) -> Option<Checked> {
    let has_epochs = report.ranks.iter().any(|rank| rank.epoch_ends.len() >= proof_limits::STABLE_ENDS_MIN);
    let known = report.verdict.as_ref().filter(|_| !has_epochs && terms.after_epoch.is_none())?;
    let because = format!("without epochs, its verdict decides: {}", known.sentence.trim_end_matches('.'));
    match known.known_kind()? {
        VerdictKind::Steady | VerdictKind::LevelledOff | VerdictKind::Released => {
            Some(verdict(Outcome::Holds, because))
        }
        VerdictKind::Growing if known.is_leak() => Some(verdict(Outcome::DoesNotHold, because)),
        VerdictKind::Growing | VerdictKind::Filling => Some(verdict(Outcome::Inconclusive, because)),
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

/// `is_released`: memory rises within each epoch and is freed. The end of the last epoch may be that of its last step,
/// because no next epoch follows. So the last end does not count then.
fn rise(rank: &Rank, terms: &Terms, is_released: bool) -> Option<Rise> {
    let mut values: Vec<u64> = ends(rank, terms).into_iter().filter_map(|end| end.allocated_bytes).collect();
    if let Some((last, left)) = values.last_mut().zip(rank.end_allocated_bytes).filter(|_| is_released) {
        *last = left.min(*last);
    }
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
        rank.epoch_ends.iter().filter_map(|end| Some((end.epoch, end.allocated_bytes?))).collect()
    };
    let all: Vec<Vec<(u32, u64)>> = report.ranks.iter().map(series).collect();
    let latest =
        all.iter().map(|ends| proof_limits::settled_after(ends)).try_fold(0, |latest, at| Some(latest.max(at?)))?;
    (latest > 0 && all.iter().all(|ends| proof_limits::is_stable_from(ends, latest))).then_some(latest)
}

/// A figure of epochs.
type OfEpoch = fn(&EpochEnd) -> Option<u64>;
const ALLOCATED: OfEpoch = |end| end.epoch_peak_allocated_bytes;
const RESERVED: OfEpoch = |end| end.epoch_peak_reserved_bytes;

/// The peak of a rank: of the whole job, or of the epochs after the named one. `None` if it is not known.
fn peak_of(rank: &Rank, terms: &Terms, whole: fn(&Rank) -> Option<u64>, within: OfEpoch) -> Option<u64> {
    let Some(after) = terms.after_epoch else { return whole(rank) };
    // The peaks of later epochs only, because the named epoch precedes its own end.
    let later = rank.epoch_ends.iter().filter(|end| end.epoch > after);
    later.filter_map(within).filter(|&peak| peak > 0).max()
}

fn peak(
    report: &Report,
    limit: Limit<u64>,
    terms: &Terms,
    whole: fn(&Rank) -> Option<u64>,
    within: OfEpoch,
) -> Checked {
    let of = |rank: &Rank| peak_of(rank, terms, whole, within).filter(|&peak| peak > 0);
    let known: Vec<(u64, u32)> = report.ranks.iter().filter_map(|rank| Some((of(rank)?, rank.rank))).collect();
    let Some(&(bytes, rank)) = known.iter().max_by_key(|&&(peak, rank)| (peak, Reverse(rank))) else {
        return verdict(Outcome::Inconclusive, "no peak was recorded".to_owned());
    };
    let because = format!("{} at most, on rank {rank}", HumanBytes::of(bytes));
    let mut checked =
        Checked { value_bytes: Some(bytes), rank: Some(rank), ..verdict(Outcome::of(limit.holds(&bytes)), because) };
    // Known values decide against it at once; it holds only if every rank is known.
    if checked.verdict == Outcome::Holds && known.len() < report.ranks.len() {
        let missing: Vec<u32> = report.ranks.iter().filter(|rank| of(rank).is_none()).map(|rank| rank.rank).collect();
        checked.verdict = Outcome::Inconclusive;
        checked.because = format!("no peak was recorded of {}", named(&missing));
    }
    checked
}

fn reserved_to_allocated(report: &Report, limit: Limit<f64>, terms: &Terms) -> Checked {
    let of = |rank: &Rank| {
        let allocated = peak_of(rank, terms, |rank| rank.peak_allocated_bytes, ALLOCATED).filter(|&bytes| bytes > 0)?;
        let reserved = peak_of(rank, terms, |rank| rank.peak_reserved_bytes, RESERVED)?;
        Some((reserved as f64 / allocated as f64, rank.rank))
    };
    let highest = report.ranks.iter().filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let Some((ratio, rank)) = highest else {
        return verdict(Outcome::Inconclusive, "no peaks were recorded".to_owned());
    };
    told_of_all(report, limit, (ratio, rank), &format!("{ratio:.3}"), |rank| of(rank).is_some())
}

/// Checks the highest ratio, which is shown as given. Known values decide against the condition at once; it holds only if every rank has a
/// value.
fn told_of_all(
    report: &Report,
    limit: Limit<f64>,
    (ratio, rank): (f64, u32),
    shown: &str,
    is_known: impl Fn(&Rank) -> bool,
) -> Checked {
    let because = format!("{shown} at most, on rank {rank}");
    let mut checked =
        Checked { value_ratio: Some(ratio), rank: Some(rank), ..verdict(Outcome::of(limit.holds(&ratio)), because) };
    let missing: Vec<u32> = report.ranks.iter().filter(|rank| !is_known(rank)).map(|rank| rank.rank).collect();
    if checked.verdict == Outcome::Holds && !missing.is_empty() {
        checked.verdict = Outcome::Inconclusive;
        checked.because = format!("no figure was recorded of {}", named(&missing));
    }
    checked
}

/// The share of reserved bytes that no live block uses: cache, which serves later requests, and holes.
fn unused(report: &Report, limit: Limit<f64>, terms: &Terms) -> Checked {
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
        return verdict(Outcome::Inconclusive, "no figure was recorded".to_owned());
    };
    told_of_all(report, limit, (ratio, rank), &format!("{:.1} %", ratio * 100.0), |rank| of(rank).is_some())
}

impl Listing for Verdicts {
    type Row = Checked;
    const COLUMNS: &'static [&'static str] =
        &["condition", "verdict", "because", "value_bytes", "value_ratio", "rank", "findings"];

    fn rows(&self) -> &[Checked] {
        &self.conditions
    }

    fn cells(checked: &Checked) -> Vec<Cell> {
        vec![
            Cell::text(&checked.condition),
            Cell::plain(checked.verdict.words()),
            Cell::text(&checked.because),
            Cell::maybe(checked.value_bytes),
            Cell::maybe(checked.value_ratio),
            Cell::maybe(checked.rank),
            Cell::text(checked.findings.join(" ")),
        ]
    }
}

#[cfg(test)]
mod tests;
