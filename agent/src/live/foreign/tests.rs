//! Tests that any sequence of reports becomes events that the block map follows without a contradiction.

use memctl_analysis::block_map::{Birth, BlockMap};
use memctl_model::{AllocatorSettings, Event};
use proptest::prelude::*;

use super::*;

/// CuPy splits every block, as PyTorch does with expandable segments.
fn map() -> BlockMap {
    BlockMap::new(&AllocatorSettings { expandable_segments: true, ..AllocatorSettings::default() })
}

fn apply(map: &mut BlockMap, steps: &[Step]) {
    for &(action, addr, Extent { size, stream }) in steps {
        map.apply(&Event { action, addr, size, stream, ..Event::default() }, Birth::default());
    }
}

fn alloc(addr: u64, size: u64) -> AllocatorReport {
    AllocatorReport::Alloc { addr, size, stream: 7 }
}

fn segment(addr: u64, size: u64) -> AllocatorReport {
    AllocatorReport::SegmentAlloc { addr, size, stream: 7 }
}

fn actions(steps: &[Step]) -> Vec<(Action, u64)> {
    steps.iter().map(|step| (step.0, step.1)).collect()
}

#[test]
fn an_address_that_is_handed_out_again_was_given_back() {
    let mut book = Book::default();
    book.take(alloc(1024, 1024));
    let again = actions(&book.take(alloc(1536, 512)));
    assert_eq!(again, [(Action::FreeRequested, 1024), (Action::FreeCompleted, 1024), (Action::Alloc, 1536)]);
    assert!(book.take(AllocatorReport::Free { addr: 1024 }).is_empty(), "it is not given back twice");
    assert_eq!(book.take(AllocatorReport::Free { addr: 1536 }).len(), 2);
}

#[test]
fn memory_that_the_pool_gave_back_without_telling_is_found_among_what_is_idle() {
    let mut book = Book::default();
    for addr in [0, 1 << 20, 2 << 20] {
        book.take(segment(addr, 1 << 20));
    }
    book.take(alloc(1 << 20, 512));
    assert!(book.take(AllocatorReport::Holds { bytes: 3 << 20 }).is_empty());
    assert_eq!(actions(&book.take(AllocatorReport::Holds { bytes: 2 << 20 })), [(Action::SegmentFree, 0)]);
    // A segment with live blocks is not released, even if the pool reports less.
    assert_eq!(actions(&book.take(AllocatorReport::Holds { bytes: 0 })), [(Action::SegmentFree, 2 << 20)]);
    assert!(book.take(AllocatorReport::Holds { bytes: 0 }).is_empty());
    // The driver returns the same addresses again.
    let again = actions(&book.take(segment((1 << 20) + 512, 512)));
    assert_eq!(again.last(), Some(&(Action::SegmentAlloc, (1 << 20) + 512)));
    assert!(again.contains(&(Action::SegmentFree, 1 << 20)) && again.contains(&(Action::FreeCompleted, 1 << 20)));
}

fn any_report() -> impl Strategy<Value = AllocatorReport> {
    let addr = (0_u64..64).prop_map(|number| number * 512);
    let size = (1_u64..16).prop_map(|number| number * 512);
    prop_oneof![
        4 => (addr.clone(), size.clone()).prop_map(|(addr, size)| alloc(addr, size)),
        4 => addr.clone().prop_map(|addr| AllocatorReport::Free { addr }),
        2 => (addr, size).prop_map(|(addr, size)| segment(addr, size * 4)),
        1 => (0_u64..64).prop_map(|number| AllocatorReport::Holds { bytes: number * 512 }),
        1 => Just(AllocatorReport::OutOfMemory { size: 1 << 40, free: 3 }),
    ]
}

proptest! {
    #[test]
    fn sums_are_those_of_the_block_map(all in prop::collection::vec(any_report(), 1..120)) {
        let (mut book, mut map) = (Book::default(), map());
        for report in all {
            // A pool allocates inside one segment, or outside all.
            if let AllocatorReport::Alloc { addr, size, .. } = report
                && overlapping(&book.segments, addr, addr + size).iter().any(|&start| {
                    start > addr || start + book.segments[&start].size < addr + size
                })
            {
                continue;
            }
            apply(&mut map, &book.take(report));
            let levels = map.levels();
            prop_assert_eq!(levels.reserved_bytes, book.reserved);
            prop_assert_eq!(levels.allocated_bytes, book.live.values().map(|extent| extent.size).sum::<u64>());
            let mut restored = BlockMap::new(&AllocatorSettings::default());
            restored.restore(&book.keyframe(DeviceIndex(0), KeyframeReason::AfterDrop));
            prop_assert_eq!(restored.levels().allocated_bytes, levels.allocated_bytes);
            prop_assert_eq!(restored.levels().reserved_bytes, levels.reserved_bytes);
        }
        // An allocation from the middle of a free block only happens when other threads are not seen.
        let anomalies = map.anomalies();
        prop_assert_eq!(anomalies.unknown_frees + anomalies.unknown_completions + anomalies.unknown_segments, 0);
    }

    #[test]
    fn numbers_at_the_end_of_the_range_are_harmless(addr in any::<u64>(), size in any::<u64>()) {
        let mut book = Book::default();
        book.take(alloc(addr, size));
        book.take(segment(addr, size));
        book.take(AllocatorReport::Free { addr });
        prop_assert!(book.live.is_empty());
        let _ = book.keyframe(DeviceIndex(0), KeyframeReason::AfterDrop);
    }
}
