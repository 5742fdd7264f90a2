//! The cost of judging: a large job from its tables to its findings, and the daemon's ingest with judging on and off.
//!
//! The streams are synthetic but shaped like a training: 16 steps per chunk (4,096 events per step, as in GPT-2 small)
//! and 200 sites. Of these, 20 change at every step, and one leaks.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use memctl_analysis::judge::{Activity, RankFacts, RankWatch, findings};
use memctl_model::{Boundary, Counters, DeviceIndex, Event, Frame, Peaks, SiteRow, SiteTable, StackId};
use memctl_proto::StackSender;
use memctl_proto::item::Packed;

use crate::chunks::Chunks;
use crate::ingest::{self, Daemon};

/// Steps of one chunk.
const STEPS_PER_CHUNK: u64 = 16;
/// Steps of one epoch.
const STEPS_PER_EPOCH: u64 = 64;

/// The result for a large job.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// Rows of all tables.
    pub rows: u64,
    /// Seconds to take all tables.
    pub taking: f64,
    /// Seconds to judge the tables.
    pub judging: f64,
    /// Resident bytes that were added.
    pub memory_bytes: u64,
    /// Findings.
    pub findings: usize,
}

fn stack(site: u32) -> Vec<Frame> {
    let frame = |function: String, file: &str, line| Frame { function: function.into(), file: file.into(), line };
    let mut frames: Vec<Frame> =
        (0..12).map(|depth| frame("forward".into(), "/opt/site-packages/torch/nn/module.py", 100 + depth)).collect();
    frames.insert(0, frame(format!("layer_{site}"), "/home/me/model.py", site));
    frames.push(frame("main".into(), "/home/me/train.py", 9));
    frames
}

fn table(boundary: Boundary, epoch: u32, step: u64, sites: u32, changing: u32) -> SiteTable {
    let row = |site: u32| {
        let (blocks, bytes) = match site {
            0 => (step + 1, (step + 1) << 20),
            site if site < changing => (1, ((step * u64::from(site) * 7_919) % 64 + 1) << 18),
            site => (4, u64::from(site) << 16),
        };
        SiteRow { stack: StackId(site + 1), birth_epoch: 0, birth_phase: None, blocks, bytes }
    };
    let rows: Vec<SiteRow> = (0..sites).map(row).collect();
    let allocated_bytes = rows.iter().map(|row| row.bytes).sum();
    SiteTable {
        device: DeviceIndex(0),
        boundary,
        epoch,
        step,
        time_ns: (step + 1) * 100_000_000,
        at_event: step * 4_096,
        exact: true,
        counters: Counters { allocated_bytes, reserved_bytes: allocated_bytes * 2, ..Counters::default() },
        peaks: Peaks::default(),
        peaks_within: Peaks { allocated_bytes: allocated_bytes + (1 << 30), reserved_bytes: allocated_bytes * 2 },
        found: false,
        rows,
        private_pools: Vec::new(),
    }
}

/// A job of `ranks` ranks, `epochs` epochs and `sites` sites, from its epoch ends to its findings, on one core.
#[must_use]
pub fn large(ranks: u32, epochs: u32, sites: u32) -> Large {
    let tables: Vec<SiteTable> =
        (0..epochs).map(|epoch| table(Boundary::EpochEnd, epoch, u64::from(epoch), sites, 20)).collect();
    let stacks: Vec<Vec<Frame>> = (0..sites).map(stack).collect();
    let before = resident_bytes();
    let begun = Instant::now();
    let watches: Vec<RankWatch> = (0..ranks)
        .map(|rank| {
            let mut watch =
                RankWatch::new(RankFacts { rank, device_total_bytes: Some(80 << 30), ..RankFacts::default() });
            (1..).zip(&stacks).for_each(|(id, stack)| watch.stack(StackId(id), stack));
            tables.iter().for_each(|table| watch.table(table));
            watch
        })
        .collect();
    let taking = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let found = findings(&watches.iter().collect::<Vec<_>>(), Activity::Running);
    let judging = begun.elapsed().as_secs_f64();
    let memory_bytes = resident_bytes().saturating_sub(before);
    let found = black_box(found).len();
    let rows = u64::from(ranks) * u64::from(epochs) * u64::from(sites);
    Large { rows, taking, judging, memory_bytes, findings: found }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The items of one stream: stacks, then for every four chunks one item of site tables.
fn items(events: &[Event], chunks: usize) -> Result<Vec<Packed>, Box<dyn Error>> {
    let mut sender = StackSender::default();
    for site in 0..200 {
        sender.add(&stack(site));
    }
    let mut items = vec![Packed::stacks(&sender.take().ok_or("no stacks")?)];
    let mut encoder = Chunks::new(events.to_vec(), 100)?;
    let mut step = 0;
    for index in 0..chunks {
        items.push(Packed::chunk(Bytes::from(encoder.next_chunk()?)));
        if index % 4 == 3 {
            let mut tables = Vec::new();
            for _ in 0..4 * STEPS_PER_CHUNK {
                let epoch = (step / STEPS_PER_EPOCH) as u32;
                tables.push(table(Boundary::StepEnd, epoch, step, 200, 20));
                step += 1;
            }
            items.push(Packed::site_tables(&tables));
        }
    }
    Ok(items)
}

/// Events per second into a fresh store over `streams` streams, with judging `on` or `off`.
///
/// # Errors
/// Any step fails.
pub async fn ingest(
    memctl: &Path,
    events: &[Event],
    streams: u32,
    chunks: usize,
    judging: &str,
) -> Result<f64, Box<dyn Error>> {
    let items = items(events, chunks)?;
    let daemon = Daemon::start_with(memctl, &[("MEMCTL_JUDGING", judging)])?;
    let begun = Instant::now();
    let sending: Vec<_> =
        (0..streams).map(|rank| tokio::spawn(ingest::stream(daemon.url().into(), rank, items.clone()))).collect();
    for task in sending {
        task.await?.map_err(|error| error.to_string())?;
    }
    Ok(f64::from(streams) * chunks as f64 * 65_536.0 / begun.elapsed().as_secs_f64())
}
