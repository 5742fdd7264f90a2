//! The page of `memctl diagnose`: a short explanation on one screen.
//!
//! Guarantees: there are six numbered answers, and each is short. Commands and code are never cut or wrapped, so that
//! they can be copied. A long explanation is cut and ends in `…`. `memctl leaks` shows it in full.

use memctl_answers::diagnose::{Diagnosis, EXAMPLE, Question};
use memctl_model::JobState;

use super::{Page, completeness, finding, heading, judged, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::text::safe;

/// Maximum number of lines of a paragraph.
const LINES: usize = 16;
/// Maximum number of other findings that are named below the summary.
const OTHERS: usize = 2;
/// The index, from 0, of the answer after which the curve is shown.
const GROWTH: usize = 1;

impl Page for Diagnosis {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(note: &Diagnosis, screen: &Screen) -> String {
    let mut out = judged::headline(note.verdict.as_ref(), &note.scope, screen);
    out.push_str(&heading(&note.job, screen));
    let summary = summary(note, screen);
    if !summary.is_empty() {
        out.push_str(&format!("\n{summary}"));
    }
    for (at, question) in note.questions.iter().enumerate() {
        out.push_str(&format!(
            "\n{}\n",
            screen.paint(Tone::Strong, &screen.wrapped(&format!("{} {}", at + 1, question.question), 0))
        ));
        out.push_str(&answer(question, screen));
        let course = note.findings.first().filter(|_| at == GROWTH).map(|found| finding::course(found, screen));
        if let Some(course) = course.filter(|course| !course.is_empty()) {
            out.push_str(&format!("  {}\n", screen.wrapped(&course, 2)));
        }
    }
    out.push('\n');
    out.push_str(&judged::not_judged(&note.scope, screen));
    out.push_str(&completeness(&note.completeness, note.job.state == JobState::Running, screen));
    out
}

/// The findings in brief. The verdict is not among them, because it is the page's first sentence.
fn summary(note: &Diagnosis, screen: &Screen) -> String {
    let Some(worst) = note.findings.first() else {
        return judged::no_findings(note.verdict.as_ref(), &note.findings, &note.scope, screen);
    };
    let mut out = String::new();
    // If the verdict is about the same place, the page's first sentence already contains this finding.
    let said = note.verdict.as_ref().is_some_and(|verdict| {
        verdict.is_grave() && verdict.site.as_ref() == worst.site.as_ref().map(|site| &site.frame)
    });
    let text = if said { String::new() } else { format!("{} ({})", worst.title, worst.severity.name()) };
    for line in prose::hanging("Finding:  ", &text, LINES, screen).lines().filter(|_| !said) {
        let tone = if worst.is_warning_or_worse() { Tone::Alert } else { Tone::Strong };
        out.push_str(&format!("{}\n", screen.paint(tone, line)));
    }
    for other in note.findings.iter().skip(1).take(OTHERS) {
        out.push_str(&prose::hanging(
            "And also: ",
            &format!("{} ({})", other.title, other.severity.name()),
            LINES,
            screen,
        ));
    }
    let more = note.findings.len().saturating_sub(1 + OTHERS);
    if more > 0 {
        let rest = finding::counted(&note.findings[1 + OTHERS..], "more finding");
        out.push_str(&format!("{}\n", screen.wrapped(&format!("And {rest} (memctl query)."), 0)));
    }
    out
}

fn answer(question: &Question, screen: &Screen) -> String {
    let mut out: String = question.answer.iter().map(|text| prose::hanging("  ", text, LINES, screen)).collect();
    if !question.before.is_empty() {
        out.push_str(&format!("  {}\n", screen.wrapped(EXAMPLE, 2)));
    }
    for (sign, lines) in [("-", &question.before), ("+", &question.after)] {
        for line in lines {
            out.push_str(&format!("      {sign} {line}\n"));
        }
    }
    for command in &question.commands {
        // A command is never cut, because users copy it.
        out.push_str(&format!("  {}\n", safe(command)));
    }
    out
}
