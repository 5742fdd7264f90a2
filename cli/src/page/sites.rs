//! The page of `memctl sites`: each rank's levels at one moment, and its live memory as a tree of calls.
//!
//! The tree is drawn for the rank that holds most memory, unless the user chooses ranks. The other ranks have one line
//! each, because several nearly equal trees would not help.

use std::collections::BTreeMap;

use memctl_answers::Frame;
use memctl_answers::format::folded::NO_STACK;
use memctl_answers::naming::{command, name_of, place, process_flag};
use memctl_answers::sites::{RankSites, Site, Sites};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, heading, next};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, safe};
use crate::render::tree::{Node, draw};

/// Maximum number of owners' names that are shown per rank.
const OWNERS_SHOWN: usize = 12;

impl Page for Sites {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(sites: &Sites, screen: &Screen) -> String {
    let mut out = heading(&sites.job, screen);
    if sites.ranks.is_empty() {
        let nothing = "No allocator event of this part of the job is stored, so its live memory is unknown.";
        out.push_str(&format!("\n{}\n", screen.wrapped(nothing, 0)));
        if !sites.completeness.exact {
            out.push_str(&completeness(&sites.completeness, false, screen));
        }
        return out;
    }
    out.push_str(&format!("\nLive memory {}\n\n", sites.view.moment));
    out.push_str(&ranks(sites, screen));
    let most = sites.ranks.iter().max_by_key(|rank| (live(rank), std::cmp::Reverse(rank.rank)));
    let drawn: Vec<&RankSites> =
        if sites.view.chosen { sites.ranks.iter().collect() } else { most.into_iter().collect() };
    for rank in &drawn {
        let note = if sites.ranks.len() > drawn.len() { " (it holds most; --rank selects others)" } else { "" };
        let title = format!("{}{note}", name_of(&rank.process, rank.rank));
        out.push_str(&format!("\n{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0))));
        let head = format!("{:>9} {:>7} {:>7}  {}", "BYTES", "SHARE", "BLOCKS", "CALLS, outermost first");
        out.push_str(&format!("{}\n", screen.paint(Tone::Faint, &screen.wrapped(&head, 0))));
        out.push_str(&draw(&tree(rank, sites.view.all_frames), sites.view.min_share, screen));
        out.push_str(&left_out(rank, screen));
        out.push_str(&owners(rank, screen));
    }
    out.push('\n');
    out.push_str(&completeness(&sites.completeness, sites.job.state == JobState::Running, screen));
    if let Some(hint) = &sites.view.hint {
        let chosen = drawn.first().map_or_else(String::new, |rank| process_flag(&rank.process, rank.rank));
        let commands = [
            (
                command("sites", &sites.job, &format!("{chosen} --folded"), hint),
                "for flamegraph.pl, inferno, speedscope",
            ),
            (command("sites", &sites.job, &format!("{chosen} --all-frames"), hint), "library frames too"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}

fn live(rank: &RankSites) -> u64 {
    rank.sites.iter().fold(0, |sum, site| sum.saturating_add(site.live_bytes))
}

fn ranks(sites: &Sites, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("RANK", 0),
        right("EPOCH", 2),
        right("STEP", 3),
        left("AT", 4),
        right("ALLOCATED", 0),
        right("RESERVED", 1),
        left("LARGEST SITE", 0),
    ]);
    let bytes = |value: Option<u64>| value.map_or("-".to_owned(), |value| HumanBytes::of(value).to_string());
    for rank in &sites.ranks {
        let largest = rank.sites.iter().max_by_key(|site| site.live_bytes);
        let largest = largest.map(|site| {
            let place = site.site.as_ref().map_or(NO_STACK.to_owned(), place);
            // The program did not allocate a library's workspace itself.
            let whose = if is_workspace(site) { ", mostly a workspace" } else { "" };
            format!("{} {place}{whose}", HumanBytes::of(site.live_bytes))
        });
        let exact = if rank.exact { "" } else { " (not exact)" };
        table.row(vec![
            super::place_of(&rank.process, rank.rank),
            rank.epoch.to_string(),
            rank.step.to_string(),
            rank.at.to_string(),
            format!("{}{exact}", bytes(rank.allocated_bytes)),
            bytes(rank.reserved_bytes),
            largest.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.show(screen)
}

/// The calls that the tree lacks; empty if the tree is complete.
fn left_out(rank: &RankSites, screen: &Screen) -> String {
    let mut out = String::new();
    if let Some(further) = &rank.further {
        let (sites, bytes) = (plural(further.sites, "smaller site"), HumanBytes::of(further.live_bytes));
        let line = format!("{sites} with {bytes} in all are left out: the answer would be too large");
        out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
    }
    if rank.merged {
        let line = "More than 262,144 sites lived at once: those beyond are counted together, without a stack";
        out.push_str(&format!("{}\n", screen.wrapped(line, 0)));
    }
    out
}

/// Live memory by the name that the process gave it; empty if no memory has a name.
fn owners(rank: &RankSites, screen: &Screen) -> String {
    let mut named: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for site in &rank.sites {
        if let Some(owner) = &site.owner {
            let (bytes, blocks) = named.entry(owner).or_default();
            (*bytes, *blocks) = (bytes.saturating_add(site.live_bytes), blocks.saturating_add(site.live_blocks));
        }
    }
    if named.is_empty() {
        return String::new();
    }
    let mut named: Vec<(&str, (u64, u64))> = named.into_iter().collect();
    named.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let mut table = Table::new(&[left("OWNER", 0), right("BYTES", 0), right("BLOCKS", 1)]);
    for (owner, (bytes, blocks)) in named.iter().take(OWNERS_SHOWN) {
        table.row(vec![safe(owner).into_owned(), HumanBytes::of(*bytes).to_string(), blocks.to_string()]);
    }
    let mut out = format!("\n{}", table.show(screen));
    if let Some(more) = named.len().checked_sub(OWNERS_SHOWN).filter(|&more| more > 0) {
        let line = format!("and {} with less memory (-o json has all)", plural(more as u64, "more name"));
        out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
    }
    out
}

fn tree(rank: &RankSites, all_frames: bool) -> Node {
    let mut root = Node::default();
    for site in &rank.sites {
        root.add(path(site, all_frames).into_iter(), site.live_bytes, site.live_blocks, births(site));
    }
    root
}

/// The calls to show, outermost first. The owner follows as the last element if the process named the memory or a
/// library allocated it.
fn path(site: &Site, all_frames: bool) -> Vec<String> {
    let mut path = calls(site, all_frames);
    path.extend(site.owner.as_ref().map(|owner| format!("[{}]", safe(owner))));
    path.extend(is_workspace(site).then(|| "[mostly workspace of a library]".to_owned()));
    path
}

/// Whether most of the memory is a library's workspace. Such memory is shown at the first call that needed the
/// workspace.
fn is_workspace(site: &Site) -> bool {
    site.class.as_deref() == Some("workspace")
}

/// The user's own calls, and the innermost library call below them.
fn calls(site: &Site, all_frames: bool) -> Vec<String> {
    if site.stack.is_empty() {
        return vec![NO_STACK.to_owned()];
    }
    if all_frames {
        return site.stack.iter().rev().map(place).collect();
    }
    // C++ frames between Python frames are unknown to users and are left out. If there are only C++ frames, one word
    // replaces them.
    let python: Vec<&Frame> = site.stack.iter().filter(|frame| !frame.is_native()).collect();
    let Some(own) = python.iter().position(|frame| frame.is_user_code()) else {
        let named = site.site.iter().filter(|_| python.is_empty()).map(place);
        return python.iter().rev().map(|frame| place(frame)).chain(named).collect();
    };
    let mut calls: Vec<String> =
        python.iter().rev().filter(|frame| frame.is_user_code()).map(|frame| place(frame)).collect();
    // The innermost of the library frames below names the operation: `linear`, `clone`, `cat`.
    if let Some(innermost) = python.first().filter(|_| own > 0).filter(|frame| !frame.function.is_empty()) {
        calls.push(innermost.function.clone());
    }
    calls
}

/// The epochs of the memory, such as `from epochs 0-8`. If one site has memory of many epochs, this may be a leak.
fn births(site: &Site) -> String {
    let mut epochs: Vec<u32> =
        site.births.iter().filter(|birth| birth.live_blocks > 0).map(|birth| birth.epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    match epochs.as_slice() {
        [] => String::new(),
        [epoch] => format!("from epoch {epoch}"),
        several => format!("from {} epochs, {}-{}", several.len(), several[0], several[several.len() - 1]),
    }
}
