//! The devices of this machine, as NVIDIA's library names them.

use memctl_agent::sample::device::{DeviceProcess, Devices as _};
use memctl_agent::sample::nvml::Nvml;

/// What a device's memory is used for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Its number on this machine.
    pub ordinal: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its name.
    pub name: Option<String>,
    /// Its memory; `None` if the driver does not report it.
    pub total_bytes: Option<u64>,
    /// The memory that programs use.
    pub used_bytes: Option<u64>,
    /// Processes with their bytes, if known; `None` if the driver does not list them.
    pub processes: Option<Vec<(u32, Option<u64>)>>,
}

/// What the memory of this machine's devices is used for now. May take seconds.
///
/// # Errors
/// There is no driver or it refuses, with the reason in words.
pub fn device_readings() -> Result<Vec<DeviceUse>, String> {
    let read = || {
        let nvml = Nvml::open()?;
        let devices = nvml.devices()?.into_iter().zip(0..);
        devices
            .map(|(device, ordinal)| {
                let reading = nvml.read(&device.uuid)?;
                let pair = |process: DeviceProcess| (process.pid, process.used_bytes);
                Ok(DeviceUse {
                    ordinal,
                    uuid: device.uuid,
                    name: device.name,
                    total_bytes: reading.memory.map(|memory| memory.total_bytes),
                    used_bytes: reading.memory.map(|memory| memory.used_bytes),
                    processes: reading.processes.map(|listed| listed.into_iter().map(pair).collect()),
                })
            })
            .collect::<Result<Vec<_>, _>>()
    };
    read().map_err(|reason: memctl_agent::sample::Unavailable| reason.to_string())
}

/// The driver's version and the names of this machine's devices, or why there are none. May take seconds.
///
/// # Errors
/// There is no driver, with the reason in words.
pub fn devices() -> Result<(String, Vec<String>), String> {
    let ask = || {
        let nvml = Nvml::open()?;
        let devices = nvml.devices()?.into_iter().map(|device| device.name.unwrap_or(device.uuid)).collect();
        Ok((nvml.driver_version()?, devices))
    };
    ask().map_err(|reason: memctl_agent::sample::Unavailable| reason.to_string())
}
