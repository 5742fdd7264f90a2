//! The file of `memctl report`: the page of `memctl ui`, with its data in the file itself. It can be opened on any
//! machine, without a network.
//!
//! Guarantees: the file depends only on the input of this module, and it has at most [`FILE_MAX`] bytes. All text from
//! elsewhere passes [`escape`] or is compressed in [`Inlined`]. The file makes no network request, and its own policy
//! enforces this. Where no scripts run (in mails and CI artefacts), the verdict, the ranks, the sites and the ledger
//! are text and tables. If a part could not be computed, the reason is in its place.

mod inlined;
mod ledger;
mod policy;
mod tables;
mod verdict;

use memctl_answers::dossier::Dossier;
use memctl_answers::format::html::escape;
use memctl_answers::format::time;
use memctl_model::{HumanBytes, JobState};

pub use self::inlined::Inlined;
pub use self::tables::change;
use crate::hosting::page_files;
use crate::render::screen::Screen;
use crate::render::text::{count, plural};

/// The screen for texts of other pages. It has no line limit and no colours.
const PLAIN: Screen = Screen { columns: None, unicode: true, colour: false };
/// Maximum number of bytes of a file.
const FILE_MAX: usize = 3_000_000;
/// Maximum number of bytes of the part that is visible without a script.
const STATIC_MAX: usize = 400_000;
/// If the text is too long, the row limits of its tables are divided by these numbers, one after the other.
const PARTS: [usize; 4] = [1, 4, 16, 64];
/// Room for data other than responses: names, and sentences about omitted data.
const BESIDE: usize = 20_000;

/// The file without its responses.
#[derive(Debug)]
pub struct Shell {
    before: String,
    after: String,
}

impl Shell {
    /// Makes the file of a dossier; `written_ns` is the time of writing.
    #[must_use]
    pub fn new(dossier: &Dossier, written_ns: u64) -> Self {
        let (script, style) = page_files();
        let texts = PARTS.iter().map(|part| static_text(dossier, *part, written_ns));
        let text = texts.reduce(|best, next| if best.len() > STATIC_MAX { next } else { best }).unwrap_or_default();
        let before = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>{}: GPU memory report</title>\n<style>{style}</style>\n</head>\n<body>\n<div id=\"page\">\n{text}</div>\n",
            policy::policy(),
            escape(&dossier.note.job.id),
        );
        Self { before, after: format!("<script type=\"module\">{script}</script>\n</body>\n</html>\n") }
    }

    /// The room for responses.
    #[must_use]
    pub fn room(&self) -> usize {
        FILE_MAX.saturating_sub(self.before.len() + self.after.len() + BESIDE)
    }

    /// The whole file.
    #[must_use]
    pub fn with(&self, answers: &Inlined) -> String {
        [self.before.as_str(), &answers.element(), &self.after].concat()
    }
}

/// The content without scripts. `part` divides the number of rows in long tables.
fn static_text(dossier: &Dossier, part: usize, written_ns: u64) -> String {
    let job = escape(&dossier.note.job.id);
    let mut out = format!("<main>\n<h1>{job}</h1>\n<p class=\"faint\">{}</p>\n", facts(dossier));
    let parts = [
        ("verdict", "Verdict", verdict::section(dossier, part)),
        ("ranks", "Ranks", tables::ranks(dossier, part)),
        ("sites", "Sites", tables::sites(dossier, part)),
        ("ledger", "The device's memory", ledger::section(dossier)),
    ];
    for (id, title, body) in &parts {
        out.push_str(&format!(
            "<section aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{body}</section>\n"
        ));
    }
    out.push_str(&format!(
        "<p class=\"faint\">Written by memctl {} on {}. Timelines, flame graphs and blocks are drawn by this file's script, in a \
         browser that runs it.</p>\n</main>\n",
        env!("CARGO_PKG_VERSION"),
        time::date(written_ns),
    ));
    out
}

/// The state of the job and the amount of its data.
fn facts(dossier: &Dossier) -> String {
    let job = &dossier.note.job;
    let mut parts = vec![job.state.name().to_owned(), super::ranks_of(job)];
    if job.attempts > 1 || job.attempt > 0 {
        parts.push(format!("attempt {} of {}", job.attempt, count(u64::from(job.attempts))));
    }
    parts.push(time::date(job.started_at.0));
    parts.extend(job.ended_at.map(|ended| time::duration(ended.0.saturating_sub(job.started_at.0))));
    parts.push(plural(job.events, "event"));
    parts.extend(job.labels.iter().map(|(key, value)| format!("{key}={value}")));
    escape(&parts.join(" · "))
}

/// The text that replaces a part that cannot be shown.
fn absent(reason: &str) -> String {
    format!("<p class=\"prose\">Not shown: {}.</p>\n", escape(reason.trim_end_matches('.')))
}

/// Bytes in readable units, with the exact number on hover.
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

/// `12.3 %`. A part that is not 0 but rounds to 0 is shown as `< 0.1 %`.
fn percent(part: u64, whole: u64) -> String {
    let text = format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64);
    if part > 0 && text == "0.0 %" { "&lt; 0.1 %".to_owned() } else { text }
}

/// Text of another page on one line.
fn in_a_line(text: &str) -> String {
    escape(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A table that scrolls horizontally on a narrow screen.
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

/// Whether the job is still running.
fn is_running(dossier: &Dossier) -> bool {
    dossier.note.job.state == JobState::Running
}

#[cfg(test)]
mod tests;
