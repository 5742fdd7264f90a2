//! memctl's own judge, as the daemon runs it, followed by the built-in rules for notifications.
//!
//! A finding of a leak kind, or of growing private pools, is a verdict: an alarm from severity warning on, a suspicion
//! below. Notifications count for findings of every kind.

use std::collections::{HashMap, HashSet};

use memctl_analysis::judge::{Activity, Courses, RankFacts, RankWatch, VerdictInputs, findings, judged, verdict};
use memctl_daemon::alerts::Rules;
use memctl_model::{Finding, FindingKind, Fingerprint, Severity, SiteTable, StackId};

use super::{Detector, Level, Notified, RunFacts, Verdict};

/// See the module.
#[derive(Default)]
pub struct Judge {
    watches: Vec<RankWatch>,
    found: Vec<Finding>,
    rules: Rules,
    /// Alerts that wait: rule and finding, and since when.
    pending: HashMap<(usize, Fingerprint), u64>,
    /// Alerts that have fired, each once.
    fired: HashSet<(usize, Fingerprint, FindingKind)>,
}

impl Detector for Judge {
    fn name(&self) -> &'static str {
        "memctl"
    }

    fn names_sites(&self) -> bool {
        true
    }

    fn begin(&mut self, given: &RunFacts<'_>) {
        self.watches.clear();
        self.pending.clear();
        self.fired.clear();
        for (rank, stacks) in (0..).zip(given.stacks) {
            let mut watch = RankWatch::new(RankFacts {
                rank,
                device_total_bytes: given.device_total_bytes.get(rank as usize).copied(),
                ..RankFacts::default()
            });
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
        self.found = findings(&watches, Activity::Running);
        let grows = |finding: &&Finding| finding.kind.fills();
        let verdict = |finding: &Finding| Verdict {
            ranks: finding.ranks.clone(),
            sites: finding.site.iter().cloned().collect(),
            level: if finding.severity >= Severity::Warning { Level::Alarm } else { Level::Suspected },
            kind: Some(finding.kind),
            pattern: finding.pattern,
            seconds_to_oom: finding.time_to_oom_seconds,
            foresight: finding.foresight,
        };
        self.found.iter().filter(grows).map(verdict).collect()
    }

    fn sentence(&mut self) -> Option<memctl_model::Verdict> {
        let watches: Vec<&RankWatch> = self.watches.iter().collect();
        let (judged, not_judged) = judged(&watches);
        Some(verdict(&VerdictInputs {
            holders_allowed: true,
            courses: &Courses::of(&watches),
            findings: &findings(&watches, Activity::Ended),
            judged: &judged,
            not_judged: &not_judged,
            activity: Activity::Ended,
            failed: false,
        }))
    }

    fn apply_rules(&mut self, time_ns: u64, ended: bool) {
        let mut taken: HashMap<(usize, Fingerprint), u64> = HashMap::new();
        for (number, rule) in self.rules.rules.iter().enumerate() {
            for finding in self.found.iter().filter(|finding| rule.takes(finding)) {
                let alert = (number, finding.fingerprint("leakbench"));
                let since_ns = self.pending.get(&alert).copied().unwrap_or(time_ns);
                // Findings at the end of a run fire without waiting, as in the daemon.
                if ended || time_ns.saturating_sub(since_ns) >= rule.for_ns {
                    self.fired.insert((alert.0, alert.1, finding.kind));
                }
                taken.insert(alert, since_ns);
            }
        }
        self.pending = taken;
    }

    fn notifications(&mut self) -> Notified {
        FindingKind::ALL.map(|kind| self.fired.iter().filter(|(.., fired)| *fired == kind).count() as u32)
    }
}
