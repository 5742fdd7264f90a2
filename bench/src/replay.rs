//! The replay of the allocator: events per second and core under the recorded settings and under each tried setting,
//! and how many events of how many recordings are reproduced exactly.
//!
//! Guarantees: every recording is replayed under its own settings and compared, event by event, before anything is
//! reported; rates are medians over whole passes. Refuses recordings that are not reproduced. A setting's time is the
//! time that it adds to a pass that only follows the recording.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::num::NonZero;
use std::time::Instant;

use memctl_analysis::initial_state;
use memctl_analysis::statistics::median;
use memctl_model::{Action, Event, SegmentState};
use memctl_replay::advice::tried;
use memctl_replay::{Agreement, Conf, Follow, Limit, SideBySide, Start, Trial, Version};
use memctl_snapshot::Recording;

/// The input of a replay, from one recording.
#[derive(Debug)]
pub struct Source {
    /// Its settings.
    conf: Conf,
    /// Its state at the beginning.
    segments: Vec<SegmentState>,
    /// Its events.
    events: Vec<Event>,
}

impl Source {
    /// The busiest device of a recording.
    #[must_use]
    pub fn new(recording: &Recording) -> Option<Self> {
        let device = recording.devices.iter().max_by_key(|device| device.events.len())?;
        let events: Vec<Event> = device.events.iter().collect();
        let (settings, last) = (&recording.settings, &device.final_segments);
        let start = initial_state(settings, device.device, last, events.iter().copied());
        let (framework, segments) = (recording.framework.as_deref(), start.keyframe.segments);
        let version = Follow::version(framework, settings, &segments, events.iter().copied());
        Some(Self { conf: Conf::recorded(settings, version), segments, events })
    }

    fn follow(&self) -> Agreement {
        let mut follow = Follow::new(self.conf.clone(), Limit::None, &self.segments);
        self.events.iter().for_each(|event| follow.event(event, |_, _| {}));
        follow.finish(|_, _| {});
        *follow.agreement()
    }

    /// Whether a request of it failed.
    fn fails(&self) -> bool {
        self.events.iter().any(|event| event.action == Action::Oom)
    }
}

/// All results.
#[derive(Clone, Debug)]
pub struct Report {
    /// Events of all recordings.
    pub events: usize,
    /// Median seconds of a pass that follows the recordings, on one core.
    pub follow_seconds: f64,
    /// The time that each setting adds, on one core: its text and the median seconds.
    pub settings: Vec<(String, f64)>,
    /// Median seconds of a pass with all of them, on one core.
    pub one_core_seconds: f64,
    /// The same on all cores.
    pub all_cores_seconds: f64,
    /// The number of these cores.
    pub cores: usize,
}

/// Replays all recordings `rounds` times.
///
/// # Errors
/// A recording is not reproduced, or a setting is refused.
pub fn run(sources: &[Source], rounds: usize) -> Result<Report, Box<dyn Error>> {
    for source in sources {
        let agreement = source.follow();
        // The limit of the capped recording is unknown here, so its failed request differs.
        if !agreement.is_exact() && !source.fails() {
            return Err(format!("a recording is not repeated: {agreement:?}").into());
        }
    }
    let settings = tried(Version::NEWEST).into_iter();
    let settings: Result<Vec<(String, Conf)>, _> =
        settings.map(|text| Conf::parse(text, Version::NEWEST).map(|(conf, _)| (text.to_owned(), conf))).collect();
    let settings = settings?;
    let all: Vec<Conf> = settings.iter().map(|(_, conf)| conf.clone()).collect();
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    // Settings alternate, so that a slow minute of a shared machine does not affect only one of them.
    let mut follow = Vec::new();
    let mut each = vec![Vec::new(); settings.len()];
    let (mut one_core, mut all_cores) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        let alone = pass(sources, &[], 1);
        follow.push(alone);
        for (conf, seconds) in all.iter().zip(&mut each) {
            seconds.push((pass(sources, std::slice::from_ref(conf), 1) - alone).max(f64::EPSILON));
        }
        one_core.push(pass(sources, &all, 1));
        all_cores.push(pass(sources, &all, cores));
    }
    let names = settings.into_iter().map(|(text, _)| text);
    Ok(Report {
        events: sources.iter().map(|source| source.events.len()).sum(),
        follow_seconds: median(follow).ok_or("no rounds")?,
        settings: names.zip(each.into_iter().filter_map(median)).collect(),
        one_core_seconds: median(one_core).ok_or("no rounds")?,
        all_cores_seconds: median(all_cores).ok_or("no rounds")?,
        cores,
    })
}

/// Seconds of a pass over all recordings under these settings.
fn pass(sources: &[Source], settings: &[Conf], cores: usize) -> f64 {
    let begins = Instant::now();
    for source in sources {
        let trial = |conf: &Conf| Trial::new(conf.clone(), Limit::None, &source.segments, Start::Afresh);
        let follow = Follow::new(source.conf.clone(), Limit::None, &source.segments);
        let mut both = SideBySide::on(cores, follow, settings.iter().map(trial).collect());
        source.events.iter().for_each(|event| both.event(event));
        black_box(both.finish());
    }
    begins.elapsed().as_secs_f64()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, follow_seconds, settings, one_core_seconds, all_cores_seconds, cores } = self;
        let rate = |seconds: f64| *events as f64 / seconds / 1e6;
        writeln!(f, "{events} events\n")?;
        writeln!(f, "| setting | M events/s on a core |\n|---|---|")?;
        writeln!(f, "| as recorded, compared with the recording | {:.1} |", rate(*follow_seconds))?;
        for (text, seconds) in settings {
            writeln!(f, "| {text} | {:.1} |", rate(*seconds))?;
        }
        let count = settings.len().max(1);
        let per_setting = (one_core_seconds - follow_seconds) / count as f64;
        writeln!(f, "| all {count} in one pass, each | {:.1} |", rate(per_setting))?;
        let ten_million = |seconds: f64| seconds / *events as f64 * 1e7;
        let (one, all) = (ten_million(*one_core_seconds), ten_million(*all_cores_seconds));
        writeln!(f, "\nTen million events under {count} settings: {one:.2} s on one core, {all:.2} s on {cores}.")
    }
}

/// The number of recordings that were followed, and how far the replay reproduces them.
#[derive(Clone, Debug, Default)]
pub struct Conformance {
    /// Recordings that were followed.
    pub recordings: u64,
    /// Their events.
    pub events: u64,
    /// Segment events and blocks among these, each of which is compared.
    pub compared: u64,
    /// Compared events and blocks that differ.
    pub differing: u64,
    /// Recordings that end in a failed request because of an unknown limit; not counted above.
    pub capped: u64,
}

impl Conformance {
    /// Follows the devices of a recording.
    pub fn add(&mut self, recording: &Recording) {
        let Some(source) = Source::new(recording) else { return };
        if source.fails() {
            self.capped += 1;
            return;
        }
        let agreement = source.follow();
        self.recordings += 1;
        self.events += agreement.events;
        self.compared += agreement.segment_events + agreement.blocks;
        self.differing += agreement.differing_segment_events + agreement.differing_blocks;
    }
}

impl fmt::Display for Conformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recordings, events, compared, differing, capped } = self;
        write!(
            f,
            "{recordings} recordings under their own settings, {events} events: {compared} addresses compared, "
        )?;
        writeln!(f, "{differing} differ ({capped} recordings with a failed request under an unknown limit left out)")
    }
}
