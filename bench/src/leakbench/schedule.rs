//! The schedule of a leak: the steps in which it leaks.
//!
//! Guarantees: a schedule has at least [`OCCURRENCES_MIN`] steps, or there is none. The README describes the
//! distribution.

use super::base::Base;
use super::draw::Draw;

/// Minimum number of steps in which a leak leaks in its run. A leak with fewer steps cannot be detected, so the draw is
/// refused.
pub const OCCURRENCES_MIN: usize = 5;

/// The rate of a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rate {
    /// Every step.
    Step,
    /// One step in five.
    Fifth,
    /// One step in twenty.
    Twentieth,
    /// Once an epoch.
    Epoch,
}

impl Rate {
    /// Every rate.
    pub const ALL: [Self; 4] = [Self::Step, Self::Fifth, Self::Twentieth, Self::Epoch];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Step => "1 a step",
            Self::Fifth => "1 in 5",
            Self::Twentieth => "1 in 20",
            Self::Epoch => "1 an epoch",
        }
    }

    /// The number of steps from one leak to the next, if it is fixed.
    const fn interval(self) -> u64 {
        match self {
            Self::Step | Self::Epoch => 1,
            Self::Fifth => 5,
            Self::Twentieth => 20,
        }
    }
}

/// The distribution of the steps in which a leak leaks. It is the same for all ranks of a run, unless each rank has a
/// seed of its own.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The rate.
    pub rate: Rate,
    /// The share of the run before the leak first leaks.
    pub from: f64,
    /// Whether the steps are drawn at random with the rate's probability. Otherwise their distances are nearly equal.
    pub at_random: bool,
}

impl Schedule {
    /// Draws the schedule of a leak. Half of the leaks begin at the first step. The others begin at any time in the
    /// first 30 % of the run.
    pub fn draw(rate: Rate, draw: &mut Draw) -> Self {
        let from = if draw.chance(0.5) { 0.0 } else { draw.real(0.0, 0.3) };
        Self { rate, from, at_random: draw.chance(0.5) }
    }

    /// The steps in ascending order; `None` if there are too few.
    pub fn steps(self, base: &Base, draw: &mut Draw) -> Option<Vec<usize>> {
        let count = base.steps.len();
        let first = (self.from * count as f64) as usize;
        let steps = match self.rate {
            Rate::Epoch => return self.epochs(base, draw),
            // If the leak does not leak in every step, it leaks in nine of ten.
            Rate::Step => (first..count).filter(|_| !self.at_random || draw.chance(0.9)).collect(),
            Rate::Fifth | Rate::Twentieth if self.at_random => {
                let probability = 1.0 / self.rate.interval() as f64;
                (first..count).filter(|_| draw.chance(probability)).collect()
            }
            Rate::Fifth | Rate::Twentieth => {
                let interval = self.rate.interval();
                let slack = interval / 5;
                let offset = draw.int(0, interval - 1) as usize;
                let even = (first + offset..count).step_by(interval as usize);
                even.map(|step| (step + draw.int(0, slack) as usize).min(count - 1)).collect::<Vec<_>>()
            }
        };
        enough(steps)
    }

    /// One step of each epoch: always at the same place in the epoch, or at any place.
    fn epochs(self, base: &Base, draw: &mut Draw) -> Option<Vec<usize>> {
        let first = (self.from * base.epochs.len() as f64) as usize;
        let fixed = draw.unit();
        let mut steps = Vec::new();
        for epoch in &base.epochs[first..] {
            let inside: Vec<usize> = (0..base.steps.len()).filter(|&step| epoch.holds(base.steps[step].end)).collect();
            let fraction = if self.at_random { draw.unit() } else { fixed };
            steps.extend(inside.get((fraction * inside.len() as f64) as usize));
        }
        enough(steps)
    }

    /// The evaluations in which the leak leaks, instead of steps.
    #[must_use]
    pub fn evaluations(self, base: &Base) -> Option<Vec<usize>> {
        let first = (self.from * base.evals.len() as f64) as usize;
        enough((first..base.evals.len()).collect())
    }
}

fn enough(steps: Vec<usize>) -> Option<Vec<usize>> {
    (steps.len() >= OCCURRENCES_MIN).then_some(steps)
}
