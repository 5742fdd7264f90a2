//! The readings of a device as the driver reports them, and the trait of their source.
//!
//! Guarantees: figures that the driver does not report are `None`.

use super::Unavailable;

/// One process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// Its pid, in the driver's namespace.
    pub pid: u32,
    /// Its bytes on the device; `None` when the driver does not report them.
    pub used_bytes: Option<u64>,
}

/// The memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceMemory {
    /// All bytes of the device, including the driver's own share.
    pub total_bytes: u64,
    /// Bytes reserved by the driver and firmware.
    pub reserved_bytes: u64,
    /// Bytes in use by programs.
    pub used_bytes: u64,
    /// Bytes that programs can still allocate.
    pub free_bytes: u64,
}

/// What NVML reports about a device at one moment. Fields are independent: one may be missing without the others.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceReading {
    /// Its memory; `None` when the driver does not report it (unified memory: GB10, Grace, Jetson).
    pub memory: Option<DeviceMemory>,
    /// Share of the last period during which a kernel ran, 0 to 100.
    pub utilisation_percent: Option<u32>,
    /// Processes with a compute context; `None` when the driver does not list them.
    pub processes: Option<Vec<DeviceProcess>>,
}

/// Source of readings: NVML.
pub trait Devices: Send {
    /// Reads the device with this UUID (`GPU-…`, `MIG-…`, or without either).
    ///
    /// # Errors
    /// The device is not visible here, or the driver refuses.
    fn read(&self, uuid: &str) -> Result<DeviceReading, Unavailable>;
}
