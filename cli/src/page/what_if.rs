//! The page of `memctl what-if`: the recorded memory, the memory under other settings, and the recommended setting.
//!
//! The page begins with how closely the replay reproduces the recording. It ends with what was not analysed.

use std::collections::BTreeSet;

use memctl_answers::naming::{name_of, place};
use memctl_answers::what_if::{Ended, Rank, Setting, WhatIf};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, heading, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::safe;

impl Page for WhatIf {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &WhatIf, screen: &Screen) -> String {
    let mut out = heading(&answer.job, screen);
    if answer.ranks.is_empty() {
        out.push_str("\nNothing could be replayed.\n");
    }
    for rank in &answer.ranks {
        out.push_str(&of_rank(rank, screen));
    }
    out.push_str("\nNot looked at:\n");
    for line in &answer.not_looked_at {
        out.push_str(&indented(line, screen));
    }
    out.push('\n');
    out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
    out
}

fn of_rank(rank: &Rank, screen: &Screen) -> String {
    let title = format!("{}, cuda:{}", name_of(&rank.process, rank.rank), rank.device);
    let mut out = format!("\n{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0)));
    out.push_str(&indented(&recorded(rank), screen));
    out.push('\n');
    out.push_str(&settings(rank, screen));
    out.push_str(&ends(rank, screen));
    out.push('\n');
    match &rank.recommended {
        Some(recommended) => {
            out.push_str(&indented(&recommended.why, screen));
            let chosen = rank.settings.iter().find(|setting| setting.allocator_conf == recommended.allocator_conf);
            for caution in chosen.iter().flat_map(|setting| &setting.cautions) {
                out.push_str(&indented(&format!("Before you use it: {caution}."), screen));
            }
        }
        None if rank.exact => out.push_str(&indented("None of these settings is worth a change.", screen)),
        None => out.push_str(&indented("No setting is recommended, because the replay is not exact.", screen)),
    }
    out
}

/// The requests at which replays end; replays that end at the same request share a line.
fn ends(rank: &Rank, screen: &Screen) -> String {
    let mut ends: Vec<(&Ended, Vec<String>)> = Vec::new();
    for setting in &rank.settings {
        let Some(ended) = &setting.out_of_memory else { continue };
        match ends.iter_mut().find(|(known, _)| known.event == ended.event) {
            Some((_, settings)) => settings.push(named(setting)),
            None => ends.push((ended, vec![named(setting)])),
        }
    }
    let line = |(ended, settings): &(&Ended, Vec<String>)| {
        let at = ended.step.map_or_else(|| format!("event {}", ended.event), |step| format!("step {step}"));
        let site = ended.site.as_ref().map_or_else(String::new, |site| format!(" by {}", place(site)));
        let asked = bytes(ended.requested_bytes);
        indented(&format!("Out of memory at {at}, {asked} asked{site}: {}", settings.join("; ")), screen)
    };
    ends.iter().map(line).collect()
}

fn recorded(rank: &Rank) -> String {
    let held = format!(
        "Recorded: {} reserved at most, {} allocated at most, with {}.",
        bytes(rank.recorded.peak_reserved_bytes),
        bytes(rank.recorded.peak_allocated_bytes),
        conf(&rank.recorded.allocator_conf),
    );
    match (rank.exact, rank.replayed.differs_at) {
        (true, _) => format!("{held} The replay repeats every segment and every address."),
        (false, Some(at)) => format!(
            "{held} The replay is NOT EXACT: it differs from event {} on, and reserves {} at most.",
            at.event,
            bytes(rank.replayed.peak_reserved_bytes)
        ),
        (false, None) => format!("{held} The replay is NOT EXACT: the state at the beginning is not whole."),
    }
}

fn settings(rank: &Rank, screen: &Screen) -> String {
    // With several limits, each setting has a row for each limit. So the table needs a column with the limit.
    let limits: BTreeSet<Option<u64>> = rank.settings.iter().map(|setting| setting.limit_bytes).collect();
    let mut table = Table::new(&[
        left("SETTING", 0),
        right("LIMIT", if limits.len() > 1 { 0 } else { 3 }),
        right("RESERVED", 0),
        right("ALLOCATED", 2),
        right("DRIVER CALLS", 4),
        right("RETRIES", 5),
        left("ENDS", 1),
    ]);
    for setting in &rank.settings {
        let reserved = match setting.bounds.as_deref() {
            Some([low, high]) => format!("{} to {}", bytes(*low), bytes(*high)),
            _ => bytes(setting.peak_reserved_bytes),
        };
        let calls = match setting.bounds {
            Some(_) => "-".to_owned(),
            None => (setting.device_allocs + setting.device_frees).to_string(),
        };
        let ends = match &setting.out_of_memory {
            Some(_) => ("OUT OF MEMORY".to_owned(), Some(Tone::Alert)),
            None => ("well".to_owned(), None),
        };
        table.toned(vec![
            (conf(&setting.allocator_conf), None),
            (setting.limit_bytes.map_or_else(|| "-".to_owned(), bytes), None),
            (reserved, None),
            (bytes(setting.peak_allocated_bytes), None),
            (calls, None),
            (setting.retries.to_string(), None),
            ends,
        ]);
    }
    let bounded = rank.settings.iter().filter(|setting| setting.bounds.is_some());
    let words = bounded.flat_map(|setting| setting.cautions.iter().map(|words| (named(setting), words)));
    let words = words.map(|(name, words)| indented(&format!("Of {name} there are only bounds: {words}."), screen));
    table.show(screen) + &words.collect::<String>()
}

fn named(setting: &Setting) -> String {
    let limit = setting.limit_bytes.map_or_else(String::new, |limit| format!(" on {}", bytes(limit)));
    format!("{}{limit}", conf(&setting.allocator_conf))
}

fn conf(conf: &str) -> String {
    if conf.is_empty() { "default settings".to_owned() } else { safe(conf).into_owned() }
}

fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}

fn indented(text: &str, screen: &Screen) -> String {
    let lines = prose::wrap(text, prose::columns(screen).saturating_sub(2));
    lines.into_iter().map(|line| format!("  {line}\n")).collect()
}
