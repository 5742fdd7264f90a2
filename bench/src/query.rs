//! `memctl query` on a job of 10^8 events and on one of half a million steps: the store is filled with real chunks and
//! site tables, then the binary itself is timed.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memctl_analysis::statistics::upper_median;
use memctl_daemon::ingest::prepare::{Scale, prepare};
use memctl_daemon::store::{Append, SqliteStore, Store as _};
use memctl_model::limits::KEYFRAME_CHUNKS;
use memctl_model::{
    Boundary, Counters, DeviceIndex, Dropped, Event, Frame, Peaks, Sample, SessionEnd, SiteRow, SiteTable, StackId,
};
use memctl_proto::StackSender;
use memctl_proto::item::Packed;
use memctl_proto::v1::Item;

use crate::chunks::Chunks;
use crate::ingest::session;

/// Sites of a table.
const SITES: u32 = 200;

/// Milliseconds of a command, sorted.
#[derive(Clone, Debug)]
pub struct Latency {
    /// The command's name.
    pub command: String,
    /// Sorted.
    pub milliseconds: Vec<f64>,
}

impl Latency {
    /// The median.
    #[must_use]
    pub fn median(&self) -> f64 {
        upper_median(&self.milliseconds).copied().unwrap_or(f64::NAN)
    }
}

/// A row of a table.
impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slowest = self.milliseconds.last().copied().unwrap_or(f64::NAN);
        write!(f, "| memctl {} | {:.1} | {slowest:.1} |", self.command, self.median())
    }
}

/// Fills `folder` with a job of this many ranks and `events_wanted` events; returns the events and the size of the
/// database.
///
/// # Errors
/// The store fails.
pub async fn fill(
    folder: &Path,
    events: &[Event],
    events_wanted: u64,
    ranks: u32,
) -> Result<(u64, u64), Box<dyn Error>> {
    let path = folder.join("memctl.db");
    let store = SqliteStore::open(&path, "bench").await?;
    let mut total = 0;
    for rank in 0..ranks {
        let session = session("large", rank);
        let opened = store.open_session(&session, 1).await?;
        let mut chunks = Chunks::new(events.to_vec(), 100)?.followed(&session.settings);
        let mut chunks_since_keyframe = 0;
        let mut seq = 0;
        let mut stacks = StackSender::default();
        for line in 1..=SITES {
            stacks.add(&[
                Frame { function: format!("layer_{line}").as_str().into(), file: "/home/user/model.py".into(), line },
                Frame { function: "train".into(), file: "/home/user/train.py".into(), line: 7 },
            ]);
        }
        let mut items = vec![Packed::stacks(&stacks.take().ok_or("no stacks")?)];
        while chunks.next_event() < events_wanted / u64::from(ranks) {
            let epoch = chunks.epoch();
            items.push(Packed::chunk(chunks.next_chunk()?.into()));
            chunks_since_keyframe += 1;
            if chunks_since_keyframe >= KEYFRAME_CHUNKS {
                chunks_since_keyframe = 0;
                items.extend(chunks.keyframe().as_ref().map(Packed::keyframe));
            }
            if chunks.epoch() != epoch {
                items.push(Packed::site_tables(&tables(epoch, chunks.next_event())));
            }
            if items.len() >= 64 {
                append(&store, opened.key, &mut seq, &mut items).await?;
            }
        }
        total += chunks.next_event();
        let end = SessionEnd { time_ns: 2, produced: chunks.next_event(), ..SessionEnd::default() };
        items.push(Packed::end(&end));
        append(&store, opened.key, &mut seq, &mut items).await?;
    }
    store.close().await?;
    Ok((total, std::fs::metadata(path)?.len()))
}

/// Sites of the long job that change with every step: remaining activations, buffers, a leak.
const CHANGING: u32 = 12;

/// Fills `folder` with a job of one rank, `epochs` epochs of `steps` steps; returns the size of the database.
///
/// # Errors
/// The store fails.
pub async fn fill_long(folder: &Path, epochs: u32, steps: u64) -> Result<u64, Box<dyn Error>> {
    let path = folder.join("memctl.db");
    let store = SqliteStore::open(&path, "bench").await?;
    let opened = store.open_session(&session("long", 0), 1).await?;
    let mut stacks = StackSender::default();
    for line in 1..=SITES {
        let frame = |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        stacks.add(&[
            frame("forward", "/opt/site-packages/torch/nn/modules/linear.py", 117),
            frame("_call_impl", "/opt/site-packages/torch/nn/modules/module.py", 1_780),
            frame("forward", "/home/user/model.py", line),
            frame("_call_impl", "/opt/site-packages/torch/nn/modules/module.py", 1_780),
            frame("train", "/home/user/train.py", 7),
        ]);
    }
    let mut items = vec![Packed::stacks(&stacks.take().ok_or("no stacks")?)];
    let mut seq = 0;
    for epoch in 0..epochs {
        let mut tables: Vec<SiteTable> = (0..steps).map(|step| long_table(epoch, steps, step)).collect();
        let end = tables.last().ok_or("no steps")?.clone();
        tables.push(SiteTable { boundary: Boundary::EpochEnd, ..end });
        items.extend(tables.chunks(64).map(Packed::site_tables));
        let time_ns = tables[0].time_ns;
        items.push(Packed::samples(&[Sample { time_ns, device_used_bytes: Some(3 << 30), ..Sample::default() }]));
        if items.len() >= 64 {
            append(&store, opened.key, &mut seq, &mut items).await?;
        }
    }
    items.push(Packed::end(&SessionEnd { time_ns: 1 << 50, ..SessionEnd::default() }));
    append(&store, opened.key, &mut seq, &mut items).await?;
    store.close().await?;
    Ok(std::fs::metadata(path)?.len())
}

fn long_table(epoch: u32, steps: u64, of_epoch: u64) -> SiteTable {
    let step = u64::from(epoch) * steps + of_epoch;
    let row = |stack: u32| {
        let (blocks, bytes) = match stack {
            7 => (1 + step / 20, (1 + step / 20) * 4_096),
            stack if stack < CHANGING + 2 => (1, ((step * u64::from(stack) * 7_919) % 64 + 1) << 18),
            stack => (4, u64::from(stack) << 16),
        };
        SiteRow { stack: StackId(stack), birth_epoch: 0, birth_phase: None, blocks, bytes }
    };
    let rows: Vec<SiteRow> = (1..=SITES).map(row).collect();
    let allocated_bytes = rows.iter().map(|row| row.bytes).sum();
    let reserved_bytes = 2 << 30;
    SiteTable {
        device: DeviceIndex(0),
        boundary: Boundary::StepEnd,
        epoch,
        step,
        time_ns: (step + 1) * 50_000_000,
        at_event: (step + 1) * 900,
        exact: true,
        counters: Counters { allocated_bytes, reserved_bytes, ..Counters::default() },
        peaks: Peaks { allocated_bytes: 1 << 30, reserved_bytes },
        peaks_within: Peaks { allocated_bytes: (1 << 30) - (step % 97) * 4_096, reserved_bytes },
        found: false,
        private_pools: Vec::new(),
        rows,
    }
}

/// The tables of an epoch: 64 steps and the epoch's end, as an agent batches them.
fn tables(epoch: u32, at_event: u64) -> Vec<SiteTable> {
    (0..=64)
        .map(|index| SiteTable {
            device: DeviceIndex(0),
            boundary: if index == 64 { Boundary::EpochEnd } else { Boundary::StepEnd },
            epoch,
            step: u64::from(epoch) * 64 + index.min(63),
            time_ns: at_event * 1_000 + index,
            at_event,
            exact: true,
            counters: Counters { allocated_bytes: 1 << 30, reserved_bytes: 2 << 30, ..Counters::default() },
            peaks: Peaks { allocated_bytes: 1 << 30, reserved_bytes: 2 << 30 },
            peaks_within: Peaks::default(),
            found: false,
            private_pools: Vec::new(),
            rows: (1..=SITES)
                .map(|stack| SiteRow {
                    stack: StackId(stack),
                    birth_epoch: 0,
                    birth_phase: None,
                    blocks: 1 + u64::from(epoch) * u64::from(stack == 7),
                    bytes: (u64::from(stack) + u64::from(epoch) * u64::from(stack == 7)) << 20,
                })
                .collect(),
        })
        .collect()
}

async fn append(store: &SqliteStore, key: i64, seq: &mut u64, items: &mut Vec<Packed>) -> Result<(), Box<dyn Error>> {
    let numbered: Vec<Item> = items
        .drain(..)
        .map(|packed| {
            *seq += 1;
            packed.numbered(*seq)
        })
        .collect();
    Ok(store.append(vec![appended(key, &numbered)?]).await?)
}

/// The append of these items of a session, which have consecutive numbers.
///
/// # Errors
/// An item is invalid.
pub(crate) fn appended(key: i64, items: &[Item]) -> Result<Append, Box<dyn Error>> {
    let mut append = Append {
        session: key,
        items: Vec::new(),
        gaps: Vec::new(),
        durable_seq: items.last().map_or(0, |item| item.seq),
        duplicates: 0,
        heard_ns: 1,
        devices: Vec::new(),
        epoch_ends: Vec::new(),
        end: None,
        dropped: Dropped::default(),
    };
    for item in items {
        let prepared = prepare(key, &[0], item, &Scale::default())?;
        append.items.push(prepared.item);
        for update in prepared.devices {
            match append.devices.first_mut() {
                Some(sum) => {
                    sum.events += update.events;
                    sum.epochs += update.epochs;
                    sum.steps += update.steps;
                    sum.latest = update.latest.or(sum.latest);
                }
                None => append.devices.push(update),
            }
        }
        append.epoch_ends.extend(prepared.epoch_ends);
        append.end = prepared.end.or(append.end);
    }
    Ok(append)
}

/// Times whole runs of the command line, process start included; `place` has the flags of the store.
///
/// # Errors
/// A run fails.
pub fn time(memctl: &Path, place: &[&str], arguments: &[&str], runs: usize) -> Result<Latency, Box<dyn Error>> {
    let mut milliseconds = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        let output = Command::new(memctl).env("MEMCTL_SERVICE", "off").args(arguments).args(place).output()?;
        milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
    }
    milliseconds.sort_by(f64::total_cmp);
    Ok(Latency { command: arguments.join(" "), milliseconds })
}
