//! Loops without training (serving, generation, evaluation). They are found by the lines that repeat.
//!
//! Guarantees: one pass to find the loop, one to cut it and one to check it; memory is proportional to the number of
//! paths. The result is the outermost loop that repeats often enough: a user's requests, not the tokens or the layers
//! in them. A loop is rejected if it covers less than half of the recording or of its model calls. Rounds are rejected
//! if they keep most of what they allocate.

use std::collections::BTreeMap;

use memctl_model::Event;

use super::Span;
use super::rounds::{Live, STEPS_MAX};
use super::stacks::{Node, Paths, place};
use super::turnover::may_be_steps;

/// Minimum rounds of a loop.
const ROUNDS_MIN: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Stat {
    visits: u64,
    /// Events whose path is exactly this one.
    events: u64,
    first: u64,
    last: u64,
    /// Sum of the live bytes at each visit.
    live: f64,
}

/// The rounds of the outermost loop.
pub(super) fn find<I: Iterator<Item = Event>>(
    paths: &Paths<'_>,
    events: &impl Fn() -> I,
) -> Option<(String, Vec<Span>)> {
    let (stats, count) = stats(paths, events());
    let often = |node: Node| stats.get(node.0 as usize).is_some_and(|stat| stat.visits >= ROUNDS_MIN);
    // Repeating paths by their caller, without those inside another repeating path.
    let mut families: BTreeMap<Option<Node>, Vec<Node>> = BTreeMap::new();
    for node in (0..stats.len() as u32).map(Node).filter(|&node| often(node)) {
        if !std::iter::successors(paths.parent(node), |&outer| paths.parent(outer)).any(often) {
            families.entry(paths.parent(node)).or_default().push(node);
        }
    }
    let covers = |nodes: &[Node]| {
        let of = nodes.iter().filter_map(|node| stats.get(node.0 as usize));
        let (first, last) = of.fold((u64::MAX, 0), |(a, b), stat| (a.min(stat.first), b.max(stat.last)));
        last.saturating_sub(first)
    };
    let family =
        families.into_values().max_by_key(|nodes| (covers(nodes), std::cmp::Reverse(nodes.first().copied())))?;
    if covers(&family) * 2 < count || !calls_models(paths, &family, &stats) {
        return None;
    }
    let head = head(&family, &stats)?;
    let name = name(paths, &family, head)?;
    let rounds = cut(paths, events(), head);
    may_be_steps(paths, events(), &rounds).then_some((name, rounds))
}

/// Whether at least half of the models' work happens in this loop, if there are any models. Other repetition (over the
/// tensors of a file or the parameters of an optimizer) is not a request.
fn calls_models(paths: &Paths<'_>, family: &[Node], stats: &[Stat]) -> bool {
    let (mut all, mut inside) = (0, 0);
    for (node, stat) in (0..).map(Node).zip(stats).filter(|(node, _)| paths.is_call(*node)) {
        all += stat.events;
        let mut outwards = std::iter::successors(Some(node), |&node| paths.parent(node));
        inside += if outwards.any(|node| family.binary_search(&node).is_ok()) { stat.events } else { 0 };
    }
    inside * 2 >= all
}

/// Names a loop by its first line, or by the line of the call if it contains only a call.
fn name(paths: &Paths<'_>, family: &[Node], head: Node) -> Option<String> {
    let line_of = |node: Node| if paths.is_call(node) { paths.parent(node) } else { Some(node) };
    let frame_of = |node: Node| line_of(node).and_then(|node| paths.frame_at(node));
    let function = frame_of(head).map(|id| paths.function(id));
    let same = family.iter().filter_map(|&node| frame_of(node)).filter(|&id| Some(paths.function(id)) == function);
    let first = same.filter_map(|id| paths.frame(id)).min_by_key(|frame| frame.line)?;
    Some(format!("the loop at {}", place(&first.file, first.line)))
}

/// The path that begins a round. Among paths that are visited equally often, it is the one with the least live memory
/// at its visits.
fn head(family: &[Node], stats: &[Stat]) -> Option<Node> {
    let of = |node: Node| stats.get(node.0 as usize).copied().unwrap_or_default();
    let alike = |a: u64, b: u64| a.abs_diff(b) * 10 <= a.max(b);
    // Lines of an inner loop are visited more often and conditional lines less often. The count that most lines share
    // is the loop's.
    let votes = |node: Node| family.iter().filter(|other| alike(of(node).visits, of(**other).visits)).count();
    let usual = family.iter().copied().max_by_key(|&node| (votes(node), std::cmp::Reverse(of(node).visits)))?;
    let level = |node: Node| of(node).live / of(node).visits.max(1) as f64;
    let peers = family.iter().copied().filter(|&node| alike(of(node).visits, of(usual).visits));
    peers.min_by(|&a, &b| level(a).total_cmp(&level(b)).then(a.cmp(&b)))
}

/// How often each path was visited, and the number of events.
fn stats(paths: &Paths<'_>, events: impl Iterator<Item = Event>) -> (Vec<Stat>, u64) {
    let mut stats = vec![Stat::default(); paths.nodes()];
    let (mut live, mut before, mut count) = (Live::default(), None, 0);
    for (at, event) in (0_u64..).zip(events) {
        count = at + 1;
        if let Some(leaf) = paths.reading(event.stack).turn {
            if let Some(stat) = stats.get_mut(leaf.0 as usize) {
                stat.events += 1;
            }
            let shared = before.and_then(|before| common(paths, before, leaf));
            for node in std::iter::successors(Some(leaf), |&node| paths.parent(node)).take_while(|&n| Some(n) != shared)
            {
                if let Some(stat) = stats.get_mut(node.0 as usize) {
                    if stat.visits == 0 {
                        stat.first = at;
                    }
                    (stat.visits, stat.last) = (stat.visits + 1, at);
                    stat.live += live.0 as f64;
                }
            }
            before = Some(leaf);
        }
        live.note(&event);
    }
    (stats, count)
}

/// The longest path that is part of both.
fn common(paths: &Paths<'_>, a: Node, b: Node) -> Option<Node> {
    let (mut a, mut b) = (Some(a), Some(b));
    while a != b {
        let (Some(left), Some(right)) = (a, b) else { return None };
        if paths.depth(left) >= paths.depth(right) {
            a = paths.parent(left);
        } else {
            b = paths.parent(right);
        }
    }
    a
}

/// Cuts the recording from one visit of the head to the next.
fn cut(paths: &Paths<'_>, events: impl Iterator<Item = Event>, head: Node) -> Vec<Span> {
    let mut rounds: Vec<Span> = Vec::new();
    let (mut within, mut begin_ns, mut last_ns) = (false, None, 0);
    // The last round ends with the last event that belongs to the loop.
    let mut end_ns = 0;
    let caller = paths.parent(head);
    for event in events {
        if let Some(leaf) = paths.reading(event.stack).turn {
            let mut ways = std::iter::successors(Some(leaf), |&node| paths.parent(node));
            let mut inside = false;
            let called = caller.is_none_or(|caller| {
                ways.any(|node| {
                    inside |= node == head;
                    node == caller
                })
            });
            inside |=
                caller.is_none() && std::iter::successors(Some(leaf), |&node| paths.parent(node)).any(|n| n == head);
            if inside
                && !within
                && rounds.len() < STEPS_MAX
                && let Some(begin_ns) = begin_ns.replace(event.time_ns)
            {
                rounds.push(Span { begin_ns, end_ns: last_ns });
            }
            within = inside;
            if called {
                end_ns = event.time_ns;
            }
        }
        last_ns = event.time_ns;
    }
    rounds.extend(begin_ns.map(|begin_ns| Span { begin_ns, end_ns: end_ns.max(begin_ns) }));
    rounds
}
