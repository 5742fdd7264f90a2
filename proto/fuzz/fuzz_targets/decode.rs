//! Decodes arbitrary bytes as a chunk, once as they are and once with both checksums put right.
//!
//! What decodes must encode and decode to itself. Seeds: `tests/golden/chunk-v1.bin`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memctl_proto::chunk::{ChunkMeta, Decoder, Encoder};

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new().expect("memory for zstd");
    let mut events = Vec::new();
    let _ = decoder.decode(bytes, &mut events);
    let mut sealed = bytes.to_vec();
    reseal(&mut sealed);
    let Ok(header) = decoder.decode(&sealed, &mut events) else { return };
    assert_eq!(events.len(), header.events as usize);
    let mut encoder = Encoder::new(header.resolution_ns).expect("memory for zstd");
    // Ticks that no encoder writes wrap: such times need not lie on the grid.
    let grid = u64::from(header.resolution_ns);
    for event in &mut events {
        event.time_ns -= event.time_ns % grid;
        encoder.push(event).expect("no more events than a chunk holds");
    }
    let chunk = encoder.finish(&ChunkMeta::default()).expect("there is an event");
    let mut again = Vec::new();
    decoder.decode(&chunk, &mut again).expect("what was just encoded decodes");
    assert_eq!(events, again);
});

fn reseal(chunk: &mut [u8]) {
    if chunk.len() < 8 {
        return;
    }
    let header_bytes = usize::from(u16::from_le_bytes([chunk[6], chunk[7]]));
    if header_bytes < 16 || header_bytes > chunk.len() {
        return;
    }
    let payload = crc32c::crc32c(&chunk[header_bytes..]);
    chunk[header_bytes - 8..header_bytes - 4].copy_from_slice(&payload.to_le_bytes());
    let header = crc32c::crc32c(&chunk[..header_bytes - 4]);
    chunk[header_bytes - 4..header_bytes].copy_from_slice(&header.to_le_bytes());
}
