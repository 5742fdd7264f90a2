//! The chunk codec from its users' side: events decode to themselves, with times floored to the grid.
//!
//! Arbitrary events, streams of a simulated caching allocator, limits, reuse, and the bytes of version 1.

use crate::streams;

use memctl_model::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX};
use memctl_model::{Action, DeviceIndex, Event, Levels, PoolId, Rollup, StackId};
use memctl_proto::chunk::{ChunkError, ChunkMeta, Decoder, Encoder, read_header};
use proptest::prelude::*;
use streams::{Rng, Training, floored, golden_events};

fn encode(events: &[Event], resolution_ns: u32) -> Vec<u8> {
    let mut encoder = Encoder::new(resolution_ns).unwrap();
    events.iter().for_each(|event| encoder.push(event).unwrap());
    encoder.finish(&ChunkMeta::default()).unwrap()
}

fn assert_round_trip(events: &[Event], resolution_ns: u32) {
    let chunk = encode(events, resolution_ns);
    let mut decoded = Vec::new();
    let header = Decoder::new().unwrap().decode(&chunk, &mut decoded).unwrap();
    assert_eq!(decoded, floored(events, resolution_ns));
    assert_eq!(header.events as usize, events.len());
    for action in Action::ALL {
        let count = events.iter().filter(|event| event.action == action).count();
        assert_eq!(header.rollup.count(action), count as u64);
    }
    assert_eq!(header.rollup.first_ns, decoded[0].time_ns);
    assert_eq!(header.rollup.last_ns, decoded[decoded.len() - 1].time_ns);
}

/// Any 64 bits, but often boundary values.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| u64::MAX >> bit),
        (0..6u64).prop_map(|n| n * 512),
        (0..4u64).prop_map(|n| 0x7f00_0000_0000 + n * 512),
    ]
}

prop_compose! {
    fn any_event()(
        (time_ns, addr, size, stream) in (word(), word(), word(), word()),
        (first, second, stack) in (0..3u32, any::<u32>(), any::<u32>()),
        action in 0..10u8,
        plain in any::<bool>(),
    ) -> Event {
        let pool = if plain { PoolId::DEFAULT } else { PoolId { first, second } };
        Event {
            time_ns,
            addr,
            size: if plain { size % 4096 } else { size },
            stream: if plain { 0 } else { stream },
            pool,
            stack: StackId(if plain { stack % 3 } else { stack }),
            action: Action::from_number(action).unwrap(),
        }
    }
}

prop_compose! {
    /// Few addresses, sizes, stacks: double allocations, double frees, frees of other sizes, overlaps.
    fn colliding_event()(
        addr in 0..24u64, size in 0..6u64, stream in 0..2u64, stack in 0..3u32, second in 0..2u32,
        action in prop_oneof![4 => Just(0u8), 3 => Just(1), 3 => Just(2), 1 => 3..10u8], gap in 0..40u64,
    ) -> Event {
        Event {
            time_ns: gap,
            addr: addr * 512,
            size: size * 700,
            stream,
            pool: PoolId { first: 0, second },
            stack: StackId(stack),
            action: Action::from_number(action).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_events_survive(
        events in prop::collection::vec(any_event(), 1..120),
        resolution_ns in prop_oneof![Just(1u32), Just(100), Just(1000), any::<u32>()],
    ) {
        assert_round_trip(&events, resolution_ns);
    }

    #[test]
    fn colliding_events_survive(mut events in prop::collection::vec(colliding_event(), 1..600)) {
        let mut now = 1_700_000_000_000_000_000;
        for event in &mut events {
            now += event.time_ns;
            event.time_ns = now;
        }
        assert_round_trip(&events, 1);
        assert_round_trip(&events, 7);
    }

    #[test]
    fn plausible_streams_survive(seed in any::<u64>(), events in 1..6000usize, second_stream in any::<bool>()) {
        let events = Training::new(seed, second_stream).events(events);
        assert_round_trip(&events, 1000);
        // Cut in the middle: earlier blocks are unknown in the second half.
        let (_, rest) = events.split_at(events.len() / 2);
        assert_round_trip(rest, 100);
    }
}

#[test]
fn a_full_chunk_of_noise_stays_below_the_limit_and_takes_no_more() {
    let mut rng = Rng(7);
    let mut encoder = Encoder::new(1).unwrap();
    let events: Vec<Event> = (0..CHUNK_EVENTS_MAX)
        .map(|n| Event {
            time_ns: rng.next(),
            addr: rng.next(),
            size: rng.next(),
            stream: rng.next(),
            pool: PoolId { first: rng.next() as u32, second: rng.next() as u32 },
            stack: StackId(rng.next() as u32),
            action: Action::from_number((n % 10) as u8).unwrap(),
        })
        .collect();
    events.iter().for_each(|event| encoder.push(event).unwrap());
    assert!(encoder.is_full());
    assert!(matches!(encoder.push(&events[0]), Err(ChunkError::Full)));
    let chunk = encoder.finish(&ChunkMeta::default()).unwrap();
    assert!(chunk.len() <= CHUNK_BYTES_MAX);
    let mut decoded = Vec::new();
    Decoder::new().unwrap().decode(&chunk, &mut decoded).unwrap();
    assert_eq!(decoded, events);
    assert!(encoder.is_empty());
    assert!(matches!(encoder.finish(&ChunkMeta::default()), Err(ChunkError::Empty)));
}

/// Keys, references, distances and times that are too large for their tokens and codes.
#[test]
fn numbers_beyond_the_tokens_survive() {
    let event = |n: u64, addr: u64, size: u64, action: Action| Event {
        time_ns: n * n * 40,
        addr: addr * 1024,
        size,
        action,
        ..Event::default()
    };
    // 36,000 keys; the second time around, addresses repeat after 34,000 allocations.
    let allocs = (0..36_000).map(|n| event(n, n % 34_000, n + 1, Action::Alloc));
    // From both ends in turn, so that distances are maximal.
    let frees = (0..14_000).map(|n| if n % 2 == 0 { 2_000 + n } else { 33_999 - n }).enumerate();
    let frees = frees.flat_map(|(at, n)| {
        let action = |action| event(36_000 + at as u64 * 9, n, n + 1, action);
        [action(Action::FreeRequested), action(Action::FreeCompleted)]
    });
    let events: Vec<Event> = allocs.chain(frees).collect();
    assert_round_trip(&events, 1);
    // As many allocations as a chunk can hold, all of one key, each where the one before began or ended.
    let stacked: Vec<Event> =
        (0..CHUNK_EVENTS_MAX as u64).map(|n| event(n, n / 3, 1 + n % 2 * 1000, Action::Alloc)).collect();
    assert_round_trip(&stacked, 1000);
    // Allocations that end after the last address and begin again at 0.
    let wrapped = [(u64::MAX - 511, 1), (0, u64::MAX), (0, 0), (512, 1 << 63)];
    let wrapped = wrapped.map(|(addr, size)| Event { addr, size, ..Event::default() });
    assert_round_trip(&wrapped, 1);
}

#[test]
fn training_takes_half_a_byte_an_event() {
    let events = Training::new(1, false).events(60_000);
    let bytes_per_event = encode(&events, 1000).len() as f64 / events.len() as f64;
    // 0.46 on recordings of real training; the simulated one has wider jitter and fewer operations.
    assert!(bytes_per_event < 0.6, "{bytes_per_event}");
}

#[test]
fn the_next_chunk_knows_nothing_of_the_one_before() {
    let events = Training::new(2, true).events(9000);
    let mut encoder = Encoder::new(1000).unwrap();
    let mut decoder = Decoder::new().unwrap();
    let mut decoded = Vec::new();
    for part in events.chunks(2500) {
        part.iter().for_each(|event| encoder.push(event).unwrap());
        assert_eq!(encoder.len(), part.len());
        assert!(encoder.approximate_bytes() > 0);
        let chunk = encoder.finish(&ChunkMeta::default()).unwrap();
        assert_eq!(chunk, encode(part, 1000), "a used encoder writes what a fresh one writes");
        decoder.decode(&chunk, &mut decoded).unwrap();
        assert_eq!(decoded, floored(part, 1000));
    }
}

#[test]
fn the_header_says_what_the_caller_and_the_events_said() {
    let rollup = Rollup {
        first_epoch: 3,
        last_epoch: 2,
        first_step: 1 << 40,
        last_step: 7,
        start: Levels { allocated_bytes: 10, active_bytes: 11, reserved_bytes: u64::MAX },
        end: Levels { allocated_bytes: 5, active_bytes: u64::MAX, reserved_bytes: 0 },
        min: Levels { allocated_bytes: 1, active_bytes: 2, reserved_bytes: 3 },
        max: Levels { allocated_bytes: 1 << 63, active_bytes: 5, reserved_bytes: 6 },
        dropped_before: 99,
        exact: true,
        ..Rollup::default()
    };
    let meta = ChunkMeta { device: DeviceIndex(255), first_event: u64::MAX, rollup };
    let mut encoder = Encoder::new(100).unwrap();
    let event = Event { time_ns: 1234, ..Event::default() };
    encoder.push(&event).unwrap();
    let header = read_header(&encoder.finish(&meta).unwrap()).unwrap();
    assert_eq!((header.version, header.resolution_ns, header.events), (1, 100, 1));
    assert_eq!((header.device, header.first_event), (meta.device, meta.first_event));
    let mut expected = Rollup { first_ns: 1200, last_ns: 1200, ..rollup };
    expected.counts[0] = 1;
    assert_eq!(header.rollup, expected);
}

const GOLDEN: &[u8] = include_bytes!("../golden/chunk-v1.bin");

#[test]
fn the_golden_bytes_of_version_1_stay_readable() {
    let (events, meta) = golden_events();
    let mut decoded = Vec::new();
    let header = Decoder::new().unwrap().decode(GOLDEN, &mut decoded).unwrap();
    assert_eq!(decoded, floored(&events, 1000));
    assert_eq!((header.version, header.device, header.first_event), (1, meta.device, meta.first_event));
    assert_eq!(header.rollup.max, meta.rollup.max);
    // The encoder's output today may differ byte for byte, but must have the same content.
    let mut encoder = Encoder::new(1000).unwrap();
    events.iter().for_each(|event| encoder.push(event).unwrap());
    Decoder::new().unwrap().decode(&encoder.finish(&meta).unwrap(), &mut decoded).unwrap();
    assert_eq!(decoded, floored(&events, 1000));
}

/// Regenerates the golden file, for a *new version* of the format only: `cargo test -p memctl-proto --test chunk --
/// --ignored`.
#[test]
#[ignore = "writes tests/golden/chunk-v1.bin if it is missing or empty"]
fn write_the_golden_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chunk-v1.bin");
    assert!(std::fs::metadata(path).map_or(0, |file| file.len()) == 0, "a version that was released never changes");
    let (events, meta) = golden_events();
    let mut encoder = Encoder::new(1000).unwrap();
    events.iter().for_each(|event| encoder.push(event).unwrap());
    std::fs::write(path, encoder.finish(&meta).unwrap()).unwrap();
}
