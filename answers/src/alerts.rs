//! `memctl alerts` as data: alerts, silences, responses of receivers, rules. The daemon makes these answers, and they
//! are sent as they are printed.
//!
//! Guarantees: those of every answer ([`super`]): times are RFC 3339, unknown values are null.
//!
//! (Over 400 lines: four answers of one command, each a list of fields and four ways to print them.)

use std::collections::BTreeMap;

use memctl_model::{Cause, Severity};
use serde::{Deserialize, Serialize};

use super::{Job, JobVerdict, Listing};
use crate::format::csv::Cell;
use crate::format::id::Id;
use crate::format::text::rank_list;
use crate::format::time::Time;

/// Alerts, firing ones first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Alerts {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// The alerts.
    pub alerts: Vec<Alert>,
    /// Alerts of the caller's tenants that were not made because there were too many, since the daemon started.
    pub refused: u64,
    /// Notifications about alerts of the caller's tenants that were given up, since the daemon started.
    pub given_up: u64,
    /// The jobs that these alerts, or their absence, are about; null until the jobs are asked for, too.
    pub jobs: Option<Watched>,
    /// For the page.
    #[serde(skip)]
    pub view: View,
}

/// How alerts are shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The moment.
    pub now: Time,
    /// Flags that reach the same store; `None` = no advice.
    pub hint: Option<String>,
    /// Whether the caller may silence alerts.
    pub may_silence: bool,
}

/// The jobs that alerts come from: the newest `JOBS_LISTED`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Watched {
    /// How many.
    pub jobs: u32,
    /// Of these read from files; they raise alerts only where the rules say so.
    pub imported: u32,
    /// Jobs that could not be analysed, or not yet: the absence of alerts for them means nothing.
    pub not_judged: Vec<String>,
    /// Jobs whose memory grows for a reason that is not known. They raise no alert.
    #[serde(default)]
    pub growing: Vec<String>,
}

impl Watched {
    /// Counts the judged jobs.
    #[must_use]
    pub fn new(jobs: &[Job]) -> Self {
        let is_harmless =
            |verdict: &JobVerdict| verdict.severity.as_deref().is_none_or(|severity| severity == Severity::Info.name());
        let undecided = |job: &&Job| {
            job.verdict.as_ref().is_none_or(|verdict| is_harmless(verdict) && verdict.inconclusive.is_some())
        };
        // Only growth has a cause.
        let grows = |verdict: &JobVerdict| {
            let cause = verdict.verdict.as_ref().and_then(|it| it.cause.as_deref());
            cause == Some(Cause::Open.name()) && is_harmless(verdict) && verdict.inconclusive.is_none()
        };
        let growing = jobs.iter().filter(|job| job.verdict.as_ref().is_some_and(grows));
        let imported = jobs.iter().filter(|job| job.source.as_deref() == Some("import"));
        Self {
            jobs: jobs.len() as u32,
            imported: imported.count() as u32,
            not_judged: jobs.iter().filter(undecided).map(|job| job.id.clone()).collect(),
            growing: growing.map(|job| job.id.clone()).collect(),
        }
    }
}

/// The state of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Seen, but not yet for long enough.
    Pending,
    /// Receivers are notified.
    Firing,
    /// It is over.
    Resolved,
}

impl Phase {
    /// Every phase, in the order in which an alert passes through them.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Firing, Self::Resolved];

    /// Its name, in JSON as well.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// The part of a finding that an alert contains; stored, listed and sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct AlertedFinding {
    /// The finding's id.
    #[serde(rename = "finding")]
    pub id: Id,
    /// The finding's kind.
    pub kind: String,
    /// How bad it is.
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<Severity>"))]
    pub severity: Severity,
    /// 0..1.
    pub confidence: f64,
    /// The first ranks.
    pub ranks: Vec<u32>,
    /// How many ranks.
    pub rank_count: u32,
    /// Whether these are all of the job's.
    pub all_ranks: bool,
    /// The sentence.
    pub title: String,
    /// Why.
    pub explanation: String,
    /// What to change.
    pub advice: String,
}

/// One alert.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Alert {
    /// Its id.
    pub id: Id,
    /// The rule by which it was made.
    pub rule: String,
    /// Its state.
    pub state: Phase,
    /// The job.
    pub job: String,
    /// The run in which it was last seen; null where the daemon knows no runs.
    pub run: Option<u32>,
    /// The attempt in which it was last seen.
    pub attempt: u32,
    /// What it is about.
    #[serde(flatten)]
    pub finding: AlertedFinding,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the rule.
    pub annotations: BTreeMap<String, String>,
    /// Since when it is seen.
    pub since: Time,
    /// When it fired.
    pub fired_at: Option<Time>,
    /// When it resolved.
    pub resolved_at: Option<Time>,
    /// When it was last seen.
    pub seen_at: Time,
    /// The silence that keeps it quiet.
    pub silenced_by: Option<String>,
    /// What each receiver knows.
    pub receivers: Vec<Receiver>,
    /// The tenant whose job it is about.
    pub tenant: String,
}

/// What a receiver knows of an alert.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Receiver {
    /// Its name.
    pub receiver: String,
    /// The phase it was last notified of; null if it was never notified.
    pub notified: Option<Phase>,
    /// When.
    pub notified_at: Option<Time>,
    /// Notifications given up.
    pub given_up: u64,
    /// Why the last one was.
    pub last_error: Option<String>,
}

impl Alert {
    /// The address of its job.
    #[must_use]
    pub fn address(&self) -> String {
        let run = self.run.filter(|run| *run > 1);
        run.map_or_else(|| self.job.clone(), |run| format!("{}#{run}", self.job))
    }

    /// The time at which its current state began.
    #[must_use]
    pub fn entered(&self) -> Time {
        self.resolved_at.or(self.fired_at).unwrap_or(self.since)
    }
}

impl Listing for Alerts {
    type Row = Alert;
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "rule",
        "state",
        "job",
        "run",
        "attempt",
        "kind",
        "severity",
        "confidence",
        "ranks",
        "fired_at",
        "resolved_at",
        "seen_at",
        "silenced_by",
        "title",
    ];

    fn rows(&self) -> &[Alert] {
        &self.alerts
    }

    fn cells(alert: &Alert) -> Vec<Cell> {
        vec![
            Cell::plain(alert.id),
            Cell::text(&alert.rule),
            Cell::plain(alert.state.name()),
            Cell::text(&alert.job),
            Cell::maybe(alert.run),
            Cell::plain(alert.attempt),
            Cell::text(&alert.finding.kind),
            Cell::plain(alert.finding.severity.name()),
            Cell::plain(alert.finding.confidence),
            Cell::text(rank_list(&alert.finding.ranks)),
            Cell::maybe(alert.fired_at),
            Cell::maybe(alert.resolved_at),
            Cell::plain(alert.seen_at),
            Cell::maybe(alert.silenced_by.as_ref()),
            Cell::text(&alert.finding.title),
        ]
    }
}

/// Silences.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Silences {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// Those that end first first.
    pub silences: Vec<Silence>,
    /// The moment, for the page.
    #[serde(skip)]
    pub now: Time,
}

/// One silence; a criterion that is null matches everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Silence {
    /// Its id.
    pub id: String,
    /// Job, with `*` for anything.
    pub job: Option<String>,
    /// Kind of finding.
    pub kind: Option<String>,
    /// Rule.
    pub rule: Option<String>,
    /// Ranks; all when empty.
    pub ranks: Vec<u32>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: Time,
    /// When it ends.
    pub ends_at: Time,
    /// Who made it.
    pub author: Option<String>,
    /// Why.
    pub comment: Option<String>,
    /// The tenant whose alerts it keeps quiet, `*` for all.
    pub tenant: String,
}

impl Silence {
    /// The tenants that it covers, in words.
    #[must_use]
    pub fn covers(&self) -> &str {
        if self.tenant == "*" { "all tenants" } else { &self.tenant }
    }

    /// Its criteria, in words.
    #[must_use]
    pub fn matches(&self) -> String {
        let mut parts = Vec::new();
        for (name, value) in [("job", &self.job), ("kind", &self.kind), ("rule", &self.rule)] {
            parts.extend(value.as_ref().map(|value| format!("{name}={value}")));
        }
        if !self.ranks.is_empty() {
            parts.push(format!("ranks={}", rank_list(&self.ranks)));
        }
        parts.extend(self.labels.iter().map(|(name, value)| format!("label {name}={value}")));
        parts.join(" ")
    }
}

impl Listing for Silences {
    type Row = Silence;
    const COLUMNS: &'static [&'static str] = &["id", "matches", "created_at", "ends_at", "author", "comment"];

    fn rows(&self) -> &[Silence] {
        &self.silences
    }

    fn cells(silence: &Silence) -> Vec<Cell> {
        vec![
            Cell::text(&silence.id),
            Cell::text(silence.matches()),
            Cell::plain(silence.created_at),
            Cell::plain(silence.ends_at),
            Cell::maybe_text(silence.author.as_deref()),
            Cell::maybe_text(silence.comment.as_deref()),
        ]
    }
}

/// The responses of receivers to a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answers {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// One a receiver.
    pub receivers: Vec<Tested>,
}

/// The response of one receiver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tested {
    /// Its name.
    pub receiver: String,
    /// `log`, `webhook`, `alertmanager` or `command`.
    pub r#type: String,
    /// Whether it took it.
    pub delivered: bool,
    /// Its words, or why it could not be reached.
    pub answer: String,
    /// How long it took.
    pub seconds: f64,
}

impl Listing for Answers {
    type Row = Tested;
    const COLUMNS: &'static [&'static str] = &["receiver", "type", "delivered", "seconds", "answer"];

    fn rows(&self) -> &[Tested] {
        &self.receivers
    }

    fn cells(tested: &Tested) -> Vec<Cell> {
        vec![
            Cell::text(&tested.receiver),
            Cell::text(&tested.r#type),
            Cell::plain(tested.delivered),
            Cell::plain(tested.seconds),
            Cell::text(&tested.answer),
        ]
    }
}

/// The rules in force, as data and as a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RulesInForce {
    /// As data.
    pub rules: Rules,
    /// As a rules file in TOML, without secrets.
    pub toml: String,
}

/// The rules in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rules {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// `built in` or a path.
    pub origin: String,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Kinds of findings.
    pub kinds: Vec<String>,
    /// The mildest severity.
    pub severity: Severity,
    /// The least confidence.
    pub confidence: f64,
    /// Horizon in time.
    pub horizon_seconds: Option<f64>,
    /// Horizon in epochs.
    pub horizon_epochs: Option<f64>,
    /// How long before it fires.
    pub for_seconds: f64,
    /// After how long webhooks and commands are notified again.
    pub repeat_seconds: f64,
    /// The receivers that are notified.
    pub receivers: Vec<String>,
}

impl Listing for Rules {
    type Row = Rule;
    const COLUMNS: &'static [&'static str] =
        &["name", "kinds", "severity", "confidence", "for_seconds", "repeat_seconds", "receivers"];

    fn rows(&self) -> &[Rule] {
        &self.rules
    }

    fn cells(rule: &Rule) -> Vec<Cell> {
        vec![
            Cell::text(&rule.name),
            Cell::text(rule.kinds.join(" ")),
            Cell::plain(rule.severity.name()),
            Cell::plain(rule.confidence),
            Cell::plain(rule.for_seconds),
            Cell::plain(rule.repeat_seconds),
            Cell::text(rule.receivers.join(" ")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_in_json() {
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
        for severity in Severity::ALL {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
        }
    }

    #[test]
    fn an_alert_is_printed_as_it_came_its_finding_among_its_fields() {
        let text = concat!(
            r#"{"id":"0123456789abcdef","rule":"MemoryLeak","state":"firing","job":"vit","run":3,"attempt":0,"#,
            r#""finding":"fedcba9876543210","kind":"leak","severity":"warning","confidence":0.97,"ranks":[0,1],"#,
            r#""rank_count":2,"all_ranks":true,"title":"grows","explanation":"why","advice":"what","#,
            r#""labels":{"team":"vision"},"annotations":{},"since":"2026-11-20T09:52:00Z","#,
            r#""fired_at":"2026-11-20T09:52:01.5Z","resolved_at":null,"seen_at":"2026-11-20T09:53:00Z","#,
            r#""silenced_by":null,"receivers":[{"receiver":"hook","notified":"firing","notified_at":"2026-11-20T09:52:02Z","#,
            r#""given_up":1,"last_error":"HTTP 500"}],"tenant":"default"}"#,
        );
        let alert: Alert = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&alert).unwrap(), text);
        assert_eq!((alert.address().as_str(), alert.entered()), ("vit#3", alert.fired_at.unwrap()));
    }
}
