//! Tests of each rule of the allocator with the values of PyTorch's own, and of its invariants under any sequence of
//! requests.

use memctl_model::PoolId;
use proptest::prelude::*;

use super::*;
use crate::settings::Version;

const MIB: u64 = 1 << 20;

fn allocator(conf: &str, limit: Limit) -> Allocator {
    let conf = Conf::parse(conf, Version::of(2, 11)).unwrap_or_else(|error| panic!("{conf}: {error}")).0;
    Allocator::new(conf, limit)
}

fn malloc(allocator: &mut Allocator, bytes: u64) -> BlockId {
    let id = allocator.malloc(bytes, 0, PoolId::DEFAULT).expect("there is room");
    allocator.check().expect("promises are kept");
    id
}

fn free(allocator: &mut Allocator, id: BlockId) {
    allocator.free_requested(id);
    allocator.free_completed(id);
    allocator.check().expect("promises are kept");
}

#[test]
fn small_blocks_share_a_segment_of_2_mib_and_large_ones_of_20() {
    let mut one = allocator("", Limit::None);
    let small = malloc(&mut one, 100);
    let large = malloc(&mut one, 5 * MIB);
    assert_eq!(one.counts().reserved_bytes, 22 * MIB);
    assert_eq!((one.size(small), one.size(large)), (512, 5 * MIB));
    let next = malloc(&mut one, 5 * MIB);
    assert_eq!(one.address(next), one.address(large) + 5 * MIB);
    assert_eq!(one.counts().device_allocs, 2);
}

#[test]
fn a_large_rest_of_up_to_a_mebibyte_stays_with_the_block() {
    let mut one = allocator("", Limit::None);
    let whole = malloc(&mut one, 24 * MIB);
    free(&mut one, whole);
    let kept = malloc(&mut one, 23 * MIB);
    assert_eq!(one.size(kept), 24 * MIB);
    free(&mut one, kept);
    let split = malloc(&mut one, 23 * MIB - 512);
    assert_eq!(one.size(split), 23 * MIB - 512);
}

#[test]
fn expandable_segments_map_only_the_pages_that_are_missing() {
    let mut one = allocator("expandable_segments:True", Limit::None);
    malloc(&mut one, 5 * MIB);
    let second = malloc(&mut one, 30 * MIB);
    assert_eq!(one.counts().reserved_bytes, 40 * MIB);
    free(&mut one, second);
    one.empty_cache();
    one.check().expect("promises are kept");
    assert_eq!(one.counts().reserved_bytes, 20 * MIB, "whole pages are unmapped");
    malloc(&mut one, 30 * MIB);
    assert_eq!(one.counts().reserved_bytes, 40 * MIB);
}

#[test]
fn oversize_blocks_are_neither_split_nor_given_to_small_requests() {
    let mut one = allocator("max_split_size_mb:32", Limit::None);
    let large = malloc(&mut one, 64 * MIB);
    free(&mut one, large);
    malloc(&mut one, 24 * MIB);
    assert_eq!(one.counts().reserved_bytes, 88 * MIB, "64 MiB are kept for oversize requests");
    malloc(&mut one, 40 * MIB);
    assert_eq!(one.counts().reserved_bytes, 128 * MIB, "64 is too much for 40: more than 20 MiB would be lost");
    let fitting = malloc(&mut one, 50 * MIB);
    assert_eq!((one.counts().reserved_bytes, one.size(fitting)), (128 * MIB, 64 * MIB));
}

#[test]
fn a_request_above_the_limit_releases_the_cache_and_is_tried_again() {
    let mut one = allocator("", Limit::Share(100 * MIB));
    let first = malloc(&mut one, 60 * MIB);
    free(&mut one, first);
    malloc(&mut one, 80 * MIB);
    let Counts { retries, device_frees, ooms, .. } = *one.counts();
    assert_eq!((retries, device_frees, ooms), (1, 1, 0));
    let failed = one.malloc(30 * MIB, 0, PoolId::DEFAULT).expect_err("80 + 30 is above 100");
    assert_eq!(failed, OutOfMemory { rounded: 30 * MIB, segment: 30 * MIB, reserved: 80 * MIB });
    assert_eq!(one.counts().ooms, 1);
}

#[test]
fn a_device_that_is_full_refuses_pages_one_request_at_a_time() {
    let mut one = allocator("expandable_segments:True", Limit::Device(50 * MIB));
    malloc(&mut one, 30 * MIB);
    assert!(one.malloc(30 * MIB, 0, PoolId::DEFAULT).is_err());
    one.check().expect("promises are kept");
    malloc(&mut one, 10 * MIB);
}

#[test]
fn collection_frees_what_has_been_idle_longest() {
    let mut one = allocator("garbage_collection_threshold:0.5", Limit::Share(800 * MIB));
    // Short-lived blocks find room beside this one, so they do not reset the age of the idle blocks.
    malloc(&mut one, 4 * MIB);
    let (old, young) = (malloc(&mut one, 300 * MIB), malloc(&mut one, 200 * MIB));
    free(&mut one, old);
    for _ in 0..10 {
        let passing = malloc(&mut one, 4 * MIB);
        free(&mut one, passing);
    }
    free(&mut one, young);
    malloc(&mut one, 400 * MIB);
    assert_eq!((one.counts().device_frees, one.counts().retries), (1, 0));
    assert_eq!(one.counts().reserved_bytes, 620 * MIB, "300 MiB went, 400 came");
}

#[test]
fn streams_and_pools_share_nothing() {
    let mut one = allocator("", Limit::None);
    let first = malloc(&mut one, 12 * MIB);
    free(&mut one, first);
    one.malloc(12 * MIB, 7, PoolId::DEFAULT).expect("room");
    one.malloc(12 * MIB, 0, PoolId { first: 1, second: 0 }).expect("room");
    assert_eq!(one.counts().reserved_bytes, 36 * MIB);
    one.check().expect("promises are kept");
}

#[test]
fn a_private_pool_keeps_its_cache_until_nothing_uses_it() {
    let graph = PoolId { first: 1, second: 0 };
    let mut one = allocator("", Limit::None);
    let id = one.malloc(12 * MIB, 0, graph).expect("room");
    free(&mut one, id);
    one.empty_cache();
    assert_eq!(one.counts().reserved_bytes, 12 * MIB);
    one.pool_is_released(graph);
    one.empty_cache();
    assert_eq!(one.counts().reserved_bytes, 0);
}

#[test]
fn a_free_that_waits_keeps_its_block_active_and_unmerged() {
    let mut one = allocator("", Limit::None);
    let (a, b) = (malloc(&mut one, 4 * MIB), malloc(&mut one, 4 * MIB));
    one.free_requested(a);
    assert_eq!((one.counts().allocated_bytes, one.counts().active_bytes), (4 * MIB, 8 * MIB));
    free(&mut one, b);
    let next = malloc(&mut one, 4 * MIB);
    assert_eq!(one.address(next), one.address(a) + 4 * MIB);
    one.free_completed(a);
    one.check().expect("promises are kept");
}

#[derive(Clone, Debug)]
enum Step {
    Malloc { bytes: u64, stream: u64, pool: u32 },
    Free { which: usize },
    Complete { which: usize },
    EmptyCache,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![1_u64..4096, 1_u64..(2 << 20), (1_u64 << 20)..(48 << 20)];
    let step = prop_oneof![
        6 => (bytes, 0_u64..2, 0_u32..2).prop_map(|(bytes, stream, pool)| Step::Malloc { bytes, stream, pool }),
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
        3 => any::<usize>().prop_map(|which| Step::Complete { which }),
        1 => Just(Step::EmptyCache),
    ];
    proptest::collection::vec(step, 1..120)
}

const CONFS: [&str; 8] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:32,garbage_collection_threshold:0.4",
    "garbage_collection_threshold:0.3",
    "roundup_power2_divisions:4",
    "expandable_segments:True,garbage_collection_threshold:0.5,max_split_size_mb:21",
    "large_segment_size_mb:64",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn promises_hold_after_every_step(steps in steps(), conf in 0..CONFS.len(), limit in 0..3_usize) {
        let limit = [Limit::None, Limit::Share(200 << 20), Limit::Device(150 << 20)][limit];
        let mut one = allocator(CONFS[conf], limit);
        let mut again = one.clone();
        let (mut live, mut pending) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Malloc { bytes, stream, pool } => {
                    let pool = PoolId { first: pool, second: 0 };
                    let served = one.malloc(bytes, stream, pool);
                    prop_assert_eq!(served, again.malloc(bytes, stream, pool));
                    if let Ok(id) = served {
                        prop_assert!(one.size(id) >= bytes);
                        live.push(id);
                    }
                }
                Step::Free { which } if !live.is_empty() => {
                    let id = live.swap_remove(which % live.len());
                    one.free_requested(id);
                    again.free_requested(id);
                    pending.push(id);
                }
                Step::Complete { which } if !pending.is_empty() => {
                    let id = pending.swap_remove(which % pending.len());
                    one.free_completed(id);
                    again.free_completed(id);
                }
                Step::EmptyCache => {
                    one.empty_cache();
                    again.empty_cache();
                }
                _ => {}
            }
            let completed = one.take_completed();
            pending.retain(|id| !completed.contains(id));
            one.check().map_err(TestCaseError::fail)?;
            prop_assert_eq!(one.counts(), again.counts());
            prop_assert_eq!(one.calls(), again.calls());
            one.forget_calls();
            again.forget_calls();
            if let Limit::Share(limit) | Limit::Device(limit) = limit {
                // PyTorch compares a share with the size of an ordinary segment and then maps whole pages.
                let page = if CONFS[conf].contains("expandable") { 20 << 20 } else { 0 };
                prop_assert!(one.counts().reserved_bytes <= limit + page);
            }
        }
    }
}
