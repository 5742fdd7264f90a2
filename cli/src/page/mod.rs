//! Pages for people: what an answer looks like in a terminal, designed for somebody tired.
//!
//! Guarantees: pure functions of an answer and a screen; no line wider than the screen except
//! commands to copy; everything that came from elsewhere is made safe.

pub mod alerts;
pub mod assert;
pub mod diagnose;
pub mod finding;
pub mod frag;
pub mod jobs;
pub mod judged;
pub mod leaks;
pub mod ledger;
pub mod oom;
mod processes;
pub mod prose;
pub mod ranks;
pub mod report;
pub mod sites;
pub mod timeline;

use memctl_model::HumanBytes;

use crate::answer::{Completeness, Frame, Job};
use crate::render::screen::{Screen, Tone};
use crate::render::text::{count, file_name, plural, safe, width};
use crate::render::time;

/// `remember_features (scenarios.py:57)`.
#[must_use]
pub fn place(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "?" } else { &frame.function };
    let file = file_name(&frame.file);
    let text = match (file.is_empty(), frame.line) {
        (true, _) => function.to_owned(),
        (false, Some(line)) => format!("{function} ({file}:{line})"),
        (false, None) => format!("{function} ({file})"),
    };
    safe(&text).into_owned()
}

/// The first line of every page: which job, how it stands, how much of it there is.
#[must_use]
pub fn heading(job: &Job, screen: &Screen) -> String {
    let tone = match job.state {
        "failed" | "lost" => Tone::Alert,
        "finished" => Tone::Good,
        _ => Tone::Strong,
    };
    let name = safe(&job.id);
    let mut parts = vec![ranks_of(job)];
    if job.attempts > 1 || job.attempt > 0 {
        parts.push(format!("attempt {} of {}", job.attempt, count(u64::from(job.attempts))));
    }
    parts.push(time::date(job.started_ns));
    if let Some(ended) = job.ended_ns {
        parts.push(time::duration(ended.saturating_sub(job.started_ns)));
    }
    parts.push(stored(job));
    if let Some(each) = bytes_each(job) {
        parts.push(each);
    }
    let mut used = width(&name) + 2 + width(job.state);
    let fitting = parts.into_iter().take_while(|part| {
        used += 2 + width(part);
        screen.columns.is_none_or(|columns| used <= columns)
    });
    let rest: String = fitting.map(|part| format!("  {part}")).collect();
    format!("{}  {}{rest}\n", screen.paint(Tone::Strong, &name), screen.paint(tone, job.state))
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

fn bytes_each(job: &Job) -> Option<String> {
    (job.events > 0).then(|| format!("({:.2} B each)", job.stored_bytes as f64 / job.events as f64))
}

/// What the answer rests on, in a line.
#[must_use]
pub fn completeness(completeness: &Completeness, running: bool, screen: &Screen) -> String {
    let Completeness { exact, events_stored, events_dropped, gaps, events_expired } = *completeness;
    if exact && events_stored == 0 {
        return format!("{}\n", screen.fit("No allocator event is stored.", 0));
    }
    if exact {
        let so_far = if running { " so far" } else { "" };
        let text = format!("Exact: all {}{so_far} stored, none lost.", plural(events_stored, "event"));
        return format!("{}\n", screen.fit(&text, 0));
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
    if missing.is_empty() {
        missing.push("a session has not delivered everything that it recorded".to_owned());
    }
    let text = format!("NOT EXACT: {}; {} stored.", missing.join(", "), plural(events_stored, "event"));
    format!("{}\n", screen.paint(Tone::Alert, &screen.fit(&text, 0)))
}

/// Commands to go on with, each with what it is for.
#[must_use]
pub fn next(commands: &[(String, &str)], screen: &Screen) -> String {
    let widest = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    let mut out = String::from("\nNext:\n");
    for (command, purpose) in commands {
        // A command is never cut: it is there to be copied.
        let room = screen.columns.is_none_or(|columns| 4 + widest + purpose.chars().count() <= columns);
        let purpose = if room { format!("  {purpose}") } else { String::new() };
        let padding = if room { widest - command.chars().count() } else { 0 };
        out.push_str(&format!("  {command}{:padding$}{}\n", "", screen.paint(Tone::Faint, &purpose)));
    }
    out
}

/// `memctl VERB --job J … FLAGS`, ready to be copied into a shell.
#[must_use]
pub fn command(verb: &str, job: &Job, rest: &str, hint: &str) -> String {
    let mut line = format!("memctl {verb} --job {}", shell_word(&job.id));
    for part in [rest, hint] {
        if !part.is_empty() {
            line.push(' ');
            line.push_str(part);
        }
    }
    line
}

/// The flag that asks for one process: its rank where that names it, else its name, because a rank can have several.
#[must_use]
pub fn chosen(process: &str, rank: u32) -> String {
    match process.is_empty() || process.strip_prefix("rank ").is_some_and(|number| number == rank.to_string()) {
        true => format!("--rank {rank}"),
        false => format!("--process {}", shell_word(process)),
    }
}

/// A word as a POSIX shell takes it for itself.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@/+-=".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", safe(word).replace('\'', r"'\''")) }
}

/// What a process is called: its rank where that names it, as daemons without processes tell it.
pub(crate) fn name_of(process: &str, rank: u32) -> String {
    if process.is_empty() { format!("rank {rank}") } else { safe(process).into_owned() }
}

/// The same in a column of ranks.
fn place_of(process: &str, rank: u32) -> String {
    let name = name_of(process, rank);
    name.strip_prefix("rank ").map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_asked_for_by_what_names_it() {
        assert_eq!((chosen("", 2), chosen("rank 2", 2)), ("--rank 2".to_owned(), "--rank 2".to_owned()));
        assert_eq!(chosen("worker-1", 0), "--process worker-1");
        assert_eq!(chosen("rank 2 (pid 7)", 2), "--process 'rank 2 (pid 7)'");
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("run/1"), "run/1");
        assert_eq!(shell_word("a b; rm -rf 'x'"), r"'a b; rm -rf '\''x'\'''");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn places() {
        let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        assert_eq!(place(&frame("f", "/a/b.py", Some(3))), "f (b.py:3)");
        assert_eq!(place(&frame("f", "", None)), "f");
        assert_eq!(place(&frame("", "b.cpp", None)), "? (b.cpp)");
        assert_eq!(place(&frame("f\u{1b}]0;x\u{7}", "b", Some(1))), r"f\u{1b}]0;x\u{7} (b:1)");
    }

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
    }
}
