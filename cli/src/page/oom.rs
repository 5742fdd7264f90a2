//! The page of `memctl oom`: a sentence with the failed request and its reason, the calculation for each rank, and the
//! memory that filled the device.

use memctl_answers::format::folded::NO_STACK;
use memctl_answers::naming::{command, name_of, place, process_flag};
use memctl_answers::oom::{Failed, Live, Oom};
use memctl_model::{FindingKind, HumanBytes, JobState};

use super::{Page, completeness, finding, heading, judged, next, settings};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, safe};

/// Maximum number of sites of the device's memory that are shown.
const SITES_SHOWN: usize = 6;

impl Page for Oom {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Oom, screen: &Screen) -> String {
    let silent = answer.failed == 0 && answer.findings.is_empty();
    let inconclusive = answer.scope.inconclusive_about(&[FindingKind::Oom, FindingKind::RankLost]).filter(|_| silent);
    let mut out = judged::inconclusive(inconclusive, screen);
    out.push_str(&heading(&answer.job, screen));
    out.push('\n');
    for found in &answer.findings {
        out.push_str(&format!("{}\n", finding::full(found, screen)));
    }
    out.push_str(&settings(answer.replay.as_ref(), screen));
    match answer.failures.last() {
        None if answer.failed > 0 => {
            let line = format!("{} failed; the events are no longer stored.", plural(answer.failed, "request"));
            out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
        }
        // A failed request may be among the lost events.
        None if inconclusive.is_some() || (answer.findings.is_empty() && !answer.completeness.exact) => {
            out.push_str(&format!("{}\n", screen.wrapped("No failed request was recorded.", 0)));
            out.push_str(&judged::not_judged(&answer.scope, screen));
        }
        None if answer.findings.is_empty() => {
            out.push_str(&format!("{}\n", screen.paint(Tone::Good, &screen.wrapped("No request failed.", 0))));
            out.push_str(&judged::not_judged(&answer.scope, screen));
        }
        None => {}
        Some(_) => out.push_str(&failures(answer, screen)),
    }
    if let Some(first) = answer.failures.first() {
        out.push_str(&filled(first, screen));
    }
    out.push('\n');
    out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
    if let (Some(hint), Some(first)) = (&answer.hint, answer.failures.first()) {
        let chosen = process_flag(&first.process, first.rank);
        let commands = [
            (command("sites", &answer.job, &format!("{chosen} --at {}", first.at), hint), "whose memory was live then"),
            (command("frag", &answer.job, &chosen, hint), "how its memory was fragmented"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}

fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}

fn failures(answer: &Oom, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        right("EPOCH", 6),
        right("STEP", 7),
        right("ASKED", 0),
        right("FREE IN CACHE", 0),
        right("LARGEST FREE", 1),
        right("IN USE", 3),
        right("RESERVED", 2),
        right("DEVICE FREE", 4),
        right("LIMIT OR SIZE", 5),
        right("OTHERS", 8),
        left("CAUSE", 0),
    ]);
    let maybe = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), bytes);
    for failed in &answer.failures {
        let most = match failed.limit_below_bytes {
            Some(below) => format!("< {}", bytes(below)),
            None => maybe(failed.device_total_bytes),
        };
        table.row(vec![
            super::place_of(&failed.process, failed.rank),
            failed.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            failed.step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
            bytes(failed.asked_bytes),
            bytes(failed.free_in_cache_bytes),
            bytes(failed.largest_usable_bytes),
            bytes(failed.active_bytes),
            bytes(failed.reserved_bytes),
            bytes(failed.device_free_bytes),
            most,
            maybe(failed.others_bytes),
            safe(&failed.cause.replace('_', " ")).into_owned(),
        ]);
    }
    let mut out = table.show(screen);
    let shown = answer.failures.len() as u64;
    if answer.failed > shown {
        let earlier = plural(answer.failed - shown, "earlier failure");
        out.push_str(&format!("{}\n", screen.wrapped(&format!("and {earlier}"), 0)));
    }
    out
}

/// The memory that filled the device at the first failure.
fn filled(failed: &Failed, screen: &Screen) -> String {
    let title =
        format!("What was live on {}: {}", name_of(&failed.process, failed.rank), bytes(failed.allocated_bytes));
    let mut out = format!("\n{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0)));
    let classes: Vec<String> = failed
        .classes
        .iter()
        .map(|class| format!("{} {}", safe(&class.class.replace('_', " ")), bytes(class.live_bytes)))
        .collect();
    if !classes.is_empty() {
        out.push_str(&format!("  {}\n", screen.wrapped(&classes.join(", "), 2)));
    }
    for place in places(&failed.sites).iter().take(SITES_SHOWN) {
        out.push_str(&format!("  {}\n", screen.wrapped(&line(place), 2)));
    }
    out
}

/// The live memory of one line, for all of its callers together.
struct Place {
    name: String,
    bytes: u64,
    blocks: u64,
    /// The bytes by which this memory has grown since the last step that ended.
    grown: u64,
}

/// The places by their bytes. The largest comes first.
fn places(sites: &[Live]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for live in sites {
        let name = live.site.as_ref().map_or_else(|| NO_STACK.to_owned(), |site| place(&site.frame));
        let grown = live.before_bytes.map_or(0, |before| live.live_bytes.saturating_sub(before));
        match places.iter_mut().find(|place| place.name == name) {
            Some(place) => {
                place.bytes = place.bytes.saturating_add(live.live_bytes);
                place.blocks = place.blocks.saturating_add(live.live_blocks);
                place.grown = place.grown.saturating_add(grown);
            }
            None => places.push(Place { name, bytes: live.live_bytes, blocks: live.live_blocks, grown }),
        }
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.bytes));
    places
}

fn line(place: &Place) -> String {
    let Place { name, bytes: live, blocks, grown } = place;
    let grown = if *grown > 0 { format!(", {} since the last step", bytes(*grown)) } else { String::new() };
    format!("{:>9} in {}  {name}{grown}", bytes(*live), plural(*blocks, "block"))
}
