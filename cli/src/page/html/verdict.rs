//! The verdict on the page, as in `memctl diagnose`: the sentence, every finding, the six answers, and what was not
//! analysed.
//!
//! Guarantees: the words are the daemon's. The severity is shown by a sign and a word, not only by a colour. If growth
//! could not be judged, the page begins with this.

use memctl_answers::diagnose::{EXAMPLE, Question};
use memctl_answers::dossier::Dossier;
use memctl_answers::finding::Finding;
use memctl_answers::finding::phrases::{live, on_ranks, rates, since, stack, until};
use memctl_answers::format::html::escape;
use memctl_answers::verdict::Verdict;
use memctl_model::Severity;

use super::{PLAIN, in_a_line, is_running};
use crate::page::{completeness, judged};
use crate::render::text::{capital, plural};

/// Maximum number of callers of a site that are named.
const CALLERS_SHOWN: usize = 8;
/// Maximum number of findings that are shown in full. The others are counted.
const FINDINGS_SHOWN: usize = 40;

/// The sign of a severity.
#[must_use]
pub fn sign(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "▲",
        Severity::Warning => "●",
        Severity::Info => "i",
    }
}

/// The section of the page.
#[must_use]
pub fn section(dossier: &Dossier, part: usize) -> String {
    let note = &dossier.note;
    let inconclusive = note.inconclusive().is_some();
    let class = if inconclusive { "inconclusive" } else { &note.severity };
    let mut out = format!("<div class=\"verdict {class}\">\n");
    let word = match note.findings.first() {
        _ if inconclusive => "? Inconclusive".to_owned(),
        Some(worst) => format!("{} {}", sign(worst.severity), capital(worst.severity.name())),
        None if note.verdict.as_ref().is_some_and(Verdict::is_grave) => {
            format!("! {}", capital(note.verdict.as_ref().map_or("", Verdict::words)))
        }
        None if note.report.failed() || note.report.ranks.is_empty() => "In short".to_owned(),
        None => "✓ No finding".to_owned(),
    };
    let sentence = match &note.verdict {
        Some(verdict) => in_a_line(&judged::headline(Some(verdict), &note.scope, &PLAIN)),
        None => escape(&format!("{}.", note.summary.trim_end_matches('.'))),
    };
    let sentence = sentence.strip_prefix("Inconclusive: ").unwrap_or(&sentence);
    out.push_str(&format!("<p><span class=\"word {class}\">{word}</span> {sentence}</p>\n"));
    out.push_str(&format!("<p>{}</p>\n", in_a_line(&completeness(&note.completeness, is_running(dossier), &PLAIN))));
    let not_judged = judged::not_judged(&note.scope, &PLAIN);
    if !not_judged.is_empty() {
        out.push_str(&format!("<p>{}</p>\n", in_a_line(&not_judged)));
    }
    out.push_str("</div>\n");
    out.push_str(&findings(&note.findings, FINDINGS_SHOWN / part));
    for (at, question) in note.questions.iter().enumerate() {
        out.push_str(&format!("<h3>{} {}</h3>\n{}", at + 1, question.question, answer(question)));
    }
    out
}

fn findings(findings: &[Finding], shown: usize) -> String {
    let mut out = String::new();
    for (at, finding) in findings.iter().take(shown).enumerate() {
        let (number, open) = (at + 1, if at == 0 { " open" } else { "" });
        let title = if finding.title.trim().is_empty() { &finding.kind } else { &finding.title };
        out.push_str(&format!(
            "<details{open}>\n<summary><span class=\"word {0}\">{1} Finding {number}, {0}</span> {2}</summary>\n<dl>\n",
            finding.severity.name(),
            sign(finding.severity),
            escape(title)
        ));
        let mut field = |name: &str, text: &str| {
            if !text.trim().is_empty() {
                out.push_str(&format!("<dt>{name}</dt><dd class=\"prose\">{}</dd>\n", escape(text)));
            }
        };
        field("kind", &finding.kind.replace('_', " "));
        field("where", &finding.site.as_ref().map(|site| stack(site, CALLERS_SHOWN)).unwrap_or_default());
        field("ranks", &on_ranks(finding));
        field("rate", &rates(finding));
        field("since", &since(finding, true).unwrap_or_default());
        field("live", &live(finding).unwrap_or_default());
        field("until", &until(finding).unwrap_or_default());
        field("why", &finding.explanation);
        field("change", &finding.advice);
        out.push_str("</dl>\n</details>\n");
    }
    if findings.len() > shown {
        let more = plural((findings.len() - shown) as u64, "more finding");
        out.push_str(&format!("<p>And {more}.</p>\n"));
    }
    out
}

fn answer(question: &Question) -> String {
    let mut out: String =
        question.answer.iter().map(|text| format!("<p class=\"prose\">{}</p>\n", escape(text))).collect();
    if !question.before.is_empty() {
        out.push_str(&format!("<p class=\"prose\">{EXAMPLE}</p>\n"));
    }
    let mut code = Vec::new();
    for (sign, lines) in [("-", &question.before), ("+", &question.after)] {
        code.extend(lines.iter().map(|line| format!("{sign} {}", escape(line))));
    }
    for lines in [code, question.commands.iter().map(|command| escape(command)).collect()] {
        if !lines.is_empty() {
            out.push_str(&format!("<pre tabindex=\"0\">{}</pre>\n", lines.join("\n")));
        }
    }
    out
}
