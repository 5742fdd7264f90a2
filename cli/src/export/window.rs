//! Determines which events of a stream belong to the requested slice.
//!
//! A store sends whole chunks; the slice begins and ends inside them. Times come from flags, epochs
//! from the marks of each rank.

use std::collections::HashMap;

use memctl_model::{Mark, MarkKind};
use memctl_proto::{WireError, convert, v1};

/// A stretch of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its beginning, ns since the Unix epoch.
    pub first_ns: u64,
    /// Its end.
    pub last_ns: u64,
}

/// Windows by rank.
#[derive(Clone, Debug)]
pub struct Windows {
    flags: Window,
    first_epoch: Option<u32>,
    last_epoch: Option<u32>,
    begin: HashMap<u32, u64>,
    end: HashMap<u32, u64>,
}

impl Windows {
    /// The windows that follow from the flags alone.
    #[must_use]
    pub fn new(selection: &v1::Selection) -> Self {
        let flags =
            Window { first_ns: selection.since_ns.unwrap_or(0), last_ns: selection.until_ns.unwrap_or(u64::MAX) };
        let (first_epoch, last_epoch) = (selection.first_epoch, selection.last_epoch);
        Self { flags, first_epoch, last_epoch, begin: HashMap::new(), end: HashMap::new() }
    }

    /// Whether marks are needed, because epochs were requested.
    #[must_use]
    pub fn need_marks(&self) -> bool {
        self.first_epoch.is_some() || self.last_epoch.is_some()
    }

    /// Takes marks of a rank.
    ///
    /// # Errors
    /// Marks that do not decode.
    pub fn marks(&mut self, rank: u32, batch: &v1::MarkBatch) -> Result<(), WireError> {
        for Mark { time_ns, kind } in convert::marks::from_wire(batch)? {
            let begins = match kind {
                MarkKind::EpochBegin(epoch) => Some(epoch) == self.first_epoch,
                // If a recording has only epoch ends, an epoch begins at the end of the previous one.
                MarkKind::EpochEnd(epoch) => {
                    epoch.checked_add(1) == self.first_epoch && !self.begin.contains_key(&rank)
                }
                _ => false,
            };
            if begins {
                self.begin.insert(rank, time_ns);
            }
            if matches!(kind, MarkKind::EpochEnd(epoch) if Some(epoch) == self.last_epoch) {
                self.end.insert(rank, time_ns);
            }
        }
        Ok(())
    }

    /// The window of a rank.
    #[must_use]
    pub fn of(&self, rank: u32) -> Window {
        Window {
            first_ns: self.begin.get(&rank).copied().unwrap_or(0).max(self.flags.first_ns),
            last_ns: self.end.get(&rank).copied().unwrap_or(u64::MAX).min(self.flags.last_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(marks: &[(u64, MarkKind)]) -> v1::MarkBatch {
        let marks: Vec<Mark> =
            marks.iter().map(|(time_ns, kind)| Mark { time_ns: *time_ns, kind: kind.clone() }).collect();
        convert::marks::to_wire(&marks, 1)
    }

    #[test]
    fn epochs_become_times_by_rank() {
        let selection =
            v1::Selection { first_epoch: Some(1), last_epoch: Some(2), since_ns: Some(15), ..Default::default() };
        let mut windows = Windows::new(&selection);
        assert!(windows.need_marks());
        use MarkKind::{EpochBegin, EpochEnd};
        windows
            .marks(
                0,
                &batch(&[
                    (5, EpochEnd(0)),
                    (10, EpochBegin(1)),
                    (20, EpochEnd(1)),
                    (30, EpochEnd(2)),
                    (40, EpochEnd(3)),
                ]),
            )
            .unwrap();
        windows.marks(1, &batch(&[(18, EpochEnd(0))])).unwrap();
        assert_eq!(windows.of(0), Window { first_ns: 15, last_ns: 30 });
        assert_eq!(windows.of(1), Window { first_ns: 18, last_ns: u64::MAX });
        assert_eq!(windows.of(2), Window { first_ns: 15, last_ns: u64::MAX });
    }

    #[test]
    fn without_epochs_the_flags_decide() {
        let windows = Windows::new(&v1::Selection { until_ns: Some(9), ..Default::default() });
        assert!(!windows.need_marks());
        assert_eq!(windows.of(7), Window { first_ns: 0, last_ns: 9 });
    }
}
