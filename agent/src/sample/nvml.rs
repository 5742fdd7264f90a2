//! NVML, which is opened at run time. It reports memory, utilisation and processes of a device by its UUID.
//!
//! Guarantees: no NVIDIA file is needed to build or to start. Without library or driver, [`Nvml::open`] returns the
//! reason. Figures that a device does not report are `None` (a MIG instance has no utilisation).
//!
//! Listing processes takes milliseconds and the driver's lock. It should be called about once a second, from a
//! background thread.
//! Refuses: to change anything on a device.

use std::ffi::OsStr;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::Unavailable;
use super::device::{DeviceMemory, DeviceProcess, DeviceReading, Devices};

/// The library's name as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Maximum number of processes of one device that are read. A training machine has fewer.
const PROCESSES_MAX: usize = 4_096;

/// An open NVML.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

/// One device of this machine, for `memctl doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// UUID as NVML writes it, `GPU-…`.
    pub uuid: String,
    /// Marketing name.
    pub name: Option<String>,
}

impl Nvml {
    /// Loads the library and initialises it. This may take seconds if no other program uses the devices.
    ///
    /// # Errors
    /// There is no library, no driver or no permission. The message has the cause and the remedy.
    pub fn open() -> Result<Self, Unavailable> {
        Self::open_at(OsStr::new(LIBRARY))
    }

    /// Like [`Nvml::open`], with the library's path.
    ///
    /// # Errors
    /// As [`Nvml::open`].
    pub fn open_at(library: &OsStr) -> Result<Self, Unavailable> {
        nvml_wrapper::Nvml::builder().lib_path(library).init().map(Self).map_err(|error| match error {
            NvmlError::LibloadingError(error) => Unavailable::NoLibrary { library: LIBRARY, detail: error.to_string() },
            error => refused("NVML does not start", &error),
        })
    }

    /// The driver's version, `580.82.07`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn driver_version(&self) -> Result<String, Unavailable> {
        self.0.sys_driver_version().map_err(|error| refused("the driver's version", &error))
    }

    /// The devices of this machine or container, without their MIG instances.
    ///
    /// # Errors
    /// The driver refuses. A device that does not report its UUID is left out.
    pub fn devices(&self) -> Result<Vec<DeviceName>, Unavailable> {
        let count = self.0.device_count().map_err(|error| refused("the number of devices", &error))?;
        Ok((0..count)
            .filter_map(|index| {
                let device = self.0.device_by_index(index).ok()?;
                Some(DeviceName { uuid: device.uuid().ok()?, name: device.name().ok() })
            })
            .collect())
    }

    /// The device with this UUID. The prefix `GPU-` or `MIG-` may be missing, because CUDA and PyTorch leave it out.
    fn device(&self, uuid: &str) -> Result<nvml_wrapper::Device<'_>, Unavailable> {
        let bare = !uuid.starts_with("GPU-") && !uuid.starts_with("MIG-");
        let names = if bare { vec![format!("GPU-{uuid}"), format!("MIG-{uuid}")] } else { vec![uuid.to_owned()] };
        for name in names {
            match self.0.device_by_uuid(name) {
                Ok(device) => return Ok(device),
                Err(NvmlError::NotFound | NvmlError::InvalidArg | NvmlError::NulError(_)) => {}
                Err(error) => return Err(refused("NVML cannot reach the device", &error)),
            }
        }
        Err(Unavailable::NoDevice(uuid.to_owned()))
    }
}

impl Devices for Nvml {
    fn read(&self, uuid: &str) -> Result<DeviceReading, Unavailable> {
        let device = self.device(uuid)?;
        let memory = device.memory_info().ok().map(|memory| DeviceMemory {
            total_bytes: memory.total,
            reserved_bytes: memory.reserved,
            used_bytes: memory.used,
            free_bytes: memory.free,
        });
        Ok(DeviceReading {
            memory,
            utilisation_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
            processes: processes(&device),
        })
    }
}

/// Compute processes of a device; `None` when the driver does not list them.
fn processes(device: &nvml_wrapper::Device<'_>) -> Option<Vec<DeviceProcess>> {
    let listed = device.running_compute_processes().or_else(|error| match error {
        // Between counting and listing, more processes were added than there was room for.
        NvmlError::InsufficientSize(_) => device.running_compute_processes(),
        error => Err(error),
    });
    listed.ok().map(|listed| listed.into_iter().take(PROCESSES_MAX).map(process).collect())
}

fn process(process: ProcessInfo) -> DeviceProcess {
    DeviceProcess {
        pid: process.pid,
        used_bytes: match process.used_gpu_memory {
            // With MIG and confidential computing, the driver lists the process without its memory.
            UsedGpuMemory::Unavailable => None,
            UsedGpuMemory::Used(bytes) => Some(bytes),
        },
    }
}

fn refused(what: &'static str, error: &NvmlError) -> Unavailable {
    Unavailable::Refused { what, detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_library_it_says_so() {
        let error = Nvml::open_at(OsStr::new("/nowhere/libnvidia-ml.so.1")).expect_err("no such library");
        assert!(matches!(&error, Unavailable::NoLibrary { library: LIBRARY, detail } if detail.contains("/nowhere/")));
        assert!(error.to_string().contains("NVIDIA driver"), "{error}");
    }

    /// NVML opens or returns a reason, depending on the machine.
    #[test]
    fn it_opens_or_says_why() {
        match Nvml::open() {
            Ok(nvml) => {
                for device in nvml.devices().expect("devices of an open NVML") {
                    let reading = nvml.read(&device.uuid).expect("a device that was listed");
                    let memory = reading.memory.unwrap_or_default();
                    assert!(memory.used_bytes + memory.free_bytes <= memory.total_bytes, "{reading:?}");
                }
                assert!(matches!(nvml.read("no-such-uuid"), Err(Unavailable::NoDevice(_))));
            }
            Err(reason) => assert!(reason.to_string().len() > 20, "{reason}"),
        }
    }
}
