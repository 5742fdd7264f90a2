//! A selection as the six bounds of the statements: a pair each for times, epochs and events. A pair is null if that
//! range is not restricted.
//!
//! Guarantees: stored values stay below 2^63, so an upper bound beyond it becomes 2^63 - 1, and a lower bound beyond it
//! becomes an empty range.

use super::rows::Selection;

/// The bounds in the order of the statements' parameters.
pub(super) fn bounds(selection: &Selection) -> [Option<i64>; 6] {
    let epochs = selection.epochs.map(|(from, to)| (u64::from(from), u64::from(to)));
    let mut bounds = [None; 6];
    for (pair, range) in [selection.times_ns, epochs, selection.events].into_iter().enumerate() {
        let Some((from, to)) = range else { continue };
        let (from, to) = match i64::try_from(from) {
            Ok(from) => (from, i64::try_from(to).unwrap_or(i64::MAX)),
            Err(_) => (i64::MAX, -1),
        };
        bounds[2 * pair] = Some(from);
        bounds[2 * pair + 1] = Some(to);
    }
    bounds
}
