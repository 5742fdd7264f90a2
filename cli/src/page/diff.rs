//! The page of `memctl diff`: what the comparison comes to, the figures, then what changed, the largest change first.

use memctl_answers::Frame;
use memctl_answers::diff::{Conclusion, Diff, FigureChange, GrowthChange, NameChange, SiteChange, change};
use memctl_answers::format::markdown::escape;
use memctl_answers::naming::place;
use memctl_model::HumanBytes;

use super::Page;
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural};

/// Rows of a table; the others are counted.
const SHOWN: usize = 10;

impl Page for Diff {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// See the module.
#[must_use]
pub fn page(diff: &Diff, screen: &Screen) -> String {
    let tone = match diff.conclusion {
        Conclusion::NewFinding | Conclusion::Higher | Conclusion::NotComparable => Tone::Alert,
        Conclusion::Lower | Conclusion::Same => Tone::Good,
        Conclusion::OtherGrowth | Conclusion::OtherParts => Tone::Strong,
    };
    let mut out = format!("{}\n\n", screen.paint(tone, &screen.wrapped(&diff.sentence, 0)));
    for section in sections(diff) {
        out.push_str(&section.table().show(screen));
        out.push_str(&more(section.rows.len(), section.noun));
        out.push('\n');
    }
    for (what, findings) in [("new", &diff.new_findings), ("gone", &diff.gone_findings)] {
        for finding in findings {
            out.push_str(&format!("{}\n", screen.wrapped(&format!("{what}: {}", finding.words()), 0)));
        }
    }
    for open in &diff.not_judged_findings {
        out.push_str(&format!("{}\n", screen.wrapped(&format!("{}: {}", open.reason, open.finding.words()), 0)));
    }
    for note in &diff.notes {
        out.push_str(&format!("{}\n", screen.wrapped(note, 0)));
    }
    out
}

/// The same in Markdown, for a pull request. Names are plain text: no markup, no mentions, no links.
#[must_use]
pub fn markdown(diff: &Diff) -> String {
    let mut out = format!(
        "### GPU memory: {} compared with {}\n\n**{}**\n\n",
        escape(&diff.after),
        escape(&diff.before),
        escape(&diff.sentence)
    );
    for section in sections(diff) {
        out.push_str(&format!(
            "| {} | before | after | change |\n|---|---:|---:|---:|\n",
            section.heading.to_lowercase()
        ));
        for [name, before, after, change] in section.rows.iter().take(SHOWN) {
            out.push_str(&format!("| {} | {before} | {after} | {change} |\n", escape(name)));
        }
        let more = more(section.rows.len(), section.noun);
        out.push_str(&format!("\n{more}{}", if more.is_empty() { "" } else { "\n" }));
    }
    for (what, findings) in [("New", &diff.new_findings), ("Gone", &diff.gone_findings)] {
        findings.iter().for_each(|finding| out.push_str(&format!("- {what}: {}\n", escape(&finding.words()))));
    }
    for open in &diff.not_judged_findings {
        out.push_str(&format!("- {}: {}\n", escape(&open.reason), escape(&open.finding.words())));
    }
    diff.notes.iter().for_each(|note| out.push_str(&format!("- {}\n", escape(note))));
    out
}

/// A table of changes: a name, before, after, the change.
struct Section {
    heading: &'static str,
    noun: &'static str,
    rows: Vec<[String; 4]>,
}

impl Section {
    fn table(&self) -> Table {
        let mut table = Table::new(&[left(self.heading, 0), right("BEFORE", 0), right("AFTER", 0), right("CHANGE", 0)]);
        self.rows.iter().take(SHOWN).for_each(|row| table.row(row.to_vec()));
        table
    }
}

fn more(rows: usize, noun: &str) -> String {
    match rows.saturating_sub(SHOWN) {
        0 => String::new(),
        more => {
            format!("and {} ({} in all; -o json has them)\n", plural(more as u64, "more"), plural(rows as u64, noun))
        }
    }
}

fn sections(diff: &Diff) -> Vec<Section> {
    let settings = diff.settings.iter().map(|setting| {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        [setting.name.clone(), or_none(&setting.before), or_none(&setting.after), String::new()]
    });
    let all = [
        Section { heading: "FIGURE", noun: "figure", rows: diff.figures.iter().map(figure).collect() },
        Section { heading: "SITE AT THE PEAK", noun: "site", rows: diff.sites.iter().map(site).collect() },
        Section { heading: "GROWTH PER EPOCH", noun: "site", rows: diff.growth.iter().map(growth).collect() },
        Section { heading: "CLASS AT THE PEAK", noun: "class", rows: diff.classes.iter().map(name).collect() },
        Section { heading: "MODULE AT THE PEAK", noun: "module", rows: diff.modules.iter().map(name).collect() },
        Section { heading: "SETTING", noun: "setting", rows: settings.collect() },
    ];
    all.into_iter().filter(|section| !section.rows.is_empty()).collect()
}

fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}

/// A change with its sign: `+2.00 MiB`.
fn signed(by: i64, show: impl Fn(u64) -> String) -> String {
    match by {
        0 => "0".to_owned(),
        _ => format!("{}{}", if by < 0 { "-" } else { "+" }, show(by.unsigned_abs())),
    }
}

fn figure(FigureChange { figure, before, after }: &FigureChange) -> [String; 4] {
    let is_bytes = figure.contains("bytes");
    let unsigned = |amount: u64| if is_bytes { bytes(amount) } else { count(amount) };
    let show = |amount: &Option<i64>| match amount {
        None => "not known".to_owned(),
        Some(amount) if *amount < 0 => signed(*amount, unsigned),
        Some(amount) => unsigned(amount.unsigned_abs()),
    };
    let by =
        before.zip(*after).map_or_else(String::new, |(before, after)| signed(after.saturating_sub(before), unsigned));
    let name = match *figure {
        "peak_allocated_bytes" => "peak allocated",
        "peak_reserved_bytes" => "peak reserved",
        "growth_bytes_per_epoch" => "growth per epoch",
        "events_per_step" => "allocator events per step",
        other => other,
    };
    [name.to_owned(), show(before), show(after), by]
}

fn named(site: Option<&Frame>) -> String {
    site.map_or_else(|| "memory without a stack".to_owned(), place)
}

fn site(site: &SiteChange) -> [String; 4] {
    let moved = site.line_before.map_or_else(String::new, |line| format!(", was line {line}"));
    let name = format!("{}{moved}, {}", named(site.site.as_ref()), site.class.replace('_', " "));
    // A site that one run left out has an upper bound there.
    let held =
        |exact: u64, most: Option<u64>| most.map_or_else(|| bytes(exact), |most| format!("up to {}", bytes(most)));
    let bound = if site.is_bound() { "up to " } else { "" };
    let by = format!("{bound}{}", signed(change(site.before_bytes, site.after_bytes), bytes));
    [name, held(site.before_bytes, site.before_bytes_max), held(site.after_bytes, site.after_bytes_max), by]
}

fn growth(growth: &GrowthChange) -> [String; 4] {
    let GrowthChange { site, before_bytes_per_epoch: before, after_bytes_per_epoch: after } = growth;
    [named(site.as_ref()), signed(*before, bytes), signed(*after, bytes), signed(after.saturating_sub(*before), bytes)]
}

fn name(NameChange { name, before_bytes, after_bytes }: &NameChange) -> [String; 4] {
    let by = signed(change(*before_bytes, *after_bytes), bytes);
    let name = name.as_ref().map_or_else(|| "no module".to_owned(), |name| name.replace('_', " "));
    [name, bytes(*before_bytes), bytes(*after_bytes), by]
}
