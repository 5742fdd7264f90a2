//! Encodes the columns that only Rust reads as messages of the wire format, which older and newer versions can read.
//!
//! Guarantees: a value is read back as it was written, or it is refused when written. All `u64` values survive. Values
//! that SQL filters, orders or adds have columns of their own.

use memctl_model::{DeviceIndex, DeviceInfo, SessionEnd, SessionInfo};
use memctl_proto::v1;
use prost::Message;

use super::rows::{EpochEndRow, Latest, SessionKey};

/// A session's description.
pub(super) fn session_info(info: &SessionInfo) -> Result<Vec<u8>, String> {
    let bytes = v1::SessionInfo::from(info).encode_to_vec();
    match read_session_info(&bytes) {
        Ok(read) if read == *info => Ok(bytes),
        Ok(_) => Err("its description does not read back as written".into()),
        Err(what) => Err(what),
    }
}

pub(super) fn read_session_info(bytes: &[u8]) -> Result<SessionInfo, String> {
    decode::<v1::SessionInfo>(bytes)?.try_into().map_err(|error: memctl_proto::WireError| error.to_string())
}

/// A job's labels, encoded as a session's description with nothing else set.
pub(super) fn labels(labels: &[(String, String)]) -> Vec<u8> {
    let labels = labels.iter().map(|(key, value)| v1::Label { key: key.clone(), value: value.clone() }).collect();
    v1::SessionInfo { labels, ..Default::default() }.encode_to_vec()
}

pub(super) fn read_labels(bytes: &[u8]) -> Result<Vec<(String, String)>, String> {
    Ok(decode::<v1::SessionInfo>(bytes)?.labels.into_iter().map(|label| (label.key, label.value)).collect())
}

/// A session's end.
pub(super) fn session_end(end: &SessionEnd) -> Vec<u8> {
    v1::SessionEnd::from(end).encode_to_vec()
}

pub(super) fn read_session_end(bytes: &[u8]) -> Result<SessionEnd, String> {
    decode::<v1::SessionEnd>(bytes)?.try_into().map_err(|error: memctl_proto::WireError| error.to_string())
}

/// A device's description.
pub(super) fn device_info(info: &DeviceInfo) -> Vec<u8> {
    v1::DeviceInfo::from(info).encode_to_vec()
}

pub(super) fn read_device_info(bytes: &[u8]) -> Result<DeviceInfo, String> {
    decode::<v1::DeviceInfo>(bytes)?.try_into().map_err(|error: memctl_proto::WireError| error.to_string())
}

/// The description of a device that its session did not announce.
pub(super) fn unannounced(device: u8) -> DeviceInfo {
    DeviceInfo { index: DeviceIndex(device), ..Default::default() }
}

/// Figures at a sample point, encoded as a site table without rows.
pub(super) fn latest(latest: &Latest) -> Vec<u8> {
    let Latest { time_ns, epoch, step, counters, peaks, exact } = latest;
    v1::SiteTable {
        epoch: *epoch,
        step: *step,
        time_ns: *time_ns,
        exact: *exact,
        counters: Some(counters.into()),
        peaks: Some((*peaks).into()),
        ..Default::default()
    }
    .encode_to_vec()
}

pub(super) fn read_latest(bytes: &[u8]) -> Result<Latest, String> {
    let table = decode::<v1::SiteTable>(bytes)?;
    Ok(Latest {
        time_ns: table.time_ns,
        epoch: table.epoch,
        step: table.step,
        counters: table.counters.unwrap_or_default().into(),
        peaks: table.peaks.unwrap_or_default().into(),
        exact: table.exact,
    })
}

/// An epoch's end without its key columns.
pub(super) fn epoch_end(row: &EpochEndRow) -> Vec<u8> {
    let EpochEndRow {
        session: _,
        device,
        epoch,
        step,
        time_ns,
        at_event,
        exact,
        counters,
        peaks,
        peaks_within,
        table_seq: _,
    } = row;
    v1::SiteTable {
        device: u32::from(*device),
        boundary: v1::Boundary::EpochEnd as i32,
        epoch: *epoch,
        step: *step,
        time_ns: *time_ns,
        at_event: *at_event,
        exact: *exact,
        counters: Some(counters.into()),
        peaks: Some((*peaks).into()),
        peaks_within: Some((*peaks_within).into()),
        ..Default::default()
    }
    .encode_to_vec()
}

pub(super) fn read_epoch_end(session: SessionKey, table_seq: u64, bytes: &[u8]) -> Result<EpochEndRow, String> {
    let table = decode::<v1::SiteTable>(bytes)?;
    Ok(EpochEndRow {
        session,
        device: u8::try_from(table.device).map_err(|_| format!("device {}", table.device))?,
        epoch: table.epoch,
        step: table.step,
        time_ns: table.time_ns,
        at_event: table.at_event,
        exact: table.exact,
        counters: table.counters.unwrap_or_default().into(),
        peaks: table.peaks.unwrap_or_default().into(),
        peaks_within: table.peaks_within.unwrap_or_default().into(),
        table_seq,
    })
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, String> {
    M::decode(bytes).map_err(|error| error.to_string())
}
