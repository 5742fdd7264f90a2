//! Compares tables made from changes with tables made by a full scan: rows, counters, and saved rows.

use crate::support;

use std::collections::BTreeMap;

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{Action, AllocatorSettings, Event, Phase, PoolId, PoolRow, SiteRow, StackId};
use proptest::prelude::*;
use support::hostile::hostile_event;
use support::requests::{recording, requests, settings};
use support::{keyframe_of, scanned_rows};

type Rows = BTreeMap<(StackId, u32, Option<Phase>), SiteRow>;

fn birth_at(position: usize) -> Birth {
    Birth { epoch: position as u32 / 30, step: position as u64 / 5, phase: Phase::of_number(position as u32 / 3 % 6) }
}

/// Reads the map as a live session does: all rows now and then, changes in between.
#[derive(Default)]
struct Reader {
    rows: Rows,
    kept: Option<Vec<SiteRow>>,
}

impl Reader {
    fn look(&mut self, map: &mut BlockMap, how: u8) -> Result<(), TestCaseError> {
        let scanned = scanned_rows(&keyframe_of(map));
        match how % 4 {
            0 => self.rows = map.take_site_rows().into_iter().map(|row| (key(&row), row)).collect(),
            1 => {
                map.keep_site_rows();
                self.kept = Some(scanned.clone());
                return Ok(());
            }
            2 => {
                let counters = map.counters();
                prop_assert_eq!(map.counters_since(), counters);
                return Ok(());
            }
            _ => {
                let changes = map.site_changes();
                prop_assert!(changes.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
                for change in changes {
                    prop_assert!(self.rows.get(&key(&change)) != Some(&change), "it did not change: {change:?}");
                    if change.blocks == 0 {
                        prop_assert!(self.rows.remove(&key(&change)).is_some());
                    } else {
                        self.rows.insert(key(&change), change);
                    }
                }
            }
        }
        prop_assert_eq!(self.rows.values().copied().collect::<Vec<_>>(), scanned);
        if let Some(kept) = &self.kept {
            prop_assert_eq!(&map.kept_site_rows(), kept);
        }
        Ok(())
    }
}

fn key(row: &SiteRow) -> (StackId, u32, Option<Phase>) {
    (row.stack, row.birth_epoch, row.birth_phase)
}

/// Applies events. After some of them the tables are read (a look below 8), or the map is restored from its own state.
fn follow(settings: &AllocatorSettings, events: &[Event], looks: &[u8]) -> Result<(), TestCaseError> {
    let (mut map, mut reader) = (BlockMap::new(settings), Reader::default());
    for (position, (event, &look)) in events.iter().zip(looks.iter().cycle()).enumerate() {
        map.apply(event, birth_at(position));
        match look {
            0..8 => reader.look(&mut map, look)?,
            8 => {
                let state = keyframe_of(&map);
                map.restore(&state);
            }
            _ => {}
        }
    }
    (0..4).try_for_each(|how| reader.look(&mut map, how))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn changes_add_up_to_the_scan(
        settings in settings(),
        requests in requests(300),
        looks in prop::collection::vec(0_u8..24, 50),
    ) {
        let events: Vec<Event> = recording(&settings, &requests, true).iter().map(|r| r.event).collect();
        follow(&settings, &events, &looks)?;
    }

    #[test]
    fn changes_add_up_to_the_scan_where_events_contradict_the_map(
        events in prop::collection::vec(hostile_event(), 1..300),
        looks in prop::collection::vec(0_u8..24, 50),
    ) {
        follow(&AllocatorSettings::default(), &events, &looks)?;
    }
}

#[test]
fn an_annotated_block_belongs_to_another_site_from_then_on() {
    let mut map = BlockMap::new(&AllocatorSettings::default());
    let event = |action, addr: u64, stack| Event { action, addr, size: 512, stack: StackId(stack), ..Event::default() };
    let birth = Birth { epoch: 3, ..Birth::default() };
    map.apply(&event(Action::Alloc, 512, 1), birth);
    map.apply(&event(Action::Alloc, 1024, 1), birth);
    let before = map.counters();
    map.apply(&event(Action::Annotate, 512, 2), Birth::default());
    // An address without a block, an annotation without a stack, and an address inside a block.
    for other in [event(Action::Annotate, 8192, 2), event(Action::Annotate, 1024, 0), event(Action::Annotate, 520, 2)] {
        map.apply(&other, Birth::default());
    }
    let rows = |map: &mut BlockMap| -> Vec<(u32, u32, u64)> {
        map.take_site_rows().iter().map(|row| (row.stack.0, row.birth_epoch, row.blocks)).collect()
    };
    assert_eq!(rows(&mut map), [(1, 3, 1), (2, 3, 1)]);
    assert_eq!((map.counters(), map.block_stack(512), map.block_stack(520)), (before, StackId(2), StackId::NONE));
    // Its free was requested but is not complete: the block has the stack and is not counted in any row.
    map.apply(&event(Action::FreeRequested, 512, 0), Birth::default());
    map.apply(&event(Action::Annotate, 512, 3), Birth::default());
    assert_eq!((rows(&mut map), map.block_stack(512)), (vec![(1, 3, 1)], StackId(3)));
    assert_eq!(rows(&mut map), [(1, 3, 1)]);
}

#[test]
fn sites_that_come_and_go_are_forgotten_and_too_many_join_the_unnamed_one() {
    let mut map = BlockMap::new(&AllocatorSettings::default());
    let event = |action, block: u64| Event {
        action,
        addr: (1 << 40) + block * 512,
        size: 512,
        stack: StackId(1 + block as u32),
        ..Event::default()
    };
    map.take_site_rows();
    let most = 1 << 18;
    for block in 0..most + 1_000 {
        map.apply(&event(Action::Alloc, block), Birth::default());
    }
    let rows = map.take_site_rows();
    assert_eq!(rows.len() as u64, most + 1);
    assert_eq!((rows[0].stack, rows[0].blocks), (StackId::NONE, 1_000));
    assert_eq!(rows.iter().map(|row| row.bytes).sum::<u64>(), map.levels().allocated_bytes);
    for block in 0..most + 1_000 {
        map.apply(&event(Action::FreeRequested, block), Birth::default());
        map.apply(&event(Action::FreeCompleted, block), Birth::default());
    }
    assert_eq!(map.site_changes().len() as u64, most + 1);
    // There is room again: removed sites do not count.
    map.apply(&event(Action::Alloc, most + 7), Birth::default());
    assert_eq!(map.site_changes().iter().map(|row| row.stack).collect::<Vec<_>>(), [StackId(most as u32 + 8)]);
}

#[test]
fn a_private_pool_counts_by_who_asked_for_its_segments() {
    let mut map = BlockMap::new(&AllocatorSettings::default());
    let (graph, mib) = (PoolId { first: 0, second: 3 }, 1_u64 << 20);
    let event = |action, addr: u64, size: u64, pool, stack| Event {
        action,
        addr: (1 << 40) + addr * mib,
        size: size * mib,
        pool,
        stack: StackId(stack),
        ..Event::default()
    };
    map.apply(&event(Action::SegmentAlloc, 0, 20, PoolId::DEFAULT, 1), Birth::default());
    map.apply(&event(Action::SegmentAlloc, 100, 20, graph, 7), Birth::default());
    map.apply(&event(Action::SegmentAlloc, 200, 2, graph, 7), Birth::default());
    map.apply(&event(Action::SegmentAlloc, 300, 2, graph, 5), Birth::default());
    let row = |stack, segments, bytes| PoolRow { stack: StackId(stack), segments, bytes: bytes * mib };
    assert_eq!(map.private_pools(), [row(5, 1, 2), row(7, 2, 22)]);
    let state = keyframe_of(&map);
    map.restore(&state);
    assert_eq!(map.private_pools(), [row(5, 1, 2), row(7, 2, 22)], "what was known stays known");
    map.apply(&event(Action::SegmentFree, 100, 20, graph, 0), Birth::default());
    map.apply(&event(Action::SegmentFree, 300, 2, graph, 0), Birth::default());
    assert_eq!(map.private_pools(), [row(7, 1, 2)]);
    // An expandable segment grows range by range. It is one segment, of the stack that began it.
    map.apply(&event(Action::SegmentMap, 400, 20, graph, 8), Birth::default());
    map.apply(&event(Action::SegmentMap, 420, 20, graph, 9), Birth::default());
    assert_eq!(map.private_pools(), [row(7, 1, 2), row(8, 1, 40)]);
    map.apply(&event(Action::SegmentUnmap, 410, 20, graph, 0), Birth::default());
    assert_eq!(map.private_pools(), [row(7, 1, 2), row(8, 2, 20)]);
}
