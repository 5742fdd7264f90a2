//! When a leak leaks: the steps at which it happens.
//!
//! Guarantees: a schedule has at least [`OCCURRENCES_MIN`] occurrences, or there is none. The README gives the
//! distribution.

use super::base::Base;
use super::draw::Draw;

/// Minimum occurrences of a leak in its run: rarer ones cannot be detected, and such draws are refused.
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

    /// The number of steps between two leaks, if it is fixed.
    const fn interval(self) -> u64 {
        match self {
            Self::Step | Self::Epoch => 1,
            Self::Fifth => 5,
            Self::Twentieth => 20,
        }
    }
}

/// The distribution of a leak's times. It is the same for all ranks of a run unless each has its own seed.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// How often.
    pub rate: Rate,
    /// Share of the run before the first time.
    pub from: f64,
    /// At random with the rate's probability, rather than at nearly even distances.
    pub at_random: bool,
}

impl Schedule {
    /// Draws the schedule of a leak: half of the leaks begin at the first step, half anywhere in the first 30 %.
    pub fn draw(rate: Rate, draw: &mut Draw) -> Self {
        let from = if draw.chance(0.5) { 0.0 } else { draw.real(0.0, 0.3) };
        Self { rate, from, at_random: draw.chance(0.5) }
    }

    /// The steps, ascending; `None` when they are too few.
    pub fn steps(self, base: &Base, draw: &mut Draw) -> Option<Vec<usize>> {
        let count = base.steps.len();
        let first = (self.from * count as f64) as usize;
        let steps = match self.rate {
            Rate::Epoch => return self.epochs(base, draw),
            // If not every step leaks, nine in ten do.
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

    /// One step of each epoch: at the same place in each, or at any.
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

    /// The evaluations that leak, instead of steps.
    #[must_use]
    pub fn evaluations(self, base: &Base) -> Option<Vec<usize>> {
        let first = (self.from * base.evals.len() as f64) as usize;
        enough((first..base.evals.len()).collect())
    }
}

fn enough(steps: Vec<usize>) -> Option<Vec<usize>> {
    (steps.len() >= OCCURRENCES_MIN).then_some(steps)
}
