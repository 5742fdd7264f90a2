//! By how many lines the lines of a file moved between two runs.
//!
//! An edit moves all lines below it by the same number. So a line whose memory changed is the line of another number in
//! the other run only if a line of its file that has the same memory in both runs moved as far. If none of the file's
//! lines has, it is not known how far they moved.
//!
//! Guarantees: exchanging the runs changes only the signs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Function, Line, number, weight};
use crate::format::text::file_name;

/// The names of a file in both runs.
type Files<'a> = (&'a str, &'a str);

/// How far lines moved, by file; see the module.
pub(super) struct Shifts<'a>(BTreeMap<Files<'a>, BTreeSet<i64>>);

impl<'a> Shifts<'a> {
    /// Finds them with the lines of each function that have the same memory in both runs, and that no other line of the
    /// function resembles.
    pub(super) fn of(functions: &[Function], before: &'a [Line<'a>], after: &'a [Line<'a>]) -> Self {
        let mut shifts: BTreeMap<Files<'a>, BTreeSet<i64>> = BTreeMap::new();
        for function in functions {
            let mut alike: BTreeMap<_, (Vec<&Line<'_>>, Vec<&Line<'_>>)> = BTreeMap::new();
            function.before.iter().for_each(|&at| alike.entry(content(&before[at])).or_default().0.push(&before[at]));
            function.after.iter().for_each(|&at| alike.entry(content(&after[at])).or_default().1.push(&after[at]));
            for (was, is) in alike.into_values() {
                let one = |was: &Line<'a>, is: &Line<'a>| Some((files(was, is)?, shift(was, is)?));
                let stayed = was.iter().flat_map(|was| is.iter().filter_map(|is| one(was, is))).filter(|it| it.1 == 0);
                let found: Vec<(Files<'a>, i64)> = match (was.as_slice(), is.as_slice()) {
                    (&[was], &[is]) => one(was, is).into_iter().collect(),
                    _ => stayed.collect(),
                };
                for (files, shift) in found {
                    shifts.entry(files).or_default().insert(shift);
                }
            }
        }
        Self(shifts)
    }

    /// Whether one line may have become the other one although its memory changed.
    pub(super) fn allow(&self, was: &Line<'_>, is: &Line<'_>) -> bool {
        let Some(shift) = shift(was, is) else { return true };
        files(was, is).and_then(|files| self.0.get(&files)).is_none_or(|known| known.contains(&shift))
    }
}

fn content<'a>(line: &Line<'a>) -> (&'a str, u64, u64, u64) {
    (line.class, line.live_bytes.unwrap_or(0), line.live_blocks, line.growth_bytes)
}

fn files<'a>(was: &Line<'a>, is: &Line<'a>) -> Option<Files<'a>> {
    let has_memory = weight(was) > 0 && weight(is) > 0;
    has_memory.then_some((file_name(&was.site?.file), file_name(&is.site?.file)))
}

fn shift(was: &Line<'_>, is: &Line<'_>) -> Option<i64> {
    Some(i64::from(number(is)?) - i64::from(number(was)?))
}
