//! Groups growing sites that are one leak. A kept graph, for example, holds dozens of blocks of dozens of sites, and
//! is one problem to repair.
//!
//! Guarantees: every candidate is in exactly one group, and the members of a group rose at the same boundaries. The
//! site of a group is the innermost function of the user's own code that nearly all of its stacks share. Its line is
//! the one through which most of the bytes came.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use memctl_model::{Frame, Phase, StackId};

use super::candidate::{Candidate, Pass, Shape};
use super::chained::work_grows_with_what_lives;
use super::frames::is_forward_frame;
use super::history::Per;
use super::watch::RankWatch;

/// Sites of one rank that grow together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub members: Vec<Candidate>,
    pub site: Option<Frame>,
    /// Lines of the site's function that allocated the growing memory, ascending; empty if there is only one line, or
    /// for a graph.
    pub lines: Vec<u32>,
    pub stack: Vec<Frame>,
    /// Whether it looks like a graph: several blocks of a forward pass per rise.
    pub graph: bool,
}

impl Group {
    /// The member that holds most. Its rhythm counts as the group's.
    pub fn lead(&self) -> &Candidate {
        // A group has at least one member.
        self.members.iter().max_by_key(|member| (member.bytes_gained, member.growth.rises)).unwrap_or(&self.members[0])
    }

    pub fn live_bytes(&self) -> u64 {
        self.members.iter().fold(0, |sum, member| sum.saturating_add(member.live_bytes))
    }

    pub fn live_blocks(&self) -> u64 {
        self.members.iter().fold(0, |sum, member| sum.saturating_add(member.live_blocks))
    }

    pub fn bytes_gained(&self) -> u64 {
        self.members.iter().fold(0, |sum, member| sum.saturating_add(member.bytes_gained))
    }

    /// The phase in which most of the group's memory was born.
    pub fn phase(&self) -> Option<Phase> {
        let of = |phase: Option<Phase>| -> u64 {
            self.members.iter().filter(|member| member.phase == phase).map(|member| member.bytes_gained / 2).sum()
        };
        self.members.iter().map(|member| member.phase).max_by_key(|&phase| of(phase)).flatten()
    }
}

/// Minimum blocks per rise of a graph: a single tensor has fewer.
const GRAPH_BLOCKS_MIN: u64 = 3;
/// Minimum lines of a forward pass of a graph: a hook on a few layers has fewer. In a small model, half of its lines
/// suffice.
const GRAPH_LINES_MIN: usize = 3;
/// The same minimum in a process without any sign of training.
const SERVING_LINES_MIN: usize = 6;
/// A stack with less than one part in this many of another stack's blocks does not affect the place of a group.
const MINOR: u64 = 10;

/// A line with at least one part in this many of a group's growth is named. A line that is not named is missing where the
/// program is repaired.
const LINE_SHARE: u64 = 100;

/// Sorts the candidates of one rank into groups.
pub(super) fn groups(watch: &RankWatch, mut candidates: Vec<Candidate>) -> Vec<Group> {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.bytes_gained), candidate.site));
    let mut groups: Vec<Group> = Vec::new();
    for candidate in candidates {
        match groups.iter_mut().find(|group| belongs(watch, group, &candidate)) {
            Some(group) => group.members.push(candidate),
            None => groups.push(Group {
                members: vec![candidate],
                site: None,
                lines: Vec::new(),
                stack: Vec::new(),
                graph: false,
            }),
        }
    }
    let graphs: Vec<bool> =
        groups.iter().map(|group| is_graph(watch, group) || is_small_graph(watch, group, &groups)).collect();
    for (group, graph) in groups.iter_mut().zip(graphs) {
        group.graph = graph;
    }
    // A graph also holds small tensors that its nodes need (inputs, masks, indices), so their groups join the graph.
    groups.sort_by_key(|group| !group.graph);
    let mut joined: Vec<Group> = Vec::new();
    for group in groups {
        let host = joined.iter_mut().find(|host| host.graph && holds(watch, host, &group));
        match host {
            Some(host) => host.members.extend(group.members),
            None => joined.push(group),
        }
    }
    for group in &mut joined {
        (group.site, group.stack) = place(watch, group);
        group.lines = lines(watch, group);
    }
    joined
}

/// The lines of a group's function that bring a part of its growth, if there are several.
fn lines(watch: &RankWatch, group: &Group) -> Vec<u32> {
    let Some(site) = group.site.as_ref().filter(|_| !group.graph) else { return Vec::new() };
    let mut gained: BTreeMap<u32, u64> = BTreeMap::new();
    for member in &group.members {
        let frame = watch.sites[member.site].frame.as_deref().filter(|frame| same_function(frame, site));
        if let Some(frame) = frame {
            let bytes = gained.entry(frame.line).or_default();
            *bytes = bytes.saturating_add(member.bytes_gained);
        }
    }
    gained.retain(|_, bytes| *bytes >= group.bytes_gained() / LINE_SHARE);
    if gained.len() > 1 { gained.into_keys().collect() } else { Vec::new() }
}

/// Whether a candidate grows with a group: they rise at the same boundaries, and in the same pass of a step or in one
/// function.
fn belongs(watch: &RankWatch, group: &Group, candidate: &Candidate) -> bool {
    let first = &group.members[0];
    if first.shape != candidate.shape || !together(first, candidate) {
        return false;
    }
    let (one, other) = (&watch.sites[first.site].frame, &watch.sites[candidate.site].frame);
    let same_function = match (one, other) {
        (Some(one), Some(other)) => same_function(one, other),
        _ => false,
    };
    same_function || (first.pass != Pass::Other && first.pass == candidate.pass && first.phase == candidate.phase)
}

/// Whether a group contains only tensors that a graph needs: it rises with the graph, and its stacks contain the same
/// function.
fn holds(watch: &RankWatch, host: &Group, group: &Group) -> bool {
    let Some(site) = place(watch, host).0 else { return false };
    let comes_through = |member: &Candidate| watch.frames_of(member.stack).any(|frame| same_function(frame, &site));
    group.bytes_gained() <= host.bytes_gained()
        && group.members.iter().all(|member| together(host.lead(), member) && comes_through(member))
}

/// Whether two candidates rose at the same boundaries: each shares at least seven in ten of its rises with the other.
fn together(one: &Candidate, other: &Candidate) -> bool {
    if one.per != other.per && one.shape != Shape::Teeth {
        // Memory made after the last step of an epoch is seen with the first step of the next epoch.
        let (a, b) = (&one.growth.epochs, &other.growth.epochs);
        let both = a
            .iter()
            .filter(|&&epoch| (epoch.saturating_sub(1)..=epoch.saturating_add(1)).any(|near| b.contains(&near)));
        return both.count() * 10 >= a.len().max(b.len()) * 7;
    }
    // Long series are thinned, each at other boundaries.
    let thinned = |it: &Candidate| it.growth.rises as usize > it.growth.times.len();
    let gap =
        |it: &Candidate| it.growth.times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
    let near = if thinned(one) || thinned(other) { gap(one).max(gap(other)) / 2 } else { 0 };
    let (mut a, mut b, mut both) = (one.growth.times.iter().peekable(), other.growth.times.iter().peekable(), 0_usize);
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        if x.abs_diff(**y) <= near {
            both += 1;
            a.next();
            b.next();
        } else if x < y {
            a.next();
        } else {
            b.next();
        }
    }
    both * 10 >= one.growth.times.len().max(other.growth.times.len()) * 7
}

/// Whether a group is the memory of a graph: several blocks per rise, from several lines of a forward pass. Many
/// blocks of a single line are not a graph: a hook or a loop keeps its own blocks.
fn is_graph(watch: &RankWatch, group: &Group) -> bool {
    let rises = u64::from(group.lead().growth.rises.max(1));
    let forward = || group.members.iter().filter(|member| member.pass == Pass::Forward);
    let gained = forward().fold(0, |sum: u64, member| sum.saturating_add(member.blocks_gained));
    if gained < rises.saturating_mul(GRAPH_BLOCKS_MIN) {
        return false;
    }
    // Memory collected over an epoch is a chain of graphs only if the backward pass of each step goes through all of
    // them.
    if group.lead().shape == Shape::Teeth {
        return work_grows_with_what_lives(watch.history.levels(Per::Step));
    }
    let stacks = forward().flat_map(|member| &member.stacks);
    let lines: HashSet<(u32, u32)> = stacks.filter_map(|&stack| watch.forward_line(stack)).collect();
    // Only lines with the same callers in the user's code are compared, because a wrapper of the model calls more in
    // training than in an evaluation.
    let callers: HashSet<u32> = lines.iter().map(|&(_, user)| user).collect();
    let most_of_all = lines.len() >= 2 && lines.len() * 2 >= watch.forward_lines(&callers);
    // A process that only serves keeps keys and values of every layer, which come from few lines.
    if watch.trains() { lines.len() >= GRAPH_LINES_MIN || most_of_all } else { lines.len() >= SERVING_LINES_MIN }
}

/// Whether a group is the graph of a model whose layers all keep blocks of one line (linear layers and one
/// activation). A pass then leaves several blocks of that line, and its caller leaves several more (the input, blocks
/// that the loss keeps, the loss). A program that collects outputs and labels leaves one of each.
fn is_small_graph(watch: &RankWatch, group: &Group, all: &[Group]) -> bool {
    let lead = group.lead();
    let stacks = || group.members.iter().flat_map(|member| member.stacks.iter().copied());
    let forward: Vec<StackId> = stacks().filter(|&stack| watch.forward_line(stack).is_some()).collect();
    let caller = forward.first().and_then(|&stack| own_frames(watch, stack, true).into_iter().next());
    if lead.shape == Shape::Teeth && !work_grows_with_what_lives(watch.history.levels(Per::Step)) {
        return false;
    }
    // Kept gradients come through the same lines, one block per weight.
    let (true, Some(caller)) = (watch.trains() && lead.pass == Pass::Forward, caller) else { return false };
    let beside = |stack: &StackId| {
        let innermost = watch.frames_of(*stack).find(|frame| frame.is_user_code());
        innermost.is_some_and(|frame| same_function(frame, &caller))
            && !watch.frames_of(*stack).any(|frame| is_forward_frame(frame) || &*frame.file == "<autograd>")
    };
    let members = all.iter().flat_map(|group| &group.members).filter(|member| together(lead, member));
    let direct = members.flat_map(|member| member.stacks.iter().copied()).filter(beside);
    let gained = |stack: StackId| watch.blocks_gained(stack);
    let forward: Vec<u64> = forward.into_iter().map(gained).filter(|&blocks| blocks > 0).collect();
    let direct: Vec<u64> = direct.map(gained).filter(|&blocks| blocks > 0).collect();
    // Every stack leaves the same number of blocks in each pass. So the number of passes is at most their greatest
    // common divisor, and there was at least one pass per rise.
    let passes = forward.iter().chain(&direct).copied().fold(0, gcd);
    let a_pass = |blocks: &[u64]| blocks.iter().fold(0, |sum: u64, &blocks| sum.saturating_add(blocks)) / passes.max(1);
    passes >= u64::from(lead.growth.rises.max(1)) && a_pass(&forward) >= 2 && a_pass(&direct) >= 2
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) fn same_function(one: &Frame, other: &Frame) -> bool {
    one.function == other.function && one.file == other.file
}

/// The user's frames of a stack, innermost first. For a graph, only the frames outside the forward pass count: the
/// caller of the model holds the graph, the model does not.
fn own_frames(watch: &RankWatch, stack: StackId, graph: bool) -> Vec<Arc<Frame>> {
    let frames: Vec<&Arc<Frame>> = watch.frames_of(stack).collect();
    let outside = frames.iter().rposition(|frame| is_forward_frame(frame)).map_or(0, |outermost| outermost + 1);
    let from = |start: usize| -> Vec<Arc<Frame>> {
        frames[start..].iter().filter(|frame| frame.is_user_code()).map(|&frame| frame.clone()).collect()
    };
    let callers = if graph { from(outside) } else { Vec::new() };
    if callers.is_empty() { from(0) } else { callers }
}

/// The place of a group, and the stack that holds most of it. The place is the innermost of the user's functions that
/// all of its stacks contain, except stacks with very few blocks.
fn place(watch: &RankWatch, group: &Group) -> (Option<Frame>, Vec<Frame>) {
    let lead = group.lead();
    let stack: Vec<Frame> = watch.frames_of(lead.stack).map(|frame| (**frame).clone()).collect();
    let graph = group.graph;
    if !graph && group.members.len() == 1 && lead.stacks.len() <= 1 {
        return (watch.sites[lead.site].frame.as_deref().cloned(), stack);
    }
    let mut stacks: Vec<StackId> = group.members.iter().flat_map(|member| member.stacks.iter().copied()).collect();
    // Blocks that are under way when a step ends, and a batch that is kept beside a graph, must not move the place to
    // a common caller.
    let most = stacks.iter().map(|&stack| watch.blocks_gained(stack)).max().unwrap_or(0);
    stacks.retain(|&stack| watch.blocks_gained(stack) >= most / MINOR);
    let own = own_frames(watch, lead.stack, graph);
    // A stack without a frame of the user's code (a node with an unknown forward call) does not exclude any place.
    let says = |stack: &&StackId| watch.frames_of(**stack).any(|frame| frame.is_user_code());
    let saying: Vec<StackId> = stacks.iter().filter(says).copied().collect();
    let shared = own
        .iter()
        .find(|frame| saying.iter().all(|&stack| watch.frames_of(stack).any(|other| same_function(other, frame))));
    let site = shared.map(|frame| (**frame).clone()).or_else(|| watch.sites[lead.site].frame.as_deref().cloned());
    (site, stack)
}
