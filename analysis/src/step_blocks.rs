//! The blocks of a stretch of events, stacked: the chosen blocks one by one, and all others together as the rest.
//!
//! Guarantees: at every event of the stretch, the bytes of the chosen blocks and of the rest add up to the allocated
//! bytes of the replay. A point stands for some consecutive events and has the levels of the highest of them, so the
//! highest point is the peak of the stretch. There are at most as many points and chosen blocks as asked for.
//! A recording that contradicts itself can have blocks that the replay does not count: then [`Stacked::consistent`] is
//! false, and the rest is 0 where the blocks exceed the allocated bytes.

use std::cmp::Reverse;

use crate::lifetimes::BlockLife;

/// The levels after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The time of the event.
    pub time_ns: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Reserved bytes.
    pub reserved_bytes: u64,
}

/// The highest of some consecutive events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The number of this event.
    pub event: u64,
    /// Its levels.
    pub level: Level,
    /// Allocated bytes that are not in chosen blocks.
    pub rest_bytes: u64,
}

/// The blocks and the rest; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// The chosen blocks as indices, from the bottom of the stack to its top.
    pub blocks: Vec<usize>,
    /// Blocks of the stretch that are in the rest.
    pub rest_blocks: u64,
    /// The points, in order.
    pub points: Vec<Point>,
    /// Number of events per point; the last point may have fewer.
    pub events_per_point: u64,
    /// The highest event; the first one if several are equally high.
    pub peak: Option<Point>,
    /// Whether the bytes of all blocks add up to the allocated bytes at every event.
    pub consistent: bool,
}

/// The part of a block's life that is within a stretch: from the event `from` up to, but not including, `until`.
#[derive(Clone, Copy)]
struct Within {
    block: usize,
    from: u64,
    until: u64,
}

/// Stacks the blocks of a stretch. `levels` are those after the event `first` and after each later event of the
/// stretch. At most `most` blocks are chosen, and at most `points` points are made.
#[must_use]
pub fn stacked(lives: &[BlockLife], first: u64, levels: &[Level], most: usize, points: usize) -> Stacked {
    let end = first.saturating_add(levels.len() as u64);
    let all: Vec<Within> = lives
        .iter()
        .enumerate()
        .map(|(block, life)| Within { block, from: life.from.max(first), until: life.freed.min(life.to).min(end) })
        .filter(|within| within.from < within.until)
        .collect();
    let sums = sums(lives, &all, first, levels.len());
    let consistent = sums.iter().zip(levels).all(|(sum, level)| *sum == level.allocated_bytes);
    let chosen = order(lives, chosen(lives, &all, most), end);
    let drawn = self::sums(lives, &chosen, first, levels.len());
    let point = |at: usize| Point {
        event: first + at as u64,
        level: levels[at],
        rest_bytes: levels[at].allocated_bytes.saturating_sub(drawn[at]),
    };
    let events_per_point = levels.len().div_ceil(points.max(1)).max(1);
    let highest = |from: usize| {
        let until = (from + events_per_point).min(levels.len());
        (from..until).max_by_key(|&at| (levels[at].allocated_bytes, Reverse(at))).map(point)
    };
    let points: Vec<Point> = (0..levels.len()).step_by(events_per_point).filter_map(highest).collect();
    let peak = points.iter().max_by_key(|point| (point.level.allocated_bytes, Reverse(point.event))).copied();
    Stacked {
        rest_blocks: (all.len() - chosen.len()) as u64,
        blocks: chosen.iter().map(|within| within.block).collect(),
        points,
        events_per_point: events_per_point as u64,
        peak,
        consistent,
    }
}

/// The bytes of these blocks after each event.
fn sums(lives: &[BlockLife], of: &[Within], first: u64, count: usize) -> Vec<u64> {
    let mut changes = vec![(0_u64, 0_u64); count + 1];
    for within in of {
        let bytes = lives[within.block].bytes;
        let come = &mut changes[(within.from - first) as usize].0;
        *come = come.saturating_add(bytes);
        let gone = &mut changes[(within.until - first) as usize].1;
        *gone = gone.saturating_add(bytes);
    }
    let mut sum = 0_u64;
    let add = |(come, gone): &(u64, u64)| {
        sum = sum.saturating_add(*come).saturating_sub(*gone);
        sum
    };
    changes[..count].iter().map(add).collect()
}

/// Half of the blocks are the largest ones, so that a large block is shown even if it lives for one event. The other
/// half are those that cover most of the picture, by bytes and events.
fn chosen(lives: &[BlockLife], all: &[Within], most: usize) -> Vec<Within> {
    if all.len() <= most {
        return all.to_vec();
    }
    let area = |within: &Within| u128::from(lives[within.block].bytes) * u128::from(within.until - within.from);
    let mut order = all.to_vec();
    order.sort_unstable_by_key(|within| (Reverse(lives[within.block].bytes), Reverse(area(within)), within.block));
    let rest = order.split_off(most / 2);
    let mut others = rest;
    others.sort_unstable_by_key(|within| (Reverse(area(within)), within.block));
    order.extend(others.into_iter().take(most - most / 2));
    order
}

/// From the bottom to the top: blocks that are allocated throughout, other blocks from before the stretch, and then
/// each block in the order of its allocation. So a block that is freed moves as few others as possible.
fn order(lives: &[BlockLife], mut chosen: Vec<Within>, end: u64) -> Vec<Within> {
    chosen.sort_by_key(|within| {
        let life = &lives[within.block];
        let is_before = life.from < within.from || life.from == 0;
        let ends = if is_before { Reverse(within.until.min(end)) } else { Reverse(0) };
        let bytes = if is_before { Reverse(life.bytes) } else { Reverse(0) };
        (if is_before { 0 } else { within.from }, ends, bytes, within.block)
    });
    chosen
}

#[cfg(test)]
mod tests {
    use memctl_model::{Action, AllocatorSettings, DeviceIndex, Event, KeyframeReason};
    use proptest::prelude::*;

    use super::*;
    use crate::lifetimes::{Lives, OPEN};
    use crate::{Birth, BlockMap};

    fn life(bytes: u64, from: u64, freed: u64) -> BlockLife {
        BlockLife {
            addr: 0,
            bytes,
            requested_bytes: bytes,
            stack: memctl_model::StackId::NONE,
            birth: Birth::default(),
            from,
            freed,
            to: OPEN,
        }
    }

    fn levels(of: &[u64]) -> Vec<Level> {
        of.iter().map(|&allocated_bytes| Level { allocated_bytes, ..Level::default() }).collect()
    }

    #[test]
    fn a_large_block_of_one_event_is_chosen_and_the_rest_is_what_remains() {
        // Before the stretch: 5 bytes that stay, 3 that are freed at event 12, 2 whose free was requested before.
        let lives =
            [life(3, 0, 12), life(5, 0, OPEN), life(2, 0, 0), life(1, 11, OPEN), life(9, 12, 13), life(1, 13, 14)];
        let all = levels(&[8, 9, 15, 7, 6]);
        let found = stacked(&lives, 10, &all, 3, 100);
        assert_eq!((&found.blocks, found.rest_blocks), (&vec![1, 0, 4], 2));
        let rest: Vec<(u64, u64)> = found.points.iter().map(|point| (point.event, point.rest_bytes)).collect();
        assert_eq!(rest, [(10, 0), (11, 1), (12, 1), (13, 2), (14, 1)]);
        assert_eq!(found.peak.map(|peak| (peak.event, peak.level.allocated_bytes)), Some((12, 15)));
        assert!(found.consistent && found.events_per_point == 1);
        // Each of two points is the highest of its events.
        let two = stacked(&lives, 10, &all, 3, 2);
        assert_eq!(
            (two.events_per_point, two.points.iter().map(|point| point.event).collect::<Vec<_>>()),
            (3, vec![12, 13])
        );
        assert_eq!(two.peak.map(|peak| peak.event), Some(12));
        // Blocks that the replay does not count.
        let wrong = stacked(&lives, 10, &levels(&[8, 9, 10, 7, 6]), 3, 100);
        assert!(!wrong.consistent && wrong.points[2].rest_bytes == 0);
        assert_eq!(stacked(&lives, 10, &[], 3, 2).peak, None);
    }

    /// A program, as pairs of a place and a number of bytes. See [`events`].
    fn program() -> impl Strategy<Value = Vec<(u8, u64)>> {
        proptest::collection::vec((0_u8..24, 1_u64..5_000_000), 1..300)
    }

    /// The events of a program: an allocation at a free place. At a used place, the request of a free and its
    /// completion, together or one by one.
    fn events(of: &[(u8, u64)]) -> Vec<Event> {
        let mut states = [0_u8; 24];
        let mut all = Vec::new();
        for &(place, bytes) in of {
            let state = &mut states[usize::from(place)];
            let actions: &[Action] = match *state {
                0 => &[Action::Alloc],
                1 if bytes % 2 == 0 => &[Action::FreeRequested, Action::FreeCompleted],
                1 => &[Action::FreeRequested],
                _ => &[Action::FreeCompleted],
            };
            *state = match *state {
                0 => 1,
                1 if bytes % 2 == 1 => 2,
                _ => 0,
            };
            let addr = (1 << 40) + (u64::from(place) << 30);
            all.extend(actions.iter().map(|&action| Event { action, addr, size: bytes, ..Event::default() }));
        }
        all
    }

    proptest! {
        #[test]
        fn blocks_and_rest_are_what_is_allocated_at_every_event(
            program in program(), begin in 0_usize..200, most in 0_usize..12, points in 1_usize..400
        ) {
            let all = events(&program);
            let begin = begin.min(all.len());
            let mut map = BlockMap::new(&AllocatorSettings::default());
            all[..begin].iter().for_each(|event| map.apply(event, Birth::default()));
            let level = |map: &BlockMap| {
                let levels = map.levels();
                Level { allocated_bytes: levels.allocated_bytes, reserved_bytes: levels.reserved_bytes, time_ns: 0 }
            };
            let first = begin as u64;
            let mut lives = Lives::new(&map.keyframe(DeviceIndex(0), first, 0, KeyframeReason::Periodic));
            let mut levels = vec![level(&map)];
            for (number, event) in (first + 1..).zip(&all[begin..]) {
                map.apply(event, Birth::default());
                lives.event(number, event, map.block_bytes(event.addr), Birth::default());
                levels.push(level(&map));
            }
            let found = stacked(&lives.blocks, first, &levels, most, points);
            prop_assert!(found.consistent && found.blocks.len() <= most && found.points.len() <= points);
            for point in &found.points {
                let drawn: u64 = found.blocks.iter().map(|&at| &lives.blocks[at])
                    .filter(|life| life.from <= point.event && point.event < life.freed)
                    .map(|life| life.bytes).sum();
                prop_assert_eq!(point.level, levels[(point.event - first) as usize]);
                prop_assert_eq!(drawn + point.rest_bytes, point.level.allocated_bytes);
            }
            let highest = levels.iter().map(|level| level.allocated_bytes).max();
            prop_assert_eq!(found.peak.map(|peak| peak.level.allocated_bytes), highest);
            let counted: std::collections::BTreeSet<usize> = found.blocks.iter().copied().collect();
            prop_assert_eq!(counted.len(), found.blocks.len());
        }
    }
}
