//! Combines what the driver and the kernel report about a process into one [`Sample`] for each of its devices.
//!
//! The driver lists the processes on a device. Their memory is divided by owner:
//! - *ours*: the trainer itself.
//! - *children*: descendants of the trainer (a DataLoader worker that made a context, a spawned helper).
//! - *foreign*: all others. Another rank of the same job is foreign. Its context on a device that is not its own is a
//!   common fault.
//!
//! If the driver does not list the trainer on a device, the trainer holds 0 bytes there. This requires that the
//! driver's pids are valid for this reader (the initial pid namespace). In a container with other pids, all shares are
//! `None` in that case. [`combine`] is pure. [`Sampler`] reads each device once and each process once, regardless of
//! how many share them.

use std::collections::{HashMap, HashSet};

use memctl_model::{DeviceIndex, Sample};

use super::Unavailable;
use super::device::{DeviceProcess, DeviceReading, Devices};
use super::host::{Descendant, Proc, ProcessKey};

/// What the kernel reports about a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostReading {
    /// Resident bytes of the process.
    pub resident_bytes: Option<u64>,
    /// Its live descendants.
    pub descendants: Vec<Descendant>,
}

/// Device memory by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Shares {
    /// Bytes of the trainer.
    pub ours_bytes: Option<u64>,
    /// Bytes of its descendants.
    pub children_bytes: Option<u64>,
    /// Bytes of all other processes.
    pub foreign_bytes: Option<u64>,
}

/// Divides a device's memory by owner, as the module's documentation describes.
#[must_use]
pub fn shares(processes: &[DeviceProcess], pid: u32, descendants: &HashSet<u32>, pids_are_ours: bool) -> Shares {
    if !pids_are_ours && !processes.iter().any(|process| process.pid == pid) {
        return Shares::default();
    }
    // A process of unknown size makes the sum of its group unknown.
    let sum = |whose: &dyn Fn(u32) -> bool| {
        let mut of_whom = processes.iter().filter(|process| whose(process.pid));
        of_whom.try_fold(0u64, |sum, process| Some(sum.saturating_add(process.used_bytes?)))
    };
    Shares {
        ours_bytes: sum(&|other| other == pid),
        children_bytes: sum(&|other| other != pid && descendants.contains(&other)),
        foreign_bytes: sum(&|other| other != pid && !descendants.contains(&other)),
    }
}

/// Makes one sample of one device for one process. The allocator's own fields stay `None`, because the trainer reports
/// them.
///
/// `device_total_bytes` is what programs can allocate: NVML's total without the driver's own share, as in
/// `cuMemGetInfo`.
#[must_use]
pub fn combine(
    device: DeviceIndex,
    time_ns: u64,
    pid: u32,
    reading: Option<&DeviceReading>,
    host: Option<&HostReading>,
    pids_are_ours: bool,
) -> Sample {
    let descendants: HashSet<u32> =
        host.iter().flat_map(|host| &host.descendants).map(|descendant| descendant.key.pid).collect();
    let shares = reading
        .and_then(|reading| reading.processes.as_deref())
        .map(|processes| shares(processes, pid, &descendants, pids_are_ours))
        .unwrap_or_default();
    let memory = reading.and_then(|reading| reading.memory);
    Sample {
        device,
        time_ns,
        device_used_bytes: memory.map(|memory| memory.used_bytes),
        device_total_bytes: memory.map(|memory| memory.total_bytes.saturating_sub(memory.reserved_bytes)),
        process_used_bytes: shares.ours_bytes,
        foreign_used_bytes: shares.foreign_bytes,
        utilisation_percent: reading.and_then(|reading| reading.utilisation_percent),
        host_rss_bytes: host.and_then(|host| host.resident_bytes),
        children_rss_bytes: host.and_then(|host| resident(&host.descendants)),
        ..Sample::default()
    }
}

/// Resident bytes of all descendants. A descendant that ended between listing and measuring counts as 0.
fn resident(descendants: &[Descendant]) -> Option<u64> {
    let measured = descendants.iter().filter_map(|descendant| descendant.resident_bytes);
    let (count, sum) = measured.fold((0usize, 0u64), |(count, sum), bytes| (count + 1, sum.saturating_add(bytes)));
    (count > 0 || descendants.is_empty()).then_some(sum)
}

/// A process to sample, and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The trainer.
    pub process: ProcessKey,
    /// Its devices and their UUIDs. A device without a UUID has no NVML figures.
    pub devices: Vec<(DeviceIndex, Option<String>)>,
}

/// Reads the figures of the processes that it is called with.
pub struct Sampler {
    devices: Result<Box<dyn Devices>, Unavailable>,
    proc: Proc,
    pids_are_ours: bool,
}

impl Sampler {
    /// Opens NVML, if it is installed. This may take seconds, so it must run on a background thread.
    #[must_use]
    pub fn open() -> Self {
        Self::new(open_nvml(), Proc::default())
    }

    /// Uses the given devices and `/proc`.
    #[must_use]
    pub fn new(devices: Result<Box<dyn Devices>, Unavailable>, proc: Proc) -> Self {
        let pids_are_ours = proc.is_initial_pid_namespace();
        Self { devices, proc, pids_are_ours }
    }

    /// The reason why there are no device figures; `None` when there are.
    #[must_use]
    pub fn unavailable(&self) -> Option<&Unavailable> {
        self.devices.as_ref().err()
    }

    /// One sample for each device of each process, in the order of `watched`. A process that is gone has no samples.
    #[must_use]
    pub fn sample(&self, watched: &[Watched], time_ns: u64) -> Vec<Vec<Sample>> {
        let mut readings: HashMap<&str, Option<DeviceReading>> = HashMap::new();
        let mut all = Vec::with_capacity(watched.len());
        for Watched { process, devices } in watched {
            if self.proc.key(process.pid) != Some(*process) {
                all.push(Vec::new());
                continue;
            }
            let host = HostReading {
                resident_bytes: self.proc.resident_bytes(process.pid),
                descendants: self.proc.descendants(process.pid),
            };
            let mut samples = Vec::with_capacity(devices.len());
            for (index, uuid) in devices {
                let reading = uuid.as_deref().and_then(|uuid| {
                    readings.entry(uuid).or_insert_with(|| self.devices.as_ref().ok()?.read(uuid).ok()).as_ref()
                });
                samples.push(combine(*index, time_ns, process.pid, reading, Some(&host), self.pids_are_ours));
            }
            all.push(samples);
        }
        all
    }
}

#[cfg(feature = "nvml")]
fn open_nvml() -> Result<Box<dyn Devices>, Unavailable> {
    super::nvml::Nvml::open().map(|nvml| Box::new(nvml) as Box<dyn Devices>)
}

#[cfg(not(feature = "nvml"))]
fn open_nvml() -> Result<Box<dyn Devices>, Unavailable> {
    Err(Unavailable::NotBuilt("NVML (feature `nvml`)"))
}
