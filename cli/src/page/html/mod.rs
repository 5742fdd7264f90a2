//! The page of `memctl report`: one HTML file that is opened anywhere, years later, without a network.
//!
//! Guarantees: a pure function of its answers; everything that came from elsewhere passes [`escape`]; nothing is requested
//! from anywhere, which the file's own policy enforces; it can be read without its script, with a keyboard and by a screen
//! reader. What could not be told is said where it would stand.

mod course;
mod flame;
mod ledger;
mod policy;
mod tables;
mod verdict;

use memctl_answers::dossier::Dossier;
use memctl_answers::dossier::tree::Tree;
use memctl_answers::format::html::escape;
use memctl_answers::format::time;
use memctl_answers::naming::name_of;
use memctl_model::{HumanBytes, JobState};

use self::flame::Kind;
pub use self::tables::change;
use crate::render::screen::Screen;
use crate::render::text::{capital, count, plural};

/// For texts that other pages make, too: no limit to a line and no colours.
const PLAIN: Screen = Screen { columns: None, unicode: true, colour: false };

/// The whole file; `written_ns` is when.
#[must_use]
pub fn page(dossier: &Dossier, written_ns: u64) -> String {
    let job = escape(&dossier.note.job.id);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{job}: GPU memory report</title>\n<style>{}</style>\n</head>\n<body>\n",
        policy::policy(),
        policy::STYLE
    );
    out.push_str(PATTERNS);
    out.push_str("<a class=\"skip\" href=\"#verdict\">Skip to the verdict</a>\n");
    out.push_str(&format!("<header>\n<h1>{job}</h1>\n<p class=\"faint\">{}</p>\n</header>\n", facts(dossier)));
    let parts = [
        ("verdict", "Verdict", verdict::section(dossier)),
        ("timeline", "Memory over time", course::section(dossier)),
        ("ranks", "Ranks", tables::ranks(dossier)),
        ("change", "What changed", difference(dossier)),
        ("peak", "Live memory at the peak", live(dossier, true)),
        ("end", "Live memory at the end", live(dossier, false)),
        ("sites", "Sites", tables::sites(dossier)),
        ("ledger", "The device's memory", ledger::section(dossier)),
    ];
    out.push_str("<nav aria-label=\"Parts of this report\">");
    for (id, title, _) in &parts {
        out.push_str(&format!("<a href=\"#{id}\">{title}</a>"));
    }
    out.push_str("</nav>\n<main>\n");
    for (id, title, body) in &parts {
        out.push_str(&format!(
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{body}</section>\n"
        ));
    }
    out.push_str(&format!(
        "</main>\n<footer>Written by memctl {} on {}.</footer>\n<script>{}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        time::date(written_ns),
        policy::SCRIPT
    ));
    out
}

/// Hatches, which say without a colour what is cached and what is not known.
const PATTERNS: &str = "<svg class=\"defs\" aria-hidden=\"true\"><defs>\
<pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<line class=\"hatched\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern>\
<pattern id=\"dots\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">\
<circle class=\"dotted\" cx=\"2\" cy=\"2\" r=\"1\"/></pattern></defs></svg>\n";

/// How the job stands, how much of it there is.
fn facts(dossier: &Dossier) -> String {
    let job = &dossier.note.job;
    let mut parts = vec![job.state.name().to_owned(), super::ranks_of(job)];
    if job.attempts > 1 || job.attempt > 0 {
        parts.push(format!("attempt {} of {}", job.attempt, count(u64::from(job.attempts))));
    }
    parts.push(time::date(job.started_ns));
    parts.extend(job.ended_ns.map(|ended| time::duration(ended.saturating_sub(job.started_ns))));
    parts.push(plural(job.events, "event"));
    parts.extend(job.labels.iter().map(|(key, value)| format!("{key}={value}")));
    escape(&parts.join(" · "))
}

/// A difference between two epoch ends, which is what a leak looks like.
fn difference(dossier: &Dossier) -> String {
    let Some(rank) = dossier.shown() else { return absent("nothing was recorded") };
    let (Some(early), Some(late)) = (dossier.span.early, dossier.span.late) else {
        return absent("a difference needs two epoch ends");
    };
    let tables = dossier.live(&dossier.parts.early).and_then(|a| Ok((a, dossier.live(&dossier.parts.late)?)));
    let (from, to) = match tables {
        Ok(tables) => tables,
        Err(reason) => return absent(&reason),
    };
    let tree = Tree::of_change(from, to, &dossier.classes);
    let title = format!(
        "{}: from the end of epoch {early} to the end of epoch {late}",
        capital(&name_of(&rank.process, rank.rank))
    );
    flame::figure(&tree, &title, Kind::Change)
}

fn live(dossier: &Dossier, at_peak: bool) -> String {
    let Some(rank) = dossier.shown() else { return absent("nothing was recorded") };
    let sites = if at_peak { &dossier.parts.peak } else { &dossier.parts.late };
    let live = match dossier.live(sites) {
        Ok(live) => live,
        Err(reason) => return absent(&reason),
    };
    let tree = Tree::of_moment(live, &dossier.classes);
    let moment = match (at_peak, dossier.span.late) {
        (true, _) => "when most was allocated",
        (false, Some(_)) => "at the end of its last epoch",
        (false, None) => "at the end of the recording",
    };
    let inexact = if live.exact { "" } else { ", NOT EXACT" };
    let name = capital(&name_of(&rank.process, rank.rank));
    let title = format!("{name} {moment} (epoch {}, step {}{inexact})", live.epoch, count(live.step));
    flame::figure(&tree, &title, Kind::Moment)
}

/// What stands where something cannot be shown.
fn absent(reason: &str) -> String {
    format!("<p class=\"prose\">Not shown: {}.</p>\n", escape(reason.trim_end_matches('.')))
}

/// Bytes for people, exactly on hover.
fn bytes(bytes: u64) -> String {
    format!("<span title=\"{} bytes\">{}</span>", count(bytes), HumanBytes::of(bytes))
}

fn maybe_bytes(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), bytes)
}

/// Bytes with their sign.
fn signed_bytes(value: i64) -> String {
    let sign = if value > 0 { "+" } else { "" };
    let exact = if value < 0 { "-" } else { sign };
    format!("<span title=\"{exact}{} bytes\">{sign}{}</span>", count(value.unsigned_abs()), HumanBytes(value))
}

/// `12.3 %`; what is there and rounds to nothing is `< 0.1 %`.
fn percent(part: u64, whole: u64) -> String {
    let text = format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64);
    if part > 0 && text == "0.0 %" { "&lt; 0.1 %".to_owned() } else { text }
}

/// Where something stands along a line, for attributes of SVG.
fn along(part: u64, whole: u64) -> String {
    format!("{:.3}%", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Text of another page in one line.
fn in_a_line(text: &str) -> String {
    escape(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A table that scrolls by itself where the screen is narrow.
fn table(caption: &str, heads: &[(&str, bool)], rows: &[String]) -> String {
    let mut out = format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n<table>\n<caption>{caption}</caption>\n<thead><tr>"
    );
    for (head, is_number) in heads {
        let class = if *is_number { " class=\"number\"" } else { "" };
        out.push_str(&format!("<th scope=\"col\"{class}>{head}</th>"));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    rows.iter().for_each(|row| out.push_str(row));
    out.push_str("</tbody>\n</table>\n</div>\n");
    out
}

/// Whether the job still runs.
fn is_running(dossier: &Dossier) -> bool {
    dossier.note.job.state == JobState::Running
}

#[cfg(test)]
mod tests;
