//! The wait before the next attempt: bounds that double, with full jitter. The functions are pure: the caller draws
//! the random number.
//!
//! Full jitter (a uniform draw between 0 and the bound) spreads the attempts of a thousand ranks that lost the same
//! daemon. Brooker, "Exponential Backoff and Jitter" (2015).

use std::time::Duration;

/// Bounds of the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the first wait.
    pub first: Duration,
    /// Upper bound of all waits.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        // A daemon that restarts is available again within a second. A daemon that stays away is tried at most every
        // 10 s.
        Self { first: Duration::from_millis(100), most: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The upper bound of the wait before attempt `attempt` (0 = the first retry).
    #[must_use]
    pub fn bound(&self, attempt: u32) -> Duration {
        self.first.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX)).min(self.most)
    }

    /// The wait before attempt `attempt`; `draw` is uniform in 0..1.
    #[must_use]
    pub fn wait(&self, attempt: u32, draw: f64) -> Duration {
        self.bound(attempt).mul_f64(draw.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_never_exceed_it() {
        let backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(10) };
        let bounds: Vec<_> = (0..9).map(|attempt| backoff.bound(attempt).as_millis()).collect();
        assert_eq!(bounds, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.wait(40, 1.0), backoff.most);
        assert_eq!(backoff.wait(3, 0.0), Duration::ZERO);
        assert_eq!(backoff.wait(3, 0.5).as_millis(), 400);
        assert_eq!(backoff.wait(3, f64::INFINITY).as_millis(), 800);
    }
}
