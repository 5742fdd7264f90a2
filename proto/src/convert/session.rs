//! Converts sessions, devices, settings and a session's end.

use memctl_model::limits::{DEVICES_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX, is_job_name};
use memctl_model::{
    AllocatorSettings, Counters, DeviceIndex, DeviceInfo, Dropped, Launch, Peaks, SessionEnd, SessionId, SessionInfo,
    SourceKind,
};

use super::{WireError, at_most};
use crate::v1;

/// Maximum rank. A higher one is a mistake.
const RANK_MAX: u32 = 1 << 20;

impl From<&SessionInfo> for v1::SessionInfo {
    fn from(session: &SessionInfo) -> Self {
        let SessionInfo {
            id,
            job,
            attempt,
            rank,
            world_size,
            source,
            host,
            pid,
            parent_pid,
            launch: Launch { launcher, group, attached, into_run },
            role,
            found_by,
            started_ns,
            framework,
            settings,
            devices,
            labels,
            resolution_ns,
        } = session;
        Self {
            id: id.0.to_vec(),
            job: job.clone(),
            attempt: *attempt,
            rank: *rank,
            world_size: *world_size,
            source: match source {
                SourceKind::Live => v1::SourceKind::Live,
                SourceKind::Import => v1::SourceKind::Import,
            } as i32,
            host: host.clone(),
            pid: *pid,
            parent_pid: *parent_pid,
            launcher: *launcher,
            launch_group: group.clone(),
            attached: *attached,
            into_run: *into_run,
            role: role.clone(),
            found_by: found_by.clone(),
            started_ns: *started_ns,
            framework: framework.clone(),
            settings: Some(settings.into()),
            devices: devices.iter().map(Into::into).collect(),
            labels: labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect(),
            resolution_ns: *resolution_ns,
        }
    }
}

impl TryFrom<v1::SessionInfo> for SessionInfo {
    type Error = WireError;

    fn try_from(wire: v1::SessionInfo) -> Result<Self, WireError> {
        let id = <[u8; 16]>::try_from(wire.id.as_slice())
            .map_err(|_| WireError::invalid("session.id", format!("{} bytes", wire.id.len()), "16 bytes"))?;
        if !is_job_name(&wire.job) {
            let shown: String = wire.job.chars().take(64).collect();
            return Err(WireError::invalid(
                "session.job",
                format!("{shown:?}"),
                "1 to 256 letters, digits and ._:@/+-, not beginning with -",
            ));
        }
        if wire.rank >= RANK_MAX {
            return Err(WireError::invalid("session.rank", wire.rank, "below 2^20"));
        }
        if wire.resolution_ns == 0 || wire.resolution_ns > 1_000_000_000 {
            return Err(WireError::invalid("session.resolution_ns", wire.resolution_ns, "1 ns to 1 s"));
        }
        at_most("devices of a session", wire.devices.len(), DEVICES_MAX)?;
        at_most("labels of a session", wire.labels.len(), LABELS_MAX)?;
        let source = match v1::SourceKind::try_from(wire.source) {
            Ok(v1::SourceKind::Live) => SourceKind::Live,
            Ok(v1::SourceKind::Import) => SourceKind::Import,
            _ => return Err(WireError::invalid("session.source", wire.source, "live or import")),
        };
        let devices = wire.devices.into_iter().map(DeviceInfo::try_from).collect::<Result<Vec<_>, _>>()?;
        let labels = wire
            .labels
            .into_iter()
            .map(|label| {
                at_most("bytes of a label", label.key.len().max(label.value.len()), LABEL_BYTES_MAX)?;
                Ok((label.key, label.value))
            })
            .collect::<Result<Vec<_>, WireError>>()?;
        Ok(Self {
            id: SessionId(id),
            job: wire.job,
            attempt: wire.attempt,
            rank: wire.rank,
            world_size: wire.world_size,
            source,
            host: short("session.host", wire.host)?,
            pid: wire.pid,
            parent_pid: wire.parent_pid,
            launch: Launch {
                launcher: wire.launcher,
                group: short("session.launch_group", wire.launch_group)?,
                attached: wire.attached,
                into_run: wire.into_run,
            },
            role: short("session.role", wire.role)?,
            found_by: short("session.found_by", wire.found_by)?,
            started_ns: wire.started_ns,
            framework: short("session.framework", wire.framework)?,
            settings: wire.settings.ok_or(WireError::Missing("session.settings"))?.try_into()?,
            devices,
            labels,
            resolution_ns: wire.resolution_ns,
        })
    }
}

fn short(what: &'static str, text: Option<String>) -> Result<Option<String>, WireError> {
    at_most(what, text.as_ref().map_or(0, String::len), LABEL_BYTES_MAX)?;
    Ok(text)
}

impl From<&DeviceInfo> for v1::DeviceInfo {
    fn from(device: &DeviceInfo) -> Self {
        let DeviceInfo { index, uuid, name, total_bytes } = device;
        Self { index: u32::from(index.0), uuid: uuid.clone(), name: name.clone(), total_bytes: *total_bytes }
    }
}

impl TryFrom<v1::DeviceInfo> for DeviceInfo {
    type Error = WireError;

    fn try_from(wire: v1::DeviceInfo) -> Result<Self, WireError> {
        Ok(Self {
            index: device_index(wire.index)?,
            uuid: short("device.uuid", wire.uuid)?,
            name: short("device.name", wire.name)?,
            total_bytes: wire.total_bytes,
        })
    }
}

/// A device's index from the wire format.
pub(crate) fn device_index(wire: u32) -> Result<DeviceIndex, WireError> {
    u8::try_from(wire)
        .ok()
        .filter(|&index| usize::from(index) < DEVICES_MAX)
        .map(DeviceIndex)
        .ok_or_else(|| WireError::invalid("device", wire, "below 64"))
}

impl From<&AllocatorSettings> for v1::AllocatorSettings {
    fn from(settings: &AllocatorSettings) -> Self {
        let AllocatorSettings {
            conf,
            max_split_size,
            roundup_power2_divisions,
            expandable_segments,
            large_segment_size,
            garbage_collection_permille,
        } = settings;
        Self {
            conf: conf.clone(),
            max_split_size: *max_split_size,
            roundup_power2_divisions: if roundup_power2_divisions.iter().all(|&divisions| divisions == 0) {
                Vec::new()
            } else {
                roundup_power2_divisions.to_vec()
            },
            expandable_segments: *expandable_segments,
            large_segment_size: *large_segment_size,
            garbage_collection_permille: *garbage_collection_permille,
        }
    }
}

impl TryFrom<v1::AllocatorSettings> for AllocatorSettings {
    type Error = WireError;

    fn try_from(wire: v1::AllocatorSettings) -> Result<Self, WireError> {
        at_most("bytes of settings.conf", wire.conf.len(), NAME_BYTES_MAX)?;
        let divisions = match wire.roundup_power2_divisions.as_slice() {
            [] => [0; 16],
            divisions => <[u32; 16]>::try_from(divisions).map_err(|_| WireError::Uneven {
                table: "settings.roundup_power2_divisions",
                left: 16,
                right: divisions.len(),
            })?,
        };
        Ok(Self {
            conf: wire.conf,
            max_split_size: wire.max_split_size,
            roundup_power2_divisions: divisions,
            expandable_segments: wire.expandable_segments,
            large_segment_size: wire.large_segment_size,
            garbage_collection_permille: wire.garbage_collection_permille,
        })
    }
}

impl From<&SessionEnd> for v1::SessionEnd {
    fn from(end: &SessionEnd) -> Self {
        let SessionEnd { time_ns, produced, dropped, failure, unknown_frees, contradictions } = end;
        Self {
            time_ns: *time_ns,
            produced: *produced,
            dropped: Some(v1::Dropped {
                ring_full: dropped.ring_full,
                spool_full: dropped.spool_full,
                shutdown: dropped.shutdown,
            }),
            failure: failure.clone(),
            unknown_frees: *unknown_frees,
            contradictions: *contradictions,
        }
    }
}

impl TryFrom<v1::SessionEnd> for SessionEnd {
    type Error = WireError;

    fn try_from(wire: v1::SessionEnd) -> Result<Self, WireError> {
        let v1::Dropped { ring_full, spool_full, shutdown } = wire.dropped.unwrap_or_default();
        // Sums of these counts are computed later. A hostile sender must not make them overflow.
        for count in [wire.produced, ring_full, spool_full, shutdown] {
            if count > i64::MAX as u64 / 4 {
                return Err(WireError::invalid("end.counts", count, "a number of events"));
            }
        }
        at_most("bytes of end.failure", wire.failure.as_ref().map_or(0, String::len), NAME_BYTES_MAX)?;
        Ok(Self {
            time_ns: wire.time_ns,
            produced: wire.produced,
            dropped: Dropped { ring_full, spool_full, shutdown },
            failure: wire.failure,
            unknown_frees: wire.unknown_frees,
            contradictions: wire.contradictions,
        })
    }
}

impl From<&Counters> for v1::Counters {
    fn from(counters: &Counters) -> Self {
        let Counters {
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            requested_bytes,
            inactive_split_bytes,
            largest_free_bytes,
            allocated_blocks,
            segments,
        } = *counters;
        Self {
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            requested_bytes,
            inactive_split_bytes,
            largest_free_bytes,
            allocated_blocks,
            segments,
        }
    }
}

impl From<v1::Counters> for Counters {
    fn from(wire: v1::Counters) -> Self {
        let v1::Counters {
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            requested_bytes,
            inactive_split_bytes,
            largest_free_bytes,
            allocated_blocks,
            segments,
        } = wire;
        Self {
            allocated_bytes,
            active_bytes,
            reserved_bytes,
            requested_bytes,
            inactive_split_bytes,
            largest_free_bytes,
            allocated_blocks,
            segments,
        }
    }
}

impl From<Peaks> for v1::Peaks {
    fn from(Peaks { allocated_bytes, reserved_bytes }: Peaks) -> Self {
        Self { allocated_bytes, reserved_bytes }
    }
}

impl From<v1::Peaks> for Peaks {
    fn from(v1::Peaks { allocated_bytes, reserved_bytes }: v1::Peaks) -> Self {
        Self { allocated_bytes, reserved_bytes }
    }
}
