//! An alert: one finding of one job that a rule selected, and the notification state of each receiver.
//!
//! Guarantees: its size is bounded regardless of the finding. Its id stays the same while it is about the same finding,
//! across attempts, runs and restarts.

use memctl_answers::alerts::{self as shown, Receiver};
pub use memctl_answers::alerts::{AlertedFinding, Phase};
use memctl_answers::format::id::Id;
use memctl_answers::format::time::Time;
use memctl_model::limits::{LABEL_BYTES_MAX, NAME_BYTES_MAX};
use memctl_model::{Boundary, Finding, FindingKind, JobState, Severity};
use serde::{Deserialize, Serialize};

use super::rules::{Rule, Rules};
use crate::store::DEFAULT_TENANT;

/// The most ranks that an alert names. The count includes all ranks.
pub const RANKS_MAX: usize = 64;
/// The most labels of the job that an alert keeps. Silences match them.
const JOB_LABELS_MAX: usize = 16;
const TITLE_BYTES_MAX: usize = 1_024;
/// Limit of the bytes of a failed delivery's error.
pub const ERROR_BYTES_MAX: usize = 512;

/// The facts about a judged job that alerting uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFacts {
    /// Its tenant's name.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// The number of its run.
    pub run: u32,
    /// Its attempt.
    pub attempt: u32,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// The state of the judged run. `None` if the run was deleted, together with everything stored for it and for
    /// earlier runs.
    pub state: Option<JobState>,
    /// When the run began (the start of its first session), in nanoseconds since the Unix epoch. A later value under
    /// the same name means a later run, even with the same attempt.
    pub started_ns: u64,
    /// When the run ended, if it has ended.
    pub ended_ns: Option<u64>,
    /// Epochs that the run has completed, if it has epochs.
    pub epochs: Option<u32>,
    /// Whether it was imported from files.
    pub imported: bool,
    /// Kinds of findings for which the run has not enough data yet. That such a finding is absent proves nothing.
    pub not_judged: Vec<FindingKind>,
    /// Whether the run's memory grows, or the run is too short to say. Then the absence of a leak proves nothing.
    pub grows: bool,
}

impl JobFacts {
    /// The facts about runs that were deleted, up to this one.
    #[must_use]
    pub fn deleted(tenant: &str, name: &str, run: u32, attempt: u32, started_ns: u64) -> Self {
        Self { tenant: tenant.to_owned(), name: name.to_owned(), run, attempt, started_ns, ..Self::default() }
    }

    /// The judged run.
    #[must_use]
    pub fn run_start(&self) -> RunStart {
        RunStart { run: self.run, started_ns: self.started_ns }
    }
}

/// One alert, in memory and, as JSON, in the store. A new field must be `#[serde(default)]`, so that older records can
/// be read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// Derived from the finding, the rule and the tenant.
    pub id: u64,
    /// The tenant that owns the job.
    pub tenant: String,
    /// The rule's name.
    pub rule: String,
    /// The job.
    pub job: String,
    /// The run in which the finding was last seen.
    pub run: u32,
    /// The attempt of that run.
    pub attempt: u32,
    /// When that run began.
    pub run_started_ns: u64,
    /// Its state.
    pub phase: Phase,
    /// The finding that it is about.
    pub finding: AlertedFinding,
    /// Labels of the rule, and the labels of the job that the rules pass on.
    pub labels: Vec<(String, String)>,
    /// Annotations of the rule.
    pub annotations: Vec<(String, String)>,
    /// Names of its receivers.
    pub receivers: Vec<String>,
    /// Labels of the job, for silences.
    pub job_labels: Vec<(String, String)>,
    /// Since when the finding has been seen without interruption.
    pub since_ns: u64,
    /// When it fired; identifies this firing.
    pub fired_ns: Option<u64>,
    /// When it resolved.
    pub resolved_ns: Option<u64>,
    /// When the finding was last seen.
    pub seen_ns: u64,
    /// Since when the finding has been missing while its run is still running.
    pub missing_ns: Option<u64>,
    /// Epochs that its run had completed when it fired.
    pub fired_epochs: Option<u32>,
    /// Epochs that its run had completed when the finding was last seen.
    #[serde(default)]
    pub seen_epochs: Option<u32>,
    /// Whether its run ended while the finding was present.
    pub run_ended: bool,
    /// The later run that resolved it, if one did.
    #[serde(default)]
    pub resolved_by: Option<RunStart>,
    /// Whether epoch ends showed the growth.
    #[serde(default)]
    pub by_epoch: bool,
    /// The state of each receiver.
    pub deliveries: Vec<Delivery>,
}

/// A run; runs are ordered by number, then by start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunStart {
    /// Its number.
    pub run: u32,
    /// When it began, in nanoseconds since the Unix epoch.
    pub started_ns: u64,
}

/// The notification state of one receiver for an alert.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivery {
    /// The receiver's name.
    pub receiver: String,
    /// The phase of the last delivered notification: firing or resolved.
    #[serde(alias = "told")]
    pub notified: Option<Phase>,
    /// The firing that this notification was about.
    #[serde(alias = "told_fired_ns")]
    pub notified_fired_ns: u64,
    /// The severity that was sent.
    #[serde(alias = "told_severity")]
    pub notified_severity: Option<Severity>,
    /// When it was notified.
    #[serde(alias = "told_ns")]
    pub notified_ns: u64,
    /// The end of the claim. Until then, the daemon that holds the claim is sending.
    pub claimed_until_ns: Option<u64>,
    /// The earliest time of a retry after a failure.
    pub retry_ns: Option<u64>,
    /// Notifications that were given up.
    pub given_up: u64,
    /// The error of the last notification.
    pub last_error: String,
}

/// A finding that a rule selects, with everything that its alert uses from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The alert in its state when the finding is seen for the first time.
    pub alert: Alert,
    /// How long the finding must persist before the alert fires.
    pub for_ns: u64,
}

/// The findings of a job that rules select. A finding that two rules select yields two sightings.
#[must_use]
pub fn sightings(rules: &Rules, job: &JobFacts, findings: &[Finding], now_ns: u64) -> Vec<Sighting> {
    if job.imported && !rules.imported {
        return Vec::new();
    }
    let mut found = Vec::new();
    for rule in &rules.rules {
        for finding in findings.iter().filter(|finding| rule.takes(finding)) {
            found.push(Sighting { alert: alert(rules, rule, job, finding, now_ns), for_ns: rule.for_ns });
        }
    }
    // Two findings with one fingerprint are one alert; the more severe finding is used.
    found.sort_by_key(|sighting: &Sighting| (sighting.alert.id, std::cmp::Reverse(sighting.alert.finding.severity)));
    found.dedup_by_key(|sighting| sighting.alert.id);
    found
}

/// The finding's explanation, and its holders if a process named them.
fn explanation(finding: &Finding) -> String {
    let named = finding.holders.as_ref().filter(|sent| sent.asked.outcome.is_ok());
    let parts = [finding.explanation.as_str(), named.map_or("", |sent| &sent.sentence)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn alert(rules: &Rules, rule: &Rule, job: &JobFacts, finding: &Finding, now_ns: u64) -> Alert {
    let fingerprint = finding.fingerprint(&job.name).0;
    let by_epoch = finding.first_seen.boundary == Some(Boundary::EpochEnd);
    let mut labels = rule.labels.clone();
    for (name, value) in job.labels.iter().filter(|(name, _)| rules.job_labels.contains(name)) {
        if labels.iter().all(|(other, _)| other != name) {
            labels.push((cut(name, LABEL_BYTES_MAX), cut(value, LABEL_BYTES_MAX)));
        }
    }
    let finding = AlertedFinding {
        id: Id(fingerprint),
        kind: finding.kind.name().to_owned(),
        severity: finding.severity,
        confidence: finding.confidence,
        ranks: finding.ranks.iter().copied().take(RANKS_MAX).collect(),
        rank_count: u32::try_from(finding.ranks.len()).unwrap_or(u32::MAX),
        all_ranks: finding.all_ranks,
        title: cut(&finding.headline(), TITLE_BYTES_MAX),
        explanation: cut(&explanation(finding), NAME_BYTES_MAX),
        advice: cut(&finding.advice, NAME_BYTES_MAX),
    };
    Alert {
        labels,
        by_epoch,
        annotations: rule.annotations.clone(),
        receivers: rule.receivers.clone(),
        ..Alert::pending(id(fingerprint, &rule.name, &job.tenant), &rule.name, job, finding, now_ns)
    }
}

/// FNV-1a over the fingerprint, the rule's name and, unless it is the default, the tenant's name.
fn id(fingerprint: u64, rule: &str, tenant: &str) -> u64 {
    let tenant = if tenant == DEFAULT_TENANT { "" } else { tenant };
    // This byte never occurs in text, so the end of a rule's name cannot be confused with the beginning of a tenant's.
    let tenant = (!tenant.is_empty()).then_some(0xff).into_iter().chain(tenant.bytes());
    let bytes = fingerprint.to_le_bytes().into_iter().chain(rule.bytes()).chain(tenant);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The beginning of the text, cut between two characters.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes.min(text.len()))].to_owned()
}

impl Alert {
    /// An alert for a finding that is seen for the first time, without receivers.
    #[must_use]
    pub fn pending(id: u64, rule: &str, job: &JobFacts, finding: AlertedFinding, now_ns: u64) -> Self {
        let job_labels = job.labels.iter().take(JOB_LABELS_MAX);
        Self {
            id,
            tenant: job.tenant.clone(),
            rule: rule.to_owned(),
            job: job.name.clone(),
            run: job.run,
            attempt: job.attempt,
            run_started_ns: job.started_ns,
            phase: Phase::Pending,
            finding,
            labels: Vec::new(),
            annotations: Vec::new(),
            receivers: Vec::new(),
            job_labels: job_labels
                .map(|(name, value)| (cut(name, LABEL_BYTES_MAX), cut(value, LABEL_BYTES_MAX)))
                .collect(),
            since_ns: now_ns,
            fired_ns: None,
            resolved_ns: None,
            seen_ns: now_ns,
            missing_ns: None,
            fired_epochs: None,
            seen_epochs: job.epochs,
            run_ended: false,
            resolved_by: None,
            by_epoch: false,
            deliveries: Vec::new(),
        }
    }

    /// The run in which the finding was last seen.
    #[must_use]
    pub fn own_run(&self) -> RunStart {
        RunStart { run: self.run, started_ns: self.run_started_ns }
    }

    /// The alert in the form of the list.
    #[must_use]
    pub fn shown(self, silenced_by: Option<String>) -> shown::Alert {
        shown::Alert {
            id: Id(self.id),
            rule: self.rule,
            state: self.phase,
            job: self.job,
            run: Some(self.run),
            attempt: self.attempt,
            finding: self.finding,
            labels: self.labels.into_iter().collect(),
            annotations: self.annotations.into_iter().collect(),
            since: Time(self.since_ns),
            fired_at: self.fired_ns.map(Time),
            resolved_at: self.resolved_ns.map(Time),
            seen_at: Time(self.seen_ns),
            silenced_by,
            receivers: self.deliveries.into_iter().map(Delivery::shown).collect(),
            tenant: self.tenant,
        }
    }

    /// The run in which the finding was last seen, `vit#3`; empty if it is not known.
    #[must_use]
    pub fn run_name(&self) -> String {
        if self.run == 0 { String::new() } else { format!("{}#{}", self.job, self.run) }
    }

    /// Its id as 16 hexadecimal digits.
    #[must_use]
    pub fn id_text(&self) -> String {
        Id(self.id).to_string()
    }

    /// `0-3,7`, or `0-63, 64 of 1024` if there are more ranks than are kept.
    #[must_use]
    pub fn rank_list(&self) -> String {
        let AlertedFinding { ranks, rank_count, .. } = &self.finding;
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let runs = sorted.chunk_by(|a, b| a.checked_add(1) == Some(*b)).map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run.first().map(u32::to_string).unwrap_or_default(),
        });
        let shown = runs.collect::<Vec<_>>().join(",");
        if *rank_count as usize > ranks.len() { format!("{shown}, … ({rank_count} ranks)") } else { shown }
    }

    /// The state of a receiver, created if it does not exist.
    pub fn delivery_mut(&mut self, receiver: &str) -> &mut Delivery {
        let at = self.deliveries.iter().position(|delivery| delivery.receiver == receiver).unwrap_or_else(|| {
            self.deliveries.push(Delivery { receiver: receiver.to_owned(), ..Delivery::default() });
            self.deliveries.len() - 1
        });
        &mut self.deliveries[at]
    }
}

impl Delivery {
    fn shown(self) -> Receiver {
        Receiver {
            receiver: self.receiver,
            notified: self.notified,
            notified_at: self.notified.map(|_| Time(self.notified_ns)),
            given_up: self.given_up,
            last_error: Some(self.last_error).filter(|error| !error.is_empty()),
        }
    }
}
