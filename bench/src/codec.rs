//! The chunk codec on one core: bytes per event, events per second, and the size of the original files under gzip and
//! zstd.
//!
//! Guarantees: every recording is decoded and compared before anything is reported; rates are medians over
//! whole passes. Refuses recordings without events.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use memctl_analysis::statistics::median;
use memctl_model::Event;
use memctl_model::limits::CHUNK_EVENTS_MAX;
use memctl_proto::chunk::{ChunkMeta, Decoder, Encoder};

/// One recording's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Events.
    pub events: usize,
    /// Bytes of all its chunks.
    pub chunk_bytes: usize,
    /// Median seconds to encode it.
    pub encode_seconds: f64,
    /// Median seconds to decode it into a vector of events.
    pub decode_seconds: f64,
    /// Median seconds to visit its events without keeping them.
    pub visit_seconds: f64,
}

/// The result of a general compressor on the original files.
#[derive(Clone, Debug)]
pub struct Rival {
    /// Its name and level.
    pub name: &'static str,
    /// Bytes of the original files.
    pub original_bytes: usize,
    /// Bytes afterwards.
    pub compressed_bytes: usize,
    /// Seconds to compress them, one pass.
    pub seconds: f64,
}

/// All results.
#[derive(Clone, Debug)]
pub struct Report {
    /// By recording.
    pub rows: Vec<Row>,
    /// The rivals, if original files were given.
    pub rivals: Vec<Rival>,
}

impl Report {
    /// Events of all recordings.
    #[must_use]
    pub fn events(&self) -> usize {
        self.rows.iter().map(|row| row.events).sum()
    }

    /// Bytes per event over all recordings.
    #[must_use]
    pub fn bytes_per_event(&self) -> f64 {
        self.rows.iter().map(|row| row.chunk_bytes).sum::<usize>() as f64 / self.events() as f64
    }

    /// Events per second over all recordings, for one of a row's times.
    #[must_use]
    pub fn rate(&self, seconds: impl Fn(&Row) -> f64) -> f64 {
        self.events() as f64 / self.rows.iter().map(seconds).sum::<f64>()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<34} {:>8} {:>9} {:>8} {:>8} {:>8}",
            "recording", "events", "B/event", "encode", "decode", "visit"
        )?;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, events: usize, bytes: f64, rates: [f64; 3]| {
            let [encode, decode, visit] = rates.map(|rate| rate / 1e6);
            writeln!(f, "{name:<34} {events:>8} {bytes:>9.3} {encode:>6.1} M {decode:>6.1} M {visit:>6.1} M")
        };
        for row in &self.rows {
            let events = row.events as f64;
            let rates = [row.encode_seconds, row.decode_seconds, row.visit_seconds].map(|seconds| events / seconds);
            line(f, &row.name, row.events, row.chunk_bytes as f64 / events, rates)?;
        }
        let rates = [
            self.rate(|row| row.encode_seconds),
            self.rate(|row| row.decode_seconds),
            self.rate(|row| row.visit_seconds),
        ];
        line(f, "all", self.events(), self.bytes_per_event(), rates)?;
        for rival in &self.rivals {
            let events = self.events() as f64;
            writeln!(
                f,
                "{:<34} {:>8} {:>9.3} {:>6.1} M  ({} → {} bytes)",
                rival.name,
                self.events(),
                rival.compressed_bytes as f64 / events,
                events / rival.seconds / 1e6,
                rival.original_bytes,
                rival.compressed_bytes
            )?;
        }
        Ok(())
    }
}

/// Encodes and decodes each recording `passes` times at a resolution; compresses the original files, if any, once.
///
/// # Errors
/// If a recording is empty, cannot be encoded, or does not decode to itself.
pub fn run(
    recordings: &[(String, Vec<Event>)],
    originals: &[Vec<u8>],
    resolution_ns: u32,
    passes: usize,
) -> Result<Report, Box<dyn Error>> {
    let (mut encoder, mut decoder) = (Encoder::new(resolution_ns)?, Decoder::new()?);
    let mut rows = Vec::new();
    for (name, events) in recordings {
        if events.is_empty() {
            return Err(format!("recording {name} has no events").into());
        }
        rows.push(measure(name, events, resolution_ns, passes.max(1), &mut encoder, &mut decoder)?);
    }
    let rivals = if originals.is_empty() { Vec::new() } else { vec![gzip(originals)?, zstd(originals)?] };
    Ok(Report { rows, rivals })
}

fn measure(
    name: &str,
    events: &[Event],
    resolution_ns: u32,
    passes: usize,
    encoder: &mut Encoder,
    decoder: &mut Decoder,
) -> Result<Row, Box<dyn Error>> {
    let chunks = encode(events, encoder)?;
    check(name, events, resolution_ns, &chunks, decoder)?;
    let mut decoded = Vec::with_capacity(CHUNK_EVENTS_MAX);
    let (mut encode_seconds, mut decode_seconds, mut visit_seconds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..passes {
        let begun = Instant::now();
        black_box(encode(events, encoder)?);
        encode_seconds.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for chunk in &chunks {
            decoder.decode(chunk, &mut decoded)?;
            black_box(&decoded);
        }
        decode_seconds.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let mut bytes = 0u64;
        for chunk in &chunks {
            decoder.visit(chunk, |event| bytes = bytes.wrapping_add(event.size))?;
        }
        black_box(bytes);
        visit_seconds.push(begun.elapsed().as_secs_f64());
    }
    Ok(Row {
        name: name.to_owned(),
        events: events.len(),
        chunk_bytes: chunks.iter().map(Vec::len).sum(),
        encode_seconds: median(encode_seconds).ok_or("no passes")?,
        decode_seconds: median(decode_seconds).ok_or("no passes")?,
        visit_seconds: median(visit_seconds).ok_or("no passes")?,
    })
}

fn encode(events: &[Event], encoder: &mut Encoder) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut chunks = Vec::new();
    for part in events.chunks(CHUNK_EVENTS_MAX) {
        for event in part {
            encoder.push(event)?;
        }
        chunks.push(encoder.finish(&ChunkMeta::default())?);
    }
    Ok(chunks)
}

/// Returns an error unless the chunks decode to the events, with times rounded down to the resolution.
fn check(
    name: &str,
    events: &[Event],
    resolution_ns: u32,
    chunks: &[Vec<u8>],
    decoder: &mut Decoder,
) -> Result<(), Box<dyn Error>> {
    let grid = u64::from(resolution_ns.max(1));
    let mut decoded = Vec::new();
    for (part, chunk) in events.chunks(CHUNK_EVENTS_MAX).zip(chunks) {
        decoder.decode(chunk, &mut decoded)?;
        let floored = part.iter().map(|event| Event { time_ns: event.time_ns / grid * grid, ..*event });
        if !floored.eq(decoded.iter().copied()) {
            return Err(format!("recording {name} does not decode to itself").into());
        }
    }
    Ok(())
}

fn gzip(originals: &[Vec<u8>]) -> Result<Rival, Box<dyn Error>> {
    rival("gzip -6 of the snapshots", originals, |bytes| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(bytes)?;
        encoder.finish()
    })
}

fn zstd(originals: &[Vec<u8>]) -> Result<Rival, Box<dyn Error>> {
    rival("zstd -3 of the snapshots", originals, |bytes| zstd::bulk::compress(bytes, 3))
}

fn rival(
    name: &'static str,
    originals: &[Vec<u8>],
    compress: impl Fn(&[u8]) -> std::io::Result<Vec<u8>>,
) -> Result<Rival, Box<dyn Error>> {
    let begun = Instant::now();
    let mut compressed_bytes = 0;
    for original in originals {
        compressed_bytes += compress(original)?.len();
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Rival { name, original_bytes: originals.iter().map(Vec::len).sum(), compressed_bytes, seconds })
}
