//! memctl's own judge, as the daemon runs it.
//!
//! A finding of a leak's kind is a verdict: an alarm from severity warning on, a suspicion below.

use memctl_analysis::judge::{RankFacts, RankWatch, findings};
use memctl_model::{Severity, SiteTable, StackId};

use super::{Detector, Given, Level, Verdict};

/// See the module.
#[derive(Default)]
pub struct Judge {
    watches: Vec<RankWatch>,
}

impl Detector for Judge {
    fn name(&self) -> &'static str {
        "memctl"
    }

    fn names_sites(&self) -> bool {
        true
    }

    fn begin(&mut self, given: &Given<'_>) {
        self.watches.clear();
        for (rank, stacks) in (0..).zip(given.stacks) {
            let mut watch = RankWatch::new(RankFacts { rank, device_total_bytes: Some(given.device_total_bytes) });
            for (id, frames) in (1..).zip(stacks) {
                watch.stack(StackId(id), frames);
            }
            self.watches.push(watch);
        }
    }

    fn table(&mut self, rank: usize, table: &SiteTable) {
        self.watches[rank].table(table);
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        let watches: Vec<&RankWatch> = self.watches.iter().collect();
        let found = findings(&watches).into_iter().filter(|finding| finding.kind.is_leak());
        found
            .map(|finding| Verdict {
                ranks: finding.ranks,
                sites: finding.site.into_iter().collect(),
                level: if finding.severity >= Severity::Warning { Level::Alarm } else { Level::Suspected },
            })
            .collect()
    }
}
