//! The six answers in words, from figures that were looked up before.
//!
//! Guarantees: an answer that the data does not carry says so and why; no figure is named that is not there.

use memctl_model::{FindingKind, HumanBytes};

use super::remedy::{Proof, Remedy, remedy};
use super::{Question, Usage};
use crate::answer::Job;
use crate::answer::assert::settled_after;
use crate::answer::finding::Finding;
use crate::answer::leaks::grows;
use crate::answer::ledger::ClassShare;
use crate::answer::report::{Rank, Report};
use crate::answer::unjudged::EPOCH_ENDS_MIN;
use crate::page::{command, finding as show, place};
use crate::render::text::{count, plural, safe};

/// Runs of the same kind differ by that much in their peaks: shapes, timing, rounding.
const PEAK_VARIES: f64 = 0.05;
/// Classes below this share of the peak are not named.
const CLASS_SHARE_MIN: f64 = 0.02;
/// The class of what no rule knows.
const UNKNOWN: &str = "unknown";
/// Callers behind a line.
const CALLERS: usize = 3;
/// Below this share of the reserved memory in use at the peak, what is cached is worth a word.
const USE_MIN: f64 = 0.75;
/// Of a device that much may be in use at the peak: libraries and the next longer batch need the rest.
const DEVICE_SHARE_MAX: f64 = 0.9;

/// The six questions with their answers.
#[must_use]
pub fn questions(report: &Report, usage: Option<&Usage>, flags: &str) -> Vec<Question> {
    let main = main(report);
    let pattern_seen = main.and_then(|finding| finding.fact("pattern"));
    let remedy = remedy(main.and_then(Finding::known_kind), pattern_seen);
    vec![
        Question::new("How much is used, and by what?", used(usage)),
        Question::new("Does it grow, and where?", growth(report)),
        Question::new("Is it real demand, or fragmentation?", demand(report, usage)),
        Question::new("Which line, and which pattern?", pattern(report, main, &remedy)),
        change(report, main, &remedy, usage),
        proof(report, main, &remedy, usage, flags),
    ]
}

/// The finding that the note is about: the worst; one that is only good to know does for a job that has no other.
#[must_use]
pub fn main(report: &Report) -> Option<&Finding> {
    report.findings.first()
}

fn bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "an unknown amount".to_owned(), |value| HumanBytes::of(value).to_string())
}

fn used(usage: Option<&Usage>) -> Vec<String> {
    let Some(usage) = usage else { return vec!["Nothing was recorded in this part of the job.".to_owned()] };
    let mut levels = format!(
        "Rank {} {}: {} allocated in {} reserved; at most {} in {}{}.",
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
        let others = others.map_or(String::new(), |bytes| format!(", {} of it by others", HumanBytes::of(bytes)));
        levels.push_str(&format!(" The device: {} of {} in use{others}.", HumanBytes::of(used), HumanBytes::of(total)));
    }
    vec![levels, by_what(usage)]
}

/// ` (58 % activations, 20 % optimizer state, 2 % unknown)`: what the most was for.
fn by_class(usage: &Usage) -> String {
    let mut classes: Vec<_> = usage.peak_classes.iter().filter(|class| class.share >= CLASS_SHARE_MIN).collect();
    // What no rule knows comes last, however much it is.
    classes.sort_by_key(|share| (share.class == UNKNOWN, std::cmp::Reverse(share.live_bytes)));
    let part = |share: &ClassShare| format!("{:.0} % {}", 100.0 * share.share, safe(&share.class.replace('_', " ")));
    let parts: Vec<String> = classes.into_iter().map(part).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn by_what(usage: &Usage) -> String {
    if usage.by.is_empty() {
        return match usage.without_stack_bytes {
            Some(0) | None => "By what is not known: no table of live memory was stored.".to_owned(),
            Some(_) => {
                "By what is not known: no stacks were recorded (memctl run records them unless told --no-stacks; \
                        a snapshot has them with context=\"all\")."
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
    format!("Live then: {}.", parts.join("; "))
}

fn growing(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.known_kind().is_some_and(grows))
}

fn growth(report: &Report) -> Vec<String> {
    let Some(worst) = growing(report).next() else { return vec![no_growth(report)] };
    let mut text = if worst.hurts() { "Yes".to_owned() } else { "Perhaps".to_owned() };
    // A step's share of what grows once an epoch says nothing more.
    let once =
        Finding { bytes_per_step: worst.bytes_per_step.filter(|_| worst.bytes_per_epoch.is_none()), ..worst.clone() };
    let rates = show::rates(&once);
    text.push_str(&format!(": {}", if rates.is_empty() { &worst.title } else { &rates }));
    for part in [show::on_ranks(worst), worst.site.as_ref().map_or(String::new(), |site| place_in(&site.frame))] {
        if !part.is_empty() && !rates.is_empty() {
            text.push_str(&format!(" {part}"));
        }
    }
    if let Some(since) = show::since(worst, false) {
        text.push_str(&format!(", since {since}"));
    }
    text.push('.');
    if worst.known_kind() == Some(FindingKind::HiddenChain) {
        text.push_str(" It falls back when the state is made anew, so epoch ends look flat.");
    }
    // Where there is a course, its end says it.
    if let Some(live) = show::live(worst).filter(|_| worst.course().is_none()) {
        text.push_str(&format!(" {live} now."));
    }
    if let Some(until) = show::until(worst) {
        text.push_str(&format!(" If it goes on, {until}."));
    }
    let others = growing(report).count() - 1;
    if others > 0 {
        text.push_str(&format!(" {} about growth (memctl leaks).", plural(others as u64, "more finding")));
    }
    vec![text]
}

fn place_in(site: &crate::answer::Frame) -> String {
    format!("in {}", place(site))
}

/// What can be said where no finding is about growth.
fn no_growth(report: &Report) -> String {
    let ends = report.ranks.iter().map(|rank| rank.epoch_ends.len()).min().unwrap_or(0);
    if ends < EPOCH_ENDS_MIN {
        let there = match ends {
            0 => "no epoch has ended".to_owned(),
            1 => "only 1 epoch has ended".to_owned(),
            more => format!("only {more} epochs have ended"),
        };
        return format!("Not to be told: {there}, and growth from epoch to epoch takes {EPOCH_ENDS_MIN}.");
    }
    // The rank whose epoch ends spread most says it for all.
    let spread = |rank: &Rank| {
        let values: Vec<u64> = rank.epoch_ends.iter().filter_map(|end| end.allocated_bytes).collect();
        Some((values.iter().max()? - values.iter().min()?, *values.first()?, *values.last()?, rank.rank))
    };
    match report.ranks.iter().filter_map(spread).max() {
        None => "Not to be told: no figures were recorded at epoch ends.".to_owned(),
        Some((0, first, _, _)) => {
            format!("No: {} at every one of {} epoch ends.", HumanBytes::of(first), count(ends as u64))
        }
        Some((_, first, last, rank)) => format!(
            "No growth without bound: at epoch ends {} became {} (rank {rank}, {ends} epochs).",
            HumanBytes::of(first),
            HumanBytes::of(last),
        ),
    }
}

fn demand(report: &Report, usage: Option<&Usage>) -> Vec<String> {
    use FindingKind as Kind;
    let of = |kinds: &[Kind]| {
        report.findings.iter().find(|finding| finding.known_kind().is_some_and(|kind| kinds.contains(&kind)))
    };
    let verdict = if let Some(finding) = of(&[Kind::Fragmentation, Kind::FragmentationGrowth]) {
        format!("Fragmentation: {}.", finding.title.trim_end_matches('.'))
    } else if let Some(finding) = of(&[Kind::Oom, Kind::NearOom]) {
        format!("{}.", capital(finding.title.trim_end_matches('.')))
    } else if report.findings.iter().any(|finding| finding.known_kind().is_some_and(FindingKind::is_leak)) {
        "Real demand: live tensors grow.".to_owned()
    } else if of(&[Kind::OutsideAllocator]).is_some() {
        "Real demand, outside PyTorch's allocator.".to_owned()
    } else {
        String::new()
    };
    let share = usage.and_then(|usage| {
        let (allocated, reserved) = (usage.peak_allocated_bytes?, usage.peak_reserved_bytes.filter(|&all| all > 0)?);
        Some((allocated, reserved, allocated as f64 / reserved as f64))
    });
    let figure = share.map(|(allocated, reserved, share)| {
        let percent = (share * 100.0).round();
        let (allocated, reserved) = (HumanBytes::of(allocated), HumanBytes::of(reserved));
        format!("At most {allocated} were allocated and {reserved} reserved ({percent} %).")
    });
    let judged = match (verdict.is_empty(), share) {
        (false, _) => verdict,
        (true, None) => "Not to be told: no peaks were recorded.".to_owned(),
        (true, Some(_)) if report.failed() => {
            "Not to be told: a request or a rank failed, and no finding says why.".to_owned()
        }
        (true, Some((_, _, share))) if share >= USE_MIN => "Real demand.".to_owned(),
        (true, Some(_)) => "Real demand, with much in the cache that no request of this job failed for.".to_owned(),
    };
    vec![[Some(judged), figure].into_iter().flatten().collect::<Vec<_>>().join(" ")]
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn pattern(report: &Report, main: Option<&Finding>, remedy: &Remedy) -> Vec<String> {
    let Some(finding) = main else {
        let why = if report.ranks.is_empty() { "there is nothing to judge" } else { "no finding" };
        return vec![format!("None: {why}.")];
    };
    let mut texts = Vec::new();
    match &finding.site {
        Some(site) => texts.push(show::stack(site, CALLERS)),
        None if report.stacks == Some(false) => {
            texts.push("The line is not known: no stacks were recorded.".to_owned());
        }
        None => {}
    }
    let pattern = if remedy.pattern.is_empty() { finding.kind.clone() } else { remedy.pattern.to_owned() };
    texts.push(format!("{pattern} {}", finding.explanation.trim()).trim_end().to_owned());
    texts
}

fn change(report: &Report, main: Option<&Finding>, remedy: &Remedy, usage: Option<&Usage>) -> Question {
    let title = "What to change?";
    let Some(finding) = main else {
        let text = if report.failed() { "Not to be told from what was recorded." } else { "Nothing." };
        return Question::new(title, vec![text.to_owned()]);
    };
    let advice = finding.advice.trim();
    let texts = if advice.is_empty() { Vec::new() } else { vec![advice.to_owned()] };
    // What is set already is no advice.
    let set = usage.is_some_and(|usage| usage.allocator_conf.contains("expandable_segments:True"));
    let code = |lines: &[&str]| {
        let useful = lines.iter().filter(|line| !(set && line.contains("expandable_segments")));
        useful.map(|line| (*line).to_owned()).collect()
    };
    Question { before: code(remedy.before), after: code(remedy.after), ..Question::new(title, texts) }
}

fn proof(report: &Report, main: Option<&Finding>, remedy: &Remedy, usage: Option<&Usage>, flags: &str) -> Question {
    let job = &report.job;
    if report.ranks.is_empty() {
        return Question::new("How to prove it?", vec!["There is nothing to prove.".to_owned()]);
    }
    if main.is_none() && !report.failed() {
        let few = report.ranks.iter().any(|rank| rank.epoch_ends.len() < EPOCH_ENDS_MIN);
        // Only what this run would pass itself: a cache that filled late is no reason for a test to fail.
        let mut conditions = match settled_after(report).or(few.then_some(1)) {
            Some(epoch) => format!("no-leak stable --after-epoch {epoch}"),
            None => "no-leak".to_owned(),
        };
        if let Some(peak) = usage.and_then(|usage| usage.peak_allocated_bytes) {
            conditions.push_str(&format!(" 'peak<={}'", in_mib((peak as f64 * (1.0 + PEAK_VARIES)) as u64)));
        }
        let texts = vec!["To keep it so, in CI after a run of the same kind:".to_owned()];
        let commands = vec![command("assert", job, &conditions, flags)];
        return Question { commands, ..Question::new("How to prove it?", texts) };
    }
    let fixed = fixed(job);
    let check = match remedy.proof {
        Proof::Assert(conditions) => command("assert", &fixed, conditions, flags),
        Proof::LessFragmented => {
            // Half of what it is now: less would not show against the noise of one run.
            let ratio = usage.and_then(|usage| usage.fragmentation_ratio).unwrap_or(1.0) / 2.0;
            command("assert", &fixed, &format!("'fragmentation<{ratio:.2}'"), flags)
        }
        Proof::PeakFits if usage.is_some_and(|usage| usage.device_total_bytes.is_some()) => {
            let total = usage.and_then(|usage| usage.device_total_bytes).unwrap_or(0);
            let most = in_mib((total as f64 * DEVICE_SHARE_MAX) as u64);
            command("assert", &fixed, &format!("no-leak 'peak<={most}'"), flags)
        }
        // The size of the device is not known: that no request fails has to do.
        Proof::PeakFits | Proof::NoFindings => command("query", &fixed, "--fail-on warning", flags),
        Proof::Ranks => command("ranks", &fixed, "", flags),
    };
    let run = command("run", &fixed, "", flags);
    Question { commands: vec![format!("{run} -- ..."), check], ..Question::new("How to prove it?", Vec::new()) }
}

/// Whole mebibytes, upwards, as conditions take them.
fn in_mib(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

/// The job's name with `-fixed` behind it, as long as names may be.
fn fixed(job: &Job) -> Job {
    const SUFFIX: &str = "-fixed";
    let mut id = job.id.clone();
    let mut most = memctl_model::limits::LABEL_BYTES_MAX.saturating_sub(SUFFIX.len()).min(id.len());
    while !id.is_char_boundary(most) {
        most -= 1;
    }
    id.truncate(most);
    Job { id: format!("{id}{SUFFIX}"), ..job.clone() }
}
