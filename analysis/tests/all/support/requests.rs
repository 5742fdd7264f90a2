//! Random streams of requests and settings, and the resulting recordings.

use memctl_model::{AllocatorSettings, PoolId};
use proptest::prelude::*;

use super::allocator::{Allocator, Recorded};

/// The next action of the training process.
#[derive(Clone, Debug)]
pub enum Request {
    Malloc {
        size: u64,
        stream: u64,
        pool: u32,
        gap: bool,
    },
    /// Frees one of the live blocks; with `used_elsewhere` another stream still uses it.
    Free {
        which: usize,
        used_elsewhere: bool,
    },
    /// One of the pending blocks is no longer used.
    Complete {
        which: usize,
    },
    EmptyCache,
}

fn size() -> impl Strategy<Value = u64> {
    const MIB: u64 = 1 << 20;
    prop_oneof![
        4 => 1..=MIB,
        2 => 1..4096_u64,
        4 => MIB + 1..=10 * MIB,
        // Multiples of half a mebibyte leave rests around the limit of 1 MiB.
        4 => (3..40_u64).prop_map(|halves| halves * MIB / 2),
        1 => 10 * MIB..=48 * MIB,
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        10 => (size(), 0..3_u64, 0..2_u32, any::<bool>())
            .prop_map(|(size, stream, pool, gap)| Request::Malloc { size, stream: stream * 16, pool, gap }),
        8 => (any::<usize>(), prop::bool::weighted(0.25))
            .prop_map(|(which, used_elsewhere)| Request::Free { which, used_elsewhere }),
        3 => any::<usize>().prop_map(|which| Request::Complete { which }),
        1 => Just(Request::EmptyCache),
    ]
}

pub fn requests(most: usize) -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec(request(), 1..most)
}

pub fn settings() -> impl Strategy<Value = AllocatorSettings> {
    let max_split = prop_oneof![3 => Just(None), 1 => (21..40_u64).prop_map(|mib| Some(mib << 20))];
    let divisions = prop_oneof![
        3 => Just([0; 16]),
        1 => (0..4_u32).prop_map(|exponent| [1 << exponent; 16]),
        1 => prop::array::uniform16((0..5_u32).prop_map(|exponent| if exponent == 0 { 0 } else { 1 << exponent })),
    ];
    (max_split, divisions, any::<bool>()).prop_map(|(max_split_size, divisions, expandable)| AllocatorSettings {
        max_split_size,
        roundup_power2_divisions: divisions,
        expandable_segments: expandable,
        ..AllocatorSettings::default()
    })
}

/// Runs the requests through a new allocator. Stacks of allocations are 1 to 7, those of frees 101 to 107.
pub fn recording(settings: &AllocatorSettings, requests: &[Request], names_pools: bool) -> Vec<Recorded> {
    let mut allocator = Allocator::new(settings.clone(), names_pools);
    let (mut live, mut pending) = (Vec::new(), Vec::new());
    for (number, request) in (0_u32..).zip(requests) {
        let stack = number % 7 + 1;
        match *request {
            Request::Malloc { size, stream, pool, gap } => {
                let pool = PoolId { first: 0, second: pool };
                live.extend(allocator.malloc(size, stream, pool, stack, gap));
            }
            Request::Free { which, used_elsewhere } if !live.is_empty() => {
                let addr = live.swap_remove(which % live.len());
                allocator.free(addr, used_elsewhere, 100 + stack);
                pending.extend(used_elsewhere.then_some(addr));
            }
            Request::Complete { which } if !pending.is_empty() => {
                allocator.complete(pending.swap_remove(which % pending.len()), 100 + stack);
            }
            Request::EmptyCache => allocator.empty_cache(),
            Request::Free { .. } | Request::Complete { .. } => {}
        }
    }
    allocator.recorded
}
