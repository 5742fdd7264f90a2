//! Whether memory is turned over: allocated, freed, and allocated again. A step frees most of what it allocates. An
//! unfinished pass, the loading of a model and a single step do not, even if something repeats in them.
//!
//! Guarantees: a few passes; memory is proportional to the number of paths. Growth is not searched here: that is the
//! judge's task.

use std::collections::HashMap;

use memctl_model::{Action, Event};

use super::Span;
use super::rounds::Live;
use super::stacks::{Node, Paths, Reading, Work};

/// Rounds that keep most of what they allocate are the layers of one pass, unless a backward pass is seen or there are
/// more rounds than models have layers.
const LAYERS_MAX: usize = 256;
/// Minimum number of turns before retained levels are compared over time. One turn allocates and frees memory and, if
/// there is a model, calls it.
const TURNS_MIN: u64 = 8;
/// A fall is a turn of its own only if it is at least the largest fall divided by this.
const FALL_SHARE: i64 = 10;

/// Whether rounds may be steps: they free at least half of what they allocate.
pub(super) fn may_be_steps(paths: &Paths<'_>, events: impl Iterator<Item = Event>, rounds: &[Span]) -> bool {
    // The first round may allocate things that are allocated only once, and a teardown may follow the last round. Both
    // are left out.
    let (Some(second), Some(last)) = (rounds.get(1), rounds.last()) else { return false };
    let (mut made, mut freed, mut forward, mut backward) = (0_u64, 0_u64, false, false);
    for event in events {
        let work = paths.reading(event.stack).work;
        (forward, backward) = (forward || work == Work::Forward, backward || work == Work::Backward);
        if !(second.begin_ns..last.begin_ns).contains(&event.time_ns) {
            continue;
        }
        match event.action {
            Action::Alloc => made = made.saturating_add(event.size),
            Action::FreeRequested => freed = freed.saturating_add(event.size),
            _ => {}
        }
    }
    freed >= made / 2 || (forward && !backward && rounds.len() > LAYERS_MAX)
}

/// Whether levels at different times may be compared. A model must have been called repeatedly; if no model is seen,
/// the user's own lines must have been reached repeatedly. Memory must have been allocated and freed as often.
pub(super) fn comes_and_goes<I: Iterator<Item = Event>>(paths: &Paths<'_>, events: &impl Fn() -> I) -> bool {
    let turns = turns(paths, events());
    let comes = if shows_models(paths, events()) { turns.calls >= TURNS_MIN } else { turns.comes_round() };
    comes && tides(events) >= TURNS_MIN
}

/// Whether the stacks show neither a model nor a line of the user's code.
pub(super) fn say_nothing(paths: &Paths<'_>, mut events: impl Iterator<Item = Event>) -> bool {
    let says = |reading: Reading| reading.turn.is_some() || is_pass(reading);
    !events.any(|event| says(paths.reading(event.stack)))
}

fn is_pass(reading: Reading) -> bool {
    matches!(reading.work, Work::Forward | Work::Backward)
}

/// Whether any stack is a pass of a model, forward or backward.
fn shows_models(paths: &Paths<'_>, mut events: impl Iterator<Item = Event>) -> bool {
    events.any(|event| is_pass(paths.reading(event.stack)))
}

/// How often the user's lines were reached and models were called from them. Repeats without anything else between
/// them count once.
#[derive(Default)]
struct Turns {
    calls: u64,
    lines: HashMap<Node, u64>,
}

impl Turns {
    /// Whether some line was reached repeatedly, or no line is known.
    fn comes_round(&self) -> bool {
        self.lines.is_empty() || self.lines.values().any(|&visits| visits >= TURNS_MIN)
    }
}

fn turns(paths: &Paths<'_>, events: impl Iterator<Item = Event>) -> Turns {
    let (mut turns, mut before) = (Turns::default(), None);
    for event in events {
        let reading = paths.reading(event.stack);
        let Some(turn) = reading.turn else { continue };
        let comes = before.replace(turn) != Some(turn);
        turns.calls += u64::from(comes && paths.is_call(turn));
        // A line that allocates by itself does so at each visit.
        if comes || (reading.leaf == Some(turn) && event.action == Action::Alloc) {
            *turns.lines.entry(turn).or_default() += 1;
        }
    }
    turns
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

/// A rise and the following fall.
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
