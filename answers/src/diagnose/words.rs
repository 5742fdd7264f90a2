//! The six answers in words, from figures that were collected before.
//!
//! Guarantees: an answer that the data does not support states this and the reason; unknown figures are not shown.

use memctl_analysis::{display_threshold, proof_limits};
use memctl_model::{FindingKind, HumanBytes, JobState, Pattern};

use super::proving::proof;
use super::remedy::{Remedy, kept_exception, remedy};
use super::{Question, Usage};
use crate::advice::Advice;
use crate::finding::{Finding, phrases};
use crate::format::text::{capital, count, plural, safe};
use crate::judged::{NotJudged, looked_at};
use crate::leaks::grows;
use crate::ledger::ClassShare;
use crate::naming::{command, place};
use crate::report::{Rank, Report};
use crate::verdict::Verdict;

/// The class of memory that no rule classifies.
const UNKNOWN: &str = "unknown";
/// Callers shown after a line.
const CALLERS: usize = 3;
/// Chains from a module to a tensor.
const CHAINS: usize = 2;

/// The six questions with their answers.
#[must_use]
pub fn questions(report: &Report, usage: Option<&Usage>, replay: Option<&Advice>, flags: &str) -> Vec<Question> {
    let main = main(report);
    let pattern_seen = main.and_then(|finding| finding.pattern.as_deref()).and_then(Pattern::of_name);
    let remedy = match main.and_then(|finding| finding.holders.as_ref()) {
        Some(holders) if holders.is_kept_by_traceback() => kept_exception(),
        _ => remedy(main.and_then(Finding::known_kind), pattern_seen),
    };
    vec![
        Question::new("How much is used, and by what?", used(usage)),
        Question::new("Does it grow, and where?", growth(report)),
        Question::new("Is it real demand, or fragmentation?", demand(report, usage, replay)),
        Question {
            commands: main.map_or_else(Vec::new, |finding| asking(report, finding, flags)),
            ..Question::new("Which line, and which pattern?", pattern(report, main, &remedy))
        },
        change(report, main, &remedy, replay, flags),
        proof(report, main, &remedy, usage, flags),
    ]
}

/// The finding that the note is about: the worst one, or one for information only if the job has no other.
#[must_use]
pub fn main(report: &Report) -> Option<&Finding> {
    report.findings.first()
}

fn bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "an unknown amount".to_owned(), |value| HumanBytes::of(value).to_string())
}

fn used(usage: Option<&Usage>) -> Vec<String> {
    let known = usage.filter(|usage| usage.peak_allocated_bytes.is_some() || usage.allocated_bytes.is_some());
    let Some(usage) = known else { return vec!["Nothing was recorded in this part of the job.".to_owned()] };
    let mut levels = format!(
        "Rank {} {}: {} allocated, {} reserved; peaks: {} allocated, {} reserved{}.",
        usage.rank,
        usage.moment,
        bytes(usage.allocated_bytes),
        bytes(usage.reserved_bytes),
        bytes(usage.peak_allocated_bytes),
        bytes(usage.peak_reserved_bytes),
        by_class(usage),
    );
    if let (Some(used), Some(total)) = (usage.device_used_bytes, usage.device_total_bytes) {
        let others = usage.foreign_used_bytes.filter(|&bytes| bytes > 0);
        let others =
            others.map_or(String::new(), |bytes| format!(", {} of it by other processes", HumanBytes::of(bytes)));
        levels.push_str(&format!(" The device: {} of {} in use{others}.", HumanBytes::of(used), HumanBytes::of(total)));
    }
    vec![levels, by_what(usage)]
}

/// ` (58 % activations, 20 % optimizer state, 2 % unknown)`: the classes with most memory.
fn by_class(usage: &Usage) -> String {
    let mut classes: Vec<_> =
        usage.peak_classes.iter().filter(|class| display_threshold::is_class_named(class.share)).collect();
    // Memory of unknown class comes last, whatever its size.
    classes.sort_by_key(|share| (share.class == UNKNOWN, std::cmp::Reverse(share.live_bytes)));
    let part = |share: &ClassShare| format!("{:.0} % {}", 100.0 * share.share, safe(&share.class.replace('_', " ")));
    let parts: Vec<String> = classes.into_iter().map(part).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn by_what(usage: &Usage) -> String {
    if usage.by.is_empty() {
        return match usage.without_stack_bytes {
            Some(0) | None => "What uses it is unknown: no table of live memory was stored.".to_owned(),
            Some(_) => {
                "What uses it is unknown: no stacks were recorded (memctl run records them without --no-stacks; \
                        snapshots have them with context=\"all\")."
                    .to_owned()
            }
        };
    }
    let mut parts: Vec<String> =
        usage.by.iter().map(|share| format!("{} {}", HumanBytes::of(share.live_bytes), place(&share.site))).collect();
    if usage.other_sites > 0 {
        parts.push(format!("{} in {}", bytes(Some(usage.other_bytes)), plural(usage.other_sites, "other site")));
    }
    if let Some(unknown) = usage.without_stack_bytes.filter(|&bytes| bytes > 0) {
        parts.push(format!("{} without a stack", HumanBytes::of(unknown)));
    }
    format!("{}: {}.", usage.live_when, parts.join("; "))
}

fn growing(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.known_kind().is_some_and(grows))
}

fn growth(report: &Report) -> Vec<String> {
    let Some(worst) = growing(report).next() else {
        // A verdict about growth, its end, filling or release has a measured amount, even without a finding.
        let measured = report.verdict.as_ref().filter(|verdict| verdict.grown_bytes.is_some());
        return vec![measured.map_or_else(|| no_growth(report), |verdict| verdict.sentence.clone())];
    };
    let mut text = if worst.is_warning_or_worse() { "Yes".to_owned() } else { "Perhaps".to_owned() };
    // If memory grows once an epoch, its average per step adds nothing.
    let once =
        Finding { bytes_per_step: worst.bytes_per_step.filter(|_| worst.bytes_per_epoch.is_none()), ..worst.clone() };
    let rates = phrases::rates(&once);
    text.push_str(&format!(": {}", if rates.is_empty() { &worst.title } else { &rates }));
    for part in [phrases::on_ranks(worst), worst.site.as_ref().map_or(String::new(), |site| place_in(&site.frame))] {
        if !part.is_empty() && !rates.is_empty() {
            text.push_str(&format!(" {part}"));
        }
    }
    if let Some(since) = phrases::since(worst, false) {
        text.push_str(&format!(", since {since}"));
    }
    text.push('.');
    if worst.known_kind() == Some(FindingKind::HiddenChain) {
        text.push_str(" It falls back when the state is created again, so epoch ends look flat.");
    }
    // If there is a series of values, its end shows the live bytes.
    if let Some(live) = phrases::live(worst).filter(|_| worst.first_series().is_none()) {
        text.push_str(&format!(" {live} now."));
    }
    if let Some(until) = phrases::until(worst) {
        text.push_str(&format!(" If this continues, {until}."));
    }
    let others = growing(report).count() - 1;
    if others > 0 {
        text.push_str(&format!(" {} about growth (memctl leaks).", plural(others as u64, "more finding")));
    }
    vec![text]
}

/// Continuing growth without a finding.
fn grows_without_finding(report: &Report) -> Option<&Verdict> {
    report.verdict.as_ref().filter(|verdict| verdict.is_open() && growing(report).next().is_none())
}

fn place_in(site: &crate::Frame) -> String {
    format!("in {}", place(site))
}

/// `Unknown: needs 30 steps or 3 epoch ends, found 1 epoch end. Mark each step: ...`
fn not_to_be_told(not: &NotJudged) -> String {
    let remedy = not.remedy.as_deref().map_or(String::new(), |remedy| format!(" {}.", capital(remedy)));
    format!("Unknown: {}.{remedy}", not.reason)
}

/// The answer if no finding is about growth.
fn no_growth(report: &Report) -> String {
    if let Some(not) = report.scope.inconclusive() {
        return not_to_be_told(not);
    }
    let ends = report.ranks.iter().map(|rank| rank.epoch_ends.len()).min().unwrap_or(0);
    // The rank whose epoch ends spread most is shown for all ranks.
    let spread = |rank: &Rank| {
        let values: Vec<u64> = rank.epoch_ends.iter().filter_map(|end| end.allocated_bytes).collect();
        Some((values.iter().max()? - values.iter().min()?, *values.first()?, *values.last()?, rank.rank))
    };
    match report.ranks.iter().filter_map(spread).max() {
        None => format!("No growth was found in {}.", looked_at(&report.scope.judged)),
        Some((0, first, _, _)) if display_threshold::is_course(ends) => {
            format!("No: {} at every one of {} epoch ends.", HumanBytes::of(first), count(ends as u64))
        }
        Some((_, _, _, _)) if !display_threshold::is_course(ends) => {
            format!("No growth was found in {}.", looked_at(&report.scope.judged))
        }
        Some((_, first, last, rank)) => format!(
            "No unbounded growth: from {} at the first epoch end to {} at the last (rank {rank}, {ends} epochs).",
            HumanBytes::of(first),
            HumanBytes::of(last),
        ),
    }
}

fn demand(report: &Report, usage: Option<&Usage>, replay: Option<&Advice>) -> Vec<String> {
    use FindingKind as Kind;
    let of = |kinds: &[Kind]| {
        report.findings.iter().find(|finding| finding.known_kind().is_some_and(|kind| kinds.contains(&kind)))
    };
    let share = usage.and_then(|usage| {
        let (allocated, reserved) = (usage.peak_allocated_bytes?, usage.peak_reserved_bytes.filter(|&all| all > 0)?);
        Some((allocated, reserved))
    });
    let verdict = if let Some(finding) = of(&[Kind::Fragmentation, Kind::FragmentationGrowth]) {
        format!("Fragmentation: {}.", finding.title.trim_end_matches('.'))
    } else if let Some(finding) = of(&[Kind::Oom, Kind::NearOom]) {
        format!("{}.", capital(finding.title.trim_end_matches('.')))
    } else if report.findings.iter().any(|finding| finding.known_kind().is_some_and(FindingKind::is_leak)) {
        match share {
            Some((allocated, reserved)) if !proof_limits::is_real_demand(allocated, reserved) => {
                "Both: live tensors grow, and far more was reserved than was in use at once (memctl what-if shows what a setting \
                 would reserve)."
                    .to_owned()
            }
            _ => "Real demand: live tensors grow.".to_owned(),
        }
    } else if of(&[Kind::OutsideAllocator]).is_some() {
        "Real demand, outside PyTorch's allocator.".to_owned()
    } else {
        String::new()
    };
    let figure = share.map(|(allocated, reserved)| {
        let percent = (100.0 * allocated as f64 / reserved as f64).round();
        let (allocated, reserved) = (HumanBytes::of(allocated), HumanBytes::of(reserved));
        format!("At most {allocated} were allocated and {reserved} reserved ({percent} %).")
    });
    // Figures alone do not show whether a request would succeed.
    let undecided = report.scope.inconclusive_about(&[Kind::Fragmentation, Kind::Oom]);
    let judged = match (verdict.is_empty(), share) {
        (false, _) => verdict,
        (true, None) => "Unknown: no peaks were recorded.".to_owned(),
        (true, Some(_)) if report.failed() => {
            "Unknown: a request or a rank failed, and no finding says why.".to_owned()
        }
        (true, Some(_)) if undecided.is_some() => {
            format!("Unknown: {}.", undecided.map_or("", |not| not.reason.as_str()))
        }
        (true, Some((allocated, reserved))) if proof_limits::is_real_demand(allocated, reserved) => {
            "Real demand.".to_owned()
        }
        (true, Some(_)) => "Real demand, with a large cache; no request failed because of it.".to_owned(),
    };
    let mut texts = vec![[Some(judged), figure].into_iter().flatten().collect::<Vec<_>>().join(" ")];
    // If the note is about something else, the effect of settings is stated here.
    texts.extend(replay.filter(|_| !is_about_packing(main(report))).map(|advice| advice.says.join(" ")));
    texts
}

/// Whether the finding is one that an allocator setting may change.
fn is_about_packing(main: Option<&Finding>) -> bool {
    use FindingKind as Kind;
    let kinds = [Kind::Fragmentation, Kind::FragmentationGrowth, Kind::Oom, Kind::NearOom];
    main.and_then(Finding::known_kind).is_some_and(|kind| kinds.contains(&kind))
}

fn pattern(report: &Report, main: Option<&Finding>, remedy: &Remedy) -> Vec<String> {
    let Some(finding) = main else {
        let text = match (report.scope.inconclusive(), grows_without_finding(report)) {
            _ if report.ranks.is_empty() => "None: nothing was recorded.".to_owned(),
            (_, Some(verdict)) => match &verdict.site {
                Some(site) => format!("{}: no finding says which pattern it is.", place(site)),
                None => "Unknown: no line explains the growth by itself.".to_owned(),
            },
            (Some(not), None) => format!("Unknown: {}.", not.reason),
            (None, None) => "None: there is no finding.".to_owned(),
        };
        return vec![text];
    };
    let mut texts = Vec::new();
    match &finding.site {
        Some(site) => texts.push(phrases::stack(site, CALLERS)),
        None if report.stacks == Some(false) => {
            texts.push("The line is unknown: no stacks were recorded.".to_owned());
        }
        None => {}
    }
    let pattern = if remedy.pattern.is_empty() { finding.kind.clone() } else { remedy.pattern.to_owned() };
    texts.push(format!("{pattern} {}", finding.explanation.trim()).trim_end().to_owned());
    if let Some(holders) = &finding.holders {
        texts.push(holders.sentence.clone());
        texts.extend(holders.chains(" → ").into_iter().take(CHAINS));
    }
    texts
}

/// The command that searches for the holders of a leak's blocks, while the process runs and its holders are unknown.
fn asking(report: &Report, finding: &Finding, flags: &str) -> Vec<String> {
    let leaks = finding.known_kind().is_some_and(FindingKind::is_leak) && finding.site.is_some();
    let can_say = leaks && finding.holders.is_none() && report.job.state == JobState::Running;
    if can_say { vec![command("holders", &report.job, "", flags)] } else { Vec::new() }
}

fn change(report: &Report, main: Option<&Finding>, remedy: &Remedy, replay: Option<&Advice>, flags: &str) -> Question {
    let title = "What to change?";
    let Some(finding) = main else {
        let text = match (report.scope.inconclusive(), grows_without_finding(report)) {
            _ if report.failed() => "Unknown: what was recorded does not say.".to_owned(),
            (_, Some(verdict)) => {
                let place =
                    verdict.site.as_ref().map_or_else(String::new, |site| format!(" what {} allocates", place(site)));
                let what = if place.is_empty() { " the growing memory" } else { &place };
                let sites = command("sites", &report.job, "", flags);
                format!(
                    "Nothing, if what holds the memory is bounded. Otherwise look for what keeps{what}: `{sites}` shows whose it is."
                )
            }
            (Some(not), None) => not_to_be_told(not),
            (None, None) => "Nothing needs to be changed.".to_owned(),
        };
        return Question::new(title, vec![text]);
    };
    let replay = replay.filter(|_| is_about_packing(main));
    let mut texts: Vec<String> = replay.map_or_else(Vec::new, |advice| advice.says.clone());
    let advice = finding.advice.trim();
    if !advice.is_empty() {
        texts.push(advice.to_owned());
    }
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let (before, mut after) = match has_example(finding) {
        true => (lines(remedy.before), lines(remedy.after)),
        false => (Vec::new(), Vec::new()),
    };
    after.extend(replay.and_then(Advice::export));
    Question { before, after, ..Question::new(title, texts) }
}

/// Whether an example of the pattern helps: something is wrong, and no known holder is more specific than the example.
fn has_example(finding: &Finding) -> bool {
    let pattern = finding.pattern.as_deref().and_then(Pattern::of_name);
    let is_any_leak =
        finding.known_kind() == Some(FindingKind::Leak) && matches!(pattern, None | Some(Pattern::TensorsKept));
    finding.is_warning_or_worse()
        && !(is_any_leak && finding.holders.as_ref().is_some_and(|holders| holders.has_main()))
}
