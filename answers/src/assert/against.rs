//! `--against`: the job must not be worse than another job or a saved baseline, by peaks and by findings.

use memctl_analysis::proof_limits;
use memctl_model::{FindingKind, HumanBytes};

use super::beside::{beside_tensors, is_slow, not_judged_words};
use super::known::{Beside, New};
use super::leaks::{is_small_leak, rising};
use super::peaks::{ALLOCATED, OfEpoch, RESERVED};
use super::{Checked, Outcome, Terms, checked, concerning, not_judged};
use crate::baseline::Spread;
use crate::conditions::{Allowance, Limit};
use crate::finding::Finding;
use crate::judged::NotJudged;
use crate::profile::{KnownFinding, Profile, RankProfile};
use crate::report::{Rank, Report};

/// What a job is compared with.
#[derive(Clone, Debug)]
pub struct Against {
    /// The job's name, or the file of its baseline.
    pub name: String,
    /// Its figures.
    pub profile: Profile,
    /// How far equal runs lie apart.
    pub spread: Spread,
}

/// A peak, and how it is read from a rank of the job and of the other one.
#[derive(Clone, Copy)]
pub(super) struct Peak {
    condition: &'static str,
    read: fn(&Rank) -> Option<u64>,
    other: fn(&RankProfile) -> Option<u64>,
    spread: fn(&Spread) -> u64,
    within: OfEpoch,
}

pub(super) const PEAK: Peak = Peak {
    condition: "peak",
    read: |rank| rank.peak_allocated_bytes,
    other: |rank| rank.peak_allocated_bytes,
    spread: |spread| spread.peak_allocated_bytes,
    within: ALLOCATED,
};

pub(super) const PEAK_RESERVED: Peak = Peak {
    condition: "peak_reserved",
    read: |rank| rank.peak_reserved_bytes,
    other: |rank| rank.peak_reserved_bytes,
    spread: |spread| spread.peak_reserved_bytes,
    within: RESERVED,
};

/// The conditions that hold if a job is not worse than another one.
pub(super) fn checks(report: &Report, other: &Against, terms: &Terms) -> Vec<Checked> {
    let of = |peak: Peak| {
        let condition = format!("{} against {}", peak.condition, other.name);
        Checked { condition, ..compared(report, peak, other, terms, proof_limits::peak_limit) }
    };
    let condition = format!("findings against {}", other.name);
    vec![of(PEAK), of(PEAK_RESERVED), Checked { condition, ..findings(report, other, terms, |_| true) }]
}

/// Whether a peak is at most the other job's, with an allowance.
pub(super) fn over(report: &Report, peak: Peak, other: &Against, terms: &Terms, allowed: Allowance) -> Checked {
    compared(report, peak, other, terms, |theirs| allowed.above(theirs))
}

fn compared(report: &Report, peak: Peak, other: &Against, terms: &Terms, limit: impl Fn(u64) -> u64) -> Checked {
    let Some(theirs) = other.profile.most(peak.other).filter(|&bytes| bytes > 0) else {
        return checked(Outcome::Inconclusive, format!("no peak was recorded of {}", other.name));
    };
    let most = limit(theirs).saturating_add((peak.spread)(&other.spread));
    let mut checked = super::peaks::peak(report, Limit { most, inclusive: true }, terms, peak.read, peak.within);
    checked.because = format!("{}; {} has {}", checked.because, other.name, HumanBytes::of(theirs));
    // It holds only because equal runs differed.
    if checked.verdict == Outcome::Holds && checked.value_bytes.is_some_and(|bytes| bytes > limit(theirs)) {
        let spread = HumanBytes::of((peak.spread)(&other.spread));
        checked.because = format!("{}, and its runs differ by {spread}, which is allowed", checked.because);
    }
    checked
}

/// Whether the job has a finding of some kinds that the other job does not have. Ids differ between jobs, so findings
/// are compared by kind, place, rate and holder.
pub(super) fn findings(report: &Report, other: &Against, terms: &Terms, counts: fn(FindingKind) -> bool) -> Checked {
    let concerned = concerning(report, terms, counts);
    let beside = Beside::new(report, &concerned, &other.profile, &other.spread);
    let news: Vec<(&Finding, Option<New>)> = concerned.iter().map(|finding| (*finding, beside.news(finding))).collect();
    let known: Vec<&Finding> = news.iter().filter(|(_, new)| new.is_none()).map(|(finding, _)| *finding).collect();
    let news = news.into_iter().filter_map(|(finding, new)| Some((finding, new?)));
    let (new, open): (Vec<_>, Vec<_>) = news.partition(|(finding, _)| is_evidence(finding));
    match new.first() {
        Some((worst, why)) => {
            let findings = new.iter().map(|(finding, _)| finding.id.clone()).collect();
            Checked { findings, ..checked(Outcome::DoesNotHold, why.words(&worst.title)) }
        }
        None => not_judged(report, terms)
            .or_else(|| open_growth(report, other, terms, (&open, &known)))
            .or_else(|| less_judged(report, other, terms))
            .or_else(|| rising_beside(report, other, terms, &known))
            .unwrap_or_else(|| {
                checked(
                    Outcome::Holds,
                    format!("{} that {} does not have{}", nothing_new(counts), other.name, beside_tensors(report)),
                )
            }),
    }
}

/// Inconclusive if too few epoch ends rise to distinguish a leak from a cache that still fills, and the other job has
/// neither a leak nor growth.
fn rising_beside(report: &Report, other: &Against, terms: &Terms, known: &[&Finding]) -> Option<Checked> {
    let is_flat = other.profile.growth.is_empty() && !other.profile.findings.iter().any(KnownFinding::fills);
    rising(report, terms).filter(|_| is_flat && known.is_empty())
}

/// Whether a finding counts if it is new: one of severity warning or worse, a request that failed even if the program
/// went on, and a small leak whose holder has no bound. Growth with an open cause does not: it may be a container that
/// stops growing.
fn is_evidence(finding: &Finding) -> bool {
    let is_failure = finding.known_kind() == Some(FindingKind::Oom) || finding.filled_device;
    (finding.is_warning_or_worse() && !is_open(finding)) || is_failure || is_small_leak(finding)
}

fn is_open(finding: &Finding) -> bool {
    finding.known_kind().is_some_and(FindingKind::fills) && !finding.cause_known
}

/// The findings that count, none of which is new.
fn nothing_new(counts: fn(FindingKind) -> bool) -> &'static str {
    match counts(FindingKind::Oom) {
        true => "no finding of severity warning or above, no failed request and no leak",
        false => "no leak",
    }
}

/// Growth with an open cause that the other job does not have: it may be a leak. `new` and `known` are findings that the
/// other job does not have, and has.
fn open_growth(
    report: &Report,
    other: &Against,
    terms: &Terms,
    (new, known): (&[(&Finding, New)], &[&Finding]),
) -> Option<Checked> {
    let open = report.verdict.as_ref().filter(|verdict| verdict.is_open());
    let has_growth = |place: &Option<(String, String)>| other.profile.growth.iter().any(|one| one.place() == *place);
    // An older memctl saved no suspected findings, but the growth of sites.
    let counts = |(finding, new): &&(&Finding, New)| {
        let is_known_growth = *new == New::Place && has_growth(&KnownFinding::from(*finding).place());
        KnownFinding::from(*finding).fills()
            && !is_known_growth
            && (finding.is_warning_or_worse() || (open.is_some() && !terms.allow_suspected))
    };
    if let Some((finding, why)) = new.iter().find(counts) {
        let asked = if finding.holders.is_none() { "; no answer about what holds it is stored" } else { "" };
        let because = match finding.is_warning_or_worse() {
            true => format!("{}; it is a leak unless what holds it is bounded{asked}", why.words(&finding.title)),
            false => format!("suspected and {} (--allow-suspected accepts it)", why.words(&finding.title)),
        };
        let (findings, site) = (vec![finding.id.clone()], open.and_then(|open| open.site.clone()));
        return Some(Checked { findings, site, ..checked(Outcome::Inconclusive, because) });
    }
    let open = open.filter(|_| !terms.allow_suspected)?;
    let here = KnownFinding { site: open.site.clone(), ..KnownFinding::default() }.place();
    let mut there = other.profile.findings.iter().filter(|known| known.fills());
    let is_known = has_growth(&here)
        || there.any(|known| known.place() == here)
        || known.iter().any(|finding| KnownFinding::from(*finding).place() == here);
    let because = || format!("{} (--allow-suspected accepts it)", open.sentence.trim_end_matches('.'));
    (!is_known).then(|| Checked { site: open.site.clone(), ..checked(Outcome::Inconclusive, because()) })
}

/// Kinds that were analysed in the other job and not in this one. The absence of such findings in this job means
/// nothing.
fn less_judged(report: &Report, other: &Against, terms: &Terms) -> Option<Checked> {
    let only_there = |not: &&NotJudged| {
        let is_judged_there =
            |kind: FindingKind| other.profile.judged.iter().any(|judged| judged == kind.name()) && !is_slow(kind);
        not.is_whole() && not.known_kind().is_some_and(is_judged_there) && !terms.allow_incomplete
    };
    let not = report.scope.not_judged.iter().find(only_there)?;
    Some(checked(Outcome::Inconclusive, not_judged_words(not)))
}
