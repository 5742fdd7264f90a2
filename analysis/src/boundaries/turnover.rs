//! Whether memory is turned over: made, given back, and made again. A step gives back most of what it made; a pass that is
//! under way, a model that is being loaded and a single step do not, whatever goes round in them.
//!
//! Guarantees: one or two passes, constant memory. Refuses to say what grows: that is the judge's.

use memctl_model::{Action, Event};

use super::Span;
use super::rounds::Live;
use super::stacks::{Node, Paths, Work};

/// Rounds that each keep most of what they make are the layers of one pass, unless there are more than models have layers.
const LAYERS_MAX: usize = 256;
/// How often memory has to come and go, and a model to be called where any is, before what is left over time is compared.
const TURNS_MIN: u64 = 8;
/// Falls smaller than the largest one divided by this are no turn of their own.
const FALL_SHARE: i64 = 10;

/// Whether rounds may be steps: they give back at least half of what they make.
pub(super) fn may_be_steps(paths: &Paths<'_>, events: impl Iterator<Item = Event>, rounds: &[Span]) -> bool {
    // What the first round makes may be made once.
    let (Some(second), Some(last)) = (rounds.get(1), rounds.last()) else { return false };
    let (mut made, mut freed, mut calls) = (0_u64, 0_u64, false);
    for event in events.filter(|event| (second.begin_ns..=last.end_ns).contains(&event.time_ns)) {
        match event.action {
            Action::Alloc => made = made.saturating_add(event.size),
            Action::FreeRequested => freed = freed.saturating_add(event.size),
            _ => {}
        }
        calls |= paths.reading(event.stack).turn.is_some_and(|turn| paths.is_call(turn));
    }
    freed >= made / 2 || (calls && rounds.len() > LAYERS_MAX)
}

/// Whether what lives at one time may be compared with what lives at another: a model was called again and again, if one was
/// called at all, and memory came and went as often.
pub(super) fn comes_and_goes<I: Iterator<Item = Event>>(paths: &Paths<'_>, events: &impl Fn() -> I) -> bool {
    (calls(paths, events()) >= TURNS_MIN || !shows_models(paths, events())) && tides(events) >= TURNS_MIN
}

/// Whether any stack is a pass of a model, forward or backward.
pub(super) fn shows_models(paths: &Paths<'_>, mut events: impl Iterator<Item = Event>) -> bool {
    events.any(|event| matches!(paths.reading(event.stack).work, Work::Forward | Work::Backward))
}

/// How often a model was called from outside any model; calls with nothing between them are one.
fn calls(paths: &Paths<'_>, events: impl Iterator<Item = Event>) -> u64 {
    let (mut calls, mut before): (u64, Option<Node>) = (0, None);
    for turn in events.filter_map(|event| paths.reading(event.stack).turn) {
        calls += u64::from(before != Some(turn) && paths.is_call(turn));
        before = Some(turn);
    }
    calls
}

/// How often memory rose and fell back by at least half of the rise; small waves do not count.
fn tides<I: Iterator<Item = Event>>(events: &impl Fn() -> I) -> u64 {
    let (mut live, mut high, mut deepest) = (Live::default(), 0, 0);
    for event in events() {
        live.note(&event);
        high = high.max(live.0);
        deepest = deepest.max(high.saturating_sub(live.0));
    }
    let least = (deepest / FALL_SHARE).max(1);
    let (mut live, mut wave, mut tides) = (Live::default(), Wave::default(), 0);
    for event in events() {
        live.note(&event);
        wave.low_since = wave.low_since.min(live.0);
        let fallen = wave.fall() >= least;
        if fallen && live.0.saturating_sub(wave.low_since) >= least {
            tides += u64::from(wave.is_tide(least));
            wave = Wave { low: wave.low_since, high: live.0, low_since: live.0 };
        } else if live.0 > wave.high {
            (wave.high, wave.low_since) = (live.0, live.0);
        } else if !fallen && wave.low_since < wave.low {
            wave = Wave { low: live.0, high: live.0, low_since: live.0 };
        }
    }
    tides + u64::from(wave.is_tide(least))
}

/// A rise and the fall behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Wave {
    low: i64,
    high: i64,
    low_since: i64,
}

impl Wave {
    fn fall(self) -> i64 {
        self.high.saturating_sub(self.low_since)
    }

    fn is_tide(self, least: i64) -> bool {
        let rise = self.high.saturating_sub(self.low);
        rise >= least && self.fall() >= least && self.fall() >= rise / 2
    }
}
