//! Samples: measurements from outside the event stream. A figure that was not measured is `None`, never 0.

use crate::event::DeviceIndex;
use crate::sharing::Sharing;

/// One measurement of one device, or of the host for fields with host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sample {
    /// The device.
    pub device: DeviceIndex,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The allocator's own `allocated_bytes.all.current`.
    pub allocated_bytes: Option<u64>,
    /// The allocator's own `active_bytes.all.current`.
    pub active_bytes: Option<u64>,
    /// The allocator's own `reserved_bytes.all.current`.
    pub reserved_bytes: Option<u64>,
    /// The allocator's own `allocated_bytes.all.peak`.
    pub peak_allocated_bytes: Option<u64>,
    /// The allocator's own `reserved_bytes.all.peak`.
    pub peak_reserved_bytes: Option<u64>,
    /// The allocator's `num_alloc_retries`.
    pub alloc_retries: Option<u64>,
    /// The allocator's `num_ooms`.
    pub ooms: Option<u64>,
    /// Bytes in use on the device by all processes (driver).
    pub device_used_bytes: Option<u64>,
    /// All bytes of the device (driver).
    pub device_total_bytes: Option<u64>,
    /// Device memory of this process (NVML).
    pub process_used_bytes: Option<u64>,
    /// Device memory of other processes (NVML).
    pub foreign_used_bytes: Option<u64>,
    /// Device utilisation in percent (NVML).
    pub utilisation_percent: Option<u32>,
    /// Resident host memory of the process.
    pub host_rss_bytes: Option<u64>,
    /// Resident host memory of its children (DataLoader workers).
    pub children_rss_bytes: Option<u64>,
    /// Device memory of the communicators of PyTorch's process groups, as NCCL reports it (2.29.7).
    pub nccl_bytes: Option<u64>,
    /// The limit that the program set on its own allocator (`torch.cuda.set_per_process_memory_fraction`).
    pub limit_bytes: Option<u64>,
    /// Features that share device memory and that the process was seen to use.
    pub sharing: Sharing,
}

impl Sample {
    /// Whether the driver's list of processes can contain a process whose allocator holds this many bytes of the device.
    /// A process holds at least what its allocator holds. Under WSL, in some containers and in some sandboxes the driver
    /// lists no process or others, so a reader finds 0 bytes or another process's. All shares are then unknown. `true`
    /// if no figure contradicts it.
    #[must_use]
    pub fn lists_process(&self, held_bytes: u64) -> bool {
        // Both figures are from different moments, and a starting process may hold twice as much after a second.
        self.process_used_bytes.is_none_or(|used| held_bytes == 0 || (used > 0 && used >= held_bytes / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_less_than_its_allocator_holds_is_not_listed() {
        let lists =
            |used: Option<u64>, held| Sample { process_used_bytes: used, ..Sample::default() }.lists_process(held);
        assert!(lists(None, 100) && lists(Some(500), 100) && lists(Some(60), 100) && lists(Some(0), 0));
        assert!(!lists(Some(0), 100) && !lists(Some(0), 1) && !lists(Some(40), 100));
    }
}
