//! Findings on a page: in brief (for `query`) and in full (for `leaks` and `ranks`).
//!
//! Guarantees: the sentence comes first and is never cut. The severity is visible without colours (`!!`, `! `, `i `).
//! An unknown figure has no line. The sentences are the daemon's and are not changed.

use memctl_answers::finding::Finding;
use memctl_answers::finding::holders::FindingHolders;
use memctl_answers::finding::phrases::{live, rates, since, stack, until};
use memctl_model::{HumanBytes, Severity};

use super::prose;
use crate::render::plot::sparkline;
use crate::render::screen::{Screen, Tone};
use crate::render::text::{plural, rank_list, safe};

/// Maximum number of findings that are shown in brief. The others are counted.
const SHOWN: usize = 5;
/// Maximum number of callers of a site that are shown in full.
const CALLERS_SHOWN: usize = 8;
/// Maximum number of bars of a curve.
const BARS: usize = 40;
/// Width of the labels in front of a finding's lines, including their indentation.
const LABEL: usize = 12;

/// The severity in two characters, readable without colour.
#[must_use]
pub fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "!!",
        Severity::Warning => "! ",
        Severity::Info => "i ",
    }
}

const fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Critical | Severity::Warning => Tone::Alert,
        Severity::Info => Tone::Strong,
    }
}

/// The worst findings in brief; the others are counted.
#[must_use]
pub fn several(findings: &[Finding], screen: &Screen) -> String {
    let mut out: String = findings.iter().take(SHOWN).map(|finding| brief(finding, screen)).collect();
    if let Some(rest) = findings.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        let line = format!("and {} (-o json has them all)", counted(rest, "more finding"));
        out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
    }
    out
}

/// The number of findings, such as `3 findings: 1 critical, 2 info`.
#[must_use]
pub fn counted(findings: &[Finding], noun: &str) -> String {
    let of = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let parts = Severity::ALL.into_iter().rev().filter(|&severity| of(severity) > 0);
    let parts: Vec<String> = parts.map(|severity| format!("{} {}", of(severity), severity.name())).collect();
    format!("{}: {}", plural(findings.len() as u64, noun), parts.join(", "))
}

/// The sentence with the severity, the curve, and the first action to take.
fn brief(finding: &Finding, screen: &Screen) -> String {
    let mut out = headline(finding, screen);
    let mut facts = vec![finding.severity.name().to_owned()];
    facts.extend(since(finding, false).map(|since| format!("since {since}")));
    facts.extend(live(finding));
    let course = finding.first_series().map(|(_, values)| format!("  {}", sparkline(&thinned(values), screen)));
    let line = format!("{}{}", facts.join(", "), course.unwrap_or_default());
    let line = screen.wrapped(line.trim_end(), 3);
    out.push_str(&format!("   {}\n", screen.paint(Tone::Faint, &line)));
    if let Some(holders) = &finding.holders {
        let held = prose::first_sentence(&holders.sentence);
        out.push_str(&match screen.columns {
            Some(_) => prose::hanging("   ", held, usize::MAX, screen),
            None => format!("   {}\n", safe(held)),
        });
    }
    if !finding.advice.trim().is_empty() {
        let advice = prose::first_sentence(&finding.advice);
        // The advice is never cut, because users act on it.
        out.push_str(&match screen.columns {
            Some(_) => prose::hanging("   ", advice, usize::MAX, screen),
            None => format!("   {}\n", safe(advice)),
        });
    }
    out
}

/// The mark and the sentence, which is never cut.
fn headline(finding: &Finding, screen: &Screen) -> String {
    let title = if finding.title.trim().is_empty() { finding.kind.as_str() } else { &finding.title };
    // If the screen has no line limit, the sentence stays on one line, so that a search finds it.
    let room = screen.columns.map_or(usize::MAX, |columns| columns.saturating_sub(3));
    let lines = prose::wrap(title, room);
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let lead = if at == 0 { mark(finding.severity) } else { "  " };
        out.push_str(&format!("{}\n", screen.paint(tone(finding.severity), &format!("{lead} {line}"))));
    }
    out
}

/// Everything that is known about the finding.
#[must_use]
pub fn full(finding: &Finding, screen: &Screen) -> String {
    let mut out = headline(finding, screen);
    let mut field = |label: &str, text: &str| {
        if !text.trim().is_empty() {
            out.push_str(&prose::hanging(&format!("   {label:<width$}", width = LABEL - 3), text, usize::MAX, screen));
        }
    };
    field("kind", &format!("{}, {}", finding.kind, finding.severity.name()));
    field("where", &finding.site.as_ref().map(|site| stack(site, CALLERS_SHOWN)).unwrap_or_default());
    field("ranks", &ranks(finding));
    field("rate", &rates(finding));
    field("since", &since(finding, true).unwrap_or_default());
    field("live", &live(finding).map(|live| format!("{live}, on the rank that holds most")).unwrap_or_default());
    if let Some(holders) = &finding.holders {
        field("held by", &holders.sentence);
        for chain in holders.chains(screen.pick(" → ", " > ")) {
            field("", &chain);
        }
        if !holders.holders.is_empty() {
            field("", &not_looked_at(holders));
        }
    }
    field("history", &course(finding, screen));
    field("until", &until(finding).unwrap_or_default());
    field("why", &finding.explanation);
    field("change", &finding.advice);
    out
}

/// Parts of memory that a search for holders did not cover, if it found holders. If it found none, its response states
/// this itself.
fn not_looked_at(holders: &FindingHolders) -> String {
    match holders.not_looked_at.as_slice() {
        [] => String::new(),
        some => format!("Not looked at: {}", some.join(" ")),
    }
}

/// Ranks as text, such as `all 4` or `0-1,3`.
fn ranks(finding: &Finding) -> String {
    match finding.ranks.as_slice() {
        ranks if finding.all_ranks => format!("all {} ({})", ranks.len(), rank_list(ranks)),
        ranks => rank_list(ranks),
    }
}

/// A curve with its range, such as `▁▃▅█  49.0 MiB to 441 MiB (live)`.
#[must_use]
pub fn course(finding: &Finding, screen: &Screen) -> String {
    let Some((name, values)) = finding.first_series() else { return String::new() };
    let (first, last) = (values.first().copied().unwrap_or(0), values.last().copied().unwrap_or(0));
    let bars = sparkline(&thinned(values), screen);
    let (first, last) = (HumanBytes::of(first), HumanBytes::of(last));
    format!("{bars} {first} to {last} ({})", in_words(name))
}

/// At most as many values as fit, including the first and the last.
fn thinned(values: &[u64]) -> Vec<u64> {
    if values.len() <= BARS {
        return values.to_vec();
    }
    (0..BARS).map(|at| values[at * (values.len() - 1) / (BARS - 1)]).collect()
}

/// The name of a figure for people: `live_bytes_series` becomes `live`, and `epochs_seen` becomes `epochs seen`.
fn in_words(name: &str) -> String {
    let name = name.strip_suffix("_series").unwrap_or(name);
    safe(name.strip_suffix("_bytes").unwrap_or(name)).replace('_', " ")
}
