//! Pages for people: results as text for a terminal, and as a file that can be sent.
//!
//! Guarantees: a page depends only on a response and a screen. No line is wider than the screen, except for commands
//! that users copy. Text from outside is escaped.

mod access;
pub mod alerts;
pub mod assert;
pub mod diagnose;
pub mod diff;
pub mod finding;
pub mod fit;
pub mod frag;
pub mod holders;
pub mod html;
pub mod jobs;
pub mod judged;
pub mod leaks;
pub mod ledger;
pub mod markdown;
pub mod need;
pub mod oom;
mod processes;
pub mod prose;
pub mod ranks;
pub mod report;
pub mod sites;
pub mod timeline;
pub mod what_if;

use memctl_answers::naming::name_of;
use memctl_model::{HumanBytes, JobState};

use memctl_answers::advice::Advice;
use memctl_answers::format::time;
use memctl_answers::{Answer, Completeness, Job};

use crate::render::screen::{Screen, Tone};
use crate::render::text::{count, plural, safe, width};

/// A response that has a page for people.
pub trait Page: Answer {
    /// The page for people.
    fn page(&self, screen: &Screen) -> String;
}

/// The first line of every page: the job, its state, and the amount of its data.
#[must_use]
pub fn heading(job: &Job, screen: &Screen) -> String {
    let tone = match job.state {
        JobState::Failed | JobState::Lost => Tone::Alert,
        JobState::Finished => Tone::Good,
        JobState::Running => Tone::Strong,
    };
    let name = safe(&job.id);
    let mut parts = vec![ranks_of(job)];
    if job.attempts > 1 || job.attempt > 0 {
        parts.push(format!("attempt {} of {}", job.attempt, count(u64::from(job.attempts))));
    }
    parts.push(time::date(job.started_at.0));
    if let Some(ended) = job.ended_at {
        parts.push(time::duration(ended.0.saturating_sub(job.started_at.0)));
    }
    parts.push(stored(job));
    let mut used = width(&name) + 2 + width(job.state.name());
    let fitting = parts.into_iter().take_while(|part| {
        used += 2 + width(part);
        screen.columns.is_none_or(|columns| used <= columns)
    });
    let rest: String = fitting.map(|part| format!("  {part}")).collect();
    format!("{}  {}{rest}\n", screen.paint(Tone::Strong, &name), screen.paint(tone, job.state.name()))
}

fn ranks_of(job: &Job) -> String {
    match job.world_size {
        Some(world) if world != job.ranks => format!("{} of {} ranks", job.ranks, world),
        _ => plural(u64::from(job.ranks), "rank"),
    }
}

fn stored(job: &Job) -> String {
    format!("{} in {}", plural(job.events, "event"), HumanBytes::of(job.stored_bytes))
}

/// The data on which the response is based, in one line.
#[must_use]
pub fn completeness(completeness: &Completeness, running: bool, screen: &Screen) -> String {
    let Completeness { exact, events_stored, events_dropped, gaps, events_expired, items_damaged } = *completeness;
    if exact && events_stored == 0 {
        return format!("{}\n", screen.wrapped("No allocator event is stored.", 0));
    }
    if exact {
        let so_far = if running { " so far" } else { "" };
        let text = format!("Exact: all {}{so_far} stored, none lost.", plural(events_stored, "event"));
        return format!("{}\n", screen.wrapped(&text, 0));
    }
    let mut missing = Vec::new();
    if events_dropped > 0 {
        missing.push(format!("{} dropped by agents", plural(events_dropped, "event")));
    }
    if gaps > 0 {
        missing.push(format!("{} missing", plural(gaps, "item")));
    }
    if events_expired > 0 {
        missing.push(format!("{} expired", plural(events_expired, "event")));
    }
    if items_damaged > 0 {
        let is_damaged = if items_damaged == 1 { "is damaged and" } else { "are damaged and" };
        missing.push(format!(
            "{} {is_damaged} left out (`memctl check --deep` lists them)",
            plural(items_damaged, "item")
        ));
    }
    if missing.is_empty() {
        missing.push("a session has not delivered everything that it recorded".to_owned());
    }
    let text = format!("NOT EXACT: {}; {} stored.", missing.join(", "), plural(events_stored, "event"));
    format!("{}\n", screen.paint(Tone::Alert, &screen.wrapped(&text, 0)))
}

/// Commands for the next step, each with its purpose.
#[must_use]
pub fn next(commands: &[(String, &str)], screen: &Screen) -> String {
    let widest = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let mut out = String::from("\nNext:\n");
    for (command, purpose) in commands {
        // A command is never cut, because users copy it.
        let room = screen.columns.is_none_or(|columns| 4 + widest + purpose.chars().count() <= columns);
        let purpose = if room { format!("  {purpose}") } else { String::new() };
        let padding = if room { widest - command.chars().count() } else { 0 };
        out.push_str(&format!("  {command}{:padding$}{}\n", "", screen.paint(Tone::Faint, &purpose)));
    }
    out
}

/// The effect of allocator settings, if a replay was requested.
fn settings(advice: Option<&Advice>, screen: &Screen) -> String {
    let Some(advice) = advice else { return String::new() };
    let title = format!("Allocator settings, {}", name_of(&advice.process, advice.rank));
    let mut out = format!("{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0)));
    for text in &advice.says {
        for line in prose::wrap(text, prose::columns(screen).saturating_sub(2)) {
            out.push_str(&format!("  {line}\n"));
        }
    }
    if let Some(line) = advice.export() {
        // The line is never cut, because users copy it into a shell.
        out.push_str(&format!("  + {}\n", safe(&line)));
    }
    out.push('\n');
    out
}

/// The place of a process in a column of ranks.
fn place_of(process: &str, rank: u32) -> String {
    let name = name_of(process, rank);
    name.strip_prefix("rank ").map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let screen = Screen { columns: Some(100), unicode: true, colour: false };
        let whole = Completeness { exact: true, events_stored: 1234, ..Completeness::default() };
        assert_eq!(completeness(&whole, false, &screen), "Exact: all 1,234 events stored, none lost.\n");
        let lossy = Completeness { exact: false, events_dropped: 5, gaps: 1, ..whole };
        assert_eq!(
            completeness(&lossy, false, &screen),
            "NOT EXACT: 5 events dropped by agents, 1 item missing; 1,234 events stored.\n"
        );
        let damaged = Completeness { exact: false, items_damaged: 2, ..whole };
        let wide = Screen { columns: None, ..screen };
        assert_eq!(
            completeness(&damaged, false, &wide),
            "NOT EXACT: 2 items are damaged and left out (`memctl check --deep` lists them); 1,234 events stored.\n"
        );
    }
}
