//! Finds which line of one run is which line of another run, although lines move when a file is edited.
//!
//! The method is global alignment with gaps (Needleman and Wunsch 1970), within each function of a file. Moved lines keep
//! their order in nearly all changes of a program. So the lines of a function are two sequences, and the alignment
//! chosen is the one that leaves the least memory unexplained. Equal line numbers decide only between alignments that
//! are otherwise equal: a line that moved can get the number of another line. A line whose memory changed has no
//! partner of another number above a line that certainly did not move (see `unmoved.rs`).
//!
//! Guarantees: a line has at most one partner, in the same function and the same file (or a file of the same name, if
//! the other run is of another checkout), or in a function that was moved or renamed (see `moved.rs`). Partners of one
//! function have the same order in both runs. Two equal runs are aligned line by line, and exchanging the runs exchanges
//! the sides of the pairs. The time for a function with `n` and
//! `m` lines is proportional to `n` times `m`, of which each is at most [`ALIGNED_LINES_MAX`]. Of more lines, only the largest
//! are aligned; the others are partners if their line numbers are equal. Does not find lines that moved to another
//! function, if their old function still has lines.

mod moved;
mod unmoved;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use memctl_analysis::proof_limits::ALIGNED_LINES_MAX;

use self::unmoved::Unmoved;
use crate::Frame;
use crate::format::text::file_name;

/// The class of memory whose purpose is not known.
const UNKNOWN: &str = "unknown";

/// A line of the program with its memory in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Where it is; `None` for memory without a stack.
    pub site: Option<&'a Frame>,
    /// The class that has most of its bytes; empty if that is not known.
    pub class: &'a str,
    /// Live bytes at the peak; `None` if it was left out because it was small, and if peaks are not compared.
    pub live_bytes: Option<u64>,
    /// Live blocks at the peak.
    pub live_blocks: u64,
    /// Growth in bytes, in the same unit for all lines.
    pub growth_bytes: u64,
}

/// The most live bytes that a line which a run left out can have; 0 if it left out none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hidden {
    /// In the first run.
    pub before: u64,
    /// In the second run.
    pub after: u64,
}

/// Indices of two partners; `None` on the side that has none.
pub(crate) type Pair = (Option<usize>, Option<usize>);

/// What an alignment leaves unexplained. The first figure that differs decides.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Bytes.
    bytes: u64,
    /// Lines that changed, came or went.
    changed: u64,
    /// Lines without a partner.
    single: u64,
    /// Blocks.
    blocks: u64,
    /// Partners with different line numbers.
    moved: u64,
}

impl Cost {
    const fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            changed: self.changed.saturating_add(other.changed),
            single: self.single.saturating_add(other.single),
            blocks: self.blocks.saturating_add(other.blocks),
            moved: self.moved.saturating_add(other.moved),
        }
    }
}

/// The last step of an alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Start,
    Pair,
    SkipBefore,
    SkipAfter,
}

/// The lines of one function, by index.
#[derive(Default)]
struct Function {
    before: Vec<usize>,
    after: Vec<usize>,
}

/// Pairs the lines of two runs. Each line is in exactly one pair.
pub(crate) fn align(before: &[Line<'_>], after: &[Line<'_>], hidden: Hidden) -> Vec<Pair> {
    let mut pairs = Vec::with_capacity(before.len().max(after.len()));
    let functions = functions(before, after);
    let unmoved = Unmoved::of(&functions, before, after);
    for mut function in functions {
        function.before.sort_by_key(|&at| place(&before[at]));
        function.after.sort_by_key(|&at| place(&after[at]));
        let small = (without_small(before, &mut function.before), without_small(after, &mut function.after));
        let sides = Sides {
            before: function.before.iter().map(|&at| &before[at]).collect(),
            after: function.after.iter().map(|&at| &after[at]).collect(),
            hidden,
            unmoved: &unmoved,
        };
        let of = |(was, is): Pair| (was.map(|at| function.before[at]), is.map(|at| function.after[at]));
        pairs.extend(sides.aligned().into_iter().map(of));
        by_number(before, after, small, &mut pairs);
    }
    pairs
}

/// Groups lines by function and file. A path counts if both runs have it; otherwise the file's name counts, because the
/// folder is that of a checkout, which the other run may have elsewhere.
fn functions(before: &[Line<'_>], after: &[Line<'_>]) -> Vec<Function> {
    let whole = |line: &Line<'_>| line.site.map(|site| (site.function.clone(), site.file.clone()));
    let there: BTreeSet<_> = after.iter().map(whole).collect();
    let both: BTreeSet<_> = before.iter().map(whole).filter(|key| there.contains(key)).collect();
    let key = |line: &Line<'_>| match whole(line) {
        Some((function, file)) if !both.contains(&Some((function.clone(), file.clone()))) => {
            Some((function, file_name(&file).to_owned(), false))
        }
        known => known.map(|(function, file)| (function, file, true)),
    };
    let mut functions: BTreeMap<_, Function> = BTreeMap::new();
    before.iter().enumerate().for_each(|(at, line)| functions.entry(key(line)).or_default().before.push(at));
    after.iter().enumerate().for_each(|(at, line)| functions.entry(key(line)).or_default().after.push(at));
    moved::joined(functions.into_values().collect(), before, after)
}

/// Removes the smallest lines above [`ALIGNED_LINES_MAX`] from a sorted side and returns them.
fn without_small(lines: &[Line<'_>], side: &mut Vec<usize>) -> Vec<usize> {
    if side.len() <= ALIGNED_LINES_MAX {
        return Vec::new();
    }
    let mut by_size = side.clone();
    by_size.sort_by_key(|&at| Reverse((weight(&lines[at]), number(&lines[at]))));
    let small = by_size.split_off(ALIGNED_LINES_MAX);
    let is_small: BTreeSet<usize> = small.iter().copied().collect();
    side.retain(|at| !is_small.contains(at));
    small
}

/// Pairs lines that are not aligned by their numbers.
fn by_number(before: &[Line<'_>], after: &[Line<'_>], small: (Vec<usize>, Vec<usize>), pairs: &mut Vec<Pair>) {
    let mut numbered: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    small.1.into_iter().for_each(|at| numbered.entry(number(&after[at])).or_default().push(at));
    for at in small.0 {
        pairs.push((Some(at), numbered.get_mut(&number(&before[at])).and_then(Vec::pop)));
    }
    pairs.extend(numbered.into_values().flatten().map(|at| (None, Some(at))));
}

/// The lines of a function in both runs, in their order.
struct Sides<'a> {
    before: Vec<&'a Line<'a>>,
    after: Vec<&'a Line<'a>>,
    hidden: Hidden,
    unmoved: &'a Unmoved<'a>,
}

impl Sides<'_> {
    /// The pairs of the best alignment.
    fn aligned(&self) -> Vec<Pair> {
        let width = self.after.len() + 1;
        let steps = self.steps();
        let (mut row, mut column) = (self.before.len(), self.after.len());
        let mut pairs = Vec::with_capacity(row.max(column));
        loop {
            match steps[row * width + column] {
                Step::Start => break,
                Step::Pair => {
                    (row, column) = (row - 1, column - 1);
                    pairs.push((Some(row), Some(column)));
                }
                Step::SkipBefore => {
                    row -= 1;
                    pairs.push((Some(row), None));
                }
                Step::SkipAfter => {
                    column -= 1;
                    pairs.push((None, Some(column)));
                }
            }
        }
        pairs
    }

    /// For each number of lines of both sides, the last step of their best alignment.
    fn steps(&self) -> Vec<Step> {
        let width = self.after.len() + 1;
        let mut steps = vec![Step::Start; (self.before.len() + 1) * width];
        let mut above = vec![Cost::default(); width];
        for row in 0..=self.before.len() {
            let mut costs = vec![Cost::default(); width];
            for column in 0..width {
                let was = row.checked_sub(1).map(|at| self.before[at]);
                let is = column.checked_sub(1).map(|at| self.after[at]);
                let without_before = was.map(|was| above[column].and(gone(was, self.hidden.after)));
                let without_after = is.map(|is| costs[column - 1].and(gone(is, self.hidden.before)));
                let (skipped, step) = match (without_before.zip(was), without_after.zip(is)) {
                    (None, None) => continue,
                    (Some((cost, _)), None) => (cost, Step::SkipBefore),
                    (None, Some((cost, _))) => (cost, Step::SkipAfter),
                    // A tie is decided by what does not depend on the side.
                    (Some((one, was)), Some((other, is))) => match one.cmp(&other).then(content(is).cmp(&content(was)))
                    {
                        Ordering::Greater => (other, Step::SkipAfter),
                        Ordering::Less | Ordering::Equal => (one, Step::SkipBefore),
                    },
                };
                let partners = was.zip(is).and_then(|(was, is)| self.partners(was, is));
                let paired = partners.map(|cost| above[column - 1].and(cost));
                let (cost, step) = match paired.filter(|paired| *paired <= skipped) {
                    Some(paired) => (paired, Step::Pair),
                    None => (skipped, step),
                };
                (costs[column], steps[row * width + column]) = (cost, step);
            }
            above = costs;
        }
        steps
    }

    /// What two partners leave unexplained. Without partners, bytes that both lines have would count twice. They count
    /// one and a half times if the classes differ: then the lines are partners only if no line fits better. `None` if
    /// they cannot be partners.
    fn partners(&self, was: &Line<'_>, is: &Line<'_>) -> Option<Cost> {
        let (live, shared) = match (was.live_bytes, is.live_bytes) {
            (Some(was), Some(is)) => (was.abs_diff(is), was.min(is)),
            (Some(was), None) => (seen(was, self.hidden.after), 0),
            (None, Some(is)) => (seen(is, self.hidden.before), 0),
            (None, None) => (0, 0),
        };
        let is_known = |class: &str| !class.is_empty() && class != UNKNOWN;
        let differs = is_known(was.class) && is_known(is.class) && was.class != is.class;
        let other = if differs { shared.saturating_add(shared / 2) } else { 0 };
        let bytes = live.saturating_add(was.growth_bytes.abs_diff(is.growth_bytes)).saturating_add(other);
        let blocks = was.live_blocks.abs_diff(is.live_blocks);
        let cost = Cost {
            bytes,
            changed: u64::from(bytes > 0 || differs),
            single: 0,
            blocks,
            moved: u64::from(number(was) != number(is)),
        };
        (bytes == 0 || self.unmoved.allow(was, is)).then_some(cost)
    }
}

/// What a line without a partner leaves unexplained.
fn gone(line: &Line<'_>, hidden: u64) -> Cost {
    let bytes = seen(line.live_bytes.unwrap_or(0), hidden).saturating_add(line.growth_bytes);
    Cost { bytes, changed: u64::from(bytes > 0), single: 1, ..Cost::default() }
}

/// The bytes that the other run would show: a small line may be among those that it left out.
const fn seen(bytes: u64, hidden: u64) -> u64 {
    if bytes <= hidden { 0 } else { bytes }
}

fn weight(line: &Line<'_>) -> u64 {
    line.live_bytes.unwrap_or(0).saturating_add(line.growth_bytes)
}

fn number(line: &Line<'_>) -> Option<u32> {
    line.site.and_then(|site| site.line)
}

/// The order of lines. Files of one name keep their order in another checkout, because only the first folders differ.
fn place<'a>(line: &Line<'a>) -> Option<(&'a str, Option<u32>)> {
    line.site.map(|site| (site.file.as_str(), site.line))
}

/// An order of lines by what they are, whichever run has them.
fn content<'a>(line: &Line<'a>) -> (Option<u32>, u64, u64, &'a str) {
    (number(line), weight(line), line.live_blocks, line.class)
}

#[cfg(test)]
mod tests;
