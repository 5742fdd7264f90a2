//! Teeth: growth within an epoch that falls back with the next epoch. A chain of graphs that ends with the epoch grows
//! this way.
//!
//! Guarantees: the last complete tooth is returned, once one has fallen back. An epoch with a fall inside it has no
//! tooth.

use super::growth::Growth;
use super::history::Boundaries;
use super::series::Point;

/// Minimum number of rises within an epoch for a tooth; any two-step pipeline has fewer.
const TOOTH_RISES_MIN: u32 = 4;
/// Minimum number of consecutive teeth between falls, if epochs are not marked.
const TEETH_FOUND: u32 = 3;

/// Growth within an epoch that fell back with the next epoch.
pub(super) struct Tooth {
    pub growth: Growth,
    /// Number of blocks that it gained.
    pub blocks: u32,
    /// Number of consecutive teeth.
    pub in_a_row: u32,
    /// The boundary of the first tooth's first rise.
    pub since: Point,
}

/// The last complete tooth, once one has fallen back.
pub(super) fn toothed(points: &[Point], steps: &Boundaries) -> Option<Tooth> {
    let (epochs, teeth_min) = match steps.found {
        true => (points.chunk_by(|a, b| a.blocks <= b.blocks).collect(), TEETH_FOUND),
        false => (by_epoch(points), 1),
    };
    let now = steps.seen;
    let (mut teeth, mut fallen, mut blocks, mut since) = (0, false, 0, Point::default());
    let mut last = Growth::default();
    let mut foot = u64::MAX;
    for epoch in epochs {
        fallen |= teeth > 0 && epoch[0].bytes < foot.saturating_add(last.gained / 2);
        let rises = epoch.windows(2).filter(|pair| pair[1].blocks > pair[0].blocks).count() as u32;
        let falls = epoch.windows(2).filter(|pair| pair[1].blocks < pair[0].blocks).count();
        let (first, end) = (&epoch[0], &epoch[epoch.len() - 1]);
        let grown = end.bytes.saturating_sub(first.bytes);
        // A tooth begins at the level at which the previous one began, plus or minus about one rise.
        let unit = grown / u64::from(rises.max(1));
        let back = foot == u64::MAX || first.bytes <= foot.saturating_add(unit.saturating_mul(2));
        let steps = end.at - first.at;
        if rises >= TOOTH_RISES_MIN && falls == 0 && back && rises * 10 >= steps.min(epoch.len() as u32 - 1) * 6 {
            if teeth == 0 {
                since = epoch[1];
            }
            teeth += 1;
            foot = foot.min(first.bytes);
            let times: Vec<u32> = epoch[1..].iter().map(|point| point.at).collect();
            let epochs = vec![first.epoch];
            last = Growth { rises, times, epochs, gained: grown, ..Growth::default() };
            blocks = end.blocks - first.blocks;
        } else if end.at + 1 < now || falls > 0 {
            // The epoch under way may not be complete yet.
            (teeth, fallen) = (0, false);
            foot = u64::MAX;
        }
    }
    (fallen && teeth >= teeth_min).then_some(Tooth { growth: last, blocks, in_a_row: teeth, since })
}

/// The points of each epoch. An epoch's first point belongs to the previous epoch if the memory of that epoch is freed
/// only after it.
fn by_epoch(points: &[Point]) -> Vec<&[Point]> {
    let falls = |at: usize| {
        let (before, after) = (points.get(at.wrapping_sub(1)), points.get(at + 1));
        before.zip(after).is_some_and(|(before, after)| {
            before.blocks <= points[at].blocks && after.blocks < points[at].blocks && after.epoch == points[at].epoch
        })
    };
    let (mut epochs, mut rest, mut begun) = (Vec::new(), points, 0);
    for epoch in points.chunk_by(|a, b| a.epoch == b.epoch) {
        begun += epoch.len();
        let taken = points.len() - rest.len();
        let (own, later) = rest.split_at((begun + usize::from(falls(begun))).min(points.len()) - taken);
        epochs.push(own);
        rest = later;
    }
    epochs.retain(|epoch| !epoch.is_empty());
    epochs
}
