//! What the events before a failed request show about its cause: memory that accumulated, or requests that are larger
//! than those before.
//!
//! Memory has accumulated in two cases. Blocks of earlier steps are live although steps usually end without them. Or a
//! line has far more live blocks at once than it had in any earlier step. Only the bytes beyond the need of the earlier
//! steps count.
//!
//! Guarantees: each figure is a count of the stretch's blocks. Without an earlier step, only an evaluation is judged,
//! because the first step of a deep model also has many live blocks of one line. Parameters, gradients, optimizer states
//! and workspaces never count as accumulated.
//!
//! (Over 400 lines: one pass over the stretch gives all figures.)

use std::collections::{BTreeMap, HashMap, HashSet};

use memctl_model::{Frame, Phase, Stack, StackId};

use crate::classes::Class;
use crate::lifetimes::BlockLife;

/// Minimum number of live blocks of a line before they may have come one by one.
const BLOCKS_MIN: u64 = 16;
/// Minimum ratio of a line's live blocks to its most live blocks in any earlier step.
const MORE_BLOCKS: u64 = 2;
/// Minimum ratio of a request to the line's largest earlier one, for a request that is larger.
const LARGER: f64 = 1.1;
/// The first steps create what stays, so their ends are no basis for growth between steps.
const WARM_UP: usize = 2;
/// Minimum share of the live memory, for memory that accumulated.
const SHARE_MIN: f64 = 0.2;

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// The last event of the step.
    pub event: u64,
    /// Its number.
    pub step: u64,
}

/// A request that failed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedBefore {
    /// Its event.
    pub event: u64,
    /// Its stack.
    pub stack: StackId,
    /// Its bytes, rounded.
    pub bytes: u64,
}

/// The events before a failed request.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'a> {
    /// The blocks that were live at some time.
    pub blocks: &'a [BlockLife],
    /// The class of each of them.
    pub classes: &'a [Class],
    /// The steps that ended, in order.
    pub step_ends: &'a [StepEnd],
    /// The requests that failed before, in order.
    pub failed: &'a [FailedBefore],
    /// The number of events before the request.
    pub at: u64,
    /// Whether a step is under way.
    pub in_step: bool,
}

/// The request that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedRequest<'a> {
    /// Its bytes, rounded.
    pub bytes: u64,
    /// Its stack.
    pub stack: &'a Stack,
}

/// The result of comparing the live blocks with the earlier steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Memory that accumulated, if it is a relevant part of the live memory.
    pub accumulated: Option<Accumulation>,
    /// How the requests for most of the memory that came on top compare with earlier ones; `None` without an earlier
    /// step.
    pub requests: Option<Requests>,
    /// Whether the line of the failed request requested as much in an earlier step.
    pub asked_before: bool,
    /// Whether a request of this line, at least as large, failed in an earlier step.
    pub failed_before: bool,
}

/// The requests for most of the memory that came on top, beside those of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// They are larger than all earlier ones of the same line.
    Larger,
    /// Their lines made no request in an earlier step.
    OfNewLines,
    /// Neither.
    Alike,
}

/// Since when memory accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// In each of several steps; this is the first of them.
    Steps(u64),
    /// Since this step ended.
    StepEnd(u64),
    /// Since the evaluation began; no step ended before it.
    Evaluation,
}

/// Memory that accumulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accumulation {
    /// Bytes beyond the need of the earlier steps.
    pub beyond_bytes: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// How many blocks.
    pub blocks: u64,
    /// Since when.
    pub since: Since,
    /// Whether they were allocated in an evaluation.
    pub in_evaluation: bool,
    /// Of these bytes, those that a backward pass would need; 0 if the blocks do not show a graph.
    pub saved_bytes: u64,
    /// The lines that allocated them, most bytes first.
    pub lines: Vec<Line>,
}

/// The blocks of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The line; `None` if no stack was recorded.
    pub site: Option<Frame>,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The size of each, if they are equally large.
    pub each_bytes: Option<u64>,
    /// Its most live blocks at once in the earlier steps.
    pub earlier_blocks: u64,
}

/// Compares the blocks that are live at a failed request with those of the steps before it.
#[must_use]
pub fn compare(stretch: &Stretch<'_>, failed: FailedRequest<'_>, resolve: &dyn Fn(StackId) -> Stack) -> Demand {
    let stacks = stretch.blocks.iter().map(|block| block.stack).chain(stretch.failed.iter().map(|failed| failed.stack));
    let lines = Lines::of(stacks, resolve);
    let earlier = Earlier::of(stretch, &lines);
    let evaluation = || stretch.live().filter(|(block, _)| is_eval(block)).map(|(block, _)| block.from).min();
    let start = match (earlier.ends.last(), stretch.in_step) {
        (Some(end), _) => Some((end.event, end.level_bytes, Since::StepEnd(end.step))),
        (None, false) => evaluation().map(|from| (from.saturating_sub(1), 0, Since::Evaluation)),
        (None, true) => None,
    };
    let Some((start, level_bytes, since)) = start else { return Demand::default() };
    let live_bytes = stretch.live().fold(0_u64, |sum, (block, _)| sum.saturating_add(block.bytes));
    let usual_bytes = earlier.usual_bytes();
    let own = || stretch.live().filter(|(block, _)| block.from > start);
    let before_bytes = match since {
        Since::Evaluation => live_bytes - own().fold(0, |sum, (block, _)| sum + block.bytes),
        _ => level_bytes,
    };
    let beyond_bytes = live_bytes.saturating_sub(before_bytes).saturating_sub(usual_bytes);
    let came = Group::of(own().filter(|(_, class)| may_accumulate(*class)), &lines, |line, group| {
        let known = earlier.most.get(&line).copied().unwrap_or(0);
        let is_first = known == 0 && (!stretch.in_step || group.has_eval);
        let many = group.blocks >= BLOCKS_MIN && group.blocks >= known.saturating_mul(MORE_BLOCKS);
        many && (known > 0 || is_first)
    });
    let came = came.accumulated(&lines, &earlier, since, beyond_bytes);
    let kept = earlier.kept(stretch, &lines);
    let rest_bytes = beyond_bytes.saturating_sub(came.beyond_bytes);
    let beyond = came.beyond_bytes.saturating_add(kept.beyond_bytes);
    let is_relevant = beyond as f64 >= SHARE_MIN * live_bytes.max(1) as f64 && beyond >= rest_bytes;
    let most = if came.beyond_bytes >= kept.beyond_bytes { came } else { kept };
    let asked_before = earlier.largest.get(&lines.named(failed.stack)).copied().unwrap_or(0);
    let is_larger = |bytes: u64, before: u64| before > 0 && bytes as f64 > LARGER * before as f64;
    let sum_of = |counts: &dyn Fn(u64, u64) -> bool| {
        let of_failed = if counts(failed.bytes, asked_before) { failed.bytes } else { 0 };
        own().fold(of_failed, |sum, (block, _)| {
            let before = earlier.largest.get(&lines.of_stack(block.stack)).copied().unwrap_or(0);
            if counts(block.requested_bytes, before) { sum.saturating_add(block.bytes) } else { sum }
        })
    };
    let (larger_bytes, new_bytes) = (sum_of(&is_larger), sum_of(&|_, before| before == 0));
    let came_bytes = live_bytes.saturating_sub(before_bytes).saturating_add(failed.bytes);
    let requests = match came_bytes / 2 {
        half if larger_bytes >= half => Requests::Larger,
        half if larger_bytes.saturating_add(new_bytes) >= half => Requests::OfNewLines,
        _ => Requests::Alike,
    };
    let own_line = lines.named(failed.stack);
    let has_failed = |other: &FailedBefore| lines.of_stack(other.stack) == own_line && other.bytes >= failed.bytes;
    let last = earlier.ends.last().map_or(0, |end| end.event);
    Demand {
        accumulated: (is_relevant && most.beyond_bytes > 0).then_some(most),
        requests: (!earlier.ends.is_empty()).then_some(requests),
        asked_before: asked_before > 0 && !is_larger(failed.bytes, asked_before),
        failed_before: stretch.failed.iter().take_while(|other| other.event <= last).any(has_failed),
    }
}

fn is_eval(block: &BlockLife) -> bool {
    block.from > 0 && block.birth.phase == Some(Phase::Eval)
}

/// Whether memory of a class accumulates if a program keeps it. The others belong to the model.
fn may_accumulate(class: Class) -> bool {
    matches!(class, Class::Activations | Class::Temporaries | Class::Unknown)
}

impl Stretch<'_> {
    fn live(&self) -> impl Iterator<Item = (&BlockLife, Class)> {
        let classed = self.blocks.iter().zip(self.classes.iter().copied());
        classed.filter(|(block, _)| block.from <= self.at && self.at < block.freed)
    }
}

/// The lines of the stretch's stacks, each by its number.
struct Lines {
    by_stack: HashMap<StackId, usize>,
    /// The stacks of a module's forward.
    forward: HashSet<StackId>,
    sites: Vec<Option<Frame>>,
}

impl Lines {
    fn of(stacks: impl Iterator<Item = StackId>, resolve: &dyn Fn(StackId) -> Stack) -> Self {
        let mut lines = Self { by_stack: HashMap::new(), forward: HashSet::new(), sites: Vec::new() };
        let mut numbers: HashMap<Option<Frame>, usize> = HashMap::new();
        for id in stacks {
            if lines.by_stack.contains_key(&id) {
                continue;
            }
            let stack = resolve(id);
            let site = stack.site().cloned();
            let number = *numbers.entry(site.clone()).or_insert_with(|| {
                lines.sites.push(site);
                lines.sites.len() - 1
            });
            lines.by_stack.insert(id, number);
            if stack.calls().iter().any(|frame| frame.plain_function() == "forward") {
                lines.forward.insert(id);
            }
        }
        lines
    }

    fn of_stack(&self, stack: StackId) -> usize {
        self.by_stack.get(&stack).copied().unwrap_or(usize::MAX)
    }

    fn named(&self, stack: &Stack) -> usize {
        self.sites.iter().position(|site| site.as_ref() == stack.site()).unwrap_or(usize::MAX)
    }
}

/// The steps that ended before the request.
struct Earlier {
    ends: Vec<End>,
    /// For each line, its most live blocks at once.
    most: HashMap<usize, u64>,
    /// For each line, its largest request.
    largest: HashMap<usize, u64>,
}

/// A step that ended.
#[derive(Clone, Copy)]
struct End {
    event: u64,
    step: u64,
    level_bytes: u64,
    /// Its peak above the level at its begin.
    need_bytes: u64,
}

impl Earlier {
    /// Goes through the stretch until the last step's end.
    fn of(stretch: &Stretch<'_>, lines: &Lines) -> Self {
        let mut earlier = Self { ends: Vec::new(), most: HashMap::new(), largest: HashMap::new() };
        let Some(last) = stretch.step_ends.last().map(|end| end.event.min(stretch.at)) else { return earlier };
        let mut changes: Vec<(u64, bool, usize)> = Vec::new();
        for (number, block) in stretch.blocks.iter().enumerate().filter(|(_, block)| block.from <= last) {
            changes.push((block.from, true, number));
            if block.freed <= last {
                changes.push((block.freed, false, number));
            }
        }
        changes.sort_unstable();
        let mut counts: HashMap<usize, u64> = HashMap::new();
        let (mut level, mut begun, mut peak) = (0_u64, 0_u64, 0_u64);
        let mut changes = changes.into_iter().peekable();
        for &StepEnd { event, step } in stretch.step_ends.iter().filter(|end| end.event <= stretch.at) {
            while let Some((_, comes, number)) = changes.next_if(|change| change.0 <= event) {
                let block = &stretch.blocks[number];
                let line = lines.of_stack(block.stack);
                let count = counts.entry(line).or_default();
                if !comes {
                    (*count, level) = (count.saturating_sub(1), level.saturating_sub(block.bytes));
                    continue;
                }
                (*count, level) = (*count + 1, level.saturating_add(block.bytes));
                peak = peak.max(level);
                let most = earlier.most.entry(line).or_default();
                *most = (*most).max(*count);
                let largest = earlier.largest.entry(line).or_default();
                *largest = (*largest).max(block.requested_bytes);
            }
            earlier.ends.push(End { event, step, level_bytes: level, need_bytes: peak.saturating_sub(begun) });
            (begun, peak) = (level, level);
        }
        // A request that failed is a request, too.
        for failed in stretch.failed.iter().filter(|failed| failed.event <= last) {
            let largest = earlier.largest.entry(lines.of_stack(failed.stack)).or_default();
            *largest = (*largest).max(failed.bytes);
        }
        earlier
    }

    /// The most that a step needed. The first ones count only if there are no others.
    fn usual_bytes(&self) -> u64 {
        let first = WARM_UP.min(self.ends.len().saturating_sub(1));
        self.ends.iter().skip(first).map(|end| end.need_bytes).max().unwrap_or(0)
    }

    /// Memory of earlier steps that is still live: what came between the lowest end of a step and the last one.
    fn kept(&self, stretch: &Stretch<'_>, lines: &Lines) -> Accumulation {
        let lowest = self.ends.iter().skip(WARM_UP).min_by_key(|end| (end.level_bytes, std::cmp::Reverse(end.event)));
        let (Some(lowest), Some(last)) = (lowest, self.ends.last()) else {
            return Group::default().accumulated(lines, self, Since::Evaluation, 0);
        };
        let between = |block: &BlockLife| block.from > lowest.event && block.from <= last.event;
        let live = || stretch.live().filter(|(block, class)| between(block) && may_accumulate(*class));
        let first = live().map(|(block, _)| block.from).min().unwrap_or(last.event);
        let step = self.ends.iter().find(|end| first <= end.event).map_or(last.step, |end| end.step);
        let grown_bytes = last.level_bytes.saturating_sub(lowest.level_bytes);
        Group::of(live(), lines, |_, _| true).accumulated(lines, self, Since::Steps(step), grown_bytes)
    }
}

/// The blocks of one line within a group.
#[derive(Default)]
struct LineBlocks {
    bytes: u64,
    blocks: u64,
    least_bytes: u64,
    most_bytes: u64,
    activation_bytes: u64,
    has_eval: bool,
    /// Its stacks within a module's forward.
    forward: HashSet<StackId>,
}

/// Live blocks by line.
#[derive(Default)]
struct Group {
    by_line: BTreeMap<usize, LineBlocks>,
}

impl Group {
    /// The blocks of those lines that `is_of` accepts.
    fn of<'b>(
        blocks: impl Iterator<Item = (&'b BlockLife, Class)>,
        lines: &Lines,
        is_of: impl Fn(usize, &LineBlocks) -> bool,
    ) -> Self {
        let mut by_line: BTreeMap<usize, LineBlocks> = BTreeMap::new();
        for (block, class) in blocks {
            let of = by_line.entry(lines.of_stack(block.stack)).or_default();
            of.least_bytes = if of.blocks == 0 { block.bytes } else { of.least_bytes.min(block.bytes) };
            of.most_bytes = of.most_bytes.max(block.bytes);
            of.bytes = of.bytes.saturating_add(block.bytes);
            of.blocks += 1;
            of.has_eval |= is_eval(block);
            if class == Class::Activations {
                of.activation_bytes = of.activation_bytes.saturating_add(block.bytes);
                if lines.forward.contains(&block.stack) {
                    of.forward.insert(block.stack);
                }
            }
        }
        by_line.retain(|&line, of| is_of(line, of));
        Self { by_line }
    }

    fn accumulated(self, lines: &Lines, earlier: &Earlier, since: Since, most_bytes: u64) -> Accumulation {
        let sum = |figure: fn(&LineBlocks) -> u64| self.by_line.values().map(figure).fold(0, u64::saturating_add);
        let (bytes, blocks) = (sum(|of| of.bytes), sum(|of| of.blocks));
        // Several results of a forward pass stay only if its graph does. A single one may be the kept output.
        let results: usize = self.by_line.values().map(|of| of.forward.len()).sum();
        let saved_bytes = if results > 1 { sum(|of| of.activation_bytes) } else { 0 };
        let in_evaluation = self.by_line.values().any(|of| of.has_eval);
        let mut of_lines: Vec<Line> = self
            .by_line
            .iter()
            .map(|(line, of)| Line {
                site: lines.sites.get(*line).cloned().flatten(),
                bytes: of.bytes,
                blocks: of.blocks,
                each_bytes: (of.least_bytes == of.most_bytes).then_some(of.most_bytes),
                earlier_blocks: earlier.most.get(line).copied().unwrap_or(0),
            })
            .collect();
        of_lines.sort_by_key(|line| std::cmp::Reverse(line.bytes));
        let beyond_bytes = bytes.min(most_bytes);
        Accumulation { beyond_bytes, bytes, blocks, since, in_evaluation, saved_bytes, lines: of_lines }
    }
}

#[cfg(test)]
mod tests;
