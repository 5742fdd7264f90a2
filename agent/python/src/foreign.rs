//! Records allocators whose events Python reports, such as CuPy's pool through its memory hook. Also has the device
//! queries that they need.
//!
//! Guarantees: for an invalid number the return value is false. Only [`attach_foreign`] raises.

use memctl_agent::live::foreign::AllocatorReport;
use memctl_agent::live::{self, LiveError};
use memctl_agent::sample::driver;
use pyo3::prelude::*;

use crate::NativeError;

/// Switches the session to events from [`record`].
#[pyfunction]
pub fn attach_foreign() -> PyResult<()> {
    let refuse = |error: LiveError| NativeError::new_err(error.to_string());
    live::current().ok_or(LiveError::Detached).and_then(|live| live.attach_foreign()).map_err(refuse)
}

/// Records an event: 1 alloc, 2 free, 3 segment, 4 out of memory (`addr` is the device's free bytes), 5 bytes that the
/// pool holds (`size`).
#[pyfunction]
#[pyo3(signature = (device, action, addr, size, stream=0))]
pub fn record(device: u32, action: u8, addr: u64, size: u64, stream: u64) -> bool {
    let report = match action {
        1 => AllocatorReport::Alloc { addr, size, stream },
        2 => AllocatorReport::Free { addr },
        3 => AllocatorReport::SegmentAlloc { addr, size, stream },
        4 => AllocatorReport::OutOfMemory { size, free: addr },
        5 => AllocatorReport::Holds { bytes: size },
        _ => return false,
    };
    live::current().is_some_and(|live| live.tell(device, report))
}

/// The UUID of a CUDA ordinal as nvidia-smi writes it; `None` if CUDA is not in use or the driver does not report it.
#[pyfunction]
pub fn device_uuid(ordinal: u32) -> Option<String> {
    driver::device_uuid(ordinal).ok().map(|uuid| format!("GPU-{uuid}"))
}
