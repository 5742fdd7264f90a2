//! How far growth vouches for a request that a replay sees fail.
//!
//! A replay alone is no witness: it sees memory that fills to its bound, and stops there, fail as surely as memory that grows for
//! ever. How much of what it sees is told depends on how sure it is that what grows has no bound.
//!
//! Guarantees: each one vouches for all that the ones before it vouch for. Refuses to vouch for what nothing grows towards.

/// See the module; the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Foresight {
    /// For nothing.
    #[default]
    Nothing,
    /// For the very next step, if it is like the last one and nothing in it is expected of which nobody knows when it comes.
    CertainStep,
    /// For the very next step, if it is like the last one.
    NextStep,
    /// For the very next step, whichever of those that were seen it is like.
    AnyNextStep,
    /// For every step that is looked at.
    AllSteps,
}

/// What a replay saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// In how many steps the request fails: 1 is the one that comes next.
    pub steps: u32,
    /// Whether that step is like the last one, and not like the one that needed most.
    pub is_of_last: bool,
    /// Whether it rests on nothing of which nobody knows when it comes.
    pub is_certain: bool,
}

impl Foresight {
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

    /// By its name; what has another name vouches for nothing.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|it| it.name() == name).unwrap_or_default()
    }

    /// Whether it vouches for what was seen.
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

    #[test]
    fn names_name_one_each() {
        assert_eq!(Foresight::ALL.map(|it| Foresight::of_name(it.name())), Foresight::ALL);
        assert_eq!(Foresight::of_name("everything"), Foresight::Nothing);
    }
}
