//! The devices of this machine, as NVIDIA's library names them.

/// The driver's version and the names of this machine's devices, or why there are none. May take seconds.
///
/// # Errors
/// There is no driver, with the reason in words.
pub fn devices() -> Result<(String, Vec<String>), String> {
    let ask = || {
        let nvml = memctl_agent::sample::nvml::Nvml::open()?;
        let devices = nvml.devices()?.into_iter().map(|device| device.name.unwrap_or(device.uuid)).collect();
        Ok((nvml.driver_version()?, devices))
    };
    ask().map_err(|reason: memctl_agent::sample::Unavailable| reason.to_string())
}
