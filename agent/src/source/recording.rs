//! Plays a recording through an agent: the same ring, batcher and uplink as a live session.
//!
//! Guarantees: marks and events arrive in the order in which they happened; nothing is dropped (a file
//! can wait); memory is given back as events leave; the same file under the same name is the same session.

use memctl_analysis::initial_state;
use memctl_model::{DeviceInfo, Frame, SessionId, SessionInfo, SourceKind};

use super::snapshot::{DeviceRecording, Moment, Recording, merge};
use crate::Agent;
use crate::recorder::{Recorder, Stopped};

/// PyTorch writes microseconds into snapshots.
pub const RESOLUTION_NS: u32 = 1_000;

/// Who a recording is, as `(job, attempt, rank)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job's name.
    pub job: String,
    /// Restart count.
    pub attempt: u32,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: Option<u32>,
    /// Labels of the job.
    pub labels: Vec<(String, String)>,
}

/// The session of a recording. Its id follows from the file's content and the identity.
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
        run: None,
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

/// Mixes the identity into the digest: the same file may be imported under two names.
fn session_id(digest: [u8; 16], identity: &Identity) -> SessionId {
    let text = format!("{}\0{}\0{}", identity.job, identity.attempt, identity.rank);
    let mut id = digest;
    for (index, seed) in [0_u32, 0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35].into_iter().enumerate() {
        let word = crc32c::crc32c_append(seed, text.as_bytes()).to_le_bytes();
        for (byte, mix) in id[index * 4..].iter_mut().zip(word) {
            *byte ^= mix;
        }
    }
    SessionId(id)
}

/// Plays a recording through an agent that was started for [`session`]; `each` hears of every 64k events.
///
/// # Errors
/// When the agent has stopped (the daemon refused the session).
pub fn play(recording: Recording, agent: &Agent, each: &mut dyn FnMut(u64)) -> Result<(), Stopped> {
    let Recording { devices, marks, frames, stacks, settings, .. } = recording;
    let mut buffer: Vec<Frame> = Vec::new();
    for stack in &stacks {
        buffer.clear();
        buffer.extend(stack.iter().filter_map(|id| frames.get(id.0 as usize)).cloned());
        agent.stack_waiting(&buffer)?;
    }
    let mut recorders: Vec<Recorder> = Vec::new();
    let mut streams = Vec::new();
    for DeviceRecording { device, events, final_segments } in devices {
        let initial = initial_state(&settings, device, &final_segments, events.iter());
        agent.keyframe_waiting(initial.keyframe)?;
        recorders.push(agent.recorder(device).ok_or(Stopped)?);
        streams.push((device, events.into_iter()));
    }
    let mut played = 0_u64;
    for moment in merge(marks, streams) {
        match moment {
            Moment::Mark(mark) => agent.mark_waiting(mark)?,
            Moment::Event(device, event) => {
                let Some(recorder) = recorders.iter_mut().find(|recorder| recorder.device() == device) else {
                    continue;
                };
                recorder.event_waiting(&event)?;
                played += 1;
                if played.is_multiple_of(65_536) {
                    each(played);
                }
            }
        }
    }
    each(played);
    Ok(())
}
