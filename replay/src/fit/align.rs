//! Aligns the requests of two recordings one by one: which request of one corresponds to which of the other.
//!
//! The method is global alignment with gaps (Needleman and Wunsch 1970) within a band around the diagonal, over
//! overlapping windows. Gaps are needed if a library chose another algorithm: one side then has requests that the
//! other lacks.
//!
//! Guarantees: the order is kept. Requests are paired only if they have the same stack and their bytes can belong to
//! the same request. Time is proportional to the requests. Pairs further apart than the band are not found.

use super::script::Wanted;

/// Number of requests in a window.
const WINDOW: usize = 2048;
/// Maximum distance of a pair from the window's diagonal.
const BAND: usize = 256;
/// Score of a pair with equal bytes, or with bytes in the ratio of the numbers.
const SURE: i32 = 8;
/// Score of a pair with bytes between these.
const MAYBE: i32 = 3;
/// Score of a request without a partner.
const GAP: i32 = -1;
const NEVER: i32 = i32::MIN / 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Stop,
    Pair,
    SkipA,
    SkipB,
}

/// For each request of `b` its partner in `a`. `ratio` is the number of `b` divided by that of `a`.
pub(super) fn align(a: &[Wanted], b: &[Wanted], ratio: f64) -> Vec<Option<u32>> {
    let mut partners = vec![None; b.len()];
    let (mut at_a, mut at_b) = (0, 0);
    while at_a < a.len() && at_b < b.len() {
        let (window_a, window_b) = (&a[at_a..], &b[at_b..]);
        let is_last = window_a.len() <= WINDOW && window_b.len() <= WINDOW;
        let (window_a, window_b) = (&window_a[..window_a.len().min(WINDOW)], &window_b[..window_b.len().min(WINDOW)]);
        let path = path(window_a, window_b, ratio);
        // Only the first half of the path is kept, because the part near the window's end may change once more
        // requests are seen.
        let kept = if is_last { path.len() } else { path.len().div_ceil(2) };
        let (mut used_a, mut used_b) = (0, 0);
        for step in &path[..kept] {
            if *step == Move::Pair {
                partners[at_b + used_b] = u32::try_from(at_a + used_a).ok();
            }
            used_a += usize::from(*step != Move::SkipB);
            used_b += usize::from(*step != Move::SkipA);
        }
        if kept == 0 {
            break;
        }
        (at_a, at_b) = (at_a + used_a, at_b + used_b);
    }
    partners
}

/// The best path through a window, from its begin to the end of either side.
fn path(a: &[Wanted], b: &[Wanted], ratio: f64) -> Vec<Move> {
    let width = 2 * BAND + 1;
    let mut moves = vec![Move::Stop; (a.len() + 1) * width];
    let mut above = vec![NEVER; width];
    let mut best = (NEVER, 0, 0);
    for row in 0..=a.len() {
        let mut scores = vec![NEVER; width];
        for place in 0..width {
            // The column is `row + place - BAND`, if it exists.
            let Some(column) = (row + place).checked_sub(BAND).filter(|&column| column <= b.len()) else { continue };
            let mut choice = if row == 0 && column == 0 { (0, Move::Stop) } else { (NEVER, Move::Stop) };
            let mut offer = |score: i32, step: Move| {
                if score > choice.0 {
                    choice = (score, step);
                }
            };
            if row > 0 && column > 0 {
                offer(above[place] + pairing(&a[row - 1], &b[column - 1], ratio), Move::Pair);
            }
            if row > 0 && place + 1 < width {
                offer(above[place + 1] + GAP, Move::SkipA);
            }
            if column > 0 && place > 0 {
                offer(scores[place - 1] + GAP, Move::SkipB);
            }
            scores[place] = choice.0;
            moves[row * width + place] = choice.1;
            if (row == a.len() || column == b.len()) && choice.0 > best.0 {
                best = (choice.0, row, place);
            }
        }
        above = scores;
    }
    let (_, mut row, mut place) = best;
    let mut path = Vec::new();
    loop {
        let step = moves[row * width + place];
        match step {
            Move::Stop => break,
            Move::Pair => row -= 1,
            Move::SkipA => (row, place) = (row - 1, place + 1),
            Move::SkipB => place -= 1,
        }
        path.push(step);
    }
    path.reverse();
    path
}

/// The score of a pair of requests.
fn pairing(a: &Wanted, b: &Wanted, ratio: f64) -> i32 {
    if a.key != b.key {
        return NEVER / 2;
    }
    if a.bytes == b.bytes {
        return SURE;
    }
    let grown = b.bytes as f64 / a.bytes.max(1) as f64;
    let is = |wanted: f64| (grown / wanted - 1.0).abs() < 1e-3;
    if is(ratio) || is(ratio * ratio) {
        SURE
    } else if grown > 1.0 && grown < ratio * ratio {
        MAYBE
    } else {
        // A workspace may shrink; tensors do not.
        2 * GAP + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(key: u64, bytes: u64) -> Wanted {
        Wanted { key, bytes, origin: 0 }
    }

    #[test]
    fn what_one_side_lacks_is_skipped() {
        let a: Vec<Wanted> = (0..5000).map(|at| wanted(at % 7, 1000 + at % 13)).collect();
        let mut b: Vec<Wanted> = a.iter().map(|it| wanted(it.key, it.bytes * 2)).collect();
        for at in [4000, 2500, 100] {
            b.insert(at, wanted(3, 1 << 20));
        }
        let partners = align(&a, &b, 2.0);
        let missing: Vec<usize> = (0..b.len()).filter(|&at| partners[at].is_none()).collect();
        assert_eq!(missing, [100, 2501, 4002]);
        assert_eq!((partners[99], partners[101], partners[5002]), (Some(99), Some(100), Some(4999)));
        assert_eq!(align(&a, &[], 2.0), []);
        assert_eq!(align(&[], &b[..1], 2.0), [None]);
        assert_eq!(align(&a[..1], &[wanted(1, 1)], 2.0), [None]);
    }
}
