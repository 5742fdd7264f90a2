//! Compares the site tables that a reader gets from the batch stage with a scan of every block at the same moment.

use std::collections::BTreeMap;
use std::time::Duration;

use memctl_agent::internals::{BatchConfig, Batcher};
use memctl_analysis::{Birth, BlockMap};
use memctl_model::{
    Action, AllocatorSettings, BlockUse, Boundary, DeviceIndex, Event, KeyframeReason, Mark, MarkKind, Phase, Phases,
    SiteRow, SiteTable, StackId,
};
use memctl_proto::item::Content;
use proptest::prelude::*;

/// An event of a device.
#[derive(Clone, Debug)]
enum Step {
    /// This many blocks of a stack are allocated.
    Alloc(u32, u64),
    /// Some of the oldest blocks are freed.
    Free(usize),
    Mark(MarkKind),
    Settled,
    /// The epoch ended at the last boundary, but this end was not seen then.
    Ended(u32),
    Linger,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u32..6, 1_u64..20).prop_map(|(stack, blocks)| Step::Alloc(stack, blocks)),
        6 => (1_usize..20).prop_map(Step::Free),
        4 => (0_u64..9).prop_map(|step| Step::Mark(MarkKind::StepEnd(step))),
        1 => (0_u32..5).prop_map(|epoch| Step::Mark(MarkKind::EpochBegin(epoch))),
        1 => (0_u32..5).prop_map(|epoch| Step::Mark(MarkKind::EpochEnd(epoch))),
        1 => (0_u64..5).prop_map(|window| Step::Mark(MarkKind::WindowEnd(window))),
        2 => prop::sample::select(Phase::ALL.to_vec()).prop_map(|phase| Step::Mark(MarkKind::PhaseBegin(phase))),
        1 => Just(Step::Settled),
        1 => (0_u32..5).prop_map(Step::Ended),
        1 => Just(Step::Linger),
    ]
}

/// The same device, scanned block by block.
struct Scanned {
    map: BlockMap,
    birth: Birth,
    phases: Phases,
    /// Rows of the last end of a step, or of the state after gradients were freed.
    last: Option<Vec<SiteRow>>,
    tables: Vec<(Boundary, Vec<SiteRow>)>,
}

impl Scanned {
    fn rows(&self) -> Vec<SiteRow> {
        let keyframe = self.map.keyframe(DeviceIndex(0), 0, 0, KeyframeReason::Periodic);
        let mut rows: BTreeMap<_, SiteRow> = BTreeMap::new();
        for block in keyframe.segments.iter().flat_map(|segment| &segment.blocks).chain(&keyframe.loose) {
            let (stack, birth_epoch, birth_phase) = (block.stack, block.birth_epoch, block.birth_phase);
            let empty = SiteRow { stack, birth_epoch, birth_phase, blocks: 0, bytes: 0 };
            if block.usage == BlockUse::Allocated {
                let row = rows.entry((stack, birth_epoch, birth_phase)).or_insert(empty);
                (row.blocks, row.bytes) = (row.blocks + 1, row.bytes + block.size);
            }
        }
        rows.into_values().collect()
    }

    /// Whether the current state replaces the state of the last boundary. Within an evaluation, it does so only if
    /// evaluations keep memory.
    fn keeps_its_state(&self) -> bool {
        let rows = self.rows();
        let is_of_evaluation = |row: &&SiteRow| row.birth_phase == Some(Phase::Eval);
        let has_earlier = |stack, epoch| {
            rows.iter().filter(is_of_evaluation).any(|row| row.stack == stack && row.birth_epoch < epoch)
        };
        let epoch = self.birth.epoch;
        self.birth.phase != Some(Phase::Eval)
            || rows.iter().filter(is_of_evaluation).any(|row| row.birth_epoch == epoch && has_earlier(row.stack, epoch))
    }

    fn mark(&mut self, kind: &MarkKind) {
        let boundary = match *kind {
            MarkKind::EpochBegin(epoch) => return self.birth.epoch = epoch,
            MarkKind::PhaseBegin(phase) => return self.birth.phase = self.phases.begin(phase),
            MarkKind::EpochEnd(epoch) => {
                self.birth.epoch = epoch;
                Boundary::EpochEnd
            }
            MarkKind::WindowEnd(_) => Boundary::WindowEnd,
            MarkKind::StepEnd(_) => {
                self.last = Some(self.rows());
                Boundary::StepEnd
            }
            _ => unreachable!("no other is made here"),
        };
        self.tables.push((boundary, self.rows()));
    }
}

/// The tables of the items that are ready.
fn read(batcher: &mut Batcher, tables: &mut Vec<SiteTable>) {
    for item in batcher.take() {
        if let Content::SiteTables(more) = item.packed.open().unwrap() {
            tables.extend(more.all().unwrap());
        }
    }
}

fn batcher() -> Batcher {
    let devices = vec![DeviceIndex(0)];
    let linger = Some(Duration::from_secs(1));
    Batcher::new(BatchConfig {
        resolution_ns: 1,
        settings: AllocatorSettings::default(),
        devices,
        linger,
        found: Vec::new(),
        source_paths: Default::default(),
    })
    .unwrap()
}

proptest! {
    #[test]
    fn every_table_arrives_as_a_scan_would_have_it(steps in prop::collection::vec(step(), 1..120)) {
        let (mut batcher, mut tables, mut live, mut next) = (batcher(), Vec::new(), Vec::new(), 0_u64);
        let map = BlockMap::new(&AllocatorSettings::default());
        let (birth, phases) = (Birth::default(), Phases::default());
        let mut scanned = Scanned { map, birth, phases, last: None, tables: Vec::new() };
        let mut event = |batcher: &mut Batcher, scanned: &mut Scanned, action, addr, stack| {
            next += 1;
            let event = Event { time_ns: next, action, addr, size: 512, stack: StackId(stack), ..Event::default() };
            batcher.event(0, &event);
            scanned.map.apply(&event, scanned.birth);
        };
        for (place, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc(stack, blocks) => for block in 0..blocks {
                    let addr = (1 << 40) + (place as u64 * 64 + block) * 512;
                    event(&mut batcher, &mut scanned, Action::Alloc, addr, stack);
                    live.push(addr);
                },
                Step::Free(count) => for addr in live.drain(..count.min(live.len())) {
                    event(&mut batcher, &mut scanned, Action::FreeRequested, addr, 0);
                    event(&mut batcher, &mut scanned, Action::FreeCompleted, addr, 0);
                },
                Step::Mark(kind) => {
                    batcher.device_mark(0, &Mark { time_ns: 1, kind: kind.clone() });
                    scanned.mark(&kind);
                }
                Step::Settled => {
                    batcher.device_settled(0);
                    if scanned.keeps_its_state() {
                        scanned.last = scanned.last.is_some().then(|| scanned.rows());
                    }
                }
                Step::Ended(epoch) => {
                    let kind = MarkKind::EpochEnd(epoch);
                    batcher.device_ended(0, &Mark { time_ns: 1, kind: kind.clone() });
                    match scanned.last.take() {
                        Some(rows) => scanned.tables.push((Boundary::EpochEnd, rows)),
                        None => scanned.mark(&kind),
                    }
                }
                Step::Linger => batcher.linger(),
            }
            read(&mut batcher, &mut tables);
        }
        batcher.finish(1, 0, Default::default(), None);
        scanned.tables.push((Boundary::End, scanned.rows()));
        read(&mut batcher, &mut tables);
        let tables: Vec<_> = tables.into_iter().map(|table| (table.boundary, table.rows)).collect();
        prop_assert_eq!(tables, scanned.tables);
    }
}

/// The end of the last epoch, in bytes, of a program that ends with an evaluation. Each evaluation allocates two blocks of
/// one line; one of them may stay. With `trains_first`, the evaluation calls
/// `model.train()` before it frees its blocks.
fn end_of_last_epoch(keeps: bool, trains_first: bool) -> u64 {
    let (mut batcher, mut tables, mut time_ns) = (batcher(), Vec::new(), 0);
    let mut event = |batcher: &mut Batcher, action, addr| {
        time_ns += 1;
        batcher.event(0, &Event { time_ns, action, addr, size: 512, stack: StackId(1), ..Event::default() });
    };
    let mark = |batcher: &mut Batcher, kind| batcher.device_mark(0, &Mark { time_ns: 1, kind });
    for epoch in 0..3_u64 {
        let addr = (1 << 40) + epoch * 1024;
        mark(&mut batcher, MarkKind::EpochBegin(epoch as u32));
        mark(&mut batcher, MarkKind::StepEnd(epoch));
        mark(&mut batcher, MarkKind::PhaseBegin(Phase::Eval));
        event(&mut batcher, Action::Alloc, addr);
        event(&mut batcher, Action::Alloc, addr + 512);
        batcher.device_settled(0);
        if trains_first {
            mark(&mut batcher, MarkKind::PhaseEnd(Phase::Eval));
        }
        if epoch < 2 {
            for addr in [addr, addr + 512].into_iter().skip(usize::from(keeps)) {
                event(&mut batcher, Action::FreeRequested, addr);
                event(&mut batcher, Action::FreeCompleted, addr);
            }
            if !trains_first {
                mark(&mut batcher, MarkKind::PhaseEnd(Phase::Eval));
            }
            mark(&mut batcher, MarkKind::EpochEnd(epoch as u32));
        }
    }
    batcher.device_ended(0, &Mark { time_ns: 1, kind: MarkKind::EpochEnd(2) });
    batcher.finish(1, 0, Default::default(), None);
    read(&mut batcher, &mut tables);
    let ends = tables.into_iter().filter(|table| table.boundary == Boundary::EpochEnd);
    let ends: Vec<u64> = ends.map(|table| table.counters.allocated_bytes).collect();
    assert_eq!(&ends[..2], if keeps { &[512, 1024] } else { &[0, 0] });
    ends[2]
}

#[test]
fn what_an_evaluation_frees_later_is_not_at_the_end_of_the_last_epoch() {
    for trains_first in [false, true] {
        assert_eq!(end_of_last_epoch(false, trains_first), 0, "the next epoch would have begun without it");
        assert_eq!(end_of_last_epoch(true, trains_first), 2048, "it has grown in every evaluation");
    }
}

/// Tests a hundred thousand sites. No batch unfolds to more than a reader accepts, and small changes do not repeat
/// whole tables.
#[test]
fn large_tables_stay_within_what_a_reader_takes() {
    const STEPS: u64 = 400;
    let (mut batcher, mut tables, mut items, mut bytes) = (batcher(), Vec::new(), 0, 0);
    let alloc = |batcher: &mut Batcher, block: u64| {
        let (addr, stack) = ((1 << 40) + block * 512, StackId(1 + (block % 100_000) as u32));
        batcher
            .event(0, &Event { time_ns: 1 + block, action: Action::Alloc, addr, size: 512, stack, ..Event::default() });
    };
    let mut read = |batcher: &mut Batcher| {
        for item in batcher.take() {
            if let Content::SiteTables(more) = item.packed.open().unwrap() {
                (items, bytes) = (items + 1, bytes + item.packed.payload.len());
                more.each(|table| tables.push((table.step, table.rows.len(), table.rows[0].blocks))).unwrap();
            }
        }
    };
    (0..100_000).for_each(|block| alloc(&mut batcher, block));
    for step in 0..STEPS {
        alloc(&mut batcher, 100_000 * (step + 1));
        batcher.device_mark(0, &Mark { time_ns: 1, kind: MarkKind::StepEnd(step) });
        if step % 100 == 99 {
            batcher.linger();
        }
        read(&mut batcher);
    }
    batcher.finish(1, 0, Default::default(), None);
    read(&mut batcher);
    let expected = (0..STEPS).chain([STEPS - 1]).map(|step| (step, 100_000, step + 2));
    assert_eq!(tables, expected.collect::<Vec<_>>());
    assert!(items <= 2, "{items} items, each of which begins with a whole table");
    assert!(bytes < 2 * 200_000, "{bytes} bytes of {STEPS} tables");
}

/// Tests a million live blocks and two thousand steps. Every event is in a chunk, every table is exact, the state can
/// be restored from a keyframe, and the session ends.
#[test]
fn a_million_live_blocks_are_stored_whole() {
    let mut batcher = batcher();
    let (mut produced, mut stored, mut tables, mut largest, mut ended) = (0_u64, 0_u64, 0_u64, 0_u64, None);
    let mut event = |batcher: &mut Batcher, action, addr, size, stack: u64| {
        produced += 1;
        let event =
            Event { time_ns: 1 + produced * 731, action, addr, size, stack: StackId(stack as u32), ..Event::default() };
        batcher.event(0, &event);
    };
    let mut read = |batcher: &mut Batcher| {
        for item in batcher.take() {
            stored += item.events;
            assert!(item.packed.payload.len() <= memctl_model::limits::ITEM_BYTES_MAX);
            match item.packed.open().unwrap() {
                Content::SiteTables(more) => {
                    let check = |table: &SiteTable| {
                        tables += u64::from(table.boundary == Boundary::StepEnd);
                        assert!(table.exact);
                        assert_eq!(table.rows.iter().map(|row| row.bytes).sum::<u64>(), table.counters.allocated_bytes);
                    };
                    more.each(check).unwrap();
                }
                Content::Keyframe(keyframe) => {
                    let mut map = BlockMap::new(&AllocatorSettings::default());
                    map.restore(&keyframe);
                    largest = largest.max(map.allocated_blocks());
                }
                Content::End(end) => ended = Some(end),
                _ => {}
            }
        }
    };
    let mut scattered = 1_u64;
    for block in 0..1_000_000_u64 {
        let segment = 1 << 40 | (block / 512) << 21;
        if block % 512 == 0 {
            event(&mut batcher, Action::SegmentAlloc, segment, 2 << 20, 1);
        }
        // Sizes and stacks are scattered, because data that compresses too well would test nothing.
        scattered = scattered.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = 3_585 + (scattered >> 33) % 512;
        event(&mut batcher, Action::Alloc, segment + block % 512 * 4_096, size, 1 + (scattered >> 45) % 5_000);
        if block % 1_000 == 0 {
            batcher.device_mark(0, &Mark { time_ns: 1, kind: MarkKind::StepBegin(block / 1_000) });
        }
    }
    read(&mut batcher);
    let segment = 1_u64 << 41;
    event(&mut batcher, Action::SegmentAlloc, segment, 2 << 20, 1);
    for step in 0..2_000 {
        for (action, stack) in [(Action::Alloc, 1 + step % 100), (Action::FreeRequested, 0), (Action::FreeCompleted, 0)]
        {
            (0..20).for_each(|block| event(&mut batcher, action, segment + block * 4_096, 4_096, stack));
        }
        batcher.device_mark(0, &Mark { time_ns: 1, kind: MarkKind::StepEnd(step) });
        if step % 100 == 0 {
            batcher.linger();
        }
        read(&mut batcher);
    }
    // A failure sends the whole state.
    batcher.finish(1, 1_000_000, Default::default(), Some("killed".to_owned()));
    read(&mut batcher);
    let end = ended.unwrap();
    assert_eq!((stored, tables), (produced, 2_000));
    assert_eq!((end.unknown_frees, end.contradictions, end.dropped), (0, 0, Default::default()));
    assert_eq!(largest, 1_000_000, "the state fits into an item");
}
