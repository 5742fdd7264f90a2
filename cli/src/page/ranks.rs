//! The page of `memctl ranks`: the ranks in a table, with the outliers first, and the findings by which ranks differ.

use memctl_analysis::display_threshold;
use memctl_answers::format::time;
use memctl_answers::naming::{command, name_of, process_flag};
use memctl_answers::ranks::{Rank, Ranks};
use memctl_model::{FindingKind, HumanBytes, JobState};

use super::{Page, completeness, finding, heading, judged, next};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, rank_list, safe};

/// Maximum number of ranks in the table. If there are more, outliers come first and the others are counted.
const SHOWN: usize = 32;

impl Page for Ranks {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(ranks: &Ranks, screen: &Screen) -> String {
    let inconclusive = ranks.scope.undecided(&ranks.findings);
    let mut out = judged::inconclusive(inconclusive, screen);
    out.push_str(&heading(&ranks.job, screen));
    if ranks.ranks.is_empty() {
        out.push_str("\nNothing was recorded in this part of the job.\n");
        return out;
    }
    out.push('\n');
    out.push_str(&table(ranks, screen));
    out.push('\n');
    out.push_str(&standing_out(ranks, screen));
    for rank in &ranks.ranks {
        if let Some(failure) = &rank.failure {
            let line = format!("{} ended: {}", name_of(&rank.process, rank.rank), safe(failure));
            out.push_str(&format!("{}\n", screen.paint(Tone::Alert, &screen.wrapped(&line, 0))));
        }
    }
    for found in &ranks.findings {
        out.push('\n');
        out.push_str(&finding::full(found, screen));
    }
    if ranks.findings.is_empty() {
        out.push_str(&super::prose::hanging("", &none_apart(ranks), usize::MAX, screen));
    } else {
        out.push('\n');
    }
    out.push_str(&judged::not_judged(&ranks.scope, screen));
    out.push_str(&completeness(&ranks.completeness, ranks.job.state == JobState::Running, screen));
    if let Some(hint) = &ranks.hint {
        let odd = ranks.ranks.iter().find(|rank| rank.is_odd()).or(ranks.ranks.first());
        let flag = odd.map_or(String::new(), |rank| process_flag(&rank.process, rank.rank));
        let commands = [
            (command("sites", &ranks.job, &flag, hint), "whose memory is live there"),
            (command("timeline", &ranks.job, "", hint), "memory of the ranks over time"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}

fn table(ranks: &Ranks, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        left("GPU", 7),
        left("HOST", 8),
        right("EPOCHS", 6),
        right("STEPS", 6),
        right("ALLOCATED", 0),
        right("PEAK", 0),
        right("RESERVED", 1),
        right("PEAK RESERVED", 4),
        right("GROWTH/EPOCH", 1),
        right("FREE", 2),
        right("OTHERS", 2),
        right("BEHIND", 3),
        left("STATE", 3),
    ]);
    let newest = ranks.ranks.iter().filter_map(|rank| rank.last_heard_ns).max();
    let shown = chosen(&ranks.ranks);
    for rank in &shown {
        table.toned(row(rank, newest, ranks.job.state));
    }
    if !ranks.spread.is_empty() {
        table.toned(medians(ranks));
    }
    let mut out = table.show(screen);
    let hidden: Vec<&Rank> = ranks.ranks.iter().filter(|rank| !shown.iter().any(|seen| same(seen, rank))).collect();
    if !hidden.is_empty() {
        let rest = plural(hidden.len() as u64, "more rank");
        let odd: Vec<u32> = hidden.iter().filter(|rank| rank.is_odd()).map(|rank| rank.rank).collect();
        let odd = if odd.is_empty() { String::new() } else { format!(", unusual among them: {}", rank_list(&odd)) };
        out.push_str(&format!("and {rest}{odd} (-o json has them all)\n"));
    }
    out
}

fn same(one: &Rank, other: &Rank) -> bool {
    (one.rank, one.device, one.pid) == (other.rank, other.device, other.pid)
}

/// The ranks that are shown. Ranks with findings come first, then the other outliers.
fn chosen(ranks: &[Rank]) -> Vec<&Rank> {
    let mut shown: Vec<&Rank> = ranks.iter().collect();
    shown.sort_by_key(|rank| (!rank.is_odd(), rank.findings.is_empty(), rank.rank, rank.device));
    shown.truncate(SHOWN);
    shown
}

fn row(rank: &Rank, newest: Option<u64>, job_state: JobState) -> Vec<(String, Option<Tone>)> {
    let figure = |name: &str, text: String| {
        // The mark is visible without colours.
        if rank.stands_out.iter().any(|odd| odd == name) {
            (format!("*{text}"), Some(Tone::Alert))
        } else {
            (text, None)
        }
    };
    let bytes = |name: &str, value: Option<u64>| {
        figure(name, value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string()))
    };
    let behind = newest.zip(rank.last_heard_ns).map_or(0, |(newest, heard)| newest - heard);
    let state = if rank.state == job_state { String::new() } else { rank.state.name().to_owned() };
    vec![
        (super::place_of(&rank.process, rank.rank), None),
        (rank.gpu_name.clone().unwrap_or_else(|| format!("cuda:{}", rank.device)), None),
        (rank.host.clone().unwrap_or_default(), None),
        (count(rank.epochs), None),
        (count(rank.steps), None),
        bytes("allocated_bytes", rank.allocated_bytes),
        bytes("peak_allocated_bytes", rank.peak_allocated_bytes),
        bytes("reserved_bytes", rank.reserved_bytes),
        bytes("peak_reserved_bytes", rank.peak_reserved_bytes),
        figure(
            "growth_bytes_per_epoch",
            rank.growth_bytes_per_epoch.map_or("-".to_owned(), |rate| HumanBytes(rate).to_string()),
        ),
        bytes("device_free_bytes", rank.device_free_bytes),
        bytes("foreign_used_bytes", rank.foreign_used_bytes),
        (if display_threshold::is_behind(behind) { time::duration(behind) } else { String::new() }, None),
        (state, Some(Tone::Alert)),
    ]
}

/// A last row with the medians.
fn medians(ranks: &Ranks) -> Vec<(String, Option<Tone>)> {
    let usual = |name: &str| {
        let found = ranks.spread.iter().find(|spread| spread.figure == name);
        found.map_or(String::new(), |spread| HumanBytes(spread.median_bytes).to_string())
    };
    let cells = [
        "median".to_owned(),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        usual("allocated_bytes"),
        usual("peak_allocated_bytes"),
        usual("reserved_bytes"),
        usual("peak_reserved_bytes"),
        usual("growth_bytes_per_epoch"),
        usual("device_free_bytes"),
        usual("foreign_used_bytes"),
        String::new(),
        String::new(),
    ];
    cells.into_iter().map(|cell| (cell, Some(Tone::Faint))).collect()
}

fn standing_out(ranks: &Ranks, screen: &Screen) -> String {
    if ranks.spread.is_empty() {
        return "Too few ranks to compare.\n".to_owned();
    }
    let by_figure = ranks.ranks.iter().any(|rank| !rank.stands_out.is_empty());
    let text = match (by_figure, ranks.findings.is_empty()) {
        (true, _) => "* stands out: far above the ranks' median. Ranks of different roles usually differ.",
        (false, true) => "No rank stands out from the others' median.",
        (false, false) => "No figure stands out from the ranks' median, but findings distinguish ranks:",
    };
    super::prose::hanging("", text, usize::MAX, screen)
}

/// States that no finding is about a difference between ranks, as far as this was analysed.
fn none_apart(ranks: &Ranks) -> String {
    if ranks.scope.inconclusive().is_some() {
        return "No finding about a single rank, but leaks could not be judged.".to_owned();
    }
    let looked: Vec<&str> = [
        (FindingKind::RankSkew, "none holds more than its peers"),
        (FindingKind::ForeignProcess, "no other process on a device"),
    ]
    .into_iter()
    .filter(|(kind, _)| ranks.scope.has_judged(*kind))
    .map(|(_, words)| words)
    .collect();
    let looked = if looked.is_empty() { String::new() } else { format!(", {}", looked.join(", ")) };
    let is_lost = ranks.ranks.iter().any(|rank| rank.state == JobState::Lost);
    let lost = if is_lost { "it is unknown how lost ranks ended" } else { "none lost" };
    format!("No finding about a single rank: {lost}{looked}.")
}
