//! What was not judged, on a page: first of all where it decides, and below the findings otherwise.
//!
//! Guarantees: where growth could not be judged no page begins with anything else, and none calls the job well.

use memctl_answers::judged::{NotJudged, Scope, looked_at};

use super::prose;
use crate::render::screen::{Screen, Tone};
use crate::render::text::capital;

/// The first lines of a page on which no finding hurts though nobody could have found one: what, why, and the one thing
/// to do about it. Nothing where the absence of findings means something.
#[must_use]
pub fn headline(not: Option<&NotJudged>, screen: &Screen) -> String {
    let Some(not) = not else { return String::new() };
    let text = format!("{} not judged: {}.", capital(&not.subject()), not.reason);
    let lines = prose::hanging("Inconclusive: ", &text, usize::MAX, screen);
    let mut out = String::new();
    for line in lines.lines() {
        out.push_str(&format!("{}\n", screen.paint(Tone::Alert, line)));
    }
    if let Some(remedy) = &not.remedy {
        out.push_str(&prose::hanging("What to do:   ", &format!("{}.", capital(remedy)), usize::MAX, screen));
    }
    out.push('\n');
    out
}

/// That nothing was found, in what, and what could not be judged. `what`: `Nothing wrong`, `No leak`. `well`: whether the
/// job is a healthy one otherwise.
#[must_use]
pub fn nothing(what: &str, scope: &Scope, well: bool, screen: &Screen) -> String {
    let mut out = match scope.inconclusive() {
        // The page's first line has said it.
        Some(_) => prose::hanging("", &format!("No finding in {}.", looked_at(&scope.judged)), usize::MAX, screen),
        None => {
            let head = if well { format!("{what} was found") } else { "No finding".to_owned() };
            let looked = looked_at(&scope.judged);
            let sentence = prose::hanging("", &format!("{head} in {looked}."), usize::MAX, screen);
            match sentence.strip_prefix(head.as_str()) {
                Some(rest) if well => format!("{}{rest}", screen.paint(Tone::Good, &head)),
                _ => sentence,
            }
        }
    };
    out.push_str(&not_judged(scope, screen));
    out
}

/// What could not be judged; nothing where everything was.
#[must_use]
pub fn not_judged(scope: &Scope, screen: &Screen) -> String {
    // Kinds that lack the same are one phrase.
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
