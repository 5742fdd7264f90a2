//! Whether a backward pass goes through the graphs of the steps before: then what lives makes work.

use super::history::Level;

/// How many more events a step makes where more blocks live than in the mean, if each goes through the graphs of all before:
/// three times as many in theory, beside the forward passes, which stay the same.
const WORK_GROWS: f64 = 1.2;

/// Whether steps make the more events the more blocks live: a backward pass that goes through the graphs of all steps before
/// allocates for each of them, where one that goes through its own alone makes as many every time.
pub(super) fn work_grows_with_what_lives(steps: &[Level]) -> bool {
    let steps = steps.windows(2);
    let mut steps: Vec<(u64, f64)> =
        steps.filter_map(|pair| Some((pair[0].counters.allocated_blocks, events_a_step(pair)?))).collect();
    steps.sort_by_key(|&(blocks, _)| blocks);
    let mean = |steps: &[(u64, f64)]| steps.iter().map(|&(_, events)| events).sum::<f64>() / steps.len() as f64;
    let half = steps.len() / 2;
    half > 0 && mean(&steps[steps.len() - half..]) >= mean(&steps[..half]) * WORK_GROWS
}

/// Events of a step between two levels.
fn events_a_step(pair: &[Level]) -> Option<f64> {
    let [before, after] = pair else { return None };
    let (steps, events) = (after.at.checked_sub(before.at)?, after.events.checked_sub(before.events)?);
    (steps > 0).then(|| events as f64 / f64::from(steps))
}
