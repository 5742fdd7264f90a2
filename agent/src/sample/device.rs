//! A device as the driver tells of it, and who reads that.
//!
//! Guarantees: what the driver does not tell is `None`.

use super::Unavailable;

/// One process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Its pid, as the driver has it.
    pub pid: u32,
    /// Its bytes there; `None` when the driver does not tell.
    pub used_bytes: Option<u64>,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceMemory {
    /// All bytes of the device, those that the driver keeps for itself included.
    pub total_bytes: u64,
    /// Bytes that the driver and firmware keep for themselves.
    pub reserved_bytes: u64,
    /// Bytes in use by programs.
    pub used_bytes: u64,
    /// Bytes that programs can still have.
    pub free_bytes: u64,
}

/// What NVML says about a device at one moment. Each field stands for itself: that one is not told takes no other along.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceReading {
    /// Its memory; `None` where the driver does not answer that (unified memory: GB10, Grace, Jetson).
    pub memory: Option<DeviceMemory>,
    /// Share of the last period during which a kernel ran, 0 to 100.
    pub utilisation_percent: Option<u32>,
    /// Processes with a compute context; `None` when the driver does not list them.
    pub processes: Option<Vec<DeviceProcess>>,
}

/// Where readings come from: NVML.
pub trait Devices: Send {
    /// Reads the device of a UUID (`GPU-…`, `MIG-…`, or without either).
    ///
    /// # Errors
    /// The device is not visible here, or the driver refuses.
    fn read(&self, uuid: &str) -> Result<DeviceReading, Unavailable>;
}
