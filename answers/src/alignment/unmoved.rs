//! The lines of a file that certainly did not move between two runs.
//!
//! An edit moves all lines below it. So a line that has the same number and the same memory in both runs, which no other
//! line of its function resembles, shows that the lines above it did not move either, unless others replaced them. A
//! line above it whose memory changed has its own number in the other run, or is not there: a flag may decide which
//! lines of a program allocate.
//!
//! Guarantees: exchanging the runs changes nothing.

use std::collections::BTreeMap;

use super::{Function, Line, number, weight};
use crate::format::text::file_name;

/// The names of a file in both runs.
type Files<'a> = (&'a str, &'a str);

/// The last line of each file that did not move.
pub(super) struct Unmoved<'a>(BTreeMap<Files<'a>, u32>);

impl<'a> Unmoved<'a> {
    pub(super) fn of(functions: &[Function], before: &'a [Line<'a>], after: &'a [Line<'a>]) -> Self {
        let mut last: BTreeMap<Files<'a>, u32> = BTreeMap::new();
        for function in functions {
            let mut alike: BTreeMap<_, (Vec<&Line<'_>>, Vec<&Line<'_>>)> = BTreeMap::new();
            function.before.iter().for_each(|&at| alike.entry(content(&before[at])).or_default().0.push(&before[at]));
            function.after.iter().for_each(|&at| alike.entry(content(&after[at])).or_default().1.push(&after[at]));
            for (was, is) in alike.into_values() {
                let (&[was], &[is]) = (was.as_slice(), is.as_slice()) else { continue };
                let stayed = number(was).filter(|line| number(is) == Some(*line) && weight(was) > 0);
                if let Some((files, line)) = files(was, is).zip(stayed) {
                    let known = last.entry(files).or_default();
                    *known = line.max(*known);
                }
            }
        }
        Self(last)
    }

    /// Whether one line may have become the other one although its memory changed.
    pub(super) fn allow(&self, was: &Line<'_>, is: &Line<'_>) -> bool {
        let is_above = |last: &u32| number(was).max(number(is)) < Some(*last);
        number(was) == number(is) || !files(was, is).and_then(|files| self.0.get(&files)).is_some_and(is_above)
    }
}

fn content<'a>(line: &Line<'a>) -> (&'a str, u64, u64, u64) {
    (line.class, line.live_bytes.unwrap_or(0), line.live_blocks, line.growth_bytes)
}

fn files<'a>(was: &Line<'a>, is: &Line<'a>) -> Option<Files<'a>> {
    Some((file_name(&was.site?.file), file_name(&is.site?.file)))
}
