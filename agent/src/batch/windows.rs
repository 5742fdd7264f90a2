//! Windows are boundaries that the worker makes itself when no steps are marked (a serving loop, an evaluation, a
//! notebook).
//!
//! Guarantees: a pure state machine (time is an argument). There are at most four windows a second, except for dense
//! events. There are none while steps are marked, even slow ones (up to [`CEASED_MOST`]). An idle process gets one
//! window in ten seconds, so that a plateau has sample points.
//! Refuses: to depend on what was allocated.

use std::time::{Duration, Instant};

/// Length of the first windows. It is short, so that a process that lives only for seconds has windows, too.
const FIRST: Duration = Duration::from_millis(250);
/// Maximum length of a window with events. A growth rate per minute needs no shorter windows.
const USUAL: Duration = Duration::from_secs(1);
const SHARE: u32 = 32;
/// Length of a window without events.
const IDLE: Duration = Duration::from_secs(10);
/// This many events, as many as a chunk has, end a window early.
pub(super) const DENSE_EVENTS: u64 = 65_536;
/// Steps are considered stopped when none has ended for this multiple of the last step's duration.
const CEASED_STEPS: u32 = 4;
/// Steps are considered stopped after this time at the earliest.
const CEASED_LEAST: Duration = Duration::from_secs(5);
/// Steps are considered stopped after this time at the latest.
const CEASED_MOST: Duration = Duration::from_secs(120);

/// The windows of a session.
#[derive(Debug)]
pub(super) struct Windows {
    /// Number of windows so far, which is the number of the current one.
    number: u64,
    /// The time from which windows are cut. It is in the future while steps are marked.
    since: Instant,
    /// When the current window began.
    began: Instant,
    /// Number of events when the current window began.
    began_events: u64,
    /// The last end of a step, or the beginning of the session.
    stepped: Instant,
}

impl Windows {
    pub(super) fn new(now: Instant) -> Self {
        Self { number: 0, since: now, began: now, began_events: 0, stepped: now }
    }

    /// A step has ended. There is no window until steps have stopped.
    pub(super) fn step_ended(&mut self, now: Instant, events: u64) {
        let took = now.saturating_duration_since(self.stepped);
        self.stepped = now;
        self.since = now + (took * CEASED_STEPS).clamp(CEASED_LEAST, CEASED_MOST);
        // The next window begins at the end of the last step, so that the step's time is not reported twice.
        (self.began, self.began_events) = (now, events);
    }

    /// The number of the current window if it ends now. `events` is the number of all events so far. Must not be called
    /// before anything was recorded.
    pub(super) fn cut(&mut self, now: Instant, events: u64) -> Option<u64> {
        let open = now.checked_duration_since(self.since)?;
        let lasted = now.saturating_duration_since(self.began);
        let came = events.saturating_sub(self.began_events);
        let length = if came == 0 { IDLE } else { (open / SHARE).clamp(FIRST, USUAL) };
        if lasted < length && came < DENSE_EVENTS {
            return None;
        }
        (self.began, self.began_events) = (now, events);
        self.number += 1;
        Some(self.number - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows with a simulated clock.
    struct Run {
        start: Instant,
        windows: Windows,
        events: u64,
    }

    impl Run {
        fn new() -> Self {
            let start = Instant::now();
            Self { start, windows: Windows::new(start), events: 0 }
        }

        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        /// Calls `cut` every 5 ms in `from..to`, with `events` more events each time. Returns when windows ended.
        fn look(&mut self, from: u64, to: u64, events: u64) -> Vec<u64> {
            (from..to)
                .step_by(5)
                .filter(|&millis| {
                    self.events += events;
                    self.windows.cut(self.at(millis), self.events).is_some()
                })
                .collect()
        }
    }

    #[test]
    fn a_short_process_has_windows_and_a_long_one_no_more_than_one_a_second() {
        let mut run = Run::new();
        assert_eq!(run.look(0, 3_001, 1).len(), 12);
        let later = run.look(60_000, 120_000, 1);
        assert_eq!(later.len(), 60);
        assert!(later.windows(2).all(|pair| pair[1] - pair[0] == 1_000));
    }

    #[test]
    fn dense_events_end_a_window_before_its_time() {
        let mut run = Run::new();
        assert_eq!(run.look(0, 250, DENSE_EVENTS / 2).len(), 25);
    }

    #[test]
    fn where_nothing_happens_the_clock_still_tells() {
        let mut run = Run::new();
        run.look(0, 5_000, 1);
        assert_eq!(run.look(5_000, 45_000, 0).len(), 4);
    }

    #[test]
    fn windows_are_numbered_without_a_gap() {
        let mut run = Run::new();
        let numbers: Vec<u64> = (0..100).filter_map(|second| run.windows.cut(run.at(second * 1_000), second)).collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
        assert!(numbers.len() > 90);
    }

    #[test]
    fn steps_stop_windows_and_their_end_brings_them_back() {
        let mut run = Run::new();
        assert!(!run.look(0, 1_000, 1).is_empty(), "nothing has marked a step yet");
        for millis in (1_000..20_000).step_by(100) {
            run.windows.step_ended(run.at(millis), run.events);
            assert_eq!(run.look(millis, millis + 100, 1), [0_u64; 0]);
        }
        let ceased = run.look(20_000, 40_000, 1);
        assert!((24_900..25_200).contains(&ceased[0]), "{ceased:?}");
        assert!(ceased.len() > 14);
    }

    #[test]
    fn slow_steps_are_steps() {
        let mut run = Run::new();
        for step in 1..10 {
            run.look((step - 1) * 20_000 + 5, step * 20_000, if step == 1 { 0 } else { 1 });
            let number = run.windows.number;
            run.windows.step_ended(run.at(step * 20_000), run.events);
            assert_eq!(run.look(step * 20_000, (step + 1) * 20_000, 1), [0_u64; 0], "after {number} windows");
        }
    }
}
