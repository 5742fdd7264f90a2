//! Converts samples. Figures that could not be measured stay absent.

use memctl_model::{Sample, Sharing};

use super::session::device_index;
use super::{WireError, at_most};
use crate::v1;

/// Maximum number of samples of one batch.
pub const SAMPLES_MAX: usize = 65_536;

impl From<&Sample> for v1::Sample {
    fn from(sample: &Sample) -> Self {
        let Sample {
            device,
            time_ns,
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            alloc_retries,
            ooms,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation_percent,
            host_rss_bytes,
            children_rss_bytes,
            nccl_bytes,
            limit_bytes,
            sharing,
        } = *sample;
        Self {
            device: u32::from(device.0),
            time_ns,
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            alloc_retries,
            ooms,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation_percent,
            host_rss_bytes,
            children_rss_bytes,
            nccl_bytes,
            limit_bytes,
            sharing: sharing_to_wire(sharing),
        }
    }
}

impl TryFrom<v1::Sample> for Sample {
    type Error = WireError;

    fn try_from(wire: v1::Sample) -> Result<Self, WireError> {
        let v1::Sample {
            device,
            time_ns,
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            alloc_retries,
            ooms,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation_percent,
            host_rss_bytes,
            children_rss_bytes,
            nccl_bytes,
            limit_bytes,
            sharing,
        } = wire;
        Ok(Self {
            device: device_index(device)?,
            time_ns,
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            peak_allocated_bytes,
            peak_reserved_bytes,
            alloc_retries,
            ooms,
            device_used_bytes,
            device_total_bytes,
            process_used_bytes,
            foreign_used_bytes,
            utilisation_percent,
            host_rss_bytes,
            children_rss_bytes,
            nccl_bytes,
            limit_bytes,
            sharing: sharing_from_wire(&sharing),
        })
    }
}

/// Packs the features that share device memory.
#[must_use]
pub fn sharing_to_wire(sharing: Sharing) -> Vec<i32> {
    let Sharing { cuda_ipc, rdma, symmetric_memory } = sharing;
    let all = [
        (cuda_ipc, v1::MemorySharing::CudaIpc),
        (rdma, v1::MemorySharing::Rdma),
        (symmetric_memory, v1::MemorySharing::SymmetricMemory),
    ];
    all.into_iter().filter_map(|(is_used, kind)| is_used.then_some(kind.into())).collect()
}

/// Unpacks the features that share device memory. Unknown features of a later version are skipped.
#[must_use]
pub fn sharing_from_wire(wire: &[i32]) -> Sharing {
    let has = |kind: v1::MemorySharing| wire.contains(&kind.into());
    Sharing {
        cuda_ipc: has(v1::MemorySharing::CudaIpc),
        rdma: has(v1::MemorySharing::Rdma),
        symmetric_memory: has(v1::MemorySharing::SymmetricMemory),
    }
}

/// Unpacks a batch.
///
/// # Errors
/// More than [`SAMPLES_MAX`] samples, or an invalid device.
pub fn from_wire(batch: v1::SampleBatch) -> Result<Vec<Sample>, WireError> {
    at_most("samples of a batch", batch.samples.len(), SAMPLES_MAX)?;
    batch.samples.into_iter().map(Sample::try_from).collect()
}
