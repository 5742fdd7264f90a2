//! Properties of the alignment, on generated functions.

use super::*;

const KIB: u64 = 1 << 10;
const PLANTED: u64 = 2 << 20;
const CLASSES: [&str; 4] = ["activations", "gradients", "optimizer_state", UNKNOWN];

/// A line of one run, with its own place.
#[derive(Clone, Debug, PartialEq)]
struct Own {
    site: Frame,
    class: &'static str,
    bytes: u64,
    blocks: u64,
}

impl Own {
    fn line(&self) -> Line<'_> {
        let Self { site, class, bytes, blocks } = self;
        Line { site: Some(site), class, live_bytes: Some(*bytes), live_blocks: *blocks, growth_bytes: 0 }
    }
}

fn own(number: u32, class: &'static str, bytes: u64) -> Own {
    let site = Frame { function: "step".into(), file: "/home/a/train.py".into(), line: Some(number) };
    Own { site, class, bytes, blocks: 1 }
}

fn moved(line: &Own, by: u32) -> Own {
    let site = Frame { line: line.site.line.map(|line| line + by), ..line.site.clone() };
    Own { site, ..line.clone() }
}

fn view(lines: &[Own]) -> Vec<Line<'_>> {
    lines.iter().map(Own::line).collect()
}

fn pairs(before: &[Own], after: &[Own]) -> Vec<Pair> {
    hiding(before, after, Hidden::default())
}

fn hiding(before: &[Own], after: &[Own], hidden: Hidden) -> Vec<Pair> {
    let mut pairs = align(&view(before), &view(after), hidden);
    pairs.sort_unstable();
    pairs
}

/// The line in the first run, the line in the second run, and the change in bytes, of each pair that differs.
type Change = (Option<u32>, Option<u32>, i64);

fn changes(before: &[Own], after: &[Own]) -> Vec<Change> {
    let of = |at: Option<usize>, lines: &[Own]| at.map(|at| (lines[at].site.line.unwrap(), lines[at].bytes as i64));
    let change = |(was, is): Pair| {
        let (was, is) = (of(was, before), of(is, after));
        (was.map(|was| was.0), is.map(|is| is.0), is.map_or(0, |is| is.1) - was.map_or(0, |was| was.1))
    };
    pairs(before, after).into_iter().map(change).filter(|change| change.2 != 0).collect()
}

/// Pseudo-random numbers (Knuth's MMIX), the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// A function with up to eight lines, of which many have the same bytes.
    fn function(&mut self) -> Vec<Own> {
        let mut number = 10 + self.below(20) as u32;
        let mut lines = Vec::new();
        for _ in 0..=self.below(8) {
            number += 1 + self.below(3) as u32;
            let class = CLASSES[self.below(4) as usize];
            lines.push(own(number, class, (1 + self.below(6)) * 100 * KIB));
        }
        lines
    }
}

const ROUNDS: usize = 500;

#[test]
fn a_run_is_aligned_with_itself_line_by_line() {
    let mut numbers = Numbers(1);
    for _ in 0..ROUNDS {
        let lines = numbers.function();
        let wanted: Vec<Pair> = (0..lines.len()).map(|at| (Some(at), Some(at))).collect();
        assert_eq!(pairs(&lines, &lines), wanted, "{lines:?}");
        // Also if each side has left out small lines.
        let hidden = Hidden { before: 100 * KIB, after: 100 * KIB };
        assert_eq!(hiding(&lines, &lines, hidden), wanted, "{lines:?}");
    }
}

#[test]
fn lines_that_moved_below_some_line_are_no_change() {
    let mut numbers = Numbers(2);
    for _ in 0..ROUNDS {
        let before = numbers.function();
        let (first, by) = (numbers.below(before.len() as u64) as usize, 1 + numbers.below(9) as u32);
        let after: Vec<Own> =
            before.iter().enumerate().map(|(at, line)| moved(line, if at >= first { by } else { 0 })).collect();
        assert_eq!(changes(&before, &after), [], "{before:?} {after:?}");
        assert_eq!(changes(&after, &before), [], "{before:?} {after:?}");
    }
}

#[test]
fn what_is_planted_at_a_line_is_a_change_of_that_line_alone() {
    let mut numbers = Numbers(3);
    for round in 0..ROUNDS {
        let before = numbers.function();
        let at = numbers.below(before.len() as u64) as usize;
        let by = if round % 2 == 0 { 0 } else { 1 + numbers.below(9) as u32 };
        let mut after: Vec<Own> = before.iter().map(|line| moved(line, by)).collect();
        after[at].bytes += PLANTED;
        let (was, is) = (before[at].site.line, after[at].site.line);
        assert_eq!(changes(&before, &after), [(was, is, PLANTED as i64)], "{before:?} {after:?}");
        assert_eq!(changes(&after, &before), [(is, was, -(PLANTED as i64))], "{before:?} {after:?}");
    }
}

#[test]
fn a_line_that_is_added_or_removed_is_the_only_change() {
    let mut numbers = Numbers(4);
    for _ in 0..ROUNDS {
        let before = numbers.function();
        let at = numbers.below(before.len() as u64 + 1) as usize;
        let number = if at == 0 { 5 } else { before[at - 1].site.line.unwrap() + 1 };
        // The lines below it move, so one of them can get the number that another line had.
        let mut after: Vec<Own> =
            before.iter().enumerate().map(|(place, line)| moved(line, u32::from(place >= at))).collect();
        after.insert(at, own(number, "temporaries", PLANTED));
        assert_eq!(changes(&before, &after), [(None, Some(number), PLANTED as i64)], "{before:?} {after:?}");
        assert_eq!(changes(&after, &before), [(Some(number), None, -(PLANTED as i64))], "{before:?} {after:?}");
    }
}

#[test]
fn an_exchange_of_the_runs_exchanges_the_sides() {
    let mut numbers = Numbers(5);
    for _ in 0..ROUNDS {
        let (before, after) = (numbers.function(), numbers.function());
        let hidden = Hidden { before: 200 * KIB, after: 0 };
        let mut back: Vec<Pair> = hiding(&after, &before, Hidden { before: 0, after: 200 * KIB })
            .into_iter()
            .map(|(was, is)| (is, was))
            .collect();
        back.sort_unstable();
        assert_eq!(hiding(&before, &after, hidden), back, "{before:?} {after:?}");
        let of = |side: fn(&Pair) -> Option<usize>| back.iter().filter_map(side).collect::<Vec<_>>();
        let (mut left, mut right) = (of(|pair| pair.0), of(|pair| pair.1));
        left.sort_unstable();
        right.sort_unstable();
        assert!(left.into_iter().eq(0..before.len()) && right.into_iter().eq(0..after.len()), "each line once");
    }
}

#[test]
fn a_line_that_gets_the_number_of_another_one_is_not_taken_for_it() {
    // Three lines of comment move the loss from 25 to 28, where the optimizer's step was.
    let before = [own(25, "activations", KIB), own(28, "optimizer_state", 1189 * KIB)];
    let after = [own(28, "activations", KIB), own(31, "optimizer_state", 1189 * KIB)];
    assert_eq!(changes(&before, &after), []);
    // The same if the first run left out the loss as small.
    let hidden = Hidden { before: 76 * KIB, after: 0 };
    assert_eq!(hiding(&before[1..], &after, hidden), [(None, Some(0)), (Some(0), Some(1))]);
    // The larger line was removed: the small one is no rest of it.
    assert_eq!(hiding(&before[1..], &after[..1], hidden), [(None, Some(0)), (Some(0), None)]);
}

#[test]
fn equal_line_numbers_decide_between_alignments_that_are_otherwise_equal() {
    let line = |number| own(number, "activations", 100 * KIB);
    assert_eq!(changes(&[line(10), line(12)], &[line(10), line(11), line(12)]), [(None, Some(11), 100 << 10)]);
    assert_eq!(changes(&[line(10), line(12)], &[line(10)]), [(Some(12), None, -(100 << 10))]);
    // Lines that grow alike, such as with a larger batch, stay the same lines.
    let grown = |lines: &[Own]| lines.iter().map(|one| Own { bytes: one.bytes * 4, ..one.clone() }).collect::<Vec<_>>();
    let before = [own(10, "activations", 100), own(11, "activations", 400), own(12, "activations", 1600)];
    let wanted: Vec<Pair> = (0..3).map(|at| (Some(at), Some(at))).collect();
    assert_eq!(pairs(&before, &grown(&before)), wanted);
}

#[test]
fn another_class_is_the_same_line_only_if_no_better_one_is_there() {
    let flipped = [own(13, "gradients", 100 * KIB)];
    assert_eq!(pairs(&[own(10, "activations", 100 * KIB)], &flipped), [(Some(0), Some(0))]);
    let two = [own(13, "gradients", 100 * KIB), own(14, "activations", 100 * KIB)];
    assert_eq!(pairs(&[own(10, "activations", 100 * KIB)], &two), [(None, Some(0)), (Some(0), Some(1))]);
    assert_eq!(pairs(&[own(13, UNKNOWN, 100 * KIB)], &two), [(None, Some(1)), (Some(0), Some(0))]);
}

#[test]
fn functions_and_files_are_kept_apart_and_another_checkout_is_recognised() {
    let placed = |function: &str, file: &str, number| {
        let site = Frame { function: function.into(), file: file.into(), line: Some(number) };
        Own { site, class: "activations", bytes: 5, blocks: 1 }
    };
    let before = [placed("f", "/a/x/net.py", 3), placed("f", "/a/y/net.py", 3), placed("g", "/a/x/net.py", 3)];
    // (`h` has too much memory to be `g` by another name.)
    let other = Own { bytes: 50, ..placed("h", "/ci/x/net.py", 3) };
    let after = [placed("f", "/ci/x/net.py", 3), placed("f", "/ci/y/net.py", 3), other];
    let wanted = [(None, Some(2)), (Some(0), Some(0)), (Some(1), Some(1)), (Some(2), None)];
    assert_eq!(pairs(&before, &after), wanted);
    let unknown = |bytes| Line { live_bytes: Some(bytes), ..Line::default() };
    assert_eq!(align(&[unknown(5)], &[unknown(9)], Hidden::default()), [(Some(0), Some(0))]);
    assert_eq!(align(&[], &[], Hidden::default()), []);
}

#[test]
fn a_line_that_only_one_run_reaches_is_not_a_line_that_moved() {
    // A flag decides which of two lines allocates, and the file is the same.
    let before = [own(4, "activations", 32 * PLANTED), own(14, "parameters", PLANTED)];
    let after = [own(6, "activations", 3 * PLANTED), own(14, "parameters", PLANTED)];
    let (more, less) = (3 * PLANTED as i64, -32 * PLANTED as i64);
    assert_eq!(changes(&before, &after), [(None, Some(6), more), (Some(4), None, less)]);
    // Two lines were added above both, so nothing shows that the first one did not move.
    let moved = [after[0].clone(), moved(&after[1], 2)];
    assert_eq!(changes(&before, &moved), [(Some(4), Some(6), more + less)]);
}

#[test]
fn growth_is_content_too() {
    let frames: Vec<Frame> = (0..4).map(|at| own(20 + at, "", 0).site).collect();
    let grows = |at: usize, growth_bytes| Line { site: Some(&frames[at]), growth_bytes, ..Line::default() };
    let (before, after) = ([grows(0, 64), grows(1, 512)], [grows(1, 64), grows(2, 700), grows(3, 512)]);
    let mut pairs = align(&before, &after, Hidden::default());
    pairs.sort_unstable();
    assert_eq!(pairs, [(None, Some(1)), (Some(0), Some(0)), (Some(1), Some(2))]);
}

#[test]
fn of_too_many_lines_the_small_ones_are_partners_by_number() {
    let bytes = |at: u32| KIB * (1 + u64::from(at % 2) * 9);
    let before: Vec<Own> = (0..2048_u32).map(|at| own(at, "activations", bytes(at))).collect();
    let wanted: Vec<Pair> = (0..before.len()).map(|at| (Some(at), Some(at))).collect();
    assert_eq!(pairs(&before, &before), wanted);
    // The large ones are aligned although they moved, and a small one has a partner only at its own number.
    let after: Vec<Own> = before.iter().map(|line| moved(line, 2048)).collect();
    let paired = pairs(&before, &after).into_iter().filter(|(was, is)| was.is_some() && was == is).count();
    assert_eq!(paired, ALIGNED_LINES_MAX);
}
