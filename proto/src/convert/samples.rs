//! Samples: what could not be measured stays absent.

use memctl_model::Sample;

use super::session::device_index;
use super::{WireError, at_most};
use crate::v1;

/// Samples of one batch.
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
        })
    }
}

/// Unpacks a batch.
///
/// # Errors
/// More than [`SAMPLES_MAX`] samples, or a device that cannot be.
pub fn from_wire(batch: v1::SampleBatch) -> Result<Vec<Sample>, WireError> {
    at_most("samples of a batch", batch.samples.len(), SAMPLES_MAX)?;
    batch.samples.into_iter().map(Sample::try_from).collect()
}
