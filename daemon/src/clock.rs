//! Reads the time for the whole daemon, and handles clocks that jump.
//!
//! Guarantees: stored data gets its time from [`steady`]. After a jump of more than [`JUMP_NS`], [`steady`] uses the
//! new time only once the clock has run from there for [`STAND_NS`]. A machine that sleeps for a night does not count
//! as a jump.
//!
//! The age of data is never judged by the wall clock alone.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A difference to the monotonic clock above this is a jump; a smaller one is a correction.
pub const JUMP_NS: u64 = 24 * 3_600 * 1_000_000_000;
/// After a jump, the new time is accepted once the clock has run from there for this long.
pub const STAND_NS: u64 = 600 * 1_000_000_000;

/// Nanoseconds since the Unix epoch; 0 before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// A reading of a [`SteadyClock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds since the Unix epoch, without jumps that are not accepted yet.
    pub now_ns: u64,
    /// How long the clock has run without a jump.
    pub stood_ns: u64,
    /// Nanoseconds by which the wall clock has just jumped. Each jump is reported once.
    pub jumped_ns: Option<i64>,
}

/// Compares a wall clock with a monotonic one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyClock {
    believed: Option<Offset>,
    /// The offset after a jump, until it is accepted.
    claimed: Option<Offset>,
}

/// The wall clock minus the monotonic one.
#[derive(Clone, Copy, Debug)]
struct Offset {
    ns: i128,
    since_ns: u64,
}

impl Offset {
    fn is_near(&self, ns: i128) -> bool {
        self.ns.abs_diff(ns) <= u128::from(JUMP_NS)
    }
}

impl SteadyClock {
    /// Takes both clocks' times and returns the reading.
    pub fn read(&mut self, wall_ns: u64, monotonic_ns: u64) -> Reading {
        let offset = Offset { ns: i128::from(wall_ns) - i128::from(monotonic_ns), since_ns: monotonic_ns };
        let mut believed = *self.believed.get_or_insert(offset);
        let mut jumped_ns = None;
        if believed.is_near(offset.ns) {
            // The clock returned from a jump, or it never jumped. After a return, its run starts again.
            if self.claimed.take().is_some() {
                jumped_ns = Some(saturating(offset.ns - believed.ns));
                believed.since_ns = monotonic_ns;
            }
            believed.ns = offset.ns;
        } else if let Some(claimed) = self.claimed.filter(|claimed| claimed.is_near(offset.ns)) {
            if monotonic_ns.saturating_sub(claimed.since_ns) >= STAND_NS {
                believed = Offset { ns: offset.ns, since_ns: claimed.since_ns };
                self.claimed = None;
            }
        } else {
            jumped_ns = Some(saturating(offset.ns - believed.ns));
            self.claimed = Some(offset);
        }
        self.believed = Some(believed);
        let now_ns = u64::try_from(i128::from(monotonic_ns) + believed.ns).unwrap_or(0);
        let stood_ns = if self.claimed.is_some() { 0 } else { monotonic_ns.saturating_sub(believed.since_ns) };
        Reading { now_ns, stood_ns, jumped_ns }
    }
}

fn saturating(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

/// The daemon's clock: nanoseconds since the Unix epoch, without jumps that are not accepted yet. Logs each jump.
#[must_use]
pub fn steady() -> Reading {
    static CLOCK: Mutex<(Option<Instant>, SteadyClock)> =
        Mutex::new((None, SteadyClock { believed: None, claimed: None }));
    let mut clock = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let start = *clock.0.get_or_insert_with(Instant::now);
    // The clock is read under the lock, so that readings do not overtake each other.
    let reading = clock.1.read(now_ns(), start.elapsed().as_nanos() as u64);
    drop(clock);
    if let Some(jumped_ns) = reading.jumped_ns {
        let seconds = jumped_ns / 1_000_000_000;
        tracing::warn!(seconds, "the clock jumped: nothing is deleted for its age before it has stood for 10 minutes");
    }
    reading
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const DAY: u64 = 24 * 3_600 * SECOND;
    const WALL: u64 = 20_000 * DAY;

    #[test]
    fn a_jump_of_two_seconds_moves_nothing() {
        for jump in [400 * DAY as i64, -(400 * DAY as i64)] {
            let mut clock = SteadyClock::default();
            assert_eq!(clock.read(WALL, 0), Reading { now_ns: WALL, stood_ns: 0, jumped_ns: None });
            let before = clock.read(WALL + 900 * SECOND, 900 * SECOND);
            assert_eq!(before.stood_ns, 900 * SECOND);
            let away = |second: u64| (WALL + second * SECOND).saturating_add_signed(jump);
            let first = clock.read(away(901), 901 * SECOND);
            assert_eq!((first.now_ns, first.stood_ns), (WALL + 901 * SECOND, 0));
            assert_eq!(first.jumped_ns, Some(jump));
            let second = clock.read(away(902), 902 * SECOND);
            assert_eq!(second, Reading { now_ns: WALL + 902 * SECOND, stood_ns: 0, jumped_ns: None });
            let back = clock.read(WALL + 903 * SECOND, 903 * SECOND);
            assert_eq!((back.now_ns, back.stood_ns), (WALL + 903 * SECOND, 0));
            assert!(back.jumped_ns.is_some());
            assert_eq!(clock.read(WALL + 910 * SECOND, 910 * SECOND).stood_ns, 7 * SECOND);
        }
    }

    #[test]
    fn a_clock_that_stays_where_it_jumped_to_is_believed() {
        let mut clock = SteadyClock::default();
        clock.read(WALL, 0);
        for second in 1..=600 {
            let reading = clock.read(WALL + 400 * DAY + second * SECOND, second * SECOND);
            assert_eq!((reading.now_ns, reading.stood_ns), (WALL + second * SECOND, 0), "{second}");
        }
        let reading = clock.read(WALL + 400 * DAY + 601 * SECOND, 601 * SECOND);
        assert_eq!(reading, Reading { now_ns: WALL + 400 * DAY + 601 * SECOND, stood_ns: STAND_NS, jumped_ns: None });
    }

    #[test]
    fn corrections_and_a_night_asleep_are_followed() {
        let mut clock = SteadyClock::default();
        clock.read(WALL, 0);
        let reading = clock.read(WALL + DAY / 2, SECOND);
        assert_eq!(reading, Reading { now_ns: WALL + DAY / 2, stood_ns: SECOND, jumped_ns: None });
    }
}
