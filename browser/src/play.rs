//! Passes a recording through the batch stage, in the order in which it happened.
//!
//! Guarantees: the items are those of an agent that is given the same recording. Memory is freed as events are packed.

use memctl_agent::internals::{Batcher, cut};
use memctl_analysis::initial_state;
use memctl_model::{DeviceIndex, Dropped, Frame, Mark, SessionEnd};
use memctl_snapshot::{DeviceRecording, Moment, Recording, merge};

/// Items are stored after so many events.
const STORED_EVERY: u64 = 16_384;

/// An item that is ready, see [`Batcher::take`].
pub type Items = Vec<memctl_agent::internals::Outgoing>;

/// Packs a recording, and passes the items to `store` as they are ready. Returns the session's end.
///
/// # Errors
/// Those of `store`.
pub fn play(
    recording: Recording,
    batcher: &mut Batcher,
    store: &mut dyn FnMut(Items) -> Result<(), String>,
) -> Result<SessionEnd, String> {
    let Recording { devices, marks, frames, stacks, settings, ended_ns, .. } = recording;
    let mut buffer: Vec<Frame> = Vec::new();
    for stack in &stacks {
        buffer.clear();
        buffer.extend(stack.iter().filter_map(|id| frames.get(id.0 as usize)).cloned());
        batcher.stack(&buffer);
    }
    drop((frames, stacks));
    let mut places: Vec<DeviceIndex> = Vec::new();
    let mut streams = Vec::new();
    for (place, DeviceRecording { device, events, final_segments }) in devices.into_iter().enumerate() {
        let initial = initial_state(&settings, device, &final_segments, events.iter());
        batcher.restore(place, initial.keyframe);
        places.push(device);
        streams.push((device, events.into_iter()));
    }
    let mut produced = 0_u64;
    for moment in merge(marks, streams) {
        match moment {
            Moment::Mark(mark) => {
                let mark = Mark { kind: cut(mark.kind), ..mark };
                batcher.mark(mark.clone());
                for place in 0..places.len() {
                    batcher.device_mark(place, &mark);
                }
            }
            Moment::Event(device, event) => {
                let Some(place) = places.iter().position(|known| *known == device) else { continue };
                batcher.event(place, &event);
                produced += 1;
                if produced.is_multiple_of(STORED_EVERY) {
                    store(batcher.take())?;
                }
            }
        }
    }
    let end = batcher.finish(ended_ns, produced, Dropped::default(), None);
    store(batcher.take())?;
    Ok(end)
}
