//! The page of `memctl frag`: each rank's memory layout, the sites that pin segments, whether a request would fail, and
//! what to change. A site pins a segment if one of its live blocks keeps the segment from being released.
//!
//! If there is no problem, the page states this and still shows the figures. The curve and the blocks are drawn for the
//! rank that wastes most memory. The other ranks have one line each.

use memctl_analysis::display_threshold;
use memctl_answers::format::folded::NO_STACK;
use memctl_answers::frag::{Churn, Fragmentation, Holder, Rank, Share};
use memctl_answers::naming::{command, name_of, place, process_flag};
use memctl_model::{FindingKind, HumanBytes, JobState};

use super::{Page, completeness, finding, heading, judged, next, settings};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, safe};

/// Maximum number of sites that are shown for pinned memory.
const HOLDERS_SHOWN: usize = 5;
/// Maximum number of sizes that are shown in the curve.
const SIZES_SHOWN: usize = 5;

impl Page for Fragmentation {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Fragmentation, screen: &Screen) -> String {
    let inconclusive =
        answer.scope.inconclusive_about(&[FindingKind::Fragmentation]).filter(|_| answer.findings.is_empty());
    let mut out = judged::inconclusive(inconclusive, screen);
    out.push_str(&heading(&answer.job, screen));
    out.push('\n');
    if answer.ranks.is_empty() {
        let stored = answer.completeness.events_stored > 0;
        let nothing = match stored {
            true => "Nothing is known about the blocks in this part of the job.",
            false => "No allocator event of this part of the job is stored, so nothing is known about its blocks.",
        };
        out.push_str(&format!("{}\n", screen.wrapped(nothing, 0)));
        if !answer.completeness.exact {
            out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
        }
        return out;
    }
    let line = "Each rank at its peak within the last steps, or when a request failed";
    out.push_str(&format!("{}\n\n{}", screen.wrapped(line, 0), ranks(answer, screen)));
    if answer.ranks_left_out > 0 {
        let left = plural(u64::from(answer.ranks_left_out), "more rank");
        out.push_str(&format!("{}\n", screen.wrapped(&format!("and {left} with less to report (--rank selects)"), 0)));
    }
    out.push('\n');
    if answer.findings.is_empty() && inconclusive.is_none() {
        // A kind of finding is reported as absent only if it was judged.
        let churn = answer.scope.inconclusive_about(&[FindingKind::Churn]).is_none();
        let most =
            answer.ranks.iter().filter_map(|rank| rank.churn.as_ref()).max_by_key(|churn| churn.taken_again_bytes);
        let nothing = match most.filter(|churn| churn.taken_again_bytes > 0) {
            _ if !churn => "No significant fragmentation.".to_owned(),
            None => "No significant fragmentation and no churn.".to_owned(),
            Some(most) => format!(
                "No significant fragmentation. {} were released to the driver and requested again, in too few steps for a finding: \
                 memory was released in {} of {}.",
                bytes(most.taken_again_bytes),
                most.steps_returning,
                plural(most.steps, "steady step")
            ),
        };
        // A large cache is no fragmentation, but it is what a reader sees in the table.
        let cached = |rank: &&Rank| rank.empty_segment_bytes > rank.reserved_bytes / 2;
        match answer.ranks.iter().filter(cached).max_by_key(|rank| rank.empty_segment_bytes) {
            None => out.push_str(&format!("{}\n", screen.paint(Tone::Good, &screen.wrapped(&nothing, 0)))),
            Some(rank) => {
                let (cached, reserved) = (bytes(rank.empty_segment_bytes), bytes(rank.reserved_bytes));
                let more = format!(
                    "{nothing} But {cached} of {reserved} reserved are cached in whole free segments: they serve later requests \
                     of such sizes, and other processes cannot use them."
                );
                out.push_str(&format!("{}\n", screen.wrapped(&more, 0)));
            }
        }
    }
    for found in &answer.findings {
        out.push_str(&format!("{}\n", finding::full(found, screen)));
    }
    out.push_str(&settings(answer.replay.as_ref(), screen));
    let gaps = judged::not_judged(&answer.scope, screen);
    if !gaps.is_empty() || answer.findings.is_empty() {
        out.push_str(&format!("{gaps}\n"));
    }
    if let Some(worst) = answer.worst() {
        out.push_str(&detail(worst, screen));
    }
    out.push('\n');
    out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
    if let Some(hint) = &answer.hint {
        let chosen = answer.worst().map_or_else(String::new, |rank| process_flag(&rank.process, rank.rank));
        let commands = [
            (command("sites", &answer.job, &format!("{chosen} --peak"), hint), "whose memory was live then"),
            (command("timeline", &answer.job, &chosen, hint), "allocated and reserved over time"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}

fn ranks(answer: &Fragmentation, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        right("EPOCH", 6),
        right("RESERVED", 0),
        right("ALLOCATED", 0),
        right("TYPICAL STEP", 2),
        right("CACHED", 3),
        right("STRANDED", 1),
        right("LARGEST FREE", 4),
        right("LARGEST REQUEST", 3),
        left("FITS", 1),
        left("CAUSE", 0),
    ]);
    let maybe = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), bytes);
    for rank in &answer.ranks {
        let fits = match rank.would_fit {
            Some(true) => ("yes", None),
            Some(false) => ("NO", Some(Tone::Alert)),
            None => ("?", None),
        };
        let cause =
            rank.cause.as_deref().map_or_else(|| "-".to_owned(), |cause| safe(&cause.replace('_', " ")).into_owned());
        table.toned(vec![
            (super::place_of(&rank.process, rank.rank), None),
            (rank.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()), None),
            (bytes(rank.reserved_bytes), None),
            (bytes(rank.allocated_bytes), None),
            (maybe(rank.typical_step_bytes), None),
            (bytes(rank.empty_segment_bytes), None),
            (bytes(rank.stranded_bytes), None),
            (bytes(rank.largest_usable_bytes), None),
            (maybe(rank.largest_request_bytes), None),
            (fits.0.to_owned(), fits.1),
            (cause, None),
        ]);
    }
    table.show(screen)
}

fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}

fn detail(rank: &Rank, screen: &Screen) -> String {
    let mut out = format!("{}\n", screen.paint(Tone::Strong, &name_of(&rank.process, rank.rank)));
    let mut line = |text: String| out.push_str(&format!("  {}\n", screen.wrapped(&text, 2)));
    let curve = curve(&rank.unusable_free);
    if !curve.is_empty() {
        line(format!("Free memory that cannot serve a request of {curve}"));
    }
    let named = |holder: &&Holder| display_threshold::is_holder_named(holder.stranded_bytes, rank.stranded_bytes);
    let holders: Vec<&Holder> = rank.held_by.iter().filter(named).collect();
    if !holders.is_empty() {
        line(format!(
            "{} of {} are partly used; what pins their free memory:",
            count(rank.partly_used_segments),
            plural(rank.segments, "segment")
        ));
    }
    for holder in holders.iter().take(HOLDERS_SHOWN) {
        let site = holder.frame().map_or_else(|| NO_STACK.to_owned(), place);
        line(format!(
            "  {:>9} pinned by {} of {site}",
            bytes(holder.stranded_bytes),
            plural(holder.live_blocks, "block")
        ));
    }
    if let Some(churn) = rank.churn.as_ref().filter(|churn| churn.steps > 0) {
        line(asked(churn));
    }
    out
}

/// The curve as text: `64.0 MiB 12 %, 128 MiB 55 %`, up to the size that no free block can serve.
fn curve(shares: &[Share]) -> String {
    let large: Vec<&Share> =
        shares.iter().filter(|share| display_threshold::is_large_request(share.request_bytes)).collect();
    let shown = &large[large.len().saturating_sub(SIZES_SHOWN)..];
    let point = |share: &&Share| format!("{} {:.0} %", bytes(share.request_bytes), share.unusable * 100.0);
    shown.iter().map(point).collect::<Vec<_>>().join(", ")
}

fn asked(churn: &Churn) -> String {
    let allocations =
        churn.allocations_per_step.map_or(String::new(), |each| format!(", {each:.0} allocations per step"));
    match (churn.takes, churn.returns) {
        (0, 0) => {
            format!("No requests to the driver in {}{allocations}", plural(churn.steps, "steady step"))
        }
        (takes, returns) => format!(
            "Driver: {} for {} in {} of {}, {} released in {}{allocations}",
            plural(takes, "time"),
            bytes(churn.taken_bytes),
            churn.steps_taking,
            plural(churn.steps, "steady step"),
            bytes(churn.returned_bytes),
            plural(returns, "call"),
        ),
    }
}
