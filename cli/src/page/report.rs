//! The page of `memctl query`: the job, its ranks, problems, other growth, the data on which the figures are based, and
//! commands for the next step.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memctl_answers::Frame;
use memctl_answers::finding::Finding;
use memctl_answers::naming::{command, name_of, place, process_flag};
use memctl_answers::report::{Growth, Rank, RankGrowth, Report};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, finding, heading, judged, next};
use crate::render::plot::sparkline;
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, rank_list, safe, width};

/// Maximum number of growing sites without a finding that are shown. The others are counted.
const GROWTH_SHOWN: usize = 3;
/// Maximum number of callers that are shown after a site.
const CALLERS_SHOWN: usize = 3;

impl Page for Report {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(report: &Report, screen: &Screen) -> String {
    let mut out = judged::headline(report.verdict.as_ref(), &report.scope, screen);
    out.push_str(&heading(&report.job, screen));
    // The problems come first, because the tables are only the evidence for them.
    let wrong = troubles(report, screen) + &findings(report, screen);
    if !wrong.is_empty() {
        out.push('\n');
        out.push_str(&wrong);
    }
    out.push('\n');
    out.push_str(&ranks(report, screen));
    out.push('\n');
    out.push_str(&super::processes::table(report, screen));
    out.push_str(&origins(report, screen));
    out.push_str(&measured(report, screen));
    out.push_str(&growth(report, screen));
    if !out.ends_with("\n\n") {
        out.push('\n');
    }
    out.push_str(&completeness(&report.completeness, report.job.state == JobState::Running, screen));
    if let Some(hint) = &report.hint {
        out.push_str(&advice(report, hint, screen));
    }
    out
}

fn ranks(report: &Report, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        right("DEVICE", 1),
        left("GPU", 5),
        left("HOST", 8),
        right("EPOCHS", 3),
        right("STEPS", 4),
        right("EVENTS", 6),
        right("ALLOCATED", 0),
        right("PEAK", 0),
        right("RESERVED", 0),
        right("PEAK RESERVED", 7),
        right("UNUSED", 1),
        right("GROWTH/EPOCH", 2),
        right("OOM", 5),
        left("STATE", 9),
    ]);
    for rank in &report.ranks {
        table.toned(rank_row(report, rank));
    }
    table.show(screen)
}

fn rank_row(report: &Report, rank: &Rank) -> Vec<(String, Option<Tone>)> {
    let bytes = |value: Option<u64>| value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string());
    let growth = rank.growth_bytes_per_epoch;
    // A rank's state is shown only if it differs from the job's.
    let state = if rank.state == report.job.state { String::new() } else { rank.state.name().to_owned() };
    vec![
        (super::place_of(&rank.process, rank.rank), None),
        (device_of(report, rank), None),
        (rank.gpu_name.clone().unwrap_or_else(|| format!("cuda:{}", rank.device)), None),
        (rank.host.clone().unwrap_or_default(), None),
        (count(rank.epochs), None),
        (count(rank.steps), None),
        (count(rank.events), None),
        (bytes(rank.allocated_bytes), None),
        (bytes(rank.peak_allocated_bytes), None),
        (bytes(rank.reserved_bytes), None),
        (bytes(rank.peak_reserved_bytes), None),
        (rank.fragmentation_ratio.map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0)), None),
        (signed(growth), growth.filter(|growth| *growth > 0).map(|_| Tone::Alert)),
        (if rank.ooms > 0 { count(rank.ooms) } else { String::new() }, Some(Tone::Alert)),
        (state, None),
    ]
}

/// The device of a row, if the row's process has several devices.
fn device_of(report: &Report, rank: &Rank) -> String {
    let is_sibling = |other: &Rank| {
        (&other.process, other.rank, other.device) != (&rank.process, rank.rank, rank.device)
            && (&other.process, other.rank) == (&rank.process, rank.rank)
    };
    if report.ranks.iter().any(is_sibling) { rank.device.to_string() } else { String::new() }
}

fn signed(rate: Option<i64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(0) => "0 B".to_owned(),
        Some(rate) if rate > 0 => format!("+{}", HumanBytes(rate)),
        Some(rate) => HumanBytes(rate).to_string(),
    }
}

/// Notes about sample points that were found without marks, and about levels from a moment before the recording's end.
fn origins(report: &Report, screen: &Screen) -> String {
    let mut lines = Vec::new();
    let boundaries = &report.boundaries;
    let most = |read: fn(&Rank) -> u64| report.ranks.iter().map(read).max().unwrap_or(0);
    let found: Vec<String> =
        [(&boundaries.epochs, most(|rank| rank.epochs), "epoch"), (&boundaries.steps, most(|rank| rank.steps), "step")]
            .into_iter()
            .filter(|(origin, _, _)| *origin == "found")
            .map(|(_, number, noun)| plural(number, noun))
            .collect();
    if !found.is_empty() {
        let by = boundaries.found_by.as_deref().map_or(String::new(), |by| format!(" by {}", safe(by)));
        lines.push(format!("{} were found{by}; nothing marked them.", found.join(" and ")));
    }
    if boundaries.windows > 0 && boundaries.steps == "none" {
        lines.push(format!(
            "Nothing marks steps; the job was judged over {} of time.",
            plural(boundaries.windows, "window")
        ));
    }
    if report.ranks.iter().any(|rank| rank.expandable_overruled) {
        lines.push(
            "expandable_segments:True is exported and not in force, as the segments show: it came after CUDA was initialised, \
             another variable overrules it, or it is misspelt."
                .to_owned(),
        );
    }
    let torn_down: Vec<(u64, u32)> =
        report.ranks.iter().filter_map(|rank| Some((rank.end_allocated_bytes?, rank.rank))).collect();
    if let Some(&(left, rank)) = torn_down.iter().max_by_key(|(left, rank)| (*left, Reverse(*rank))) {
        let is_said_of_all = torn_down.len() == report.ranks.len();
        let whose = match torn_down.iter().all(|(other, _)| *other == left) {
            _ if report.ranks.len() == 1 => String::new(),
            true if is_said_of_all => " on each rank".to_owned(),
            _ if is_said_of_all => format!(" on rank {rank}, which had most then"),
            _ => format!(" on rank {rank}"),
        };
        let moment = report.ranks.first().map_or("end", |rank| rank.levels_at.as_str()).replace('_', " ");
        let moment =
            moment.strip_suffix(" end").map_or_else(|| moment.clone(), |what| format!("the last {what}'s end"));
        lines.push(format!(
            "Levels at {moment}; {} were allocated at the end of the recording{whose}.",
            HumanBytes::of(left)
        ));
    }
    if lines.is_empty() {
        return String::new();
    }
    let mut out = String::new();
    for line in lines {
        out.push_str(&format!("{}\n", screen.paint(Tone::Faint, &screen.wrapped(&line, 0))));
    }
    out.push('\n');
    out
}

/// The last measurements of the driver, NVML and the host; empty if nothing was measured.
fn measured(report: &Report, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        right("DEVICE", 1),
        right("DEVICE USED", 1),
        right("OF", 2),
        right("THIS PROCESS", 1),
        right("OTHERS", 1),
        right("BUSY", 4),
        right("HOST MEMORY", 3),
        right("ITS CHILDREN", 4),
    ]);
    let bytes = |value: Option<u64>| value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string());
    let mut any = false;
    for rank in &report.ranks {
        let Some(sample) = &rank.sample else { continue };
        let outside = [sample.device_used_bytes, sample.process_used_bytes, sample.host_rss_bytes];
        any |= outside.iter().any(Option::is_some);
        table.row(vec![
            super::place_of(&rank.process, rank.rank),
            device_of(report, rank),
            bytes(sample.device_used_bytes),
            // The measurement of used bytes may be too old. Then used and total bytes are both left out.
            bytes(sample.device_total_bytes.filter(|_| sample.device_used_bytes.is_some())),
            bytes(sample.process_used_bytes),
            bytes(sample.foreign_used_bytes),
            sample.utilisation.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            last_and_highest(sample.host_rss_bytes, rank.highest.as_ref().and_then(|highest| highest.host_rss_bytes)),
            last_and_highest(
                sample.children_rss_bytes,
                rank.highest.as_ref().and_then(|highest| highest.children_rss_bytes),
            ),
        ]);
    }
    if any { format!("{}\n", table.show(screen)) } else { String::new() }
}

/// A value such as `1.20 GiB`. If the highest value differs as text, it is added.
fn last_and_highest(last: Option<u64>, highest: Option<u64>) -> String {
    let words = |value: Option<u64>| value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string());
    let (last, highest) = (words(last), words(highest));
    if highest == "-" || highest == last { last } else { format!("{last} (at most {highest})") }
}

/// Problems that are known without an analysis: out of memory, retries, failed sessions.
fn troubles(report: &Report, screen: &Screen) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&screen.paint(Tone::Alert, &screen.wrapped(&text, 0)));
        out.push('\n');
    };
    for (ooms, ranks) in by_count(report, |rank| Some(rank.ooms)) {
        line(format!("out of memory {} on {}", plural(ooms, "time"), ranks));
    }
    for (retries, ranks) in by_count(report, |rank| rank.alloc_retries) {
        line(format!("the allocator emptied its cache and retried {} on {ranks}", plural(retries, "time")));
    }
    let mut ended: Vec<String> = Vec::new();
    for rank in &report.ranks {
        if let Some(failure) = &rank.failure {
            ended.push(format!("{} ended: {}", name_of(&rank.process, rank.rank), safe(failure)));
        }
    }
    // A process ends once, even if it has several devices.
    ended.dedup();
    ended.into_iter().for_each(line);
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

/// The ranks for which a count is not 0. The highest counts come first.
fn by_count(report: &Report, read: fn(&Rank) -> Option<u64>) -> Vec<(u64, String)> {
    let mut ranks: BTreeMap<Reverse<u64>, Vec<u32>> = BTreeMap::new();
    for rank in &report.ranks {
        if let Some(count) = read(rank).filter(|&count| count > 0) {
            ranks.entry(Reverse(count)).or_default().push(rank.rank);
        }
    }
    let words = |ranks: &[u32]| format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, rank_list(ranks));
    ranks.into_iter().map(|(Reverse(count), ranks)| (count, words(&ranks))).collect()
}

/// The problems, or a statement that there are none.
fn findings(report: &Report, screen: &Screen) -> String {
    if report.findings.iter().any(Finding::is_warning_or_worse) {
        let undecided = report.scope.inconclusive().is_some();
        let gaps = if undecided { judged::not_judged(&report.scope, screen) } else { String::new() };
        return format!("{}{gaps}", finding::several(&report.findings, screen));
    }
    // Findings of severity info do not make a job a failing one.
    let mut out = judged::no_findings(report.verdict.as_ref(), &report.findings, &report.scope, screen);
    if !report.findings.is_empty() {
        out.push_str("\nFor information:\n");
        out.push_str(&finding::several(&report.findings, screen));
    }
    out
}

/// Growth that belongs to no finding. It is a measurement, not a judgement.
fn growth(report: &Report, screen: &Screen) -> String {
    let grown: Vec<&Growth> =
        report.growth.iter().filter(|site| site.ranks.iter().any(RankGrowth::is_unexplained)).collect();
    if grown.is_empty() {
        return String::new();
    }
    let head = "Other growth, not a finding (a filling cache, a single step, or too early to say):";
    let mut out = format!("\n{}\n", screen.wrapped(head, 0));
    if let Some(through) = &report.growth_through {
        let (part, whole) = (HumanBytes(through.bytes_per_epoch), HumanBytes(through.total_bytes_per_epoch));
        let sentence = format!("{part} of {whole} per epoch come through {}", place(&through.call));
        out.push_str(&format!("  {}\n", screen.wrapped(&sentence, 2)));
    }
    for site in grown.iter().take(GROWTH_SHOWN) {
        out.push_str(&sentence(site, report, screen));
    }
    if grown.len() > GROWTH_SHOWN {
        let more = plural((grown.len() - GROWTH_SHOWN) as u64, "more site");
        out.push_str(&format!("  and {more} with less growth (-o json lists all)\n"));
    }
    out
}

/// `  grows 3.00 MiB an epoch on rank 0 (not on 1-3): remember_features (scenarios.py:57) <- step`
fn sentence(growth: &Growth, report: &Report, screen: &Screen) -> String {
    let grown: Vec<_> = growth.ranks.iter().filter(|rank| rank.is_unexplained()).collect();
    let rates = grown.iter().map(|rank| rank.bytes_per_epoch);
    let (low, high) = (HumanBytes(rates.clone().min().unwrap_or(0)), HumanBytes(rates.max().unwrap_or(0)));
    let rate = if low.to_string() == high.to_string() { high.to_string() } else { format!("{low} to {high}") };
    let numbers: Vec<u32> = grown.iter().map(|rank| rank.rank).collect();
    let what = format!("  {rate} per epoch {}: ", on_ranks(&numbers, report));
    let whole = format!("{what}{}", whereabouts(growth));
    let split = screen.columns.is_some_and(|columns| width(&whole) > columns);
    let text =
        if split { format!("{}\n      {}", what.trim_end(), screen.wrapped(&whereabouts(growth), 6)) } else { whole };
    let (live, blocks) = grown.iter().fold((0_u64, 0_u64), |(bytes, blocks), rank| {
        (bytes.saturating_add(rank.live_bytes), blocks.saturating_add(rank.live_blocks))
    });
    let most = grown.iter().max_by_key(|rank| rank.bytes_per_epoch);
    let course = most.map(|rank| sparkline(&rank.series_bytes, screen)).unwrap_or_default();
    let evidence = format!("{} live in {}  {course}", HumanBytes::of(live), plural(blocks, "block"));
    let evidence = screen.wrapped(evidence.trim_end(), 6);
    format!("{text}\n      {}\n", screen.paint(Tone::Faint, &evidence))
}

fn on_ranks(grown: &[u32], report: &Report) -> String {
    let others: Vec<u32> = report.ranks.iter().map(|rank| rank.rank).filter(|rank| !grown.contains(rank)).collect();
    match (grown, others.is_empty()) {
        ([_, _, ..], true) => format!("on all {} ranks", grown.len()),
        ([rank], true) => format!("on rank {rank}"),
        ([rank], false) => format!("on rank {rank} (not on {})", rank_list(&others)),
        (_, _) => format!("on ranks {} (not on {})", rank_list(grown), rank_list(&others)),
    }
}

/// The site and, after arrows, the user's own code that called it.
fn whereabouts(growth: &Growth) -> String {
    let Some(site) = &growth.site else { return "no stack was recorded there".to_owned() };
    let outside = growth.stack.iter().position(|frame| frame == site).map_or(0, |at| at + 1);
    let callers = growth.stack[outside..].iter().filter(|frame: &&Frame| frame.is_user_code());
    let mut text = place(site);
    for caller in callers.take(CALLERS_SHOWN) {
        text.push_str(" <- ");
        text.push_str(&safe(&caller.function));
    }
    text
}

fn advice(report: &Report, hint: &str, screen: &Screen) -> String {
    let job = &report.job;
    let grown = report.growth.iter().flat_map(|site| &site.ranks).find(|rank| rank.bytes_per_epoch > 0);
    // The process with the worst finding, otherwise a process with growth, otherwise the first process.
    let blamed = report.findings.first().and_then(|finding| finding.processes.first());
    let meant = blamed.and_then(|name| report.ranks.iter().find(|rank| rank.process == *name));
    let meant = meant.or_else(|| grown.and_then(|grown| report.ranks.iter().find(|rank| rank.rank == grown.rank)));
    let meant = meant.or(report.ranks.first());
    let flag = meant.map_or_else(String::new, |rank| process_flag(&rank.process, rank.rank));
    // The memory that has grown is live at an epoch's end. At the end of the job it may have been freed.
    let ends = meant.and_then(|rank| rank.epoch_ends.last());
    let moment = match (grown, ends) {
        (Some(_), Some(end)) => format!("{flag} --epoch-end {}", end.epoch),
        _ => flag.clone(),
    };
    let failed = report.ranks.iter().any(|rank| rank.ooms > 0);
    let oom = (command("oom", job, "", hint), "the requests that failed, and what filled the device");
    let commands = [
        (command("diagnose", job, "", hint), "the diagnosis: what to change, how to prove it"),
        (command("sites", job, &moment, hint), "whose memory is live then"),
        (command("sites", job, &format!("{flag} --peak"), hint), "whose memory was live at the peak"),
        (command("timeline", job, "", hint), "memory over time, rank by rank"),
    ];
    let commands: Vec<(String, &str)> = failed.then_some(oom).into_iter().chain(commands).collect();
    next(&commands, screen)
}
