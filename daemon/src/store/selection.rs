//! A selection as the six bounds that the statements take: times, epochs, events, each pair null or not.
//!
//! Guarantees: what databases hold stays below 2^63, so an upper bound beyond it is as good as 2^63 - 1 and a lower
//! bound beyond it selects nothing.

use super::rows::Selection;

/// The bounds in the order of the statements' parameters.
pub(super) struct Bounds(pub(super) [Option<i64>; 6]);

impl Bounds {
    /// The bounds, or `None` when nothing can be selected.
    pub(super) fn of(selection: &Selection) -> Option<Self> {
        let mut bounds = [None; 6];
        let epochs = selection.epochs.map(|(from, to)| (u64::from(from), u64::from(to)));
        for (pair, range) in [selection.times_ns, epochs, selection.events].into_iter().enumerate() {
            if let Some((from, to)) = range {
                bounds[2 * pair] = Some(i64::try_from(from).ok()?);
                bounds[2 * pair + 1] = Some(i64::try_from(to).unwrap_or(i64::MAX));
            }
        }
        Some(Self(bounds))
    }
}
