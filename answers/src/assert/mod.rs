//! `memctl assert` as data: each condition with the figure that decided it.
//!
//! Guarantees: a condition holds only on sufficient data. If the job still runs, ended badly, was not recorded
//! completely or could not be analysed, a condition that would hold is inconclusive, unless that is allowed. Evidence
//! against a condition counts at once. A missing figure never passes, not even with `allow_incomplete`.

pub mod against;
mod beside;
mod growth;
mod known;
mod leaks;
mod levels;
mod peaks;
mod stable;

use memctl_analysis::coverage::MARK_EPOCHS;
use memctl_model::{FindingKind, JobState};
use serde::Serialize;

use against::Against;
pub use stable::settled_after;

use super::finding::Finding;
use super::judged::Scope;
use super::report::{EpochEnd, Rank, Report};
use super::verdict::Verdict;
use super::{Completeness, Frame, Job, Listing, SCHEMA};
use crate::conditions::{Asks, Condition, Tolerance};
use crate::format::csv::Cell;
use crate::format::text::{plural, rank_list};

/// Options for the evaluation of conditions.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Use only data from the end of this epoch on, including this end.
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
    /// How complete the data behind the answer is.
    pub completeness: Completeness,
    /// Whether all of them hold.
    pub holds: bool,
    /// Why the data does not suffice, in sentences; empty if it does.
    pub incomplete: Vec<String>,
    /// Whether incomplete data was allowed.
    pub incomplete_allowed: bool,
    /// The conditions, in their order.
    pub conditions: Vec<Checked>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// How the job's memory developed; null if the daemon does not report it.
    pub verdict: Option<Verdict>,
}

/// A condition and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// As it was typed.
    pub condition: String,
    /// What came of it.
    pub verdict: Outcome,
    /// The reason, in words.
    pub because: String,
    /// The figure that decided, where it is bytes.
    pub value_bytes: Option<u64>,
    /// The figure that decided, where it is a share.
    pub value_ratio: Option<f64>,
    /// The rank it is from.
    pub rank: Option<u32>,
    /// Ids of the findings against it.
    pub findings: Vec<String>,
    /// The site of the memory that decided the outcome, if no finding names it.
    #[serde(skip)]
    pub site: Option<Frame>,
    /// Whether a peak decided. Peaks have no finding; their sites explain them.
    #[serde(skip)]
    pub is_peak: bool,
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
        // The default comparisons are left out if a condition compares with the other job.
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

    /// The conditions of a job of which nothing is stored, all of them inconclusive for this reason.
    #[must_use]
    pub fn unanswered(job: &str, conditions: &[String], because: &str) -> Self {
        let inconclusive = |condition: &String| Checked {
            condition: condition.clone(),
            ..checked(Outcome::Inconclusive, because.to_owned())
        };
        Self {
            schema: SCHEMA,
            holds: false,
            job: Job { id: job.to_owned(), name: job.to_owned(), ..Job::default() },
            completeness: Completeness::default(),
            incomplete: Vec::new(),
            incomplete_allowed: false,
            conditions: conditions.iter().map(inconclusive).collect(),
            scope: Scope::default(),
            verdict: None,
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
        let are = if missing == 1 { "is" } else { "are" };
        (missing > 0).then(|| format!("{} of the job {are} not in the recording", plural(u64::from(missing), "rank")))
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
fn hurting<'a>(report: &'a Report, terms: &Terms, counts: fn(FindingKind) -> bool) -> Vec<&'a Finding> {
    concerning(report, terms, counts).into_iter().filter(|finding| finding.is_warning_or_worse()).collect()
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
        let nothing = || checked(Outcome::Inconclusive, "needs another job or a baseline: --against".to_owned());
        other.map_or_else(nothing, check)
    };
    let mut checked = match condition.asks {
        Asks::PeakOver(allowed) => to_other(&|other| against::over(report, against::PEAK, other, terms, allowed)),
        Asks::PeakReservedOver(allowed) => {
            to_other(&|other| against::over(report, against::PEAK_RESERVED, other, terms, allowed))
        }
        Asks::NoNewLeak => to_other(&|other| against::findings(report, other, terms, FindingKind::is_leak)),
        Asks::NoLeak => leaks::no_leak(report, terms),
        Asks::NoOom => no_oom(report, terms),
        Asks::NoFindings => leaks::no_findings(report, terms),
        Asks::Stable => stable::stable(report, terms),
        Asks::Peak(limit) => peaks::peak(report, limit, terms, |rank| rank.peak_allocated_bytes, peaks::ALLOCATED),
        Asks::PeakReserved(limit) => {
            peaks::peak(report, limit, terms, |rank| rank.peak_reserved_bytes, peaks::RESERVED)
        }
        Asks::ReservedToAllocated(limit) => peaks::reserved_to_allocated(report, limit, terms),
        Asks::Growth(limit, per) => growth::growth(report, limit, per, terms),
        Asks::Unused(limit) => peaks::unused(report, limit, terms),
    };
    // Evidence against the condition counts at once. Without such evidence, the condition is inconclusive if no epoch
    // ended after the named one.
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

/// A condition with this outcome, for this reason.
fn checked(verdict: Outcome, because: String) -> Checked {
    Checked {
        condition: String::new(),
        verdict,
        because,
        value_bytes: None,
        value_ratio: None,
        rank: None,
        findings: Vec::new(),
        site: None,
        is_peak: false,
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
    Some(Checked { findings, ..checked(Outcome::DoesNotHold, format!("{}{more}", worst.title)) })
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
            ..checked(Outcome::DoesNotHold, format!("{requests} failed on rank {}", rank.rank))
        })
    };
    found(&failed)
        .or_else(counted)
        .or_else(|| no_events(report, terms))
        .unwrap_or_else(|| checked(Outcome::Holds, "no request failed".to_owned()))
}

/// Inconclusive if a rank has no events, because its requests are unknown, unless that is allowed.
fn no_events(report: &Report, terms: &Terms) -> Option<Checked> {
    let rank = report.ranks.iter().find(|rank| rank.events == 0 && !terms.allow_incomplete)?;
    Some(checked(Outcome::Inconclusive, format!("no event was recorded of rank {}", rank.rank)))
}

/// Inconclusive if there are too few epoch ends, unless that is allowed.
fn too_few(report: &Report, terms: &Terms, least: usize) -> Option<Checked> {
    let fewest = report.ranks.iter().map(|rank| ends(rank, terms).len()).min().unwrap_or(0);
    let after = terms.after_epoch.map(|epoch| format!(" from epoch {epoch} on")).unwrap_or_default();
    let has_none = report.ranks.iter().all(|rank| rank.epoch_ends.is_empty());
    let remedy = if has_none { format!("; {MARK_EPOCHS}") } else { String::new() };
    (fewest < least && !terms.allow_incomplete)
        .then(|| checked(Outcome::Inconclusive, format!("needs {least} epoch ends{after}, found {fewest}{remedy}")))
}

/// Inconclusive if the analysis could not have found evidence against the condition, unless incomplete data is allowed.
/// If nothing was analysed, it is inconclusive even then, because a missing figure never passes.
fn not_judged(report: &Report, terms: &Terms) -> Option<Checked> {
    let looked = report.scope.judged.steps + report.scope.judged.epoch_ends + report.scope.judged.windows > 0;
    let not = report.scope.inconclusive().filter(|_| !terms.allow_incomplete || !looked)?;
    let remedy = not.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
    Some(checked(Outcome::Inconclusive, format!("{}{remedy}", not.reason)))
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
