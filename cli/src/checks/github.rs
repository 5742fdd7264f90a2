//! Annotations of a GitHub workflow: lines on standard output that the runner reads, and the step's summary.
//!
//! Guarantees: at most [`ANNOTATIONS_MAX`] annotations, because the runner drops more of a kind; lines that the pull
//! request changes come first, and a line has one annotation for all conditions. The summary has every problem.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write;

use memctl_answers::assert::{Outcome, Verdicts};

use super::Problem;
use super::repository::Location;
use crate::exit::Failure;

/// Annotations of one kind in one step: what GitHub documents as its limit.
const ANNOTATIONS_MAX: usize = 10;
/// The environment variable with the file of the step's summary.
const SUMMARY_VARIABLE: &str = "GITHUB_STEP_SUMMARY";

/// Writes annotations to `out`, and appends to the step's summary if there is one.
///
/// # Errors
/// Either cannot be written.
pub fn write(
    verdicts: &Verdicts,
    mut problems: Vec<Problem>,
    changed: &HashSet<Location>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    // The sort is stable: within a group the worst stays first.
    problems.sort_by_key(|problem| order(problem, changed));
    let lines: String = merged(&problems).iter().take(ANNOTATIONS_MAX).map(annotation).collect();
    out.write_all(lines.as_bytes()).map_err(|error| Failure::output("standard output", &error))?;
    let Some(file) = std::env::var_os(SUMMARY_VARIABLE).filter(|file| !file.is_empty()) else { return Ok(()) };
    let mut options = std::fs::OpenOptions::new();
    let opened = options.append(true).create(true).open(&file);
    let written = opened.and_then(|mut opened| opened.write_all(summary(verdicts, &problems).as_bytes()));
    written.map_err(|error| Failure::output(&file.to_string_lossy(), &error))
}

/// Changed lines, then other lines of the checkout, then the rest.
fn order(problem: &Problem, changed: &HashSet<Location>) -> u8 {
    match &problem.location {
        Some(location) if changed.contains(location) => 0,
        Some(_) => 1,
        None => 2,
    }
}

/// Joins the problems of one line, and those of no line with one outcome. The order stays.
fn merged(problems: &[Problem]) -> Vec<Problem> {
    let mut merged: Vec<Problem> = Vec::new();
    for problem in problems {
        let is_same = |other: &&mut Problem| other.location == problem.location && other.outcome == problem.outcome;
        let Some(known) = merged.iter_mut().find(is_same) else {
            merged.push(problem.clone());
            continue;
        };
        if !known.condition.split(", ").any(|one| one == problem.condition) {
            known.condition = format!("{}, {}", known.condition, problem.condition);
        }
        if !known.message.split('\n').any(|one| one == problem.message) {
            known.message = format!("{}\n{}", known.message, problem.message);
        }
    }
    merged
}

/// `::error file=train.py,line=16,title=memctl no-leak::Live memory grows …`
fn annotation(problem: &Problem) -> String {
    let title = match problem.outcome {
        Outcome::Inconclusive => format!("memctl {} is inconclusive", problem.condition),
        Outcome::Holds | Outcome::DoesNotHold => format!("memctl {}", problem.condition),
    };
    let place = problem
        .location
        .as_ref()
        .map_or_else(String::new, |at| format!("file={},line={},", property(&at.path), at.line));
    format!("::error {place}title={}::{}\n", property(&title), data(&problem.message))
}

fn summary(verdicts: &Verdicts, problems: &[Problem]) -> String {
    let mut out = format!("### memctl: {}\n\n| condition | result | why |\n|---|---|---|\n", cell(&verdicts.job.id));
    for checked in &verdicts.conditions {
        let (condition, result) = (cell(&checked.condition), checked.verdict.words());
        let _ = writeln!(out, "| {condition} | {result} | {} |", cell(&checked.because));
    }
    if !problems.is_empty() {
        out.push_str("\n| where | what |\n|---|---|\n");
    }
    for problem in problems {
        let place = problem.location.as_ref().map_or_else(String::new, |at| format!("{}:{}", at.path, at.line));
        let _ = writeln!(out, "| {} | {} |", cell(&place), cell(&problem.message));
    }
    out.push('\n');
    out
}

/// The message of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// A cell of a Markdown table. Names are data, so nothing in them is markup.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => out.push_str("<br>"),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' | '~' | '@' | '#' => out.extend(['\\', letter]),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(message: &str, location: Option<(&str, u32)>) -> Problem {
        Problem {
            condition: "no-leak".into(),
            outcome: Outcome::DoesNotHold,
            message: message.into(),
            location: location.map(|(path, line)| Location { path: path.into(), line }),
            finding: None,
        }
    }

    #[test]
    fn a_name_can_end_no_command_and_start_no_other() {
        let line = annotation(&problem("50% of it\n::error::forged", Some(("a,b:c.py", 3))));
        assert_eq!(line, "::error file=a%2Cb%3Ac.py,line=3,title=memctl no-leak::50%25 of it%0A::error::forged\n");
    }

    #[test]
    fn changed_lines_come_first() {
        let mut problems =
            [problem("no place", None), problem("old", Some(("a.py", 1))), problem("new", Some(("b.py", 2)))];
        let changed = HashSet::from([Location { path: "b.py".into(), line: 2 }]);
        problems.sort_by_key(|problem| order(problem, &changed));
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, ["new", "old", "no place"]);
    }

    #[test]
    fn a_line_has_one_annotation_for_all_conditions() {
        let of = |condition: &str, message: &str, location| Problem {
            condition: condition.into(),
            ..problem(message, location)
        };
        let line = Some(("a.py", 1));
        let problems = [
            of("peak", "2 MiB more", line),
            of("no-leak", "grows", Some(("b.py", 2))),
            of("peak_reserved", "2 MiB more", line),
            of("peak_reserved", "reserves more", line),
        ];
        let annotations: Vec<String> = merged(&problems).iter().map(annotation).collect();
        let wanted = [
            "::error file=a.py,line=1,title=memctl peak%2C peak_reserved::2 MiB more%0Areserves more\n",
            "::error file=b.py,line=2,title=memctl no-leak::grows\n",
        ];
        assert_eq!(annotations, wanted);
    }

    #[test]
    fn names_are_no_markup() {
        assert_eq!(cell("<b>a|b`\n*"), "&lt;b>a\\|b\\`<br>\\*");
    }
}
