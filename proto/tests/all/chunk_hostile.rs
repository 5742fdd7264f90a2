//! Hostile chunks: damaged, truncated, forged. They return errors; they never panic and never make the decoder allocate
//! more than the limits allow.

use crate::streams;

use memctl_model::Event;
use memctl_model::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX};
use memctl_proto::chunk::{ChunkError, ChunkMeta, Decoder, Encoder, read_header};
use streams::{Rng, Training, floored, golden_events};

fn encode(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(1000).unwrap();
    events.iter().for_each(|event| encoder.push(event).unwrap());
    encoder.finish(&ChunkMeta::default()).unwrap()
}

/// Corrects both checksums, so that the content behind them is reached.
fn reseal(chunk: &mut [u8]) {
    let header_bytes = usize::from(u16::from_le_bytes([chunk[6], chunk[7]]));
    if header_bytes < 16 || header_bytes > chunk.len() {
        return;
    }
    let payload = crc32c::crc32c(&chunk[header_bytes..]);
    chunk[header_bytes - 8..header_bytes - 4].copy_from_slice(&payload.to_le_bytes());
    let header = crc32c::crc32c(&chunk[..header_bytes - 4]);
    chunk[header_bytes - 4..header_bytes].copy_from_slice(&header.to_le_bytes());
}

#[test]
fn every_damaged_byte_is_noticed() {
    let (events, _) = golden_events();
    let chunk = encode(&events);
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    decoder.decode(&chunk, &mut out).unwrap();
    for at in 0..chunk.len() {
        for damage in [0x01, 0x80, 0xff] {
            let mut damaged = chunk.clone();
            damaged[at] ^= damage;
            assert!(decoder.decode(&damaged, &mut out).is_err(), "byte {at} ^ {damage:#x}");
            assert!(out.is_empty());
        }
    }
}

#[test]
fn every_truncation_and_every_appendix_is_noticed() {
    let chunk = encode(&Training::new(3, true).events(400));
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    for bytes in 0..chunk.len() {
        assert!(decoder.decode(&chunk[..bytes], &mut out).is_err(), "{bytes}");
    }
    assert!(decoder.decode(&[chunk, vec![0]].concat(), &mut out).is_err());
}

/// What a cargo-fuzz target does, with a fixed seed: mutations behind correct checksums.
#[test]
fn mutations_behind_the_checksums_never_panic_and_never_exceed_the_limits() {
    let (golden, _) = golden_events();
    let seeds = [encode(&golden), encode(&Training::new(4, true).events(3000)), encode(&golden[1500..])];
    let mut decoder = Decoder::new().unwrap();
    let (mut out, mut rng) = (Vec::new(), Rng(5));
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..6_000 {
        let mut chunk = seeds[rng.below(3) as usize].clone();
        for _ in 0..=rng.below(4) {
            let at = 8 + rng.below(chunk.len() as u64 - 8) as usize;
            match rng.below(4) {
                0 => chunk[at] ^= 1 << rng.below(8),
                1 => chunk[at] = rng.next() as u8,
                2 => chunk[at] = chunk[at].wrapping_add(1),
                _ => chunk[at] = [0, 0x7f, 0x80, 0xff][rng.below(4) as usize],
            }
        }
        reseal(&mut chunk);
        match decoder.decode(&chunk, &mut out) {
            Ok(header) => {
                assert_eq!(out.len(), header.events as usize);
                accepted += 1;
            }
            Err(_) => {
                assert!(out.is_empty());
                refused += 1;
            }
        }
        assert!(out.capacity() <= 2 * CHUNK_EVENTS_MAX);
    }
    // Both happen: a flipped extra bit of a time is a valid chunk, most else is not.
    assert!(accepted > 50 && refused > 3_000, "{accepted} accepted, {refused} refused");
    // The decoder still works afterwards.
    decoder.decode(&seeds[0], &mut out).unwrap();
    assert_eq!(out, floored(&golden, 1000));
}

#[test]
fn noise_is_refused() {
    let mut decoder = Decoder::new().unwrap();
    let (mut out, mut rng) = (Vec::new(), Rng(6));
    for bytes in 0..2000 {
        let mut noise: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
        assert!(decoder.decode(&noise, &mut out).is_err());
        if bytes > 40 {
            noise[..8].copy_from_slice(&[b'M', b'C', b'H', b'K', 1, 0, 40, 0]);
            reseal(&mut noise);
            assert!(decoder.decode(&noise, &mut out).is_err());
        }
    }
}

/// A header with forged values, in front of `payload`.
struct Lie {
    events: u64,
    keys: u64,
    shift: u64,
    columns: [(u64, u64); 8],
    times: u64,
}

impl Lie {
    const fn honest() -> Self {
        Self { events: 1, keys: 1, shift: 0, columns: [(0, 0); 8], times: 0 }
    }

    fn chunk(&self, payload: &[u8]) -> Vec<u8> {
        let mut chunk = b"MCHK\x01\x00\x00\x00".to_vec();
        let mut put = |mut value: u64| {
            while value > 0x7f {
                chunk.push(value as u8 | 0x80);
                value >>= 7;
            }
            chunk.push(value as u8);
        };
        [0, 1000, 0, self.events, 0, self.keys, self.shift].into_iter().for_each(&mut put);
        self.columns.into_iter().for_each(|(raw, stored)| {
            put(raw);
            put(stored);
        });
        put(self.times);
        // Counts by action (all of them allocations), then the other 19 fields of the rollup.
        put(self.events);
        (0..9 + 6 + 12 + 1).for_each(|_| put(0));
        chunk.extend([0; 8]);
        let bytes = chunk.len() as u16;
        chunk[6..8].copy_from_slice(&bytes.to_le_bytes());
        chunk.extend(payload);
        reseal(&mut chunk);
        chunk
    }
}

#[track_caller]
fn assert_too_large(lie: &Lie, expected: &str) {
    match read_header(&lie.chunk(&[])) {
        Err(ChunkError::TooLarge { what, .. }) => assert_eq!(what, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn declared_sizes_are_checked_before_anything_is_allocated_for_them() {
    // The shape is right: without forged values the header itself is accepted.
    read_header(&Lie::honest().chunk(&[])).unwrap();
    assert_too_large(&Lie { events: CHUNK_EVENTS_MAX as u64 + 1, ..Lie::honest() }, "events");
    assert_too_large(&Lie { events: u64::from(u32::MAX), ..Lie::honest() }, "events");
    assert_too_large(&Lie { keys: 2, ..Lie::honest() }, "keys");
    assert_too_large(&Lie { shift: 64, ..Lie::honest() }, "address shift");
    let names = ["tokens", "references", "tuples", "operands", "addresses", "wide times", "classes", "lengths"];
    for (index, name) in names.into_iter().enumerate() {
        for events in [1, CHUNK_EVENTS_MAX as u64] {
            let mut lie = Lie { events, ..Lie::honest() };
            lie.columns[index].0 = 5 << 20;
            assert_too_large(&lie, name);
        }
    }
    assert!(matches!(read_header(&vec![0; CHUNK_BYTES_MAX + 1]), Err(ChunkError::TooLarge { what: "bytes", .. })));
    let no_events = Lie { events: 0, keys: 0, ..Lie::honest() };
    assert!(matches!(read_header(&no_events.chunk(&[])), Err(ChunkError::Malformed(_))));
    let longer = Lie { times: u64::from(u32::MAX), ..Lie::honest() };
    assert!(matches!(read_header(&longer.chunk(&[])), Err(ChunkError::Truncated("payload"))));
}

#[test]
fn a_column_that_unpacks_to_more_than_it_declares_is_refused() {
    // 4 MiB of zeros come to some hundred bytes; the header admits to 1 event and 1 byte of tokens… of 60 stored ones.
    let bomb = zstd::bulk::compress(&vec![0; 4 << 20], 3).unwrap();
    let mut lie = Lie { events: 65_536, keys: 1, ..Lie::honest() };
    lie.columns[0] = (65_536, bomb.len() as u64);
    let mut out = Vec::new();
    let result = Decoder::new().unwrap().decode(&lie.chunk(&bomb), &mut out);
    assert!(matches!(result, Err(ChunkError::Malformed("tokens"))), "{result:?}");
    assert!(out.is_empty());
}

#[test]
fn other_formats_are_named() {
    let mut chunk = encode(&Training::new(8, false).events(10));
    chunk[4] = 2;
    assert!(matches!(read_header(&chunk), Err(ChunkError::Version(2))));
    chunk[0] = b'X';
    let error = read_header(&chunk).unwrap_err();
    assert!(matches!(error, ChunkError::NotAChunk(_)));
    assert!(error.to_string().contains("not a memctl chunk"));
}
