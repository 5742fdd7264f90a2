//! Plays a recording through an agent: the same ring, batcher and uplink as a live session.
//!
//! Guarantees: marks and events arrive in the order in which they happened; nothing is dropped (reading a file can
//! wait); memory is freed as events are sent.

use memctl_agent::{Agent, Recorder, Stopped};
use memctl_analysis::initial_state;
use memctl_model::Frame;
use memctl_snapshot::{DeviceRecording, Moment, Recording, merge};

/// Plays a recording through an agent that was started for its session.
///
/// # Errors
/// The agent has stopped (the daemon refused the session).
pub fn play(recording: Recording, agent: &Agent) -> Result<(), Stopped> {
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
    for moment in merge(marks, streams) {
        match moment {
            Moment::Mark(mark) => agent.mark_waiting(mark)?,
            Moment::Event(device, event) => {
                let Some(recorder) = recorders.iter_mut().find(|recorder| recorder.device() == device) else {
                    continue;
                };
                recorder.event_waiting(&event)?;
            }
        }
    }
    Ok(())
}
