//! `memctl need` as data: the memory that a training needs, and the sizes of devices that would have been enough.
//!
//! `rows` takes what is known from a report, `sizes` decides the sizes, `words` has the sentences, `line` the line for
//! accounting logs.
//!
//! Guarantees: a size that fits or fails is decided by the peaks or by an exact replay, otherwise it is unknown, with
//! the reason. What was not measured is null; what is assumed for it is named.

mod line;
mod rows;
mod sizes;
mod words;

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::report::Report;
use super::{Answer, Completeness, Frame, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;
pub use rows::{Replay, Row, rows};
pub use sizes::{DeviceSize, device_sizes};

/// What no figure covers.
pub const NEVER: [&str; 4] = [
    "Other sizes of the training (batch, sequence, model): `memctl fit`.",
    "Other programs on the device: all usable memory of a size is this training's.",
    "Memory outside PyTorch's allocator on another device: it is taken to be the same there.",
    "Programs that plan with the size of their device, such as servers of models: they need other memory on another one.",
];

/// The memory that a training needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Need {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The answer in some sentences.
    pub answer: String,
    /// What to know with it, in sentences.
    pub notes: Vec<String>,
    /// By rank and device.
    pub devices: Vec<Device>,
    /// By name.
    pub hosts: Vec<Host>,
    /// The smallest size first.
    pub sizes: Vec<Size>,
    /// The time that the processes used their devices, the longest; null if unknown.
    pub seconds: Option<f64>,
    /// GiB of device memory that were never used times hours, summed over devices; null if unknown.
    pub unused_gib_hours: Option<f64>,
    /// What no figure covers.
    pub not_looked_at: Vec<String>,
}

/// One device of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Device {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Host name.
    pub host: Option<String>,
    /// Device index in the process.
    pub device: u32,
    /// The device's name.
    pub gpu_name: Option<String>,
    /// All bytes of the device.
    pub device_total_bytes: Option<u64>,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: Option<u64>,
    /// Highest bytes outside the allocator, as the driver counts them for the process; null if it does not list it.
    pub outside_bytes: Option<u64>,
    /// Bytes that are assumed outside the allocator, where they were not measured.
    pub assumed_outside_bytes: Option<u64>,
    /// Bytes of a device with which the allocator never reaches its limit: reserved and outside.
    pub needed_bytes: Option<u64>,
    /// Bytes of the device that no process of the job used at any time.
    pub unused_bytes: Option<u64>,
    /// Processes of the job that used the same device at the same time.
    pub shared_with: Vec<String>,
    /// Requests that failed.
    pub ooms: u64,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub host: Option<String>,
    /// Processes of the job on it that used a device.
    pub processes: u64,
    /// Highest host memory of these processes and their children: the sum of each one's highest.
    pub highest_bytes: Option<u64>,
    /// Host memory that the scheduler was asked for.
    pub asked_bytes: Option<u64>,
    /// Devices that were used.
    pub devices: u64,
    /// Devices that the scheduler gave.
    pub devices_asked: Option<u64>,
}

/// What a size of device does to the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// No allocator reaches its limit.
    Fits,
    /// Every request is served, some only after the allocator gave cached memory back.
    FitsAfterRetries,
    /// A request fails.
    Fails,
    /// It is not known.
    #[default]
    Unknown,
}

impl Fit {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::FitsAfterRetries => "fits_after_retries",
            Self::Fails => "fails",
            Self::Unknown => "unknown",
        }
    }
}

/// One size of device, for all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Size {
    /// `16 GB`, or the bytes that were asked about.
    pub name: String,
    /// Whether it was asked about, rather than a usual one.
    pub asked: bool,
    /// Bytes that programs can use.
    pub usable_bytes: u64,
    /// What it does.
    pub outcome: Fit,
    /// Most retries of a process; null unless it fits after retries.
    pub retries: Option<u64>,
    /// The request that fails; null unless one fails.
    pub failure: Option<Failure>,
    /// Why it is unknown; null otherwise.
    pub reason: Option<String>,
}

/// A request that fails on a size of device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Failure {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Index of the event on its device; null, as the next three, where only the peaks were compared.
    pub event: Option<u64>,
    /// The step, where steps are marked.
    pub step: Option<u64>,
    /// What was asked.
    pub requested_bytes: Option<u64>,
    /// By whom.
    pub site: Option<Frame>,
}

/// A line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Job {
        #[serde(flatten)]
        job: &'a Job,
        answer: &'a str,
        notes: &'a [String],
        seconds: Option<f64>,
        unused_gib_hours: Option<f64>,
        not_looked_at: &'a [String],
    },
    Device(&'a Device),
    Host(&'a Host),
    Size(&'a Size),
}

impl Need {
    /// The answer about the job of a report. `replays` has an entry for each row that was replayed, or the reason why
    /// it was not. `remarks` are what the replays do not cover.
    #[must_use]
    pub fn new(report: Report, rows: &[Row], sizes: &[DeviceSize], remarks: Vec<String>) -> Self {
        let sizes: Vec<Size> = sizes.iter().map(|size| sizes::size(rows, size)).collect();
        let answer = words::answer(&report, rows, &sizes);
        let notes = words::notes(&report, rows);
        let (seconds, unused_gib_hours) = rows::unused(rows);
        let hosts = rows::hosts(&report, rows);
        let devices = rows.iter().map(|row| row.device.clone()).collect();
        let Report { job, completeness, .. } = report;
        let not_looked_at = remarks.into_iter().chain(NEVER.map(str::to_owned)).collect();
        Self {
            schema: SCHEMA,
            job,
            completeness,
            answer,
            notes,
            devices,
            hosts,
            sizes,
            seconds,
            unused_gib_hours,
            not_looked_at,
        }
    }

    /// The device with the highest need.
    #[must_use]
    pub fn highest(&self) -> Option<&Device> {
        self.devices
            .iter()
            .rev()
            .filter(|device| device.needed_bytes.is_some())
            .max_by_key(|device| device.needed_bytes)
    }
}

impl Answer for Need {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { job, answer, notes, seconds, unused_gib_hours, not_looked_at, .. } = self;
        let (seconds, unused_gib_hours) = (*seconds, *unused_gib_hours);
        json::line(out, &Line::Job { job, answer, notes, seconds, unused_gib_hours, not_looked_at })?;
        self.devices.iter().try_for_each(|device| json::line(out, &Line::Device(device)))?;
        self.hosts.iter().try_for_each(|host| json::line(out, &Line::Host(host)))?;
        self.sizes.iter().try_for_each(|size| json::line(out, &Line::Size(size)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "process",
            "host",
            "device",
            "gpu_name",
            "device_total_bytes",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "outside_bytes",
            "assumed_outside_bytes",
            "needed_bytes",
            "unused_bytes",
            "ooms",
        ];
        csv::header(out, &names)?;
        self.devices.iter().try_for_each(|device| {
            let cells = [
                Cell::plain(device.rank),
                Cell::text(&device.process),
                Cell::maybe_text(device.host.as_deref()),
                Cell::plain(device.device),
                Cell::maybe_text(device.gpu_name.as_deref()),
                Cell::maybe(device.device_total_bytes),
                Cell::maybe(device.peak_allocated_bytes),
                Cell::maybe(device.peak_reserved_bytes),
                Cell::maybe(device.outside_bytes),
                Cell::maybe(device.assumed_outside_bytes),
                Cell::maybe(device.needed_bytes),
                Cell::maybe(device.unused_bytes),
                Cell::plain(device.ooms),
            ];
            csv::record(out, &cells)
        })
    }
}
