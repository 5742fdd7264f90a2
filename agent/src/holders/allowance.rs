//! Limits the share of a training's time that searches may take, however often they are requested.
//!
//! Guarantees: searches take at most a hundredth of the elapsed time, plus [`SAVED_MAX`] of saved time at once. After a
//! search that took more, the next one must wait longer. The budget of a search is spent when the trainer gets the
//! request, and the unused part is credited afterwards. So even a compromised daemon cannot exceed this limit.

use std::time::{Duration, Instant};

/// Searches may take one part in `SHARE` of a training's time.
const SHARE: u32 = 100;
/// The maximum of saved time, and the amount at the start.
const SAVED_MAX: Duration = Duration::from_secs(1);

/// The allowance; see the module's documentation.
pub(super) struct Allowance {
    /// Saved microseconds at time `at`; negative after a search that took more than was saved.
    saved_us: i64,
    at: Instant,
}

fn us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

impl Allowance {
    pub fn new(now: Instant) -> Self {
        Self { saved_us: us(SAVED_MAX), at: now }
    }

    fn save(&mut self, now: Instant) {
        let more = us(now.saturating_duration_since(self.at) / SHARE);
        self.saved_us = self.saved_us.saturating_add(more).min(us(SAVED_MAX));
        self.at = self.at.max(now);
    }

    /// How long the next search must wait; `None` if it may begin.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.save(now);
        let missing = u64::try_from(1 - self.saved_us).ok().filter(|missing| *missing > 0)?;
        Some(Duration::from_micros(missing).saturating_mul(SHARE))
    }

    /// Spends the budget of a search that begins.
    pub fn spend(&mut self, budget: Duration, now: Instant) {
        self.save(now);
        self.saved_us = self.saved_us.saturating_sub(us(budget));
    }

    /// Credits the part of the budget that the search did not use.
    pub fn give_back(&mut self, rest: Duration) {
        self.saved_us = self.saved_us.saturating_add(us(rest)).min(us(SAVED_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_caller_gets_a_hundredth_of_it() {
        let start = Instant::now();
        let (mut allowance, mut now, mut taken) = (Allowance::new(start), start, Duration::ZERO);
        let budget = Duration::from_millis(400);
        while now < start + Duration::from_secs(3_600) {
            match allowance.wait(now) {
                Some(rest) => now += rest,
                None => {
                    allowance.spend(budget, now);
                    (now, taken) = (now + budget, taken + budget);
                }
            }
        }
        assert!((36.0..=38.0).contains(&taken.as_secs_f64()), "{taken:?}");
    }

    #[test]
    fn a_long_search_is_made_up_for_and_a_short_one_given_back() {
        let now = Instant::now();
        let mut allowance = Allowance::new(now);
        allowance.spend(Duration::from_secs(10), now);
        let rest = allowance.wait(now).unwrap();
        assert!((900..=901).contains(&rest.as_secs()), "{rest:?}");
        assert!(allowance.wait(now + rest - Duration::from_secs(1)).is_some());
        allowance.give_back(Duration::from_millis(9_900));
        assert_eq!(allowance.wait(now + rest), None);
        // The saved time has a maximum.
        allowance.spend(Duration::from_secs(1), now + Duration::from_secs(1 << 20));
        assert!(allowance.wait(now + Duration::from_secs(1 << 20)).is_some());
    }
}
