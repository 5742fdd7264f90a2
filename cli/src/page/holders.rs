//! The page of `memctl holders`: the holders of a site's tensors. Each holder has its chain from the root to the
//! tensor.
//!
//! The page states how many blocks the holders cover, how long the search paused the process, and what was not
//! searched.

use memctl_analysis::display_threshold::LONGER_SEARCH_TIMES;
use memctl_answers::format::text::file_name;
use memctl_answers::holders::{Holder, Holders};
use memctl_answers::naming::{command, name_of, place, process_flag, shell_word};
use memctl_model::HumanBytes;
use memctl_proto::convert::holders::BUDGET_MS_MAX;

use super::{Page, heading, next, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::text::{count, plural, safe};

impl Page for Holders {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Holders, screen: &Screen) -> String {
    let mut out = heading(&answer.job, screen);
    let title = format!("{}, {}", name_of(&answer.process, answer.rank), place(&answer.site));
    out.push_str(&format!("\n{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0))));
    for holder in &answer.holders {
        out.push_str(&of_holder(holder, answer, screen));
    }
    out.push('\n');
    out.push_str(&indented(&coverage(answer), "", screen));
    if !answer.not_looked_at.is_empty() {
        out.push_str("\nNot looked at:\n");
        for line in &answer.not_looked_at {
            out.push_str(&indented(line, "  ", screen));
        }
    }
    if let Some(hint) = &answer.hint {
        let mut commands = vec![(command("leaks", &answer.job, "", hint), "what grows, and how fast")];
        if let Some(longer) = longer_search(answer) {
            let line = command("holders", &answer.job, &longer, hint);
            commands.insert(0, (line, "a longer search; the process stands still meanwhile"));
        }
        out.push_str(&next(&commands, screen));
    }
    out
}

/// The flags of a search that may pause the process longer. `None` if the search was complete, or had the most time
/// that it may have.
fn longer_search(answer: &Holders) -> Option<String> {
    let budget_ms = (answer.budget_seconds * 1e3).round() as u32;
    if answer.complete || budget_ms >= BUDGET_MS_MAX {
        return None;
    }
    let seconds = budget_ms.saturating_mul(LONGER_SEARCH_TIMES).min(BUDGET_MS_MAX).div_ceil(1_000);
    let site = match answer.site.line {
        Some(line) if !answer.site.file.is_empty() => format!("{}:{line}", file_name(&answer.site.file)),
        _ => answer.site.function.to_string(),
    };
    Some(format!("{} --site {} --budget {seconds}s", process_flag("", answer.rank), shell_word(&site)))
}

fn of_holder(holder: &Holder, answer: &Holders, screen: &Screen) -> String {
    let mut out = String::from("\n");
    let head = format!("{}: {}", holder.kind, holder.sentence);
    out.push_str(&indented(&head, "  ", screen));
    let arrow = screen.pick(" → ", " > ");
    let chain: Vec<String> = holder.chain.iter().map(|step| safe(step).into_owned()).collect();
    if !chain.is_empty() {
        out.push_str(&indented(&chain.join(arrow), "    ", screen));
    }
    let asked = count(u64::from(answer.asked_blocks));
    let held = format!("{} of {asked} blocks, {}", count(u64::from(holder.blocks)), HumanBytes::of(holder.bytes));
    out.push_str(&indented(&held, "    ", screen));
    out
}

/// How many blocks the search covered, and how long it paused the process.
fn coverage(answer: &Holders) -> String {
    let asked = plural(u64::from(answer.asked_blocks), "block");
    let live = format!("{} live there, {}", count(answer.live_blocks), HumanBytes::of(answer.live_bytes));
    let found = match answer.found_blocks {
        0 => format!("No Python object was found that holds one of {asked} ({live})"),
        found => format!("A holder was found for {} of {asked} ({live})", count(u64::from(found))),
    };
    let cut = if answer.complete { "" } else { " The search is not complete." };
    format!(
        "{found}. {} were looked at; the process stood still for {:.1} ms, of {:.0} ms that it might.{cut}",
        plural(answer.objects, "object"),
        answer.took_seconds * 1e3,
        answer.budget_seconds * 1e3
    )
}

fn indented(text: &str, indent: &str, screen: &Screen) -> String {
    let lines = prose::wrap(text, prose::columns(screen).saturating_sub(indent.len()));
    lines.into_iter().map(|line| format!("{indent}{line}\n")).collect()
}
