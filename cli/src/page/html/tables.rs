//! Tables of the page: the ranks, and the sites of the verdict's rank.
//!
//! Guarantees: the tables have a limited number of rows. Entries without a row are counted.

use memctl_answers::dossier::Dossier;
use memctl_answers::dossier::table::{Row, rows};
use memctl_answers::format::html::escape;
use memctl_answers::naming::place;
use memctl_answers::report::Rank;
use memctl_model::HumanBytes;

use super::{absent, bytes, maybe_bytes, signed_bytes, table};
use crate::page::place_of;
use crate::render::text::{count, plural};

/// Maximum number of ranks that have a row.
const RANKS_SHOWN: usize = 128;
/// Maximum number of sites that have a row.
const SITES_SHOWN: usize = 40;

/// The ranks. If there are very many, the ranks that differ from others come first.
#[must_use]
pub fn ranks(dossier: &Dossier, part: usize) -> String {
    let all = &dossier.note.report.ranks;
    if all.is_empty() {
        return absent("nothing was recorded in this part of the job");
    }
    let mut shown: Vec<&Rank> = all.iter().collect();
    if all.len() > RANKS_SHOWN / part {
        shown.sort_by_key(|rank| !is_odd(rank));
        shown.truncate(RANKS_SHOWN / part);
    }
    let lines: Vec<String> = shown.iter().map(|rank| line(rank)).collect();
    let heads = [
        ("rank", true),
        ("host", false),
        ("state", false),
        ("epochs", true),
        ("allocated", true),
        ("peak allocated", true),
        ("peak reserved", true),
        ("device", true),
        ("growth per epoch", true),
        ("failed requests", true),
        ("distinguished by", false),
    ];
    let mut out = table("Each rank's levels at its last boundary, and its peaks", &heads, &lines);
    if all.len() > shown.len() {
        out.push_str(&format!("<p>And {}.</p>\n", plural((all.len() - shown.len()) as u64, "more rank")));
    }
    out
}

fn is_odd(rank: &Rank) -> bool {
    !rank.stands_out.is_empty() || !rank.findings.is_empty() || rank.failure.is_some() || rank.ooms > 0
}

fn line(rank: &Rank) -> String {
    let mut state = rank.state.name().to_owned();
    if !rank.completeness.exact {
        state.push_str(", NOT EXACT");
    }
    let mut notes: Vec<String> =
        rank.stands_out.iter().map(|figure| figure.trim_end_matches("_bytes").replace('_', " ")).collect();
    notes.extend(rank.failure.clone());
    let growth = rank.growth_bytes_per_epoch.map_or_else(|| "-".to_owned(), signed_bytes);
    let cells = [
        (escape(&place_of(&rank.process, rank.rank)), true),
        (escape(rank.host.as_deref().unwrap_or("-")), false),
        (state, false),
        (count(rank.epochs), true),
        (maybe_bytes(rank.allocated_bytes), true),
        (maybe_bytes(rank.peak_allocated_bytes), true),
        (maybe_bytes(rank.peak_reserved_bytes), true),
        (maybe_bytes(rank.device_total_bytes), true),
        (growth, true),
        (count(rank.ooms), true),
        (escape(&notes.join("; ")), false),
    ];
    row(&cells)
}

fn row(cells: &[(String, bool)]) -> String {
    let mut out = String::from("<tr>");
    for (text, is_number) in cells {
        out.push_str(if *is_number { "<td class=\"number\">" } else { "<td>" });
        out.push_str(text);
        out.push_str("</td>");
    }
    out.push_str("</tr>\n");
    out
}

/// The live memory by site.
#[must_use]
pub fn sites(dossier: &Dossier, part: usize) -> String {
    let late = match dossier.live(&dossier.parts.late) {
        Ok(late) => late,
        Err(reason) => return absent(&reason),
    };
    let early = dossier.live(&dossier.parts.early).ok();
    let rows = rows(late, early, dossier.live(&dossier.parts.peak).ok());
    if rows.is_empty() {
        return absent("nothing was live");
    }
    let end =
        dossier.span.late.map_or_else(|| "live at the end".to_owned(), |epoch| format!("live, end of epoch {epoch}"));
    let since = dossier.span.early.map_or_else(|| "change".to_owned(), |epoch| format!("since end of epoch {epoch}"));
    let heads = [
        ("site", false),
        ("class", false),
        (end.as_str(), true),
        ("blocks", true),
        (since.as_str(), true),
        ("live at the peak", true),
    ];
    let mut lines: Vec<String> = rows.iter().take(SITES_SHOWN / part).map(|row| of_site(row, dossier)).collect();
    let rest = rows.get(SITES_SHOWN / part..).unwrap_or_default();
    if !rest.is_empty() {
        let sum = |read: fn(&Row) -> u64| rest.iter().fold(0_u64, |sum, row| sum.saturating_add(read(row)));
        lines.push(format!(
            "<tr><td class=\"name\">{}</td><td></td><td class=\"number\">{}</td><td class=\"number\">{}</td><td></td><td class=\"number\">{}</td></tr>\n",
            plural(rest.len() as u64, "more site"),
            bytes(sum(|row| row.live_bytes)),
            count(sum(|row| row.live_blocks)),
            bytes(sum(|row| row.peak_bytes.unwrap_or(0))),
        ));
    }
    table("Live memory by the innermost line of your own code, on the rank that the verdict is about", &heads, &lines)
}

fn of_site(row: &Row, dossier: &Dossier) -> String {
    let site = row.site.as_ref().map_or_else(
        || "(no stack recorded)".to_owned(),
        |site| format!("<span title=\"{}\">{}</span>", escape(&site.file), escape(&place(site))),
    );
    let class = dossier.classes.of(&row.site).map_or("-".to_owned(), |class| escape(&class.replace('_', " ")));
    format!(
        "<tr><td class=\"name\">{site}</td><td>{class}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        bytes(row.live_bytes),
        count(row.live_blocks),
        change(row).map_or_else(|| "-".to_owned(), signed_bytes),
        maybe_bytes(row.peak_bytes),
    )
}

/// The change of a site's memory since the early epoch's end.
#[must_use]
pub fn change(row: &Row) -> Option<i64> {
    row.early_bytes.map(|early| HumanBytes::of(row.live_bytes).0 - HumanBytes::of(early).0)
}
