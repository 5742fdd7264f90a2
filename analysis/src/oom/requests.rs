//! What one line requested in the steps before one of its requests failed, and whether its input explains the failure.
//!
//! Guarantees: a step counts by its largest request, and the step that failed is not among the earlier ones. Without
//! eight earlier steps nothing is said.

use crate::wording::{byte_range, bytes};

/// Minimum number of earlier steps before their requests are compared with the failed one.
const STEPS_MIN: u64 = 8;
/// Minimum share of steps that requested more than the step before them, for requests that grow.
const RISES_MIN: f64 = 0.9;
/// Minimum ratio of the failed request to the first one, for requests that grow.
const GROWN_MIN: f64 = 1.25;
/// Minimum ratio of the failed request to the smallest one, for requests that vary.
const VARIED_MIN: f64 = 1.1;

/// The largest requests of one line, step by step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The steps that ended.
    ended: Option<Earlier>,
    /// The step under way and its largest request.
    current: Option<(u64, u64)>,
}

/// Requests of steps that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Earlier {
    steps: u64,
    /// How many steps requested more than the step before them.
    rises: u64,
    first_bytes: u64,
    last_bytes: u64,
    least_bytes: u64,
    most_bytes: u64,
}

/// How the requests of the earlier steps explain a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nearly every step requested more than the one before.
    Grows {
        /// How many steps.
        steps: u64,
        /// The request of the first of them.
        first_bytes: u64,
    },
    /// The steps requested different sizes, and none as much as the failed one.
    Largest {
        /// How many steps.
        steps: u64,
        /// Their smallest request.
        least_bytes: u64,
        /// Their largest request.
        most_bytes: u64,
    },
}

impl Requests {
    /// Adds a request of a step. The numbers of steps do not decrease.
    pub fn add(&mut self, step: u64, request_bytes: u64) {
        match &mut self.current {
            Some((current, most)) if *current == step => *most = request_bytes.max(*most),
            current => {
                if let Some((_, most)) = current.replace((step, request_bytes)) {
                    self.ended = Some(Earlier::with(self.ended, most));
                }
            }
        }
    }

    /// How the steps before `step` explain a request of `asked_bytes` in it; `None` if they do not.
    #[must_use]
    pub fn explain(&self, step: u64, asked_bytes: u64) -> Option<Input> {
        let earlier = match self.current {
            Some((current, most)) if current != step => Earlier::with(self.ended, most),
            _ => self.ended?,
        };
        let Earlier { steps, rises, first_bytes, last_bytes, least_bytes, most_bytes } = earlier;
        let at_least = |ratio: f64, of: u64| asked_bytes as f64 >= ratio * of as f64;
        if steps < STEPS_MIN || asked_bytes <= most_bytes {
            return None;
        }
        let grows = rises as f64 >= RISES_MIN * (steps - 1) as f64 && asked_bytes > last_bytes;
        if grows && at_least(GROWN_MIN, first_bytes) {
            return Some(Input::Grows { steps, first_bytes });
        }
        at_least(VARIED_MIN, least_bytes).then_some(Input::Largest { steps, least_bytes, most_bytes })
    }
}

impl Earlier {
    fn with(earlier: Option<Self>, bytes: u64) -> Self {
        let Some(earlier) = earlier else {
            let (first_bytes, last_bytes, least_bytes, most_bytes) = (bytes, bytes, bytes, bytes);
            return Self { steps: 1, rises: 0, first_bytes, last_bytes, least_bytes, most_bytes };
        };
        Self {
            steps: earlier.steps + 1,
            rises: earlier.rises + u64::from(bytes > earlier.last_bytes),
            last_bytes: bytes,
            least_bytes: earlier.least_bytes.min(bytes),
            most_bytes: earlier.most_bytes.max(bytes),
            ..earlier
        }
    }
}

impl Input {
    /// The end of the title. Requests that grow outrun every setting, so they are named there.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Grows { .. } => "; this line requests more in every step",
            Self::Largest { .. } => "",
        }
    }

    /// A sentence of the explanation.
    pub(super) fn explanation(self) -> String {
        match self {
            Self::Grows { steps, first_bytes } => {
                format!(
                    " In the {steps} steps before, this line requested more in each step than in the last one, at first {}.",
                    bytes(first_bytes)
                )
            }
            Self::Largest { steps, least_bytes, most_bytes } => format!(
                " In the {steps} steps before, this line requested {} at once: the sizes of its inputs differ, and this one is the largest.",
                byte_range(least_bytes, most_bytes)
            ),
        }
    }

    /// The beginning of the advice.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Grows { .. } => {
                "Find out why its input grows with every step, and limit it: a smaller batch or other settings only delay the failure"
            }
            Self::Largest { .. } => {
                "Limit the size of an input (a sequence's length, an image's size), or sort inputs by size"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(sizes: impl IntoIterator<Item = u64>) -> Requests {
        let mut requests = Requests::default();
        sizes.into_iter().enumerate().for_each(|(step, size)| requests.add(step as u64, size));
        requests
    }

    #[test]
    fn sizes_that_rise_in_every_step_grow() {
        let grows = requests((0..20).map(|step| 100 + 10 * step));
        assert_eq!(grows.explain(20, 300), Some(Input::Grows { steps: 20, first_bytes: 100 }));
        assert_eq!(grows.explain(20, 290), None, "the step before requested as much");
        // The step that fails is not among the earlier ones.
        assert_eq!(grows.explain(19, 290), Some(Input::Grows { steps: 19, first_bytes: 100 }));
    }

    #[test]
    fn sizes_that_differ_vary_and_equal_ones_explain_nothing() {
        let varies = requests((0..20).map(|step| 100 + 10 * (step * 7 % 10)));
        assert_eq!(varies.explain(20, 200), Some(Input::Largest { steps: 20, least_bytes: 100, most_bytes: 190 }));
        assert_eq!(varies.explain(20, 150), None);
        assert_eq!(requests([100; 20]).explain(20, 100), None);
        assert_eq!(requests([100; 20]).explain(20, 104), None);
        assert_eq!(requests((0..5).map(|step| 100 + step)).explain(5, 200), None, "too few steps");
    }

    #[test]
    fn a_step_counts_by_its_largest_request() {
        let mut requests = Requests::default();
        for step in 0..10 {
            for size in [50, 100 + step, 70] {
                requests.add(step, size);
            }
        }
        assert_eq!(requests.explain(10, 200), Some(Input::Grows { steps: 10, first_bytes: 100 }));
    }
}
