//! A tree of calls as data, for the page's flame graph.
//!
//! Guarantees: calls are in the order in which they are drawn, each after its caller. The widest calls are included,
//! and the number of omitted ones is stated. Widths are bytes; there is no other layout.

use serde::Serialize;

use super::table::SiteClasses;
use super::tree::{Call, Node, Tree};
use crate::format::time::Time;
use crate::sites::{RankSites, Sites};
use crate::{Completeness, Frame, Job, SCHEMA};

/// The most calls that are returned.
const CALLS_SHOWN: usize = 4_000;

/// The graph.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Flame {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The moment, or the later one of two.
    pub at: Moment,
    /// The earlier one; null where one moment is shown.
    pub from: Option<Moment>,
    /// Live in stacks that did not change; 0 where one moment is shown.
    pub unchanged_bytes: u64,
    /// Every call behind its caller; the first one is everything.
    pub calls: Vec<FlameCall>,
    /// Calls that had no room: the narrowest.
    pub calls_left_out: u64,
}

/// A moment of a rank.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "FlameMoment"))]
pub struct Moment {
    /// The time.
    pub at: Time,
    /// The epoch under way or just ended.
    pub epoch: u32,
    /// The step under way or just ended.
    pub step: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// At that moment.
    pub allocated_bytes: Option<u64>,
    /// At that moment.
    pub reserved_bytes: Option<u64>,
}

/// What a call stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// Everything.
    All,
    /// One frame.
    Frame,
    /// Frames of libraries, folded.
    Library,
    /// The owner of the memory.
    Owner,
    /// Memory whose stack was not recorded.
    NoStack,
    /// Calls that are too narrow to be shown.
    Smaller,
}

/// A call.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FlameCall {
    /// Callers above it; 0 for everything.
    pub depth: usize,
    /// What it stands for.
    pub kind: CallKind,
    /// Of an `owner`, whose memory it is, as the process named it; null of all others.
    pub owner: Option<String>,
    /// Its frames, outermost first: one of a `frame`, those that are folded of a `library`.
    pub frames: Vec<Frame>,
    /// Whether it is the user's own code.
    pub own: bool,
    /// How wide it is: bytes that live, or bytes that changed in either direction.
    pub bytes: u64,
    /// Of these, bytes that came.
    pub grown_bytes: u64,
    /// Of these, bytes that went.
    pub shrunk_bytes: u64,
    /// Blocks that live, at the later moment.
    pub live_blocks: u64,
    /// The class that has most of its bytes at the peak; null where no class is known.
    pub class: Option<String>,
}

impl Flame {
    /// Makes the graph of the first device of each answer: of one moment, or of the change since an earlier one. `None`
    /// if nothing is stored.
    #[must_use]
    pub fn new(late: &Sites, early: Option<&Sites>, classes: &SiteClasses) -> Option<Self> {
        let to = late.ranks.first()?;
        let is_it = |of: &&RankSites| (of.rank, of.device, &of.process) == (to.rank, to.device, &to.process);
        let from = match early {
            Some(early) => Some(early.ranks.iter().find(is_it)?),
            None => None,
        };
        let tree = match from {
            Some(from) => Tree::of_change(from, to, classes),
            None => Tree::of_moment(to, classes),
        };
        let calls = calls(&tree);
        Some(Self {
            schema: SCHEMA,
            job: late.job.clone(),
            completeness: late.completeness,
            rank: to.rank,
            process: to.process.clone(),
            device: to.device,
            at: to.into(),
            from: from.map(Moment::from),
            unchanged_bytes: tree.unchanged_bytes,
            calls_left_out: tree.nodes().count().saturating_sub(calls.len()) as u64,
            calls,
        })
    }
}

impl From<&RankSites> for Moment {
    fn from(of: &RankSites) -> Self {
        let RankSites { at, epoch, step, exact, allocated_bytes, reserved_bytes, .. } = of;
        Self {
            at: *at,
            epoch: *epoch,
            step: *step,
            exact: *exact,
            allocated_bytes: *allocated_bytes,
            reserved_bytes: *reserved_bytes,
        }
    }
}

/// The widest calls in the order in which they are drawn: each with its caller, which is at least as wide.
fn calls(tree: &Tree<'_>) -> Vec<FlameCall> {
    let mut widths: Vec<u64> = tree.nodes().map(|node| node.bytes).collect();
    widths.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let too_narrow = widths.get(CALLS_SHOWN).copied().unwrap_or(0);
    let (mut calls, mut waiting) = (Vec::new(), vec![(0, 0)]);
    while let Some((at, depth)) = waiting.pop() {
        let Some(node) = tree.node(at) else { continue };
        if depth > 0 && node.bytes <= too_narrow {
            continue;
        }
        calls.push(call(tree, node, depth));
        waiting.extend(node.children.iter().rev().map(|&child| (child, depth + 1)));
    }
    calls
}

fn call(tree: &Tree<'_>, node: &Node<'_>, depth: usize) -> FlameCall {
    let (kind, frames, own) = match &node.call {
        Call::All => (CallKind::All, Vec::new(), false),
        Call::Frame { frame, is_own } => (CallKind::Frame, vec![(*frame).clone()], *is_own),
        Call::Library(frames) => (CallKind::Library, frames.iter().map(|frame| (*frame).clone()).collect(), false),
        Call::Owner(_) => (CallKind::Owner, Vec::new(), false),
        Call::NoStack => (CallKind::NoStack, Vec::new(), false),
        Call::Smaller => (CallKind::Smaller, Vec::new(), false),
    };
    FlameCall {
        depth,
        kind,
        owner: if let Call::Owner(owner) = node.call { Some(owner.to_owned()) } else { None },
        frames,
        own,
        bytes: node.bytes,
        grown_bytes: node.grown_bytes,
        shrunk_bytes: node.shrunk_bytes,
        live_blocks: node.blocks,
        class: tree.class(node).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Site;

    fn sites(of: &[(u32, u64)]) -> Sites {
        let frame = |line| Frame { function: format!("f{line}"), file: "/home/me/a.py".into(), line: Some(line) };
        let site = |&(line, live_bytes): &(u32, u64)| Site {
            live_bytes,
            live_blocks: 1,
            ..Site::new(vec![frame(line), frame(0)])
        };
        let rank = RankSites { sites: of.iter().map(site).collect(), ..RankSites::default() };
        Sites { ranks: vec![rank], ..Sites::default() }
    }

    #[test]
    fn calls_stand_behind_their_callers() {
        let (early, late) = (sites(&[(1, 5), (2, 9)]), sites(&[(1, 50), (2, 9), (3, 1)]));
        let graph = Flame::new(&late, None, &SiteClasses::default()).unwrap();
        let drawn =
            |graph: &Flame| -> Vec<(usize, u64)> { graph.calls.iter().map(|call| (call.depth, call.bytes)).collect() };
        assert_eq!(drawn(&graph), [(0, 60), (1, 60), (2, 50), (2, 9), (2, 1)]);
        let change = Flame::new(&late, Some(&early), &SiteClasses::default()).unwrap();
        assert_eq!(drawn(&change), [(0, 46), (1, 46), (2, 45), (2, 1)]);
        assert_eq!((change.unchanged_bytes, change.calls[2].grown_bytes), (9, 45));
    }

    #[test]
    fn the_narrowest_have_no_room() {
        let many: Vec<(u32, u64)> = (0..6_000).map(|at| (at + 1, u64::from(at) + 1)).collect();
        let graph = Flame::new(&sites(&many), None, &SiteClasses::default()).unwrap();
        assert_eq!(graph.calls.len(), CALLS_SHOWN);
        assert_eq!(graph.calls_left_out, 6_002 - CALLS_SHOWN as u64);
        assert_eq!(graph.calls[2].bytes, 6_000);
    }
}
