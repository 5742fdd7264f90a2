//! The batch stage on one core: block map, live tracking, chunk encoding, rollups and site tables, as a live agent does
//! it.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use memctl_agent::internals::{BatchConfig, Batcher};
use memctl_analysis::initial_state;
use memctl_model::Frame;
use memctl_snapshot::{Moment, Recording, merge};

/// The result for a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Events.
    pub events: u64,
    /// Bytes of all items: chunks, stacks, marks, site tables, keyframes, the end record.
    pub bytes: u64,
    /// Bytes of the chunks among these.
    pub chunk_bytes: u64,
    /// Seconds in the batch stage.
    pub seconds: f64,
}

/// Sends a recording through the batch stage, with its marks (and so its site tables) or without.
///
/// # Errors
/// The stage cannot be created.
pub fn run(recording: &Recording, with_marks: bool) -> Result<Sum, Box<dyn Error>> {
    let config = BatchConfig {
        resolution_ns: 1_000,
        settings: recording.settings.clone(),
        devices: recording.devices.iter().map(|device| device.device).collect(),
        linger: None,
        found: Vec::new(),
        source_paths: Default::default(),
    };
    let moments: Vec<Moment> = {
        let streams = recording.devices.iter().map(|device| (device.device, device.events.iter())).collect();
        let marks = recording.marks.iter().filter(|_| with_marks).cloned();
        merge(marks, streams).collect()
    };
    let stacks: Vec<Vec<Frame>> = recording
        .stacks
        .iter()
        .map(|stack| stack.iter().filter_map(|id| recording.frames.get(id.0 as usize)).cloned().collect())
        .collect();
    let keyframes: Vec<_> = recording
        .devices
        .iter()
        .map(|device| {
            initial_state(&recording.settings, device.device, &device.final_segments, device.events.iter()).keyframe
        })
        .collect();
    let mut batcher = Batcher::new(config)?;
    let begun = Instant::now();
    for stack in &stacks {
        batcher.stack(stack);
    }
    for (place, keyframe) in keyframes.into_iter().enumerate() {
        batcher.restore(place, keyframe);
    }
    let mut events = 0;
    for moment in &moments {
        match moment {
            Moment::Event(device, event) => {
                let place = recording.devices.iter().position(|it| it.device == *device).unwrap_or(0);
                batcher.event(place, event);
                events += 1;
            }
            Moment::Mark(mark) => {
                batcher.mark(mark.clone());
                for place in 0..recording.devices.len() {
                    batcher.device_mark(place, mark);
                }
            }
        }
    }
    batcher.finish(recording.ended_ns, events, memctl_model::Dropped::default(), None);
    let seconds = begun.elapsed().as_secs_f64();
    let items = black_box(batcher.take());
    let bytes = |events: bool| -> u64 {
        items.iter().filter(|item| !events || item.events > 0).map(|item| item.packed.payload.len() as u64).sum()
    };
    Ok(Sum { events, bytes: bytes(false), chunk_bytes: bytes(true), seconds })
}
