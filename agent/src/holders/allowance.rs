//! How much of a training's time searches may take, whoever asks how often.
//!
//! Guarantees: a hundredth of the time that has passed, and [`SAVED_MAX`] at once before that is saved; a search that took more
//! is made up for before the next one. What a search may take counts from when the trainer is asked; what it did not take is
//! given back. Refuses to trust whoever asks: a daemon that others have taken over can slow a training by that much and no more.

use std::time::{Duration, Instant};

/// One part in so many of a training's time.
const SHARE: u32 = 100;
/// What is saved at most, and at the beginning.
const SAVED_MAX: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Allowance {
    /// Microseconds, as of `at`; below zero after a search that took more than there was.
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

    /// How long nobody may be asked yet.
    pub fn rest(&mut self, now: Instant) -> Option<Duration> {
        self.save(now);
        let missing = u64::try_from(1 - self.saved_us).ok().filter(|missing| *missing > 0)?;
        Some(Duration::from_micros(missing).saturating_mul(SHARE))
    }

    /// A search begins that may take this long.
    pub fn spend(&mut self, budget: Duration, now: Instant) {
        self.save(now);
        self.saved_us = self.saved_us.saturating_sub(us(budget));
    }

    /// It took less.
    pub fn give_back(&mut self, rest: Duration) {
        self.saved_us = self.saved_us.saturating_add(us(rest)).min(us(SAVED_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_all_the_time_gets_a_hundredth_of_it() {
        let start = Instant::now();
        let (mut allowance, mut now, mut taken) = (Allowance::new(start), start, Duration::ZERO);
        let budget = Duration::from_millis(400);
        while now < start + Duration::from_secs(3_600) {
            match allowance.rest(now) {
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
        let rest = allowance.rest(now).unwrap();
        assert!((900..=901).contains(&rest.as_secs()), "{rest:?}");
        assert!(allowance.rest(now + rest - Duration::from_secs(1)).is_some());
        allowance.give_back(Duration::from_millis(9_900));
        assert_eq!(allowance.rest(now + rest), None);
        // Nobody saves without end.
        allowance.spend(Duration::from_secs(1), now + Duration::from_secs(1 << 20));
        assert!(allowance.rest(now + Duration::from_secs(1 << 20)).is_some());
    }
}
