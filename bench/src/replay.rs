//! The allocator replayed on one core: events a second under the recorded settings, and under each of the settings that are tried.
//!
//! Guarantees: every recording is replayed under its own settings and compared, event by event, before anything is reported;
//! rates are medians over whole passes. Refuses recordings that are not repeated. A setting's time is what it adds to a pass that
//! only follows the recording.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use memctl_analysis::initial_state;
use memctl_model::{Action, Event, SegmentState};
use memctl_replay::advice::tried;
use memctl_replay::{Conf, Follow, Limit, SideBySide, Start, Trial, Version};
use memctl_snapshot::Recording;

/// What one recording is replayed from.
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
        let version = Version::of_framework(recording.framework.as_deref());
        Some(Self { conf: Conf::recorded(settings, version), segments: start.keyframe.segments, events })
    }
}

/// All results.
#[derive(Clone, Debug)]
pub struct Report {
    /// Events of all recordings.
    pub events: usize,
    /// Median seconds of a pass that follows the recordings.
    pub follow_seconds: f64,
    /// What each setting adds: its text, median seconds.
    pub settings: Vec<(String, f64)>,
    /// Median seconds of a pass with all of them.
    pub all_seconds: f64,
}

/// Replays all recordings `rounds` times.
///
/// # Errors
/// A recording that is not repeated, or a setting that is refused.
pub fn run(sources: &[Source], rounds: usize) -> Result<Report, Box<dyn Error>> {
    for source in sources {
        let mut follow = Follow::new(source.conf.clone(), Limit::None, &source.segments);
        source.events.iter().for_each(|event| follow.event(event, |_, _| {}));
        follow.finish(|_, _| {});
        // (The capped recording's limit is not known here: its failed request differs.)
        if !follow.agreement().is_exact() && !source.events.iter().any(|event| event.action == Action::Oom) {
            return Err(format!("a recording is not repeated: {:?}", follow.agreement()).into());
        }
    }
    let settings = tried(Version::NEWEST).into_iter();
    let settings: Result<Vec<(String, Conf)>, _> =
        settings.map(|text| Conf::parse(text, Version::NEWEST).map(|(conf, _)| (text.to_owned(), conf))).collect();
    let settings = settings?;
    let follow_seconds = pass(sources, &[], rounds);
    let each = settings.iter().map(|(text, conf)| {
        (text.clone(), (pass(sources, std::slice::from_ref(conf), rounds) - follow_seconds).max(f64::EPSILON))
    });
    let each = each.collect();
    let all: Vec<Conf> = settings.into_iter().map(|(_, conf)| conf).collect();
    Ok(Report {
        events: sources.iter().map(|source| source.events.len()).sum(),
        follow_seconds,
        settings: each,
        all_seconds: pass(sources, &all, rounds),
    })
}

/// Median seconds of a pass over all recordings under these settings.
fn pass(sources: &[Source], settings: &[Conf], rounds: usize) -> f64 {
    let mut seconds: Vec<f64> = (0..rounds.max(1))
        .map(|_| {
            let begins = Instant::now();
            for source in sources {
                let trial = |conf: &Conf| Trial::new(conf.clone(), Limit::None, &source.segments, Start::Afresh);
                let follow = Follow::new(source.conf.clone(), Limit::None, &source.segments);
                let mut both = SideBySide::new(follow, settings.iter().map(trial).collect());
                source.events.iter().for_each(|event| both.event(event));
                black_box(both.finish());
            }
            begins.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |seconds: f64| self.events as f64 / seconds / 1e6;
        writeln!(f, "{} events\n", self.events)?;
        writeln!(f, "| setting | M events/s on a core |\n|---|---|")?;
        writeln!(f, "| as recorded, compared with the recording | {:.1} |", rate(self.follow_seconds))?;
        for (text, seconds) in &self.settings {
            writeln!(f, "| {text} | {:.1} |", rate(*seconds))?;
        }
        let per_setting = (self.all_seconds - self.follow_seconds) / self.settings.len().max(1) as f64;
        writeln!(f, "| all {} in one pass, each | {:.1} |", self.settings.len(), rate(per_setting))
    }
}
