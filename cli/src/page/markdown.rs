//! The report in Markdown, for a pull request or a ticket: the verdict, the ranks, and the sites that changed.
//!
//! Guarantees: the report is short for every recording. Names are plain text, without markup, mentions or links.

use memctl_answers::dossier::Dossier;
use memctl_answers::dossier::table::{Row, rows};
use memctl_answers::finding::phrases::{live, rates, since, until};
use memctl_answers::format::markdown::escape;
use memctl_answers::naming::{name_of, place};
use memctl_answers::report::Rank;
use memctl_model::{HumanBytes, JobState};

use super::html::change;
use super::{completeness, judged, place_of};
use crate::render::screen::Screen;
use crate::render::text::{capital, count, plural};

/// Maximum number of findings, of ranks and of sites that are named. The others are counted.
const FINDINGS_SHOWN: usize = 5;
const RANKS_SHOWN: usize = 16;
const SITES_SHOWN: usize = 10;
/// The screen for texts of other pages.
const PLAIN: Screen = Screen { columns: None, unicode: true, colour: false };

/// The text of the report.
#[must_use]
pub fn page(dossier: &Dossier) -> String {
    let note = &dossier.note;
    let mut out = format!("### GPU memory of {}\n\n", escape(&note.job.id));
    let word = note.findings.first().map_or("In short", |worst| worst.severity.name());
    let sentence = match &note.verdict {
        Some(verdict) => in_a_line(&judged::headline(Some(verdict), &note.scope, &PLAIN)),
        None => escape(&format!("{}.", note.summary.trim_end_matches('.'))),
    };
    out.push_str(&format!("**{}:** {sentence}\n\n", capital(word)));
    out.push_str(&findings(dossier));
    out.push_str(&ranks(&note.report.ranks));
    out.push_str(&sites(dossier));
    let not_judged = judged::not_judged(&note.scope, &PLAIN);
    if !not_judged.is_empty() {
        out.push_str(&format!("{}\n\n", in_a_line(&not_judged)));
    }
    let running = note.job.state == JobState::Running;
    out.push_str(&format!("{}\n", in_a_line(&completeness(&note.completeness, running, &PLAIN))));
    out
}

fn in_a_line(text: &str) -> String {
    escape(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn findings(dossier: &Dossier) -> String {
    let findings = &dossier.note.findings;
    let mut out = String::new();
    for (at, finding) in findings.iter().take(FINDINGS_SHOWN).enumerate() {
        // The sentence of the first finding is the summary.
        if at > 0 {
            out.push_str(&format!("- {} ({})\n", escape(&finding.title), finding.severity.name()));
            continue;
        }
        let where_it_is = finding.site.as_ref().map(|site| place(&site.frame));
        let facts = [
            ("where", where_it_is.unwrap_or_default()),
            ("rate", rates(finding)),
            ("since", since(finding, false).unwrap_or_default()),
            ("live", live(finding).unwrap_or_default()),
            ("held by", finding.holders.as_ref().map_or_else(String::new, |held| held.sentence.clone())),
            ("until", until(finding).unwrap_or_default()),
            ("change", finding.advice.clone()),
        ];
        for (name, text) in facts.iter().filter(|(_, text)| !text.trim().is_empty()) {
            out.push_str(&format!("- {name}: {}\n", escape(text)));
        }
    }
    if findings.len() > FINDINGS_SHOWN {
        out.push_str(&format!("- and {}\n", plural((findings.len() - FINDINGS_SHOWN) as u64, "more finding")));
    }
    if out.is_empty() { out } else { format!("{out}\n") }
}

fn ranks(ranks: &[Rank]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "| rank | state | epochs | allocated | peak allocated | peak reserved | growth per epoch | failed requests |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|\n",
    );
    let bytes = |value: Option<u64>| value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string());
    for rank in ranks.iter().take(RANKS_SHOWN) {
        let growth = rank.growth_bytes_per_epoch.map_or("-".to_owned(), |growth| HumanBytes(growth).to_string());
        let inexact = if rank.completeness.exact { "" } else { ", NOT EXACT" };
        out.push_str(&format!(
            "| {} | {}{inexact} | {} | {} | {} | {} | {growth} | {} |\n",
            escape(&place_of(&rank.process, rank.rank)),
            rank.state.name(),
            count(rank.epochs),
            bytes(rank.allocated_bytes),
            bytes(rank.peak_allocated_bytes),
            bytes(rank.peak_reserved_bytes),
            count(rank.ooms)
        ));
    }
    if ranks.len() > RANKS_SHOWN {
        out.push_str(&format!("\nAnd {}.\n", plural((ranks.len() - RANKS_SHOWN) as u64, "more rank")));
    }
    format!("{out}\n")
}

/// The sites that changed most. If there is no earlier state to compare with, the largest sites.
fn sites(dossier: &Dossier) -> String {
    let Some(rank) = dossier.shown() else { return String::new() };
    let late = match dossier.live(&dossier.parts.late) {
        Ok(late) => late,
        Err(reason) => return format!("Sites are not shown: {}.\n\n", escape(reason.trim_end_matches('.'))),
    };
    let early = dossier.live(&dossier.parts.early).ok();
    let mut rows = rows(late, early, None);
    rows.sort_by_key(|row| std::cmp::Reverse(change(row).map_or(0, i64::unsigned_abs)));
    let shown = &rows[..rows.len().min(SITES_SHOWN)];
    if shown.is_empty() {
        return String::new();
    }
    let name = name_of(&rank.process, rank.rank);
    let since = dossier.span.early.map_or("change".to_owned(), |epoch| format!("since end of epoch {epoch}"));
    let end = dossier.span.late.map_or("live".to_owned(), |epoch| format!("live, end of epoch {epoch}"));
    let mut out = format!("| site on {} | {end} | blocks | {since} |\n|---|---:|---:|---:|\n", escape(&name));
    for row in shown {
        out.push_str(&line(row));
    }
    if rows.len() > shown.len() {
        out.push_str(&format!("\nAnd {}.\n", plural((rows.len() - shown.len()) as u64, "more site")));
    }
    format!("{out}\n")
}

fn line(row: &Row) -> String {
    let site = row.site.as_ref().map_or("(no stack recorded)".to_owned(), |site| escape(&place(site)));
    let change = change(row)
        .map_or("-".to_owned(), |bytes| format!("{}{}", if bytes > 0 { "+" } else { "" }, HumanBytes(bytes)));
    format!("| {site} | {} | {} | {change} |\n", HumanBytes::of(row.live_bytes), count(row.live_blocks))
}
