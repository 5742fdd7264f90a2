//! Puts what the driver and the kernel say about a process together, as one [`Sample`] for each of its devices.
//!
//! Whose device memory is whose: a process that the driver lists on a device is *ours* when it is the trainer itself, *of
//! our children* when it descends from the trainer (a DataLoader worker that made a context, a spawned helper), and
//! *foreign* otherwise. Another rank of the same job is foreign: its context on a device that is not its own is what one looks for.
//! A device on which the driver does not list the trainer holds 0 of its bytes only where the driver's pids are this
//! reader's (the initial pid namespace); in a container whose pids differ it is `None`, and so is what is foreign.
//! [`combine`] is pure; [`Sampler`] does the reading: each device once and each process once, whatever shares them.

use std::collections::{HashMap, HashSet};

use memctl_model::{DeviceIndex, Sample};

use super::Unavailable;
use super::device::{DeviceProcess, DeviceReading, Devices};
use super::host::{Descendant, Proc, ProcessKey};

/// What the kernel says about a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostReading {
    /// Resident bytes of the process.
    pub resident_bytes: Option<u64>,
    /// What descends from it and lives.
    pub descendants: Vec<Descendant>,
}

/// Device memory by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Shares {
    /// Of the trainer.
    pub ours_bytes: Option<u64>,
    /// Of its descendants.
    pub children_bytes: Option<u64>,
    /// Of everybody else.
    pub foreign_bytes: Option<u64>,
}

/// Divides a device's memory by owner; the module's documentation says how.
#[must_use]
pub fn shares(processes: &[DeviceProcess], pid: u32, descendants: &HashSet<u32>, pids_are_ours: bool) -> Shares {
    if !pids_are_ours && !processes.iter().any(|process| process.pid == pid) {
        return Shares::default();
    }
    // One process of unknown size makes its sum unknown.
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

/// One sample of one device for one process. The allocator's own fields stay `None`: they are the trainer's to tell.
///
/// `device_total_bytes` is what programs can have, NVML's total without what the driver keeps, as `cuMemGetInfo` has it.
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

/// Resident bytes of all descendants. One that ended between being listed and being measured has none.
fn resident(descendants: &[Descendant]) -> Option<u64> {
    let measured = descendants.iter().filter_map(|descendant| descendant.resident_bytes);
    let (count, sum) = measured.fold((0usize, 0u64), |(count, sum), bytes| (count + 1, sum.saturating_add(bytes)));
    (count > 0 || descendants.is_empty()).then_some(sum)
}

/// A process that is watched, and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The trainer.
    pub process: ProcessKey,
    /// Its devices and their UUIDs; a device without one has no NVML figures.
    pub devices: Vec<(DeviceIndex, Option<String>)>,
}

/// Reads everything that is to be known about the processes it is asked about.
pub struct Sampler {
    devices: Result<Box<dyn Devices>, Unavailable>,
    proc: Proc,
    pids_are_ours: bool,
}

impl Sampler {
    /// Opens NVML, if it is there. May take seconds: not on a thread that anybody waits for.
    #[must_use]
    pub fn open() -> Self {
        Self::new(open_nvml(), Proc::default())
    }

    /// Over the given devices and `/proc`.
    #[must_use]
    pub fn new(devices: Result<Box<dyn Devices>, Unavailable>, proc: Proc) -> Self {
        let pids_are_ours = proc.is_initial_pid_namespace();
        Self { devices, proc, pids_are_ours }
    }

    /// Why there are no figures of devices, if there are none.
    #[must_use]
    pub fn unavailable(&self) -> Option<&Unavailable> {
        self.devices.as_ref().err()
    }

    /// One sample for each device of each process, in their order. A process that is gone has none.
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
