//! Reads the time: the wall clock, and the ticks with which PyTorch stamps its events. No other module of the agent
//! does.
//!
//! Guarantees: times from ticks follow the monotonic clock. They are anchored to the wall clock once, so a change of
//! the wall clock does not break a session.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch; 0 before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

/// A stamp of the clock that `c10::getApproximateTime` reads, as in PyTorch's events. A `TickClock` converts it to a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Ticks(pub u64);

impl Ticks {
    /// The stamp as a time, if it already is one: nanoseconds since the Unix epoch. A [`crate::Recorder`] stamps its
    /// events like this.
    #[inline]
    #[must_use]
    pub fn as_ns(self) -> u64 {
        self.0
    }

    /// Ticks from an earlier stamp to this one.
    #[inline]
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// The current stamp. It is the time-stamp counter on x86-64, the virtual counter on aarch64, and nanoseconds of the
/// wall clock elsewhere (c10/util/ApproximateClock.h). If a version of torch uses another clock, `shim.cpp` reads this
/// one.
#[inline]
#[must_use]
pub fn ticks() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 has the instruction.
        Ticks(unsafe { std::arch::x86_64::_rdtsc() })
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register that Linux lets user code read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        Ticks(ticks)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Ticks(now_ns())
}

/// How long the first measurement of the rate takes. A jitter of 20 ns in 5 ms is an error of 4 µs per second, until
/// the first refinement.
const FIRST: Duration = Duration::from_millis(5);
/// How often the rate is measured again.
const REFINE: Duration = Duration::from_secs(1);

/// Converts ticks to nanoseconds since the Unix epoch.
pub struct TickClock {
    /// Ticks, monotonic time and nanoseconds since the epoch at the same moment.
    base_ticks: Ticks,
    base: Instant,
    base_ns: u64,
    ns_per_tick: f64,
}

impl TickClock {
    /// Measures the rate, which takes 5 ms. Must not run on the training thread.
    #[must_use]
    pub fn start() -> Self {
        let (base_ticks, base, base_ns) = (ticks(), Instant::now(), now_ns());
        std::thread::sleep(FIRST);
        let mut clock = Self { base_ticks, base, base_ns, ns_per_tick: 1.0 };
        clock.measure();
        clock
    }

    fn measure(&mut self) -> (Ticks, Instant) {
        let (now_ticks, now) = (ticks(), Instant::now());
        let passed = now_ticks.since(self.base_ticks);
        if passed > 0 {
            self.ns_per_tick = now.duration_since(self.base).as_nanos() as f64 / passed as f64;
        }
        (now_ticks, now)
    }

    /// Measures the rate again if a second has passed. May be called at any time.
    pub fn refine(&mut self) {
        if self.base.elapsed() < REFINE {
            return;
        }
        let (now_ticks, now) = self.measure();
        self.base_ns += now.duration_since(self.base).as_nanos() as u64;
        (self.base_ticks, self.base) = (now_ticks, now);
    }

    /// The time of a stamp in nanoseconds since the Unix epoch. The stamp may be older than the clock.
    #[inline]
    #[must_use]
    pub fn ns(&self, ticks: Ticks) -> u64 {
        let passed = ticks.since(self.base_ticks) as i64 as f64 * self.ns_per_tick;
        self.base_ns.saturating_add_signed(passed as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_the_time_of_day() {
        let mut clock = TickClock::start();
        for _ in 0..3 {
            let (before, at, after) = (now_ns(), ticks(), now_ns());
            // The bound is generous, because this tests the conversion and not the machine's clocks.
            let (low, high) = (before.saturating_sub(50_000_000), after + 50_000_000);
            assert!((low..=high).contains(&clock.ns(at)), "{} is not between {low} and {high}", clock.ns(at));
            clock.refine();
        }
    }

    #[test]
    fn ticks_before_the_start_lie_before_it() {
        let clock = TickClock::start();
        let now = ticks();
        assert!(clock.ns(Ticks(now.0.wrapping_sub(1_000_000))) < clock.ns(now));
    }
}
