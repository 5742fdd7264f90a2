//! Detects whether a backward pass goes through the graphs of earlier steps: the work then grows with the live memory.

use super::history::Level;

/// The ratio by which the events per step grow between the half of the steps with fewer live blocks and the half with
/// more. If each step goes through the graphs of all earlier steps, the ratio is three in theory, apart from the
/// forward passes, which stay the same.
const WORK_GROWS: f64 = 1.2;

/// Whether steps make more events if more blocks are live. A backward pass through the graphs of all earlier steps
/// allocates for each of them. A backward pass through its own graph alone makes the same number of events every time.
pub(super) fn work_grows_with_what_lives(steps: &[Level]) -> bool {
    let steps = steps.windows(2);
    let mut steps: Vec<(u64, f64)> =
        steps.filter_map(|pair| Some((pair[0].counters.allocated_blocks, events_a_step(pair)?))).collect();
    steps.sort_by_key(|&(blocks, _)| blocks);
    let mean = |steps: &[(u64, f64)]| steps.iter().map(|&(_, events)| events).sum::<f64>() / steps.len() as f64;
    let half = steps.len() / 2;
    half > 0 && mean(&steps[steps.len() - half..]) >= mean(&steps[..half]) * WORK_GROWS
}

/// Events per step between two levels.
fn events_a_step(pair: &[Level]) -> Option<f64> {
    let [before, after] = pair else { return None };
    let (steps, events) = (after.at.checked_sub(before.at)?, after.events.checked_sub(before.events)?);
    (steps > 0).then(|| events as f64 / f64::from(steps))
}
