//! The devices and hosts of a report: what each process needs, what it used, and what was left.
//!
//! Guarantees: a device that several processes use is counted once. Host memory of a process that another one counts
//! among its children is not added again.

use std::collections::{BTreeMap, BTreeSet};

use memctl_analysis::need::{Demand, outside_bytes};
use memctl_model::scheduler::{SLURM_GPUS_LABEL, SLURM_MEM_LABEL};
use memctl_replay::{Conf, Version};

use super::{Device, Host};
use crate::naming::name_of;
use crate::processes::Process;
use crate::report::{Rank, Report, Sample};
use crate::what_if::Setting;

/// A device of a process, with what decides whether it fits.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is shown of it.
    pub device: Device,
    /// What it needs; `None` if its peak is not known.
    pub demand: Option<Demand>,
    /// Its row in the report.
    pub at: usize,
    /// Its replay.
    pub replay: Replay,
    /// What identifies the device.
    id: DeviceId,
    /// When its process began and when it was last heard, in nanoseconds since the Unix epoch.
    times_ns: Option<(u64, u64)>,
    /// Whether the process still runs.
    is_running: bool,
}

/// What identifies a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceId {
    /// Its host and its UUID.
    Known(Option<String>, String),
    /// It is not known, so the row of this index has it alone.
    OfRow(usize),
}

/// The replay of a row.
#[derive(Clone, Debug)]
pub enum Replay {
    /// There is none, for this reason.
    Not(String),
    /// It reproduces the recording. The settings are the recorded ones, under the limits of `Row::limits`.
    Exact(Vec<Setting>),
}

impl Default for Replay {
    fn default() -> Self {
        Self::Not("it was not replayed".to_owned())
    }
}

/// The rows of a report, in its order.
#[must_use]
pub fn rows(report: &Report) -> Vec<Row> {
    let mut rows: Vec<Row> = report.ranks.iter().enumerate().map(|(at, rank)| row(report, at, rank)).collect();
    let sharing: Vec<(u64, u64, Vec<String>)> = rows.iter().map(|row| beside(row, &rows)).collect();
    for (row, (beside_bytes, most_used, names)) in rows.iter_mut().zip(sharing) {
        row.device.shared_with = names;
        row.device.unused_bytes = row.device.device_total_bytes.map(|total| total.saturating_sub(most_used));
        if let Some(demand) = &mut row.demand {
            demand.beside_bytes = beside_bytes;
        } else {
            row.device.unused_bytes = None;
        }
    }
    rows
}

fn row(report: &Report, at: usize, rank: &Rank) -> Row {
    let (sample, highest) = (rank.sample.as_ref(), rank.highest.as_ref());
    let of = |sample: Option<&Sample>| sample.and_then(|sample| sample.device_total_bytes);
    let total = of(sample).or(of(highest)).or(rank.device_total_bytes);
    let demand = rank.peak_reserved_bytes.zip(rank.peak_allocated_bytes).map(|(reserved, allocated)| {
        let now = sample.and_then(|sample| sample.reserved_bytes).or(rank.reserved_bytes);
        let last = sample.and_then(|sample| sample.process_used_bytes).zip(now);
        Demand {
            peak_allocated_bytes: allocated,
            peak_reserved_bytes: reserved,
            outside_bytes: outside_bytes(reserved, highest.and_then(|highest| highest.process_used_bytes), last),
            device_bytes: total,
            beside_bytes: 0,
            fraction: fraction(rank),
            has_failed: rank.ooms > 0,
        }
    });
    let process = report.processes.iter().find(|it| it.rank == rank.rank && it.process == rank.process);
    let ends = |process: &Process| process.ended_at.map(|end| end.0).or(rank.last_heard_ns());
    let outside = demand.and_then(|demand| demand.outside_bytes);
    Row {
        device: Device {
            rank: rank.rank,
            process: rank.process.clone(),
            host: rank.host.clone(),
            device: rank.device,
            gpu_name: rank.gpu_name.clone(),
            device_total_bytes: total,
            peak_allocated_bytes: rank.peak_allocated_bytes,
            peak_reserved_bytes: rank.peak_reserved_bytes,
            outside_bytes: outside,
            assumed_outside_bytes: demand.filter(|_| outside.is_none()).map(|demand| demand.outside_or_allowance()),
            needed_bytes: demand.map(|demand| demand.needed_bytes()),
            unused_bytes: None,
            shared_with: Vec::new(),
            ooms: rank.ooms,
        },
        demand,
        at,
        replay: Replay::default(),
        id: match &rank.gpu_uuid {
            Some(uuid) => DeviceId::Known(rank.host.clone(), uuid.clone()),
            None => DeviceId::OfRow(at),
        },
        times_ns: process.and_then(|process| Some((process.started_at.0, ends(process)?))),
        is_running: process.is_some_and(|process| process.ended_at.is_none()),
    }
}

/// The share of the device to which the recorded settings limit the process.
fn fraction(rank: &Rank) -> Option<f64> {
    let version = Version::of_framework(rank.framework.as_deref());
    Conf::parse(&rank.allocator_conf, version).ok()?.0.memory_fraction
}

impl Row {
    /// Whether another process may have used the same device at the same time.
    fn is_beside(&self, other: &Self) -> bool {
        let is_other = (self.device.rank, &self.device.process) != (other.device.rank, &other.device.process);
        let until = |row: &Self, end: u64| if row.is_running { u64::MAX } else { end };
        let overlaps = match (self.times_ns, other.times_ns) {
            (Some((from, end)), Some((since, last))) => from <= until(other, last) && since <= until(self, end),
            _ => true,
        };
        is_other && self.id == other.id && overlaps
    }
}

/// What other processes need beside a row on its device, the most that is used of this device at any time, and the
/// names of the others.
fn beside(row: &Row, rows: &[Row]) -> (u64, u64, Vec<String>) {
    let needs = |row: &Row| row.device.needed_bytes.unwrap_or(0);
    let of = |row: &Row| {
        let others = rows.iter().filter(|other| row.is_beside(other));
        others.map(needs).fold(0, u64::saturating_add)
    };
    let on_it = rows.iter().filter(|other| other.id == row.id);
    let most = on_it.map(|other| needs(other).saturating_add(of(other))).max().unwrap_or(0);
    let names = rows.iter().filter(|other| row.is_beside(other));
    (of(row), most, names.map(|other| name_of(&other.device.process, other.device.rank)).collect())
}

/// The longest time of a row in seconds, and the unused GiB times hours of all devices. `None` if a device lacks its
/// size or its times.
pub(super) fn unused(rows: &[Row]) -> (Option<f64>, Option<f64>) {
    let mut devices: BTreeMap<&DeviceId, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        devices.entry(&row.id).or_default().push(row);
    }
    let seconds = |rows: &[&Row]| {
        let times = rows.iter().filter_map(|row| row.times_ns);
        let from = times.clone().map(|(from, _)| from).min()?;
        Some(times.map(|(_, end)| end).max()?.saturating_sub(from) as f64 / 1e9)
    };
    let longest = devices.values().filter_map(|rows| seconds(rows)).max_by(f64::total_cmp);
    let hours = devices.values().map(|rows| {
        let unused = rows.iter().map(|row| row.device.unused_bytes).collect::<Option<Vec<u64>>>()?;
        Some(unused.into_iter().min()? as f64 / (1_u64 << 30) as f64 * seconds(rows)? / 3600.0)
    });
    (longest, hours.sum::<Option<f64>>().filter(|_| !rows.is_empty()))
}

/// The hosts of the rows, by name.
pub(super) fn hosts(report: &Report, rows: &[Row]) -> Vec<Host> {
    let label = |key: &str| report.job.labels.get(key).and_then(|value| value.parse::<u64>().ok());
    let mut hosts: BTreeMap<Option<&str>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        hosts.entry(row.device.host.as_deref()).or_default().push(row);
    }
    let host = |(name, rows): (Option<&str>, Vec<&Row>)| {
        let mut processes: BTreeMap<(u32, &str), Option<u64>> = BTreeMap::new();
        for row in &rows {
            let highest = processes.entry((row.device.rank, &*row.device.process)).or_default();
            *highest = (*highest).max(host_bytes(&report.ranks[row.at]));
        }
        let counted = processes.iter().filter(|((rank, process), _)| !is_child(report, *rank, process));
        let bytes: Option<Vec<u64>> = counted.map(|(_, bytes)| *bytes).collect();
        let devices: BTreeSet<&DeviceId> = rows.iter().map(|row| &row.id).collect();
        Host {
            host: name.map(str::to_owned),
            processes: processes.len() as u64,
            highest_bytes: bytes.map(|bytes| bytes.into_iter().fold(0, u64::saturating_add)),
            asked_bytes: label(SLURM_MEM_LABEL).and_then(|mebibytes| mebibytes.checked_mul(1 << 20)),
            devices: devices.len() as u64,
            devices_asked: label(SLURM_GPUS_LABEL),
        }
    };
    hosts.into_iter().map(host).collect()
}

/// The highest host memory of a process with its children.
fn host_bytes(rank: &Rank) -> Option<u64> {
    let highest = rank.highest.as_ref()?;
    Some(highest.host_rss_bytes?.saturating_add(highest.children_rss_bytes.unwrap_or(0)))
}

/// Whether a process is a child of another one of the job, which counts its host memory.
fn is_child(report: &Report, rank: u32, process: &str) -> bool {
    let Some(own) = report.processes.iter().find(|it| it.rank == rank && it.process == process) else { return false };
    let is_parent = |other: &Process| other.pid.is_some() && other.pid == own.parent_pid && other.host == own.host;
    own.parent_pid.is_some() && report.processes.iter().any(is_parent)
}
