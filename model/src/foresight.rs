//! The forecasts of an out of memory that growth supports.
//!
//! A replay alone is not enough: it also forecasts a failure for memory that fills up to a bound and stops there. How
//! much of its forecast is reported depends on how certain it is that the growth has no bound.
//!
//! Guarantees: each level supports everything that lower levels support. Without growth, no forecast is supported.

/// The forecasts that growth supports, in ascending order; see the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Foresight {
    /// No forecast.
    #[default]
    Nothing,
    /// The next step, if the forecast assumes that it is like the last one and contains no request of unknown timing.
    CertainStep,
    /// The next step, if the forecast assumes that it is like the last one.
    NextStep,
    /// The next step, whichever recorded step it resembles.
    AnyNextStep,
    /// All forecast steps.
    AllSteps,
}

/// The forecast of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The number of steps until the request fails: 1 is the next one.
    pub steps: u32,
    /// Whether that step is assumed to be like the last one, rather than like the largest one.
    pub is_of_last: bool,
    /// Whether it is independent of requests with unknown timing.
    pub is_certain: bool,
}

impl Foresight {
    #[cfg(test)]
    const ALL: [Self; 5] = [Self::Nothing, Self::CertainStep, Self::NextStep, Self::AnyNextStep, Self::AllSteps];

    /// Its name in evidence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::CertainStep => "certain_next_step",
            Self::NextStep => "next_step",
            Self::AnyNextStep => "any_next_step",
            Self::AllSteps => "all_steps",
        }
    }

    /// Whether it supports a forecast.
    #[must_use]
    pub fn vouches_for(self, sight: Sight) -> bool {
        let Sight { steps, is_of_last, is_certain } = sight;
        match self {
            Self::Nothing => false,
            Self::CertainStep => steps == 1 && is_of_last && is_certain,
            Self::NextStep => steps == 1 && is_of_last,
            Self::AnyNextStep => steps == 1,
            Self::AllSteps => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vouches_for_all_that_the_ones_before_it_vouch_for() {
        let next = Sight { steps: 1, is_of_last: true, is_certain: true };
        let sights = [
            next,
            Sight { is_certain: false, ..next },
            Sight { is_of_last: false, ..next },
            Sight { steps: 2, ..next },
        ];
        let least = [Foresight::CertainStep, Foresight::NextStep, Foresight::AnyNextStep, Foresight::AllSteps];
        for (least, sight) in least.into_iter().zip(sights) {
            for it in Foresight::ALL {
                assert_eq!(it.vouches_for(sight), it >= least, "{it:?} {sight:?}");
            }
        }
    }
}
