//! Finds the loop that repeats between the visits of an anchor: its function, its lines, and the loop around it.
//!
//! Guarantees: one pass for all anchors; memory is proportional to the number of lines in the loops. Stacks alone
//! cannot distinguish an evaluation every few steps from an evaluation after each epoch. Both are treated as the end
//! of an epoch.

use std::collections::{HashMap, HashSet};

use memctl_model::{Event, FrameId};

use super::anchors::{Anchor, Between};
use super::stacks::{Node, Paths, Work, place};
use crate::statistics::upper_median;

/// Spacings of a line that are kept to find out whether it repeats regularly.
const SPACINGS_MAX: usize = 512;
/// Maximum number of lines distinguished in one loop.
const LINES_MAX: usize = 1 << 16;

/// The point where an event's stack leaves the path to the anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Touch {
    /// The stack belongs to another thread, or there is none.
    Foreign,
    /// The stack contains the whole path.
    Through,
    /// The function at this depth is at another line.
    Line(usize, FrameId),
    /// The function at this depth has been returned to, or it calls another function.
    Beside(usize),
}

impl Touch {
    /// The depth of the outermost function whose line differs from the path.
    pub(super) fn depth(self) -> Option<usize> {
        match self {
            Self::Foreign | Self::Through => None,
            Self::Line(depth, _) | Self::Beside(depth) => Some(depth),
        }
    }
}

/// The path to an anchor and the relation of every stack to it. Each stack is compared once.
pub(super) struct Trail<'a> {
    paths: &'a Paths<'a>,
    path: Vec<FrameId>,
    known: Vec<Option<Touch>>,
}

impl<'a> Trail<'a> {
    pub(super) fn new(paths: &'a Paths<'a>, caller: Node) -> Self {
        Self { paths, path: paths.path(caller), known: vec![None; paths.stacks() + 1] }
    }

    pub(super) fn path(&self) -> &[FrameId] {
        &self.path
    }

    pub(super) fn touch(&mut self, event: &Event) -> Touch {
        if let Some(touch) = self.known.get(event.stack.0 as usize).copied().flatten() {
            return touch;
        }
        let touch = self.compare(event);
        if let Some(known) = self.known.get_mut(event.stack.0 as usize) {
            *known = Some(touch);
        }
        touch
    }

    fn compare(&self, event: &Event) -> Touch {
        let Some(leaf) = self.paths.reading(event.stack).leaf else { return Touch::Foreign };
        let other = self.paths.path(leaf);
        let same = self.path.iter().zip(&other).take_while(|(a, b)| a == b).count();
        match (self.path.get(same), other.get(same)) {
            (None, _) => Touch::Through,
            (Some(&mine), Some(&frame)) if self.paths.function(mine) == self.paths.function(frame) => {
                Touch::Line(same, frame)
            }
            _ if same == 0 => Touch::Foreign,
            _ => Touch::Beside(same - 1),
        }
    }
}

/// A loop whose rounds an anchor marks.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub anchor: Anchor,
    /// The depth of the looping function; `lines` are its first and last line of a round.
    pub depth: usize,
    pub lines: (u32, u32),
    /// The loop around it.
    pub outer: Option<Outer>,
    /// Every touch that was seen between two rounds.
    pub between: HashSet<Touch>,
    /// Its name: `the loop at train.py:31`.
    pub name: String,
}

/// The event that shows an iteration of the outer loop between two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outer {
    /// The line changes in the function at this depth or in one outside it.
    Depth(usize),
    /// This line of the loop's own function is reached.
    Line(FrameId),
}

impl Loop {
    /// Whether an event is outside the rounds.
    pub(super) fn is_outside(&self, paths: &Paths<'_>, touch: Touch) -> bool {
        match touch {
            Touch::Foreign | Touch::Through => false,
            Touch::Beside(depth) => depth < self.depth,
            Touch::Line(depth, _) if depth != self.depth => depth < self.depth,
            Touch::Line(_, frame) => {
                let line = paths.frame(frame).map_or(0, |frame| frame.line);
                line < self.lines.0 || line > self.lines.1
            }
        }
    }

    /// Whether this touch was seen between two rounds.
    pub(super) fn is_between(&self, touch: Touch) -> bool {
        self.between.contains(&touch)
    }

    /// Whether an event shows an iteration of the outer loop.
    pub(super) fn is_outer(&self, touch: Touch) -> bool {
        match (self.outer, touch) {
            (Some(Outer::Depth(most)), touch) => touch.depth().is_some_and(|depth| depth <= most),
            (Some(Outer::Line(line)), Touch::Line(depth, frame)) => depth == self.depth && frame == line,
            _ => false,
        }
    }
}

/// Statistics of one touch between the rounds of a loop.
#[derive(Default)]
struct Often {
    rounds: u64,
    last: u64,
    spacings: Vec<u64>,
    /// Number of rounds in which a module was called there, and the last such round.
    forwards: (u64, u64),
    backward: bool,
}

impl Often {
    fn note(&mut self, round: u64, work: Work) {
        if work == Work::Forward && (self.forwards.0 == 0 || self.forwards.1 != round) {
            self.forwards = (self.forwards.0 + 1, round);
        }
        self.backward |= work == Work::Backward;
        if self.rounds > 0 && self.last == round {
            return;
        }
        if self.spacings.len() < SPACINGS_MAX {
            self.spacings.push(round - self.last);
        }
        (self.rounds, self.last) = (self.rounds + 1, round);
    }

    /// Whether it repeats at regular intervals of at least two rounds.
    fn is_regular(&self) -> bool {
        let mut sorted = self.spacings.clone();
        sorted.sort_unstable();
        let Some(&middle) = upper_median(&sorted) else { return false };
        let near = |&&spacing: &&u64| spacing.abs_diff(middle) <= (middle / 3).max(1);
        middle >= 2 && sorted.iter().filter(near).count() * 10 >= sorted.len() * 6
    }
}

/// The facts that the rounds of one anchor show.
struct AnchorRounds<'a> {
    anchor: Anchor,
    trail: Trail<'a>,
    /// Rounds begun so far by a visit.
    visits: u64,
    seen: u64,
    /// The outermost depth whose line changed in this round.
    outermost: Option<usize>,
    depths: HashMap<usize, Often>,
    lines: HashMap<(usize, FrameId), Often>,
    /// Statistics of stacks that contain the whole path.
    through: Often,
    between: HashSet<Touch>,
}

impl<'a> AnchorRounds<'a> {
    fn new(paths: &'a Paths<'a>, anchor: Anchor) -> Self {
        let trail = Trail::new(paths, anchor.caller);
        let (depths, lines) = (HashMap::new(), HashMap::new());
        let (through, between) = (Often::default(), HashSet::new());
        Self { anchor, trail, visits: 0, seen: 0, outermost: None, depths, lines, through, between }
    }

    fn note(&mut self, event: &Event, (work, is_anchor): (Work, bool), seen: u64) {
        if is_anchor {
            if self.visits == 0 || self.seen != seen {
                self.close();
                self.visits += 1;
            }
            self.seen = seen;
            return;
        }
        let touch = self.trail.touch(event);
        let Some(depth) = touch.depth() else {
            if touch == Touch::Through {
                self.through.note(self.visits, work);
            }
            return;
        };
        if self.between.len() < LINES_MAX {
            self.between.insert(touch);
        }
        self.outermost = Some(self.outermost.map_or(depth, |outermost| outermost.min(depth)));
        if let Touch::Line(depth, frame) = touch
            && (self.lines.len() < LINES_MAX || self.lines.contains_key(&(depth, frame)))
        {
            self.lines.entry((depth, frame)).or_default().note(self.visits, work);
        }
    }

    fn close(&mut self) {
        if self.visits > 0 {
            let depth = self.outermost.unwrap_or_else(|| self.trail.path().len().saturating_sub(1));
            self.depths.entry(depth).or_default().note(self.visits, Work::Other);
        }
        self.outermost = None;
    }

    fn finish(self, paths: &Paths<'_>) -> Loop {
        let rounds = self.visits.saturating_sub(1);
        let mut depths: Vec<(usize, &Often)> = self.depths.iter().map(|(&depth, often)| (depth, often)).collect();
        depths.sort_unstable_by_key(|&(depth, _)| depth);
        // The loop is at the outermost depth down to which the lines changed in most rounds.
        let mut sum = 0;
        let mut depth = self.trail.path().len().saturating_sub(1);
        for &(at, often) in &depths {
            sum += often.rounds;
            if sum * 2 > rounds {
                depth = at;
                break;
            }
        }
        let lines = self.lines_of_rounds(paths, depth, rounds);
        let outer = self.outer(paths, (depth, lines), &depths);
        let name = self.name(paths, depth, lines.0);
        Loop { anchor: self.anchor, depth, lines, outer, between: self.between, name }
    }

    /// The lines of the looping function that belong to a round: the lines that most rounds show and the lines that
    /// make the passes.
    fn lines_of_rounds(&self, paths: &Paths<'_>, depth: usize, rounds: u64) -> (u32, u32) {
        let line_of = |frame: FrameId| paths.frame(frame).map_or(0, |frame| frame.line);
        let own = self.trail.path().get(depth).map_or(0, |&frame| line_of(frame));
        let inner = self.lines.iter().filter(|((at, _), _)| *at >= depth).map(|(_, often)| often.forwards.0);
        let forwards = inner.chain([self.through.forwards.0]).max().unwrap_or(0);
        // If no single line makes the forward pass of nearly every round, several lines do so in turns.
        let in_turns = forwards * 10 < rounds * 9;
        let usual = self.lines.iter().filter(|((at, _), often)| {
            *at == depth && (often.rounds * 2 > rounds || (in_turns && often.forwards.0 * 20 > rounds))
        });
        usual.fold((own, own), |(low, high), ((_, frame), _)| {
            let line = line_of(*frame);
            (low.min(line), high.max(line))
        })
    }

    /// The outer loop: a function further out whose line changes every few rounds. If there is none: an evaluation in
    /// the same function.
    fn outer(&self, paths: &Paths<'_>, at: (usize, (u32, u32)), depths: &[(usize, &Often)]) -> Option<Outer> {
        let (depth, (low, high)) = at;
        let further: Vec<&(usize, &Often)> = depths.iter().filter(|(other, _)| *other < depth).collect();
        let regular = further.iter().rev().find(|(_, often)| often.is_regular());
        if let Some((most, _)) = regular {
            return Some(Outer::Depth(*most));
        }
        let mut lines: Vec<(FrameId, &Often)> = self
            .lines
            .iter()
            .filter(|((at, frame), often)| {
                let line = paths.frame(*frame).map_or(0, |frame| frame.line);
                let passes_alone = often.forwards.0 > 0 && !often.backward;
                *at == depth && (line < low || line > high) && passes_alone && often.is_regular()
            })
            .map(|((_, frame), often)| (*frame, often))
            .collect();
        // The rarest line that occurs often enough to compare.
        lines.sort_unstable_by_key(|(frame, often)| (often.rounds < 2, often.rounds, *frame));
        lines.first().map(|(frame, _)| Outer::Line(*frame))
    }

    /// The name of the loop: a user's loop is named by its place, a library's loop by the place where the user called
    /// it.
    fn name(&self, paths: &Paths<'_>, depth: usize, line: u32) -> String {
        let Some(&frame) = self.trail.path().get(depth) else { return "Optimizer.step".into() };
        paths
            .frame(frame)
            .map_or_else(|| "Optimizer.step".into(), |frame| format!("the loop at {}", place(&frame.file, line)))
    }
}

/// The loops of the anchors, one after another.
pub(super) fn find(paths: &Paths<'_>, anchors: &[Anchor], events: impl Iterator<Item = Event>) -> Vec<Loop> {
    let mut shown = Vec::with_capacity(anchors.len());
    let mut left = anchors.iter();
    let mut now = left.next().map(|&anchor| AnchorRounds::new(paths, anchor));
    let mut between = Between::default();
    for (at, event) in (0_u64..).zip(events) {
        let reading = paths.reading(event.stack);
        between.note(reading.work);
        if now.as_ref().is_some_and(|shown| at > shown.anchor.last) {
            let next = left.next().map(|&anchor| AnchorRounds::new(paths, anchor));
            shown.extend(std::mem::replace(&mut now, next));
        }
        let Some(now) = now.as_mut() else { break };
        if at >= now.anchor.first {
            let is_anchor = reading.work == now.anchor.work && reading.caller == Some(now.anchor.caller);
            now.note(&event, (reading.work, is_anchor), between.seen_by(now.anchor.work));
        }
    }
    shown.extend(now);
    shown.into_iter().map(|shown| shown.finish(paths)).collect()
}
