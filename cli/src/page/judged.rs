//! States on a page what was not judged. If this decides the result, it is at the top of the page, otherwise below the
//! findings.
//!
//! Guarantees: if growth could not be judged, every page begins with this. No page then reports that the job has no
//! problem.

use memctl_answers::finding::Finding;
use memctl_answers::judged::{NotJudged, Scope, looked_at};
use memctl_answers::leaks;
use memctl_answers::verdict::Verdict;
use memctl_model::VerdictKind;

use super::prose;
use crate::render::screen::{Screen, Tone};
use crate::render::text::capital;

/// The first lines of a page about a job: the verdict on its memory. If there is too little data for a verdict, they
/// also say what to do.
#[must_use]
pub fn headline(verdict: Option<&Verdict>, scope: &Scope, screen: &Screen) -> String {
    let Some(verdict) = verdict else { return inconclusive(scope.inconclusive(), screen) };
    let mut out = String::new();
    for line in prose::hanging("", &verdict.sentence, usize::MAX, screen).lines() {
        out.push_str(&format!("{}\n", screen.paint(tone(verdict), line)));
    }
    if verdict.known_kind() == Some(VerdictKind::NotEnoughData) {
        out.push_str(&remedy(scope.inconclusive(), screen));
    }
    out.push('\n');
    out
}

fn tone(verdict: &Verdict) -> Tone {
    match verdict.known_kind() {
        Some(VerdictKind::Steady) => Tone::Good,
        Some(VerdictKind::Released | VerdictKind::LevelledOff) => Tone::Strong,
        Some(VerdictKind::Filling) if !verdict.overflows() => Tone::Strong,
        _ => Tone::Alert,
    }
}

/// The first lines if growth could not be judged: what was not judged, the reason, and the one thing to do.
#[must_use]
pub fn inconclusive(not: Option<&NotJudged>, screen: &Screen) -> String {
    let Some(not) = not else { return String::new() };
    let text = format!("{} not judged: {}.", capital(&not.subject()), not.reason);
    let lines = prose::hanging("Inconclusive: ", &text, usize::MAX, screen);
    let mut out = String::new();
    for line in lines.lines() {
        out.push_str(&format!("{}\n", screen.paint(Tone::Alert, line)));
    }
    out.push_str(&remedy(Some(not), screen));
    out.push('\n');
    out
}

fn remedy(not: Option<&NotJudged>, screen: &Screen) -> String {
    let Some(remedy) = not.and_then(|not| not.remedy.as_ref()) else { return String::new() };
    prose::hanging("What to do:   ", &format!("{}.", capital(remedy)), usize::MAX, screen)
}

/// States that nothing was found, what was analysed, and what could not be judged. If the verdict is that memory grows,
/// it states which finding is missing.
#[must_use]
pub fn no_findings(verdict: Option<&Verdict>, findings: &[Finding], scope: &Scope, screen: &Screen) -> String {
    let grows = verdict.is_some_and(|verdict| verdict.known_kind() == Some(VerdictKind::Growing));
    let what = match grows {
        true if findings.iter().any(|finding| finding.known_kind().is_some_and(leaks::grows)) => "No warning",
        true => "No finding explains this growth",
        false if findings.is_empty() => "No finding",
        false => "No warning",
    };
    let looked = looked_at(&scope.judged);
    let mut out = prose::hanging("", &format!("{what} in {looked}."), usize::MAX, screen);
    out.push_str(&not_judged(scope, screen));
    out
}

/// What could not be judged; empty if everything was judged.
#[must_use]
pub fn not_judged(scope: &Scope, screen: &Screen) -> String {
    // Kinds that lack the same data share one phrase.
    let mut phrases: Vec<(String, Vec<String>)> = Vec::new();
    for not in &scope.not_judged {
        let subject = not.subject();
        if !not.is_whole() {
            if !phrases.iter().any(|(reason, subjects)| *reason == not.reason && subjects.is_empty()) {
                phrases.push((not.reason.clone(), Vec::new()));
            }
            continue;
        }
        match phrases.iter_mut().find(|(reason, subjects)| *reason == not.reason && !subjects.is_empty()) {
            Some((_, subjects)) if subjects.contains(&subject) => {}
            Some((_, subjects)) => subjects.push(subject),
            None => phrases.push((not.reason.clone(), vec![subject])),
        }
    }
    if phrases.is_empty() {
        return String::new();
    }
    let phrase = |(reason, subjects): &(String, Vec<String>)| match subjects.split_last() {
        None => reason.clone(),
        Some((last, [])) => format!("{last} ({reason})"),
        Some((last, others)) => format!("{} and {last} ({reason})", others.join(", ")),
    };
    let text = phrases.iter().map(phrase).collect::<Vec<_>>().join("; ");
    prose::hanging("Not judged: ", &format!("{text}."), usize::MAX, screen)
}
