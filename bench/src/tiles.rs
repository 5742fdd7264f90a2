//! Tiles of a job of 10^8 events, requested from the daemon's HTTP port as by the page, with the time of each request.
//!
//! The store is filled with real chunks of one rank, with true levels and a keyframe every four chunks. Each access
//! pattern is a list of tiles, requested one after the other on one connection: first from a daemon that was just
//! started and has empty caches, then once more. The head of every response is read; the measured time ends with the
//! last byte.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use memctl_analysis::statistics::quantile;
use memctl_model::Event;
use serde_json::Value;

use crate::query;

/// Slots of a tile.
const SLOTS: u64 = 512;

/// One access pattern.
#[derive(Clone, Debug)]
pub struct Latency {
    /// The name of this access pattern.
    pub what: String,
    /// Sorted.
    pub milliseconds: Vec<f64>,
    /// Tiles whose first response was not complete.
    pub coarse: usize,
}

impl Latency {
    /// The given percentile.
    #[must_use]
    pub fn percentile(&self, hundredths: usize) -> f64 {
        quantile(&self.milliseconds, hundredths as f64 / 100.0).unwrap_or(f64::NAN)
    }
}

/// A daemon on a filled folder; killed when dropped.
struct Served {
    child: Child,
    http: String,
}

impl Served {
    fn on(memctl: &Path, folder: &Path) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(memctl)
            .env("MEMCTL_SERVICE", "off")
            .args(["daemon", "--listen", "http://127.0.0.1:0", "--http-listen", "http://127.0.0.1:0", "--data-dir"])
            .arg(folder)
            .env("MEMCTL_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut places = Vec::new();
        while places.len() < 2 {
            let line = lines.next().ok_or("the daemon did not come up")??;
            places.extend(line.split_whitespace().filter_map(|word| word.strip_prefix("http://").map(str::to_owned)));
        }
        let http = places[1].trim_matches(|sign: char| !sign.is_ascii_alphanumeric()).to_owned();
        Ok(Self { child, http })
    }

    fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A benchmark's daemon has no data to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that is kept.
struct Browser {
    reader: BufReader<TcpStream>,
    host: String,
}

impl Browser {
    fn of(served: &Served) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(&served.http)?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream), host: served.http.clone() })
    }

    /// The bytes of an answer.
    fn get(&mut self, path: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        write!(self.reader.get_mut(), "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host)?;
        let (mut status, mut length) = (String::new(), 0);
        self.reader.read_line(&mut status)?;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse()?;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        if status.split(' ').nth(1) != Some("200") {
            return Err(format!("{path}: {status}{}", String::from_utf8_lossy(&body)).into());
        }
        Ok(body)
    }

    /// A tile's head.
    fn tile(&mut self, (level, index): (u32, u64)) -> Result<Value, Box<dyn Error>> {
        let body = self.get(&format!("/api/v1/jobs/large/tiles?rank=0&level={level}&index={index}"))?;
        let end = body.iter().position(|byte| *byte == b'\n').ok_or("no head")?;
        Ok(serde_json::from_slice(&body[..end])?)
    }

    /// Requests tiles one after the other.
    fn time(&mut self, tiles: &[(u32, u64)], latency: &mut Latency) -> Result<(), Box<dyn Error>> {
        for &tile in tiles {
            let begun = Instant::now();
            let head = self.tile(tile)?;
            latency.milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
            latency.coarse += usize::from(head["coarse_chunks"] != 0);
        }
        latency.milliseconds.sort_by(f64::total_cmp);
        Ok(())
    }
}

/// The tiles of a zoom from the whole job to one place, each with its right neighbour.
fn walk(first_ns: u64, last_ns: u64, drawn: u64) -> Vec<(u32, u64)> {
    let (mut tiles, mut length) = (Vec::new(), last_ns - first_ns);
    let around = first_ns + drawn % length;
    while length > 1_000_000 {
        let level = ((length / (2 * SLOTS)).max(1)).next_power_of_two().ilog2();
        let index = around / (SLOTS << level);
        tiles.extend([(level, index), (level, index + 1)]);
        length /= 4;
    }
    tiles
}

/// Fills `folder` with a job of one rank and `events_wanted` events, and requests tiles; returns a table.
///
/// # Errors
/// The store or the daemon fails, or a tile has no response.
pub async fn run(
    memctl: &Path,
    folder: &Path,
    events: &[Event],
    events_wanted: u64,
    walked: u64,
) -> Result<String, Box<dyn Error>> {
    let (total, bytes) = query::fill(folder, events, events_wanted, 1).await?;
    let first_ns = events.first().ok_or("no events")?.time_ns;
    let span_ns = events.last().ok_or("no events")?.time_ns - first_ns + 1_000_000;
    let last_ns = first_ns + total / events.len() as u64 * span_ns;
    let level = ((last_ns - first_ns) / (2 * SLOTS)).next_power_of_two().ilog2();
    let whole: Vec<(u32, u64)> =
        (first_ns / (SLOTS << level)..=last_ns / (SLOTS << level)).map(|index| (level, index)).collect();
    let served = Served::on(memctl, folder)?;
    let mut browser = Browser::of(&served)?;
    let mut rows = [
        "the whole, by a daemon that was just started",
        "closer and aside, where nobody looked before",
        "each of these ways once more, at once",
    ]
    .map(|what| Latency { what: what.to_owned(), milliseconds: Vec::new(), coarse: 0 });
    browser.time(&whole, &mut rows[0])?;
    let mut drawn = 7_u64;
    for _ in 0..walked {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let walk = walk(first_ns, last_ns, drawn >> 11);
        browser.time(&walk, &mut rows[1])?;
        browser.time(&walk, &mut rows[2])?;
    }
    let peak = served.peak_bytes();
    let mut text = format!(
        "job of {total} events, 1 rank; database {:.1} MB; daemon's peak {:.0} MB\n\n\
         | tiles | count | median ms | p99 ms | slowest ms | not told to the end at once |\n|---|---|---|---|---|---|\n",
        bytes as f64 / 1e6,
        peak as f64 / 1e6
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {} |\n",
            row.what,
            row.milliseconds.len(),
            row.percentile(50),
            row.percentile(99),
            row.percentile(100),
            row.coarse
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted() {
        let milliseconds: Vec<f64> = (1..=200).map(f64::from).collect();
        let latency = Latency { what: String::new(), milliseconds, coarse: 0 };
        assert_eq!([50, 99, 100].map(|of| latency.percentile(of)), [100.0, 198.0, 200.0]);
    }

    #[test]
    fn a_walk_goes_from_the_whole_to_a_millisecond() {
        let walk = walk(1_780_000_000_000_000_000, 1_780_000_900_000_000_000, 3);
        let levels = || walk.iter().map(|(level, _)| *level);
        assert_eq!((walk.len(), levels().max(), levels().min()), (20, Some(30), Some(12)));
    }
}
