//! `memctl alerts` as data: alerts, silences, what receivers answered, rules.
//!
//! Guarantees: as every answer ([`super`]): times are RFC 3339, what is not known is null.
//!
//! (Over 400 lines: four answers of one verb, each a list of fields and four ways to print them.)

use std::collections::BTreeMap;
use std::io::{self, Write};

use jiff::Timestamp;
use memctl_model::Severity;
use memctl_proto::v1;
use serde::Serialize;

use super::{Answer, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::text::rank_list;
use crate::format::time;

/// Alerts, firing ones first.
#[derive(Clone, Debug, Serialize)]
pub struct Alerts {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The alerts.
    pub alerts: Vec<Alert>,
    /// Alerts that were not made because there were too many, since the daemon started.
    pub refused: u64,
    /// Notifications given up, since the daemon started.
    pub given_up: u64,
    /// The jobs that these alerts, or their absence, are about; null where the daemon does not say.
    pub jobs: Option<Watched>,
    /// For the page.
    #[serde(skip)]
    pub now_ns: u64,
    /// For the page.
    #[serde(skip)]
    pub hint: Option<String>,
    /// For the page: whether the caller may silence alerts.
    #[serde(skip)]
    pub may_silence: bool,
}

/// The jobs that alerts come from: the newest `JOBS_LISTED`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Watched {
    /// How many.
    pub jobs: u32,
    /// Of these read from files; they raise alerts only where the rules say so.
    pub imported: u32,
    /// Jobs that could not be analysed, or not yet: the absence of alerts for them means nothing.
    pub not_judged: Vec<String>,
}

impl Watched {
    /// Of a list of jobs with their verdicts.
    #[must_use]
    pub fn new(jobs: &[Job]) -> Self {
        let is_undecided = |job: &&Job| {
            job.verdict.as_ref().is_none_or(|verdict| {
                let is_harmless = verdict.severity.as_deref().is_none_or(|severity| severity == Severity::Info.name());
                is_harmless && verdict.inconclusive.is_some()
            })
        };
        Self {
            jobs: jobs.len() as u32,
            imported: jobs.iter().filter(|job| job.source.as_deref() == Some("import")).count() as u32,
            not_judged: jobs.iter().filter(is_undecided).map(|job| job.id.clone()).collect(),
        }
    }
}

/// One alert.
#[derive(Clone, Debug, Serialize)]
pub struct Alert {
    /// Its id.
    pub id: String,
    /// The rule's name.
    pub rule: String,
    /// `pending`, `firing` or `resolved`.
    pub state: &'static str,
    /// The job.
    pub job: String,
    /// The run in which it was last seen; null where the daemon knows no runs.
    pub run: Option<u32>,
    /// The attempt in which it was last seen.
    pub attempt: u32,
    /// The finding's id.
    pub finding: String,
    /// The finding's kind.
    pub kind: String,
    /// `info`, `warning` or `critical`.
    pub severity: Option<&'static str>,
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
    /// What to do.
    pub advice: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the rule.
    pub annotations: BTreeMap<String, String>,
    /// Since when it is seen.
    pub since: String,
    /// When it fired.
    pub fired_at: Option<String>,
    /// When it resolved.
    pub resolved_at: Option<String>,
    /// When it was last seen.
    pub seen_at: String,
    /// The silence that keeps it quiet.
    pub silenced_by: Option<String>,
    /// What each receiver knows.
    pub receivers: Vec<Receiver>,
    /// The tenant whose job it is about.
    pub tenant: String,
    /// For the page.
    #[serde(skip)]
    pub since_ns: u64,
}

/// What a receiver knows of an alert.
#[derive(Clone, Debug, Serialize)]
pub struct Receiver {
    /// Its name.
    pub receiver: String,
    /// `firing`, `resolved`, or null if it was never notified.
    pub told: Option<&'static str>,
    /// When.
    pub told_at: Option<String>,
    /// Notifications given up.
    pub given_up: u64,
    /// Why the last one was.
    pub last_error: Option<String>,
}

const fn state(phase: v1::AlertPhase) -> &'static str {
    match phase {
        v1::AlertPhase::Pending => "pending",
        v1::AlertPhase::Firing => "firing",
        v1::AlertPhase::Resolved => "resolved",
        v1::AlertPhase::Unspecified => "unknown",
    }
}

const fn severity(severity: v1::Severity) -> Option<&'static str> {
    match severity {
        v1::Severity::Info => Some("info"),
        v1::Severity::Warning => Some("warning"),
        v1::Severity::Critical => Some("critical"),
        v1::Severity::Unspecified => None,
    }
}

fn named(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn by_key(labels: Vec<v1::Label>) -> BTreeMap<String, String> {
    labels.into_iter().map(|label| (label.key, label.value)).collect()
}

impl Alerts {
    /// From the daemon's answer.
    #[must_use]
    pub fn new(wire: v1::ListAlertsResponse, jobs: Option<Watched>, now: Timestamp, hint: Option<String>) -> Self {
        let v1::ListAlertsResponse { alerts, refused, given_up } = wire;
        let alerts = alerts.into_iter().map(Alert::from).collect();
        Self { schema: SCHEMA, alerts, refused, given_up, jobs, now_ns: nanoseconds(now), hint, may_silence: true }
    }
}

fn nanoseconds(now: Timestamp) -> u64 {
    u64::try_from(now.as_nanosecond()).unwrap_or(0)
}

impl Alert {
    /// What its job is asked for by.
    #[must_use]
    pub fn address(&self) -> String {
        let run = self.run.filter(|run| *run > 1);
        run.map_or_else(|| self.job.clone(), |run| format!("{}#{run}", self.job))
    }
}

impl From<v1::Alert> for Alert {
    fn from(wire: v1::Alert) -> Self {
        let (state, severity) = (state(wire.phase()), severity(wire.severity()));
        let v1::Alert {
            id,
            rule,
            job,
            attempt,
            run_started_ns: _,
            phase: _,
            finding,
            kind,
            severity: _,
            confidence,
            ranks,
            rank_count,
            all_ranks,
            title,
            explanation,
            advice,
            labels,
            annotations,
            receivers: _,
            since_ns,
            fired_ns,
            resolved_ns,
            seen_ns,
            missing_ns: _,
            fired_epochs: _,
            run_ended: _,
            deliveries,
            job_labels: _,
            silenced_by,
            tenant,
            run,
        } = wire;
        Self {
            id,
            rule,
            state,
            job,
            run: (run > 0).then_some(run),
            attempt,
            finding,
            kind,
            severity,
            confidence,
            ranks,
            rank_count,
            all_ranks,
            title,
            explanation,
            advice,
            labels: by_key(labels),
            annotations: by_key(annotations),
            since: time::rfc3339(since_ns),
            fired_at: fired_ns.map(time::rfc3339),
            resolved_at: resolved_ns.map(time::rfc3339),
            seen_at: time::rfc3339(seen_ns),
            silenced_by: named(silenced_by),
            receivers: deliveries.into_iter().map(Receiver::from).collect(),
            tenant,
            since_ns: resolved_ns.or(fired_ns).unwrap_or(since_ns),
        }
    }
}

impl From<v1::AlertDelivery> for Receiver {
    fn from(wire: v1::AlertDelivery) -> Self {
        let told = Some(state(wire.told())).filter(|_| wire.told() != v1::AlertPhase::Unspecified);
        let v1::AlertDelivery {
            receiver,
            told: _,
            told_fired_ns: _,
            told_severity: _,
            told_ns,
            claimed_until_ns: _,
            retry_ns: _,
            given_up,
            last_error,
        } = wire;
        Self { receiver, told, told_at: told.map(|_| time::rfc3339(told_ns)), given_up, last_error: named(last_error) }
    }
}

impl Answer for Alerts {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.alerts.iter().try_for_each(|alert| json::line(out, alert))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
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
        csv::header(out, &names)?;
        self.alerts.iter().try_for_each(|alert| {
            let cells = [
                Cell::text(&alert.id),
                Cell::text(&alert.rule),
                Cell::plain(alert.state),
                Cell::text(&alert.job),
                Cell::maybe(alert.run),
                Cell::plain(alert.attempt),
                Cell::text(&alert.kind),
                Cell::maybe(alert.severity),
                Cell::plain(alert.confidence),
                Cell::text(rank_list(&alert.ranks)),
                Cell::maybe(alert.fired_at.as_ref()),
                Cell::maybe(alert.resolved_at.as_ref()),
                Cell::plain(&alert.seen_at),
                Cell::maybe(alert.silenced_by.as_ref()),
                Cell::text(&alert.title),
            ];
            csv::record(out, &cells)
        })
    }
}

/// Silences.
#[derive(Clone, Debug, Serialize)]
pub struct Silences {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Those that end first first.
    pub silences: Vec<Silence>,
    /// For the page.
    #[serde(skip)]
    pub now_ns: u64,
}

/// One silence; what is null matches everything.
#[derive(Clone, Debug, Serialize)]
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
    pub created_at: String,
    /// When it ends.
    pub ends_at: String,
    /// Who made it.
    pub author: Option<String>,
    /// Why.
    pub comment: Option<String>,
    /// The tenant whose alerts it keeps quiet, `*` for all.
    pub tenant: String,
    /// For the page.
    #[serde(skip)]
    pub ends_ns: u64,
}

impl Silences {
    /// From the daemon's answer.
    #[must_use]
    pub fn new(silences: Vec<v1::Silence>, now: Timestamp) -> Self {
        Self { schema: SCHEMA, silences: silences.into_iter().map(Silence::from).collect(), now_ns: nanoseconds(now) }
    }
}

impl From<v1::Silence> for Silence {
    fn from(wire: v1::Silence) -> Self {
        let v1::Silence { id, job, kind, rule, ranks, labels, created_ns, ends_ns, author, comment, tenant } = wire;
        Self {
            id,
            job: named(job),
            kind: named(kind),
            rule: named(rule),
            ranks,
            labels: by_key(labels),
            created_at: time::rfc3339(created_ns),
            ends_at: time::rfc3339(ends_ns),
            author: named(author),
            comment: named(comment),
            tenant,
            ends_ns,
        }
    }
}

impl Silence {
    /// What it matches, in words.
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

impl Answer for Silences {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.silences.iter().try_for_each(|silence| json::line(out, silence))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["id", "matches", "created_at", "ends_at", "author", "comment"])?;
        self.silences.iter().try_for_each(|silence| {
            let cells = [
                Cell::text(&silence.id),
                Cell::text(silence.matches()),
                Cell::plain(&silence.created_at),
                Cell::plain(&silence.ends_at),
                Cell::maybe_text(silence.author.as_deref()),
                Cell::maybe_text(silence.comment.as_deref()),
            ];
            csv::record(out, &cells)
        })
    }
}

/// What receivers answered to a test.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// One a receiver.
    pub receivers: Vec<Tested>,
}

/// What one answered.
#[derive(Clone, Debug, Serialize)]
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
    /// For the page.
    #[serde(skip)]
    pub took_ns: u64,
}

impl From<v1::TestReceiversResponse> for Answers {
    fn from(wire: v1::TestReceiversResponse) -> Self {
        let v1::TestReceiversResponse { answers } = wire;
        let tested = |v1::ReceiverAnswer { receiver, r#type, delivered, answer, took_ns }| Tested {
            receiver,
            r#type,
            delivered,
            answer,
            seconds: took_ns as f64 / 1e9,
            took_ns,
        };
        Self { schema: SCHEMA, receivers: answers.into_iter().map(tested).collect() }
    }
}

impl Answer for Answers {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.receivers.iter().try_for_each(|receiver| json::line(out, receiver))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["receiver", "type", "delivered", "seconds", "answer"])?;
        self.receivers.iter().try_for_each(|tested| {
            let cells = [
                Cell::text(&tested.receiver),
                Cell::text(&tested.r#type),
                Cell::plain(tested.delivered),
                Cell::plain(tested.seconds),
                Cell::text(&tested.answer),
            ];
            csv::record(out, &cells)
        })
    }
}

/// The rules in force.
#[derive(Clone, Debug, Serialize)]
pub struct Rules {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// `built in` or a path.
    pub origin: String,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, Serialize)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Kinds of findings.
    pub kinds: Vec<String>,
    /// The mildest severity.
    pub severity: Option<&'static str>,
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

impl From<v1::GetRulesResponse> for Rules {
    fn from(wire: v1::GetRulesResponse) -> Self {
        let v1::GetRulesResponse { toml: _, origin, rules } = wire;
        Self { schema: SCHEMA, origin, rules: rules.into_iter().map(Rule::from).collect() }
    }
}

impl From<v1::AlertRule> for Rule {
    fn from(wire: v1::AlertRule) -> Self {
        let severity = severity(wire.severity());
        let v1::AlertRule {
            name,
            kinds,
            severity: _,
            confidence,
            horizon_seconds,
            horizon_epochs,
            for_ns,
            repeat_ns,
            receivers,
        } = wire;
        Self {
            severity,
            name,
            kinds,
            confidence,
            horizon_seconds,
            horizon_epochs,
            for_seconds: for_ns as f64 / 1e9,
            repeat_seconds: repeat_ns as f64 / 1e9,
            receivers,
        }
    }
}

impl Answer for Rules {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.rules.iter().try_for_each(|rule| json::line(out, rule))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["name", "kinds", "severity", "confidence", "for_seconds", "repeat_seconds", "receivers"])?;
        self.rules.iter().try_for_each(|rule| {
            let cells = [
                Cell::text(&rule.name),
                Cell::text(rule.kinds.join(" ")),
                Cell::maybe(rule.severity),
                Cell::plain(rule.confidence),
                Cell::plain(rule.for_seconds),
                Cell::plain(rule.repeat_seconds),
                Cell::text(rule.receivers.join(" ")),
            ];
            csv::record(out, &cells)
        })
    }
}
