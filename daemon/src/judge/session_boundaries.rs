//! The boundaries of sessions: how many of each kind there are, where they come from, and the levels of devices at the
//! last one.

use std::collections::{BTreeMap, VecDeque};

use memctl_analysis::growth::{EpochBytes, growth_bytes_per_epoch};
use memctl_answers::report::Boundaries;
use memctl_model::{Boundary, Counters, SiteTable};
use serde::{Deserialize, Serialize};

use crate::store::SessionRow;

/// Epoch ends from which the growth of a device is estimated for the summaries. They suffice for a slope and take
/// little memory.
const EPOCHS_KEPT: usize = 64;

/// The levels of a device at a boundary.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Levels {
    pub boundary: Boundary,
    pub counters: Counters,
}

/// How many boundaries of each kind a session has marked, and where they come from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SessionBoundaries {
    epochs: Origin,
    steps: Origin,
    windows: u64,
    pub levels: BTreeMap<u8, Levels>,
    /// Allocated bytes at the last epoch ends, by device.
    epoch_ends: BTreeMap<u8, VecDeque<EpochBytes>>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Origin {
    given: bool,
    found: bool,
}

impl Origin {
    fn see(&mut self, found: bool) {
        *if found { &mut self.found } else { &mut self.given } = true;
    }

    /// Explicit marks take precedence and are never mixed with marks that were found.
    fn name(self) -> &'static str {
        match (self.given, self.found) {
            (true, _) => "given",
            (false, true) => "found",
            (false, false) => "none",
        }
    }

    fn join(&mut self, other: Self) {
        self.given |= other.given;
        self.found |= other.found;
    }
}

impl SessionBoundaries {
    pub fn see(&mut self, table: &SiteTable) {
        match table.boundary {
            Boundary::EpochEnd => {
                self.epochs.see(table.found);
                let ends = self.epoch_ends.entry(table.device.0).or_default();
                if ends.len() == EPOCHS_KEPT {
                    ends.pop_front();
                }
                ends.push_back(EpochBytes { epoch: table.epoch, bytes: table.counters.allocated_bytes });
            }
            Boundary::StepEnd => self.steps.see(table.found),
            Boundary::WindowEnd => self.windows += 1,
            // At the end of a recording only memory that teardown left is live, so its levels are not used.
            Boundary::End => return,
        }
        self.levels.insert(table.device.0, Levels { boundary: table.boundary, counters: table.counters });
    }
}

impl SessionBoundaries {
    /// Growth of the allocated bytes over the last epochs, by device.
    pub fn growth(&self) -> impl Iterator<Item = (u8, f64)> + '_ {
        let of = |(device, ends): (&u8, &VecDeque<EpochBytes>)| {
            let series: Vec<EpochBytes> = ends.iter().copied().collect();
            Some((*device, growth_bytes_per_epoch(&series)?))
        };
        self.epoch_ends.iter().filter_map(of)
    }
}

/// Where the boundaries of these sessions come from.
pub(super) fn boundaries<'a>(sessions: impl Iterator<Item = (&'a SessionRow, &'a SessionBoundaries)>) -> Boundaries {
    let (mut epochs, mut steps, mut windows, mut found_by) = (Origin::default(), Origin::default(), 0, None);
    for (session, seen) in sessions {
        epochs.join(seen.epochs);
        steps.join(seen.steps);
        windows = windows.max(seen.windows / seen.levels.len().max(1) as u64);
        found_by = found_by.or_else(|| session.info.found_by.clone());
    }
    let any_found = [epochs, steps].iter().any(|origin| origin.name() == "found");
    Boundaries {
        epochs: epochs.name().to_owned(),
        steps: steps.name().to_owned(),
        windows,
        found_by: found_by.filter(|_| any_found),
    }
}
