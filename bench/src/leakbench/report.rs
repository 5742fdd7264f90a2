//! The results of a part: tables for readers, and a JSON file for comparisons.
//!
//! Guarantees: options and seeds determine the runs behind every figure. No run is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use memctl_model::{FindingKind, VerdictKind};
use serde_json::{Value, json};

use super::benign::Kind;
use super::causes::Cause;
use super::long::FOUND_WITHIN_TIMES;
use super::parts::View;
use super::score::{Delay, Outcome};
use super::server_runs::FOUND_WITHIN_SECONDS;
use super::tally::{Share, bytes, median_and_p95, quantile, table};

/// The result of a run.
#[derive(Debug)]
pub struct Scored {
    /// The cause, the rate, the size, and whether all ranks leak; `None` for a clean run.
    pub leak: Option<(Cause, &'static str, &'static str, &'static str)>,
    /// The growth that is no leak.
    pub benign: Vec<Kind>,
    /// The training.
    pub training: &'static str,
    /// The result of each detector.
    pub outcomes: Vec<Outcome>,
    /// The run's number.
    pub number: u64,
}

/// Notifications in runs, for all kinds of findings together.
fn notified(of: &[&Outcome]) -> u32 {
    of.iter().flat_map(|outcome| outcome.notified).sum()
}

/// The kinds of findings for which there were notifications, with their numbers.
fn notified_by_kind(of: &[&Outcome]) -> Vec<(String, Value)> {
    let counts = FindingKind::ALL
        .into_iter()
        .enumerate()
        .map(|(index, kind)| (kind.name().to_owned(), of.iter().map(|outcome| outcome.notified[index]).sum::<u32>()));
    counts.filter(|&(_, count)| count > 0).map(|(kind, count)| (kind, Value::from(count))).collect()
}

/// The results; see the module's documentation.
pub struct Report<'a> {
    /// The view of the runs.
    pub view: View,
    /// The leaky and the clean runs.
    pub runs: &'a [Scored],
    /// Names of the detectors.
    pub detectors: &'a [&'static str],
}

fn delays(outcomes: &[&Outcome], of: fn(&Outcome) -> Option<Delay>) -> (Vec<u64>, Vec<u64>) {
    outcomes.iter().filter_map(|outcome| of(outcome)).map(|delay| (delay.steps, delay.bytes)).unzip()
}

impl Report<'_> {
    fn leaky(&self, detector: usize, which: impl Fn(&Scored) -> bool) -> Vec<&Outcome> {
        let leaky = self.runs.iter().filter(|run| run.leak.is_some() && which(run));
        leaky.map(|run| &run.outcomes[detector]).collect()
    }

    fn clean(&self, detector: usize, which: impl Fn(&Scored) -> bool) -> Vec<&Outcome> {
        self.runs.iter().filter(|run| run.leak.is_none() && which(run)).map(|run| &run.outcomes[detector]).collect()
    }

    /// Whether a leak was found in time. In a server this is within two minutes, in a long epoch before it has leaked
    /// thirty times.
    fn in_time(&self, outcome: &Outcome) -> bool {
        outcome.alarmed.is_some_and(|delay| match self.view {
            View::Serving => delay.seconds <= FOUND_WITHIN_SECONDS,
            View::Long => delay.times <= FOUND_WITHIN_TIMES,
            View::Marked | View::Unmarked => true,
        })
    }

    fn precision(&self, detector: usize, alarmed: fn(&Outcome) -> bool) -> Share {
        let alarms = self.runs.iter().filter(|run| alarmed(&run.outcomes[detector]));
        Share::count(alarms.map(|run| run.leak.is_some()))
    }

    /// The whole report in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = self.summary();
        let _ = writeln!(text, "\nRecall (found by an alarm that names the line, ever) by what leaks:\n");
        text += &self.by(|run| run.leak.map(|leak| format!("rate: {}", leak.1)));
        text += &self.by(|run| run.leak.map(|leak| format!("size: {}", leak.2)));
        text += &self.by(|run| run.leak.map(|leak| format!("ranks: {}", leak.3)));
        text += &self.by(|run| run.leak.map(|leak| format!("cause: {}", leak.0.name())));
        let _ = writeln!(text, "Kind and pattern of memctl's alarms at the end by cause:\n\n{}", self.kinds_by_cause());
        let _ = writeln!(text, "\nDelay of memctl by rate, median / 95 %:\n\n{}", self.delay_by_rate());
        let _ =
            writeln!(text, "False alarms (ever, per thousand clean runs) by what grows:\n\n{}", self.false_by_kind());
        let _ =
            writeln!(text, "The first sentence of memctl at the end, and whether it is true:\n\n{}", self.sentences());
        let by_kind = notified_by_kind(&self.clean(0, |_| true));
        let by_kind = by_kind.into_iter().map(|(kind, count)| format!("{kind} {count}"));
        let _ = writeln!(text, "Notifications in clean runs by kind: {}.\n", by_kind.collect::<Vec<_>>().join(", "));
        text
    }

    fn summary(&self) -> String {
        let head = [
            "detector",
            "precision",
            "recall",
            "recall, ever",
            "precision, ever",
            "line top-1",
            "line top-3",
            "ranks right",
            "kind right",
            "pattern right",
            "found in time, with line",
            "steps to suspicion",
            "steps to alarm",
            "bytes to alarm",
            "false alarms per 1,000 clean runs, ever",
            "at the end",
            "notifications in clean runs",
        ];
        let row = |(detector, name): (usize, &&str)| {
            let (leaky, clean) = (self.leaky(detector, |_| true), self.clean(detector, |_| true));
            let (alarm_steps, alarm_bytes) = delays(&leaky, |outcome| outcome.alarmed);
            vec![
                (*name).to_owned(),
                self.precision(detector, |outcome| outcome.alarmed_at_end).to_string(),
                Share::count(leaky.iter().map(|outcome| outcome.alarmed_at_end)).to_string(),
                Share::count(leaky.iter().map(|outcome| outcome.ever_alarmed)).to_string(),
                self.precision(detector, |outcome| outcome.ever_alarmed || outcome.alarmed_before).to_string(),
                Share::count(leaky.iter().filter_map(|outcome| outcome.top1)).to_string(),
                Share::count(leaky.iter().filter_map(|outcome| outcome.top3)).to_string(),
                Share::count(leaky.iter().filter_map(|outcome| outcome.ranks_right)).to_string(),
                Share::count(leaky.iter().filter_map(|outcome| outcome.kind_right)).to_string(),
                Share::count(leaky.iter().filter_map(|outcome| outcome.pattern_right)).to_string(),
                Share::count(leaky.iter().map(|outcome| self.in_time(outcome))).to_string(),
                median_and_p95(&delays(&leaky, |outcome| outcome.suspected).0, |steps| steps.to_string()),
                median_and_p95(&alarm_steps, |steps| steps.to_string()),
                median_and_p95(&alarm_bytes, bytes),
                Share::count(clean.iter().map(|outcome| outcome.ever_alarmed)).per_thousand(),
                Share::count(clean.iter().map(|outcome| outcome.alarmed_at_end)).per_thousand(),
                notified(&clean).to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = self.detectors.iter().enumerate().map(row).collect();
        table(&head, &rows)
    }

    /// Each detector's share of found leaks, by a property of the leaky runs.
    fn by(&self, key: impl Fn(&Scored) -> Option<String>) -> String {
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        self.runs.iter().filter_map(&key).for_each(|group| *groups.entry(group).or_default() += 1);
        let mut head = vec!["", "runs"];
        head.extend(self.detectors);
        let rows: Vec<Vec<String>> = groups
            .iter()
            .map(|(group, count)| {
                let recall = |detector| {
                    let of = self.leaky(detector, |run| key(run).as_ref() == Some(group));
                    Share::count(of.iter().map(|outcome| self.in_time(outcome))).to_string()
                };
                [group.clone(), count.to_string()].into_iter().chain((0..self.detectors.len()).map(recall)).collect()
            })
            .collect();
        table(&head, &rows) + "\n"
    }

    fn kinds_by_cause(&self) -> String {
        let causes: BTreeSet<Cause> = self.runs.iter().filter_map(|run| Some(run.leak?.0)).collect();
        let rows: Vec<Vec<String>> = causes
            .into_iter()
            .map(|cause| {
                let of = self.leaky(0, |run| run.leak.is_some_and(|leak| leak.0 == cause));
                let share = |read: fn(&Outcome) -> Option<bool>| {
                    Share::count(of.iter().filter_map(|outcome| read(outcome))).to_string()
                };
                let (kind, pattern) = (share(|it| it.kind_right), share(|it| it.pattern_right));
                vec![cause.name().to_owned(), share(|it| Some(it.alarmed_at_end)), share(|it| it.top1), kind, pattern]
            })
            .collect();
        table(&["cause", "alarm at the end", "line top-1", "kind", "pattern"], &rows)
    }

    fn delay_by_rate(&self) -> String {
        let rows = super::schedule::Rate::ALL.map(|rate| {
            let of = self.leaky(0, |run| run.leak.is_some_and(|leak| leak.1 == rate.name()));
            let (suspected, suspected_bytes) = delays(&of, |outcome| outcome.suspected);
            let (alarmed, alarmed_bytes) = delays(&of, |outcome| outcome.alarmed);
            vec![
                rate.name().to_owned(),
                median_and_p95(&suspected, |steps| steps.to_string()),
                median_and_p95(&suspected_bytes, bytes),
                median_and_p95(&alarmed, |steps| steps.to_string()),
                median_and_p95(&alarmed_bytes, bytes),
            ]
        });
        table(&["rate", "steps to suspicion", "bytes", "steps to alarm", "bytes"], &rows)
    }

    fn false_by_kind(&self) -> String {
        let mut head = vec!["", "runs"];
        head.extend(self.detectors);
        let groups = Kind::ALL.into_iter().chain(Kind::OF_SERVERS).map(Some).chain([None]);
        let rows: Vec<Vec<String>> = groups
            .map(|kind| {
                let has = |run: &Scored| kind.map_or(run.benign.is_empty(), |kind| run.benign.contains(&kind));
                let share = |detector| {
                    let of = self.clean(detector, has);
                    Share::count(of.iter().map(|outcome| outcome.ever_alarmed)).per_thousand()
                };
                let count = self.clean(0, has).len().to_string();
                let notified = notified(&self.clean(0, has)).to_string();
                let name = kind.map_or("nothing", Kind::name).to_owned();
                [name, count].into_iter().chain((0..self.detectors.len()).map(share)).chain([notified]).collect()
            })
            .filter(|row: &Vec<String>| row[1] != "0")
            .collect();
        head.push("notifications");
        table(&head, &rows)
    }

    /// The number of runs with each verdict, and the share of runs whose sentence is true.
    fn sentences(&self) -> String {
        let share = |leaky: Option<bool>, kind: Option<VerdictKind>| {
            let of = self.runs.iter().filter(|run| leaky.is_none_or(|leaky| run.leak.is_some() == leaky));
            let said = of.filter_map(|run| run.outcomes[0].said);
            Share::count(said.filter(|said| kind.is_none_or(|kind| said.kind == kind)).map(|said| said.is_true))
        };
        let cell = |share: Share| format!("{} of {}", share.hits, share.all);
        let kinds = VerdictKind::ALL.into_iter().map(Some).chain([None]).map(|kind| {
            let name = kind.map_or("all", VerdictKind::name).to_owned();
            vec![name, cell(share(Some(true), kind)), cell(share(Some(false), kind)), share(None, kind).to_string()]
        });
        table(&["sentence", "true, leaky runs", "true, clean runs", "true"], &kinds.collect::<Vec<_>>())
    }

    /// All figures of the tables, and the numbers of the runs that memctl judged wrongly.
    #[must_use]
    pub fn json(&self) -> Value {
        let detectors = self.detectors.iter().enumerate().map(|(detector, name)| self.detector(detector, name));
        json!({ "schema": 2, "view": self.view.name(), "runs": self.runs.len(), "detectors": detectors.collect::<Vec<_>>() })
    }

    fn detector(&self, detector: usize, name: &str) -> Value {
        let (leaky, clean) = (self.leaky(detector, |_| true), self.clean(detector, |_| true));
        let of = |(steps, bytes): (Vec<u64>, Vec<u64>)| {
            json!({
                "steps": { "median": quantile(&steps, 0.5), "p95": quantile(&steps, 0.95) },
                "bytes": { "median": quantile(&bytes, 0.5), "p95": quantile(&bytes, 0.95) },
            })
        };
        let rates = super::schedule::Rate::ALL.map(|rate| {
            let of = self.leaky(detector, |run| run.leak.is_some_and(|leak| leak.1 == rate.name()));
            json!({ "rate": rate.name(), "recall": Share::count(of.iter().map(|it| self.in_time(it))).json() })
        });
        json!({
            "name": name,
            "sentence_true": Share::count(self.runs.iter().filter_map(|run| run.outcomes[detector].said).map(|said| said.is_true)).json(),
            "precision": self.precision(detector, |outcome| outcome.alarmed_at_end).json(),
            "precision_ever": self.precision(detector, |outcome| outcome.ever_alarmed || outcome.alarmed_before).json(),
            "recall": Share::count(leaky.iter().map(|outcome| outcome.alarmed_at_end)).json(),
            "recall_ever": Share::count(leaky.iter().map(|outcome| outcome.ever_alarmed)).json(),
            "recall_with_line_by_rate": rates,
            "top1": Share::count(leaky.iter().filter_map(|outcome| outcome.top1)).json(),
            "top3": Share::count(leaky.iter().filter_map(|outcome| outcome.top3)).json(),
            "ranks_right": Share::count(leaky.iter().filter_map(|outcome| outcome.ranks_right)).json(),
            "kind_right": Share::count(leaky.iter().filter_map(|outcome| outcome.kind_right)).json(),
            "pattern_right": Share::count(leaky.iter().filter_map(|outcome| outcome.pattern_right)).json(),
            "found_in_time": Share::count(leaky.iter().map(|outcome| self.in_time(outcome))).json(),
            "notifications_in_clean_runs": notified(&clean),
            "notified_in_clean_runs": notified_by_kind(&clean).into_iter().collect::<serde_json::Map<String, Value>>(),
            "until_suspected": of(delays(&leaky, |outcome| outcome.suspected)),
            "until_alarm": of(delays(&leaky, |outcome| outcome.alarmed)),
            "alarmed_before_the_leak": Share::count(leaky.iter().map(|outcome| outcome.alarmed_before)).json(),
            "false_alarms_ever": Share::count(clean.iter().map(|outcome| outcome.ever_alarmed)).json(),
            "false_alarms_at_end": Share::count(clean.iter().map(|outcome| outcome.alarmed_at_end)).json(),
            "clean_ever_suspected": Share::count(clean.iter().map(|outcome| outcome.ever_suspected)).json(),
        })
    }
}
