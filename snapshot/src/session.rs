//! The session under which a recording is stored.
//!
//! Guarantees: the same file in the same import gives the same session.

use memctl_model::{DeviceInfo, Launch, SessionId, SessionInfo, SourceKind};

use crate::read::Recording;

/// PyTorch writes microseconds into snapshots.
pub const RESOLUTION_NS: u32 = 1_000;

/// The identity of a recording: `(job, attempt, rank)` and the import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job's name.
    pub job: String,
    /// Number of restarts.
    pub attempt: u32,
    /// Rank in the job.
    pub rank: u32,
    /// Number of ranks in the job.
    pub world_size: Option<u32>,
    /// Labels of the job.
    pub labels: Vec<(String, String)>,
    /// The import.
    pub launch: Launch,
}

/// The session of a recording. Its id is derived from the file's content and the identity.
#[must_use]
pub fn session(recording: &Recording, identity: &Identity) -> SessionInfo {
    let devices =
        recording.devices.iter().map(|device| DeviceInfo { index: device.device, ..DeviceInfo::default() }).collect();
    SessionInfo {
        id: session_id(recording.digest, identity),
        job: identity.job.clone(),
        attempt: identity.attempt,
        rank: identity.rank,
        world_size: identity.world_size,
        source: SourceKind::Import,
        host: None,
        pid: None,
        parent_pid: None,
        launch: identity.launch.clone(),
        role: None,
        found_by: recording.found.by.clone(),
        started_ns: recording.started_ns,
        framework: recording.framework.clone(),
        settings: recording.settings.clone(),
        devices,
        labels: identity.labels.clone(),
        resolution_ns: RESOLUTION_NS,
    }
}

/// Mixes the identity into the digest. The same file may be imported under two names, and twice under one name.
fn session_id(digest: [u8; 16], identity: &Identity) -> SessionId {
    let Identity { job, attempt, rank, launch, .. } = identity;
    let import = launch.launcher.unwrap_or(0);
    let text = format!("{job}\0{attempt}\0{rank}\0{import:x}");
    let mut id = digest;
    for (index, seed) in [0_u32, 0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35].into_iter().enumerate() {
        let word = crc32c::crc32c_append(seed, text.as_bytes()).to_le_bytes();
        for (byte, mix) in id[index * 4..].iter_mut().zip(word) {
            *byte ^= mix;
        }
    }
    SessionId(id)
}
