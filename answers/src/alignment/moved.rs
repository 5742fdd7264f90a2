//! Joins functions that only one run has, if one is the other after a refactoring: moved to another file, or renamed.
//!
//! A function was moved if exactly one of each run has its name. It was renamed if it lies in a file of the same name
//! and has about the same memory. The pairs that differ least are taken first.
//!
//! Guarantees: a function is joined with at most one other. Exchanging the runs exchanges the sides. Renamed functions are
//! looked for only if neither run has more than [`ALIGNED_LINES_MAX`] functions of its own, because each is compared with
//! each.

use std::collections::{BTreeMap, BTreeSet};

use memctl_analysis::proof_limits::{ALIGNED_LINES_MAX, is_about_equal};

use super::{Function, Line, weight};
use crate::Frame;
use crate::format::text::file_name;

/// Joins functions; see the module.
pub(super) fn joined(mut functions: Vec<Function>, before: &[Line<'_>], after: &[Line<'_>]) -> Vec<Function> {
    let frame = |of: &Function| {
        let line = of.before.first().map(|&at| &before[at]).or_else(|| of.after.first().map(|&at| &after[at]))?;
        line.site.cloned()
    };
    let frames: Vec<Option<Frame>> = functions.iter().map(frame).collect();
    let (moved, renamed) = {
        let sides = Alone::of(&functions, &frames);
        let moved = sides.of_one_name();
        let renamed = sides.without(&moved).of_one_file(|was, is| {
            let sum =
                |lines: &[Line<'_>], of: &[usize]| of.iter().map(|&at| weight(&lines[at])).fold(0, u64::saturating_add);
            (sum(before, &functions[was].before), sum(after, &functions[is].after))
        });
        (moved, renamed)
    };
    for (was, is) in moved.into_iter().chain(renamed) {
        functions[was].after = std::mem::take(&mut functions[is].after);
    }
    functions.retain(|function| !function.before.is_empty() || !function.after.is_empty());
    functions
}

/// The functions that only one run has, by index.
struct Alone<'a> {
    frames: &'a [Option<Frame>],
    before: Vec<usize>,
    after: Vec<usize>,
}

impl<'a> Alone<'a> {
    fn of(functions: &[Function], frames: &'a [Option<Frame>]) -> Self {
        let has_frame = |at: &usize| frames[*at].is_some();
        let all = || (0..functions.len()).filter(has_frame);
        Self {
            frames,
            before: all().filter(|&at| functions[at].after.is_empty()).collect(),
            after: all().filter(|&at| functions[at].before.is_empty()).collect(),
        }
    }

    fn without(self, pairs: &[(usize, usize)]) -> Self {
        let joined: BTreeSet<usize> = pairs.iter().flat_map(|&(was, is)| [was, is]).collect();
        let rest = |of: Vec<usize>| of.into_iter().filter(|at| !joined.contains(at)).collect();
        Self { frames: self.frames, before: rest(self.before), after: rest(self.after) }
    }

    fn function(&self, at: usize) -> &'a str {
        self.frames[at].as_ref().map_or("", |frame| &frame.function)
    }

    fn file(&self, at: usize) -> &'a str {
        self.frames[at].as_ref().map_or("", |frame| file_name(&frame.file))
    }

    /// Pairs of functions whose name each run has once.
    fn of_one_name(&self) -> Vec<(usize, usize)> {
        let mut names: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        self.before.iter().for_each(|&at| names.entry(self.function(at)).or_default().0.push(at));
        self.after.iter().for_each(|&at| names.entry(self.function(at)).or_default().1.push(at));
        let pair = |sides: (Vec<usize>, Vec<usize>)| match (sides.0.as_slice(), sides.1.as_slice()) {
            (&[was], &[is]) => Some((was, is)),
            _ => None,
        };
        names.into_values().filter_map(pair).collect()
    }

    /// Pairs of functions in files of one name with about equal memory, those that differ least first.
    fn of_one_file(&self, bytes: impl Fn(usize, usize) -> (u64, u64)) -> Vec<(usize, usize)> {
        if self.before.len().max(self.after.len()) > ALIGNED_LINES_MAX {
            return Vec::new();
        }
        let mut alike = Vec::new();
        for &was in &self.before {
            for &is in self.after.iter().filter(|&&is| self.file(is) == self.file(was)) {
                let (one, other) = bytes(was, is);
                if one.min(other) > 0 && is_about_equal(one, other) {
                    let names = (self.function(was), self.function(is));
                    alike.push((one.abs_diff(other), names.0.min(names.1), names.0.max(names.1), was, is));
                }
            }
        }
        alike.sort_unstable();
        let mut joined = BTreeSet::new();
        let mut pairs = Vec::new();
        for (_, _, _, was, is) in alike {
            // (A function is alone on one side only, so its index is that of one side.)
            if !joined.contains(&was) && !joined.contains(&is) {
                joined.extend([was, is]);
                pairs.push((was, is));
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Hidden, align};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn frame(file: &str, function: &str, line: u32) -> Frame {
        Frame { function: function.into(), file: format!("/repo/{file}"), line: Some(line) }
    }

    /// The pairs of lines with a partner.
    fn partners(before: &[(Frame, u64)], after: &[(Frame, u64)]) -> Vec<(usize, usize)> {
        let line = |(site, bytes): &'_ (Frame, u64)| (site.clone(), *bytes);
        let (before, after): (Vec<_>, Vec<_>) = (before.iter().map(line).collect(), after.iter().map(line).collect());
        let pairs = align(&lines(&before), &lines(&after), Hidden::default());
        let mut pairs: Vec<_> = pairs.into_iter().filter_map(|(was, is)| Some((was?, is?))).collect();
        pairs.sort_unstable();
        pairs
    }

    fn lines(of: &[(Frame, u64)]) -> Vec<Line<'_>> {
        of.iter().map(|(site, bytes)| Line { site: Some(site), live_bytes: Some(*bytes), ..Line::default() }).collect()
    }

    #[test]
    fn a_function_in_another_file_keeps_its_lines() {
        let before = [
            (frame("model.py", "Block.forward", 13), 93 * MIB),
            (frame("model.py", "Block.forward", 15), 2 * MIB),
            (frame("model.py", "Model.forward", 27), 20 * MIB),
        ];
        let after = [
            (frame("blocks.py", "Block.forward", 23), 93 * MIB),
            (frame("blocks.py", "Block.forward", 25), 9 * MIB),
            (frame("model.py", "Model.forward", 12), 20 * MIB),
        ];
        assert_eq!(partners(&before, &after), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(partners(&after, &before), [(0, 0), (1, 1), (2, 2)]);
        // Two functions of one name: it is unknown which of them was moved.
        let twice = [after[0].clone(), (frame("other.py", "Block.forward", 3), MIB)];
        assert_eq!(partners(&before[..1], &twice), []);
    }

    #[test]
    fn a_renamed_function_has_about_the_same_memory() {
        let before =
            [(frame("trainer.py", "Trainer.step", 25), 24 * MIB), (frame("trainer.py", "Trainer.init", 9), MIB)];
        let after = [
            (frame("trainer.py", "Trainer.init", 9), MIB),
            (frame("trainer.py", "Trainer.train_step", 25), 25 * MIB),
            (frame("trainer.py", "Trainer.log", 40), 8 * MIB),
        ];
        assert_eq!(partners(&before, &after), [(0, 1), (1, 0)]);
        assert_eq!(partners(&after, &before), [(0, 1), (1, 0)]);
        let larger = [(frame("trainer.py", "Trainer.train_step", 25), 48 * MIB)];
        assert_eq!(partners(&before[..1], &larger), [], "another function");
        let elsewhere = [(frame("loop.py", "Trainer.train_step", 25), 24 * MIB)];
        assert_eq!(partners(&before[..1], &elsewhere), []);
    }
}
