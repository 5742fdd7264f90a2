//! The results of conditions in the formats that continuous integration reads: JUnit, SARIF, and annotations of GitHub.
//!
//! Guarantees: each condition that fails or is inconclusive has at least one problem; a problem names a line of the
//! checkout only if the file exists there.

mod changed_lines;
mod evaluate;
mod github;
mod junit;
mod repository;
mod sarif;

use std::io::Write;

use memctl_answers::assert::{Checked, Outcome, Verdicts};
use memctl_answers::diff::{Diff, SiteChange};
use memctl_answers::finding::Finding;
use memctl_answers::naming::place;
use memctl_answers::profile::{KnownFinding, PeakSite, Profile};
use memctl_model::HumanBytes;
use memctl_model::fingerprint::Fingerprint;

use crate::args::Results;
use crate::exit::Failure;
use crate::output_file::Target;
pub use evaluate::{check, unanswered};
use repository::{Location, Repository};

/// Sites that are named for a peak above its limit.
const PEAK_SITES_MAX: usize = 3;

/// A reason why a condition does not hold, or is inconclusive.
#[derive(Clone, Debug)]
struct Problem {
    /// The condition, as it was typed.
    condition: String,
    /// Whether the condition fails or is inconclusive.
    outcome: Outcome,
    /// What is wrong, and what to change.
    message: String,
    /// The line in the checkout.
    location: Option<Location>,
    /// The finding's fingerprint, which stays the same in later runs, whatever their job is called.
    finding: Option<Fingerprint>,
}

/// What problems are looked up in.
struct Evidence<'a> {
    /// The outcome of each condition.
    verdicts: &'a Verdicts,
    /// The job's findings.
    findings: &'a [Finding],
    /// The job's profile; `None` if no peak is above its limit.
    profile: Option<&'a Profile>,
    /// The changes since the job or baseline that it is compared with.
    changes: Option<&'a Diff>,
}

/// Whether a condition about a peak does not hold. The sites of the peak are needed to explain it.
fn needs_profile(verdicts: &Verdicts) -> bool {
    verdicts.conditions.iter().any(|checked| checked.verdict == Outcome::DoesNotHold && checked.is_peak)
}

/// Writes the results to the files, and the annotations to `out`.
///
/// # Errors
/// A file cannot be written.
async fn write(results: &Results, evidence: &Evidence<'_>, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    if results.is_empty() {
        return Ok(());
    }
    let repository = Repository::here();
    write_problems(results, evidence.verdicts, problems(evidence, &repository), &repository, out).await
}

async fn write_problems(
    results: &Results,
    verdicts: &Verdicts,
    problems: Vec<Problem>,
    repository: &Repository,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if let Some(file) = &results.junit {
        to_file(file, &junit::document(verdicts, &problems))?;
    }
    if let Some(file) = &results.sarif {
        to_file(file, &sarif::document(verdicts, &problems))?;
    }
    if results.github {
        let changed = changed_lines::of_pull_request(repository).await;
        github::write(verdicts, problems, &changed, out)?;
    }
    Ok(())
}

/// Writes that no condition could be checked: one problem for all of them, with the same reason.
///
/// # Errors
/// A file cannot be written.
async fn write_unanswered(
    results: &Results,
    verdicts: &Verdicts,
    because: &str,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if results.is_empty() {
        return Ok(());
    }
    let conditions: Vec<&str> = verdicts.conditions.iter().map(|checked| checked.condition.as_str()).collect();
    let problem = Problem {
        condition: conditions.join(", "),
        outcome: Outcome::Inconclusive,
        message: because.to_owned(),
        location: None,
        finding: None,
    };
    write_problems(results, verdicts, vec![problem], &Repository::here(), out).await
}

fn to_file(file: &std::path::Path, content: &str) -> Result<(), Failure> {
    let mut nothing = std::io::sink();
    let mut target = Target::open(Some(file), &mut nothing)?;
    let written = target.writer().write_all(content.as_bytes());
    written.map_err(|error| Failure::output(&file.display().to_string(), &error))?;
    target.keep()
}

fn problems(evidence: &Evidence<'_>, repository: &Repository) -> Vec<Problem> {
    let failing = evidence.verdicts.conditions.iter().filter(|checked| checked.verdict != Outcome::Holds);
    failing.flat_map(|checked| of_condition(checked, evidence, repository)).collect()
}

fn of_condition(checked: &Checked, evidence: &Evidence<'_>, repository: &Repository) -> Vec<Problem> {
    let problem = |message: String, location| Problem {
        condition: checked.condition.clone(),
        outcome: checked.verdict,
        message,
        location,
        finding: None,
    };
    let mut found: Vec<Problem> = checked
        .findings
        .iter()
        .filter_map(|id| evidence.findings.iter().find(|finding| finding.id == *id))
        .map(|finding| Problem {
            finding: Some(fingerprint(finding)),
            ..problem(words(finding), location(finding, repository).or_else(|| of_site(checked, repository)))
        })
        .collect();
    if found.is_empty() && checked.verdict == Outcome::DoesNotHold && checked.is_peak {
        let sites = peak_sites(evidence)
            .into_iter()
            .map(|(frame, sentence)| problem(format!("{sentence}. {}", checked.because), repository.locate(&frame)));
        found.extend(sites);
    }
    if found.is_empty() {
        let why = evidence.verdicts.incomplete.first().filter(|_| checked.verdict == Outcome::Inconclusive);
        let message = why.map_or_else(|| checked.because.clone(), |why| format!("{}; {why}", checked.because));
        found.push(problem(message, of_site(checked, repository)));
    }
    found
}

/// What identifies a finding in the runs of other jobs: neither lines nor folders.
fn fingerprint(finding: &Finding) -> Fingerprint {
    let (function, file) = KnownFinding::from(finding).place().unwrap_or_default();
    Fingerprint::of([&*finding.kind, &*function, &*file, finding.subject.as_deref().unwrap_or_default()])
}

/// The line of growth that no finding names.
fn of_site(checked: &Checked, repository: &Repository) -> Option<Location> {
    checked.site.as_ref().and_then(|site| repository.locate(site))
}

/// What is wrong, what holds the memory if that is known, and what to change.
fn words(finding: &Finding) -> String {
    let holder = finding.holders.as_ref().and_then(|known| known.holders.first());
    let holder = holder.map(|growing| growing.holder.sentence.trim()).filter(|sentence| !sentence.is_empty());
    let advice = Some(finding.advice.trim().to_owned()).filter(|advice| !advice.is_empty());
    let lines = [Some(finding.title.clone()), holder.map(|holder| format!("Held by {holder}.")), advice];
    lines.into_iter().flatten().collect::<Vec<String>>().join("\n")
}

/// The innermost frame of a finding's stack whose file is in the checkout.
fn location(finding: &Finding, repository: &Repository) -> Option<Location> {
    let site = finding.site.as_ref()?;
    repository.locate(&site.frame).or_else(|| site.stack.iter().find_map(|frame| repository.locate(frame)))
}

/// The sites that explain a peak: those that grew since the compared run, or else those with most bytes.
fn peak_sites(evidence: &Evidence<'_>) -> Vec<(memctl_answers::Frame, String)> {
    let grown = |change: &SiteChange| {
        let more = change.after_bytes.checked_sub(change.before_bytes).filter(|more| *more > 0)?;
        let frame = change.site.clone()?;
        let (name, more, now) = (place(&frame), HumanBytes::of(more), HumanBytes::of(change.after_bytes));
        let bound = if change.is_bound() { "up to " } else { "" };
        Some((frame, format!("{name} holds {now} at the peak, {bound}{more} more than before")))
    };
    let largest = |site: &PeakSite| {
        let frame = site.site.clone()?;
        let (name, bytes) = (place(&frame), HumanBytes::of(site.live_bytes));
        Some((frame, format!("{name} holds {bytes} at the peak")))
    };
    let changes = evidence.changes.map_or(&[][..], |diff| &diff.sites);
    let mut sites: Vec<_> = changes.iter().filter_map(grown).take(PEAK_SITES_MAX).collect();
    if sites.is_empty() {
        let peak = evidence.profile.and_then(|profile| profile.peak.as_ref());
        sites = peak.map_or(&[][..], |peak| &peak.sites).iter().filter_map(largest).take(PEAK_SITES_MAX).collect();
    }
    sites
}
