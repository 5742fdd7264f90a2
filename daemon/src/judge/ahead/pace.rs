//! Decides how often the forecast of a device is computed, and how many steps it covers.
//!
//! Guarantees: searches take 1 % of a core. Unused time is saved, up to half a minute of wall time. Searches matter
//! most when a failure is near, and steps that an earlier search covered need none. A device whose search costs more
//! than was saved is searched every half minute. Only processor time counts, not the time spent waiting for the store
//! or for a busy machine.
//!
//! Many steps are not replayed again while more than half of them (an eighth if steps differ) are known to fit.

use std::time::{Duration, Instant};

use memctl_replay::STEPS_AHEAD;
#[cfg(not(target_family = "wasm"))]
use rustix::time::{ClockId, clock_gettime};

/// The share of a core: one unit of work per this many units of time.
const SHARE: u32 = 100;
/// The longest time that can be saved, and the longest rest.
const SAVED_MAX: Duration = Duration::from_secs(30);
/// The part of the saved time that is reserved for searches that replay few steps or follow a forecast.
const SAVED_FOR_NEAR: Duration = Duration::from_secs(10);
/// After this part of the steps that were found to fit has passed, as many steps are replayed again.
const FRESH: (u64, u64) = (1, 2);
/// The same if steps differ, because a coming step may need more than the replayed one.
const FRESH_UNEVEN: (u64, u64) = (1, 8);

/// Processor time of this thread. Use only differences, for work that stays on one thread.
#[cfg(not(target_family = "wasm"))]
pub(super) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Nothing is computed ahead for recordings, and WebAssembly has no clock of a thread.
#[cfg(target_family = "wasm")]
pub(super) fn processor_time() -> Duration {
    Duration::ZERO
}

/// The time budget of one device; see the module.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time up to which work is paid for. It is in the future if more time was used than saved.
    paid_until: Instant,
    /// All steps up to this one are known to fit, except for the part that [`FRESH`] leaves out.
    has_room_until: u64,
    /// When many steps were last replayed.
    far_at: Instant,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        let saved_from = now.checked_sub(SAVED_MAX).unwrap_or(now);
        Self { paid_until: saved_from, has_room_until: 0, far_at: saved_from }
    }

    /// Whether there is time left for a search.
    pub fn is_due(&self, now: Instant) -> bool {
        self.paid_until <= now
    }

    /// Accounts for work that took this long and ended now.
    pub fn worked(&mut self, took: Duration, now: Instant) {
        let saved_from = now.checked_sub(SAVED_MAX).unwrap_or(now);
        self.paid_until = (self.paid_until.max(saved_from) + took * SHARE).min(now + SAVED_MAX);
    }

    /// How many steps to replay after `seen`, at most `reach`. The result is `reach` if a failure is in sight, if the
    /// last long search is outdated and enough time is saved, or if it is too long ago.
    pub fn steps(&mut self, seen: u64, reach: u32, is_in_sight: bool, now: Instant) -> u32 {
        let is_saved = now.checked_sub(SAVED_FOR_NEAR).is_some_and(|at| self.is_due(at));
        let is_far = seen >= self.has_room_until && (is_saved || now >= self.far_at + SAVED_MAX);
        if !is_in_sight && !is_far {
            return reach.min(STEPS_AHEAD);
        }
        self.far_at = now;
        reach
    }

    /// Records that no request failed in the replayed steps. A short search does not delay the next long one.
    pub fn has_room(&mut self, seen: u64, (played, reach): (u32, u32), is_uneven: bool) {
        if played == reach {
            let fresh = if is_uneven { FRESH_UNEVEN } else { FRESH };
            self.has_room_until = seen + u64::from(played) * fresh.0 / fresh.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_waits_costs_nothing_and_who_works_does() {
        let begun = processor_time();
        std::thread::sleep(200 * MS);
        assert!(processor_time() - begun < 200 * MS);
        // The loop ends, because it uses processor time.
        while processor_time() - begun < 20 * MS {}
    }

    #[test]
    fn a_hundredth_of_the_time_is_worked_and_what_was_saved() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let (mut now, mut worked) = (begun, Duration::ZERO);
        while now < begun + 100 * SAVED_MAX {
            if pace.is_due(now) {
                now += 20 * MS;
                worked += 20 * MS;
                pace.worked(20 * MS, now);
            }
            now += 100 * MS;
        }
        let fair = (now - begun) / SHARE;
        let saved = SAVED_MAX / SHARE + 20 * MS;
        assert!(worked >= fair && worked <= fair + saved, "{worked:?} of {fair:?}");
    }

    #[test]
    fn several_looks_in_a_row_are_made_of_what_was_saved() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let looks = (0..100).take_while(|_| {
            let is_due = pace.is_due(begun);
            pace.worked(20 * MS, begun);
            is_due
        });
        assert_eq!(looks.count(), 16);
        assert!(!pace.is_due(begun + 3_999 * MS), "it rests for what it worked too much");
        assert!(pace.is_due(begun + 4_000 * MS));
    }

    #[test]
    fn what_takes_long_rests_half_a_minute() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        (0..2).for_each(|_| pace.worked(Duration::from_secs(10), begun));
        assert!(!pace.is_due(begun + SAVED_MAX - MS));
        assert!(pace.is_due(begun + SAVED_MAX));
    }

    /// A pace without any work.
    fn fresh() -> (Pace, Instant) {
        let now = Instant::now();
        (Pace::new(now), now)
    }

    #[test]
    fn far_steps_are_played_again_once_half_of_them_have_come() {
        let (mut pace, now) = fresh();
        let steps = |pace: &mut Pace, seen, reach, is_in_sight| pace.steps(seen, reach, is_in_sight, now);
        assert_eq!(steps(&mut pace, 100, 40, false), 40);
        pace.has_room(100, (40, 40), false);
        assert_eq!(steps(&mut pace, 119, 40, false), STEPS_AHEAD);
        assert_eq!(steps(&mut pace, 119, 3, false), 3);
        assert_eq!(steps(&mut pace, 119, 40, true), 40, "what is in sight is followed");
        assert_eq!(steps(&mut pace, 120, 40, false), 40);
        pace.has_room(120, (40, 40), true);
        assert_eq!([124, 125].map(|seen| steps(&mut pace, seen, 40, false)), [STEPS_AHEAD, 40], "steps differ");
    }

    #[test]
    fn far_steps_leave_something_for_near_ones() {
        let (mut pace, now) = fresh();
        let far = (0..100).take_while(|&seen| {
            let played = pace.steps(seen, 40, false, now);
            pace.worked(20 * MS, now);
            played == 40
        });
        assert_eq!(far.count(), 11);
        assert!(pace.is_due(now));
        assert_eq!(pace.steps(100, 40, true, now), 40, "what is in sight is followed");
        // Short searches that use up all the time do not delay long ones forever.
        let far_again = (1..).find(|&second| {
            let now = now + second * 1_000 * MS;
            pace.worked(20 * MS, now);
            pace.steps(100, 40, false, now) == 40
        });
        assert_eq!(far_again, Some(30));
    }

    #[test]
    fn short_looks_at_every_step_put_off_no_far_one() {
        let (mut pace, now) = fresh();
        let far = (0..300).filter(|&seen| {
            let played = pace.steps(seen, 40, false, now);
            pace.has_room(seen, (played, 40), false);
            played == 40
        });
        assert!(far.eq((0..300).step_by(20)));
    }
}
