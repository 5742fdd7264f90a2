//! The points at which site tables are taken: a recording's own marks, boundaries that were found in it, or windows as
//! a live agent cuts them.
//!
//! Guarantees: the simulated import has only events and stacks. Windows follow the rule of the live worker: four per
//! second at first, one per second after half a minute, one per ten seconds while there are no events, and earlier if
//! there are many events. The same stream always gives the same points.

use std::collections::HashMap;

use memctl_analysis::boundaries::{self, Boundaries, Span, Stacks};
use memctl_model::{Event, Frame, FrameId, Mark, MarkKind};

use super::base::{Base, Passing};
use super::events::pass;
use super::overlay::Overlay;
use super::site::Sites;

/// The points of a stream; see the module's documentation.
#[derive(Clone, Debug)]
pub enum Cuts {
    /// At the recording's own marks of steps and epochs.
    Marks,
    /// At boundaries that were found. Each has the number of the event after it.
    Found(Vec<(u64, Mark)>),
    /// At the ends of windows.
    Live,
}

/// The first windows of a live process.
const FIRST_NS: u64 = 250_000_000;
/// The maximum length of a later window. Its length is 1/[`SHARE`] of the time since the first window began.
const USUAL_NS: u64 = 1_000_000_000;
const SHARE: u64 = 32;
/// The length of a window without events.
const QUIET_NS: u64 = 10 * USUAL_NS;
/// A window ends early after this number of events.
const WINDOW_EVENTS: u64 = 65_536;

/// The windows of a live process.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// The begin of the first window, and the begin of the current one; `None` before the first event.
    since_ns: Option<u64>,
    begun_ns: u64,
    events: u64,
    number: u64,
}

impl Windows {
    /// Called before an event. Passes each window that ends before the event to `sink`, with its number and its end.
    pub fn until(&mut self, time_ns: u64, sink: &mut dyn FnMut(u64, u64)) {
        let since_ns = *self.since_ns.get_or_insert_with(|| {
            self.begun_ns = time_ns;
            time_ns
        });
        loop {
            let usual_ns = ((self.begun_ns - since_ns) / SHARE).clamp(FIRST_NS, USUAL_NS);
            let due_ns = self.begun_ns + if self.events > 0 { usual_ns } else { QUIET_NS };
            let end_ns = if self.events >= WINDOW_EVENTS { due_ns.min(time_ns) } else { due_ns };
            if end_ns > time_ns {
                break;
            }
            sink(self.number, end_ns);
            self.number += 1;
            self.events = 0;
            self.begun_ns = end_ns;
        }
        self.events += 1;
    }
}

/// The boundaries that an import without annotations finds in a stream.
#[must_use]
pub fn found(base: &Base, sites: &Sites, overlay: &Overlay) -> Cuts {
    let mut events: Vec<Event> = Vec::with_capacity(base.moments.len());
    pass(base, overlay.clone(), &mut |_, passing| {
        if let Passing::Event(event) = passing {
            events.push(*event);
        }
    });
    let (frames, stacks) = numbered(base.stacks.iter().chain(&sites.stacks));
    let found = boundaries::find(Stacks { frames: &frames, stacks: &stacks }, || events.iter().copied());
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Cuts::Found(Vec::new()) };
    let marks = marks(found, (first.time_ns, last.time_ns));
    let placed = marks.into_iter().map(|mark| {
        // As in an import, an end mark follows all events of the same time. A begin mark precedes them.
        let ends = matches!(
            mark.kind,
            MarkKind::StepEnd(_) | MarkKind::EpochEnd(_) | MarkKind::PhaseEnd(_) | MarkKind::WindowEnd(_)
        );
        let before = |event: &Event| event.time_ns < mark.time_ns || (ends && event.time_ns == mark.time_ns);
        (events.partition_point(before) as u64, mark)
    });
    let mut placed: Vec<(u64, Mark)> = placed.collect();
    placed.sort_by_key(|(before, mark)| (*before, order(&mark.kind)));
    Cuts::Found(placed)
}

/// Each frame once, and the stacks as numbers of their frames.
fn numbered<'a>(stacks: impl Iterator<Item = &'a Vec<Frame>>) -> (Vec<Frame>, Vec<Vec<FrameId>>) {
    let mut known: HashMap<&Frame, FrameId> = HashMap::new();
    let mut frames = Vec::new();
    let mut number = |frame: &'a Frame| {
        *known.entry(frame).or_insert_with(|| {
            frames.push(frame.clone());
            FrameId(frames.len() as u32 - 1)
        })
    };
    let stacks = stacks.map(|stack| stack.iter().map(&mut number).collect()).collect();
    (frames, stacks)
}

/// The marks that an import makes from found boundaries. There is always an epoch. If nothing else was found, there is
/// also one step.
fn marks(found: Boundaries, all: (u64, u64)) -> Vec<Mark> {
    let whole = Span { begin_ns: all.0, end_ns: all.1 };
    let epochs = if found.epochs.is_empty() { vec![whole] } else { found.epochs };
    let steps = if found.steps.is_empty() && found.windows.is_empty() { vec![whole] } else { found.steps };
    let mut marks = Vec::new();
    let mut add = |span: Span, begin: MarkKind, end: MarkKind| {
        marks.push(Mark { time_ns: span.begin_ns, kind: begin });
        marks.push(Mark { time_ns: span.end_ns, kind: end });
    };
    (0..).zip(epochs).for_each(|(n, span)| add(span, MarkKind::EpochBegin(n), MarkKind::EpochEnd(n)));
    (0..).zip(steps).for_each(|(n, span)| add(span, MarkKind::StepBegin(n), MarkKind::StepEnd(n)));
    found.phases.into_iter().for_each(|(span, it)| add(span, MarkKind::PhaseBegin(it), MarkKind::PhaseEnd(it)));
    let window = |(n, time_ns)| Mark { time_ns, kind: MarkKind::WindowEnd(n) };
    marks.extend((0..).zip(found.windows).map(window));
    marks
}

/// The order of marks at one position. Ends come before begins, and the ends of inner ranges before those of outer
/// ones.
const fn order(kind: &MarkKind) -> u8 {
    match kind {
        MarkKind::PhaseEnd(_) | MarkKind::RegionEnd(_) => 0,
        MarkKind::StepEnd(_) => 1,
        MarkKind::WindowEnd(_) => 2,
        MarkKind::EpochEnd(_) => 3,
        MarkKind::EpochBegin(_) => 4,
        MarkKind::StepBegin(_) => 5,
        MarkKind::PhaseBegin(_) | MarkKind::RegionBegin(_) | MarkKind::Note(_) => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(times: &[u64]) -> Vec<u64> {
        let (mut windows, mut ends) = (Windows::default(), Vec::new());
        times.iter().for_each(|&time| windows.until(time * 1_000_000, &mut |_, end| ends.push(end / 1_000_000)));
        ends
    }

    #[test]
    fn windows_become_longer_and_are_seldom_while_nothing_happens() {
        assert_eq!(ends(&[0, 100, 249]), [0; 0]);
        assert_eq!(ends(&[0, 100, 250, 300, 501]), [250, 500]);
        assert_eq!(ends(&[0, 25_000]), [250, 10_250, 20_250]);
        let later = ends(&(0..1_200).map(|tenth| tenth * 100).collect::<Vec<u64>>());
        assert!(later.windows(2).skip(130).all(|pair| pair[1] - pair[0] == 1_000), "{later:?}");
    }

    #[test]
    fn dense_events_end_a_window_early() {
        let (mut windows, mut ends) = (Windows::default(), 0);
        (0..3 * WINDOW_EVENTS).for_each(|time| windows.until(time, &mut |_, _| ends += 1));
        assert_eq!(ends, 2);
    }
}
