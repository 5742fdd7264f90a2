//! The forecast of a device, and how long it remains valid.
//!
//! A failure that is many steps away is not searched for again at each step, because that work is needed near the end.
//! If steps differ, a search that begins after a small step may find no failure although the preceding search found
//! one. Neither is wrong, so the earlier forecast is kept for a while.
//!
//! Guarantees: a forecast counts down from step to step, and it ends with the step that should fail.
//!
//! A forecast for the very next step is not kept.

use memctl_replay::Fails;

/// A forecast failure is searched for again after one part in this many of the steps until it.
const AGAIN: u64 = 8;
/// If steps differ, a forecast that is not found again stays reported for one part in this many of the steps until it.
const UNSEEN: u64 = 2;

/// The forecast that was made at a step's end.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    /// The request that will fail, as found at that step's end.
    pub fails: Fails,
    /// Requests that may fail in that step instead.
    pub instead: Vec<Fails>,
    /// The number of steps that had ended when it was made.
    pub at: u64,
}

/// The result of a search that yields no forecast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saw {
    /// The number of steps that have ended.
    pub seen: u64,
    /// Whether a failure was found, with too little evidence to report it.
    pub is_in_sight: bool,
    /// Whether the steps differ.
    pub is_uneven: bool,
}

impl Forecast {
    /// Whether it is time to search for the failure again.
    pub fn is_followed(&self, seen: u64) -> bool {
        seen >= self.at + u64::from(self.fails.steps) / AGAIN
    }

    /// Whether the forecast stays reported although this search did not find it again.
    pub fn stands(&self, saw: Saw) -> bool {
        let (steps, later) = (u64::from(self.fails.steps), saw.seen - self.at);
        later
            < if saw.is_in_sight {
                steps
            } else if saw.is_uneven {
                steps / UNSEEN
            } else {
                0
            }
    }

    /// The number of steps until the request fails, counted after `seen` steps.
    pub fn steps(&self, seen: u64) -> u32 {
        let later = u32::try_from(seen.saturating_sub(self.at)).unwrap_or(u32::MAX);
        self.fails.steps.saturating_sub(later).max(1)
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{PoolId, StackId};
    use memctl_replay::{Of, Requested, Shortage};

    use super::*;

    fn forecast(steps: u32) -> Forecast {
        let fails = Fails {
            steps,
            of: Of::Last,
            index: 0,
            requested: Requested { bytes: 1, stream: 0, pool: PoolId::DEFAULT },
            stack: StackId(1),
            shortage: Shortage::Capacity,
            allocated_bytes: 0,
            reserved_bytes: 0,
            is_certain: true,
        };
        Forecast { fails, instead: Vec::new(), at: 100 }
    }

    #[test]
    fn what_fails_in_many_steps_is_looked_for_again_after_some() {
        assert_eq!([102, 103].map(|seen| forecast(24).is_followed(seen)), [false, true]);
        assert!(forecast(7).is_followed(100), "near the end at each step");
        assert_eq!([100, 101, 123, 124, 130].map(|seen| forecast(24).steps(seen)), [24, 23, 1, 1, 1]);
    }

    #[test]
    fn it_stands_until_its_step_or_half_way_where_steps_differ() {
        let stands = |steps, is_in_sight, is_uneven| {
            (101..200).take_while(|&seen| forecast(steps).stands(Saw { seen, is_in_sight, is_uneven })).count()
        };
        assert_eq!(stands(24, true, false), 23);
        assert_eq!(stands(24, false, true), 11);
        assert_eq!(stands(24, false, false), 0, "steps that are alike show it");
        assert_eq!(stands(1, true, true), 0, "the next step shows it");
    }
}
