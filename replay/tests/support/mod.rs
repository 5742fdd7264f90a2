//! Recordings in the form in which these tests replay them.
//!
//! Guarantees: a recording is followed from the state in which it began, with its own settings. Only its busiest
//! device is used.

use std::path::Path;

use memctl_analysis::initial_state;
use memctl_model::{Event, Keyframe};
use memctl_replay::{Conf, Follow, Limit, SideBySide, Trial, Version};

/// The busiest device of a recording.
pub struct Recorded {
    /// Its settings.
    pub conf: Conf,
    /// Its version of torch.
    pub version: Version,
    /// Its initial state.
    pub start: Keyframe,
    /// Its events.
    pub events: Vec<Event>,
    /// Number of initial blocks whose size is assumed.
    pub assumed_sizes: u64,
}

/// Loads a recording.
pub fn load(path: &Path) -> Recorded {
    let recording = memctl_snapshot::load(path, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let device = recording.devices.iter().max_by_key(|device| device.events.len()).expect("a device");
    let events: Vec<Event> = device.events.iter().collect();
    let start = initial_state(&recording.settings, device.device, &device.final_segments, events.iter().copied());
    let (framework, segments) = (recording.framework.as_deref(), &start.keyframe.segments);
    let version = Follow::version(framework, &recording.settings, segments, events.iter().copied());
    let conf = Conf::recorded(&recording.settings, version);
    Recorded { conf, version, start: start.keyframe, events, assumed_sizes: start.assumed_sizes }
}

/// Follows a recording together with trials.
pub fn run(recorded: &Recorded, limit: Limit, trials: Vec<Trial>) -> (Follow, Vec<Trial>) {
    let follow = Follow::new(recorded.conf.clone(), limit, &recorded.start.segments);
    let mut both = SideBySide::new(follow, trials);
    recorded.events.iter().for_each(|event| both.event(event));
    let (follow, trials) = both.finish();
    (follow, trials.into_iter().map(|(trial, _)| trial).collect())
}
