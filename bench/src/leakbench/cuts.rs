//! Where site tables are taken: at a recording's own marks, at boundaries that were found in it, or at windows as a live
//! agent cuts them.
//!
//! Guarantees: what stands in for an import sees events, stacks and nothing else; windows follow the live worker's rule (four a
//! second at first, one a second from half a minute on, one in ten seconds while nothing happens, earlier where events are
//! dense). Deterministic.

use memctl_model::{Mark, MarkKind};

use super::base::{Base, Passing};
use super::replay::{Overlay, stream};

/// See the module.
#[derive(Clone, Debug)]
pub enum Cuts {
    /// At the recording's own marks of steps and epochs.
    Marks,
    /// At boundaries that were found; each with the number of the event before which it lies.
    Found(Vec<(u64, Mark)>),
    /// At windows of time, as they come.
    Live,
}

/// Windows of an import in which nothing repeats.
const IMPORT_WINDOWS: u64 = 64;
/// The first windows of a live process.
const FIRST_NS: u64 = 250_000_000;
/// Later ones are a thirty-second of the time since the first, up to this.
const USUAL_NS: u64 = 1_000_000_000;
const SHARE: u64 = 32;
/// How long nothing may happen before a window says so.
const QUIET_NS: u64 = 10 * USUAL_NS;
/// Events that end a window before its time.
const WINDOW_EVENTS: u64 = 65_536;

/// The windows of a live process.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// When the first window began, and when the one under way did; `None` before the first event.
    since_ns: Option<u64>,
    begun_ns: u64,
    events: u64,
    number: u64,
}

impl Windows {
    /// An event comes: the windows that end before it go to `sink`, each with its number and its end.
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
pub fn found(base: &Base, overlay: &Overlay) -> Cuts {
    let mut times: Vec<u64> = Vec::with_capacity(base.moments.len());
    stream(base, overlay.clone(), &mut |_, passing| {
        if let Passing::Event(event) = passing {
            times.push(event.time_ns);
        }
    });
    let marks = windows_of_time(&times);
    // What ends comes behind all events of its moment, as in an import.
    let behind = |mark: &Mark| times.partition_point(|&time_ns| time_ns <= mark.time_ns) as u64;
    Cuts::Found(marks.into_iter().map(|mark| (behind(&mark), mark)).collect())
}

/// Windows of equal time.
fn windows_of_time(times: &[u64]) -> Vec<Mark> {
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return Vec::new() };
    let end_ns = |number: u64| first + (last - first) * number / IMPORT_WINDOWS;
    let mark = |number| Mark { time_ns: end_ns(number), kind: MarkKind::WindowEnd(number - 1) };
    (1..=IMPORT_WINDOWS).map(mark).collect()
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
