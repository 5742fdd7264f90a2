//! Finds which site of one run is which site of another run.
//!
//! Guarantees: a site has at most one partner. Sites of the same file, function and line are partners, also if the file
//! is in another folder. Within a function whose lines moved, sites with the same bytes and blocks are partners, in the
//! order of their lines; if that leaves equally many on both sides, these are partners in the same order.

use std::collections::BTreeMap;

use crate::format::text::file_name;
use crate::profile::PeakSite;

/// Indices of two partners; `None` on the side that has none.
pub(super) type Pair = (Option<usize>, Option<usize>);

/// The sites of one function that have no partner yet, by line.
#[derive(Default)]
struct Open {
    before: Vec<usize>,
    after: Vec<usize>,
}

/// Pairs the sites of two runs.
pub(super) fn pair(before: &[PeakSite], after: &[PeakSite]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let (mut left, mut right): (Vec<usize>, Vec<usize>) = ((0..before.len()).collect(), (0..after.len()).collect());
    // (The folder is that of a checkout, which another run may have elsewhere.)
    for file in [whole as fn(&str) -> &str, file_name] {
        let key = |site| (function(site, file), line(site));
        let mut by_key: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        right.iter().rev().for_each(|&other| by_key.entry(key(&after[other])).or_default().push(other));
        left.retain(|&at| match by_key.get_mut(&key(&before[at])).and_then(Vec::pop) {
            Some(other) => {
                pairs.push((Some(at), Some(other)));
                false
            }
            None => true,
        });
        right = by_key.into_values().flatten().collect();
    }
    let mut functions = BTreeMap::<_, Open>::new();
    left.into_iter().for_each(|at| functions.entry(function(&before[at], file_name)).or_default().before.push(at));
    right.into_iter().for_each(|at| functions.entry(function(&after[at], file_name)).or_default().after.push(at));
    for open in functions.into_values() {
        within_function(before, after, open, &mut pairs);
    }
    pairs
}

/// Pairs the sites of a function whose lines moved.
fn within_function(before: &[PeakSite], after: &[PeakSite], mut open: Open, pairs: &mut Vec<Pair>) {
    open.before.sort_by_key(|&at| line(&before[at]));
    open.after.sort_by_key(|&at| line(&after[at]));
    let same =
        |one: &PeakSite, other: &PeakSite| one.live_bytes == other.live_bytes && one.live_blocks == other.live_blocks;
    open.before.retain(|&at| match open.after.iter().position(|&other| same(&before[at], &after[other])) {
        Some(place) => {
            pairs.push((Some(at), Some(open.after.remove(place))));
            false
        }
        None => true,
    });
    if open.before.len() == open.after.len() {
        pairs.extend(open.before.iter().zip(&open.after).map(|(&at, &other)| (Some(at), Some(other))));
        return;
    }
    pairs.extend(open.before.iter().map(|&at| (Some(at), None)));
    pairs.extend(open.after.iter().map(|&other| (None, Some(other))));
}

/// The function of a site and its file.
fn function(site: &PeakSite, file: fn(&str) -> &str) -> Option<(&str, &str)> {
    let frame = site.site.as_ref()?;
    Some((&frame.function, file(&frame.file)))
}

fn whole(path: &str) -> &str {
    path
}

fn line(site: &PeakSite) -> Option<u32> {
    site.site.as_ref()?.line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    fn site(function: &str, line: u32, live_bytes: u64) -> PeakSite {
        let site = Frame { function: function.into(), file: "/home/a/train.py".into(), line: Some(line) };
        PeakSite { site: Some(site), live_bytes, live_blocks: 1, ..PeakSite::default() }
    }

    fn sorted(before: &[PeakSite], after: &[PeakSite]) -> Vec<Pair> {
        let mut pairs = pair(before, after);
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn the_same_line_is_the_same_site_in_another_checkout() {
        let before = [site("step", 7, 1), site("step", 9, 2)];
        let mut after = [site("step", 9, 5), site("step", 7, 3)];
        for site in &mut after {
            site.site.as_mut().unwrap().file = "/ci/build/train.py".into();
        }
        assert_eq!(sorted(&before, &after), [(Some(0), Some(1)), (Some(1), Some(0))]);
    }

    #[test]
    fn lines_that_moved_are_recognised_by_their_bytes_and_then_by_their_order() {
        let before = [site("step", 7, 100), site("step", 8, 200), site("step", 9, 300)];
        // Ten lines were added above; the second site became larger.
        let after = [site("step", 17, 100), site("step", 18, 250), site("step", 19, 300)];
        assert_eq!(sorted(&before, &after), [(Some(0), Some(0)), (Some(1), Some(1)), (Some(2), Some(2))]);
    }

    #[test]
    fn what_came_and_what_went_have_no_partner() {
        let before = [site("step", 7, 100), site("load", 1, 50)];
        let after = [site("step", 17, 100), site("step", 18, 250), site("evaluate", 30, 9)];
        let wanted = [(None, Some(1)), (None, Some(2)), (Some(0), Some(0)), (Some(1), None)];
        assert_eq!(sorted(&before, &after), wanted);
        assert_eq!(sorted(&[], &[]), []);
    }

    #[test]
    fn sites_without_a_stack_are_one_another() {
        let unknown = |live_bytes| PeakSite { live_bytes, ..PeakSite::default() };
        assert_eq!(sorted(&[unknown(5)], &[unknown(9)]), [(Some(0), Some(0))]);
    }
}
