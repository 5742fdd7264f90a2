//! The task of alerting: it processes observations, advances time, claims due notifications and records their outcome.
//!
//! Guarantees: every change is a compare-and-set, and it is computed again if another daemon was faster. A notification
//! is sent only by the daemon that made its claim. A failure of the store only costs time.
//!
//! (Over 400 lines: one task whose steps read and write the same records; separate modules would have to pass all of
//! its state.)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memctl_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::alert::{Alert, AlertedFinding, ERROR_BYTES_MAX, Phase, cut};
use super::deliver::{Failed, Message, Notification, Notifier, Outcome, Worker};
use super::mailbox::Observation;
use super::notice::Notice;
use super::record::{self, StoredAlert};
use super::{InForce, LAST_WORDS, Notifying, Shared, machine, silence};
use crate::clock::now_ns;
use crate::store::{AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome, StoreError};

/// How often it looks for due alerts.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Alerts that are processed together.
const BATCH: u32 = 256;
/// The most batches of one look; the rest waits for the next look.
const BATCHES_MAX: usize = 64;
/// Attempts at a change that conflicts with a change by another daemon.
const TRIES: usize = 8;
/// The shortest time between two writes of an alert that only continues.
const REFRESH_NS: u64 = 10_000_000_000;
/// A receiver whose queue is full is tried again after this time.
const BUSY_NS: u64 = 5_000_000_000;
/// A record that cannot be read is tried again after this time.
const UNREADABLE_NS: u64 = 3_600_000_000_000;

struct Engine {
    shared: Arc<Shared>,
    in_force: Arc<InForce>,
    workers: Vec<Worker>,
    /// Pending claims, by receiver and alert.
    claims: BTreeMap<(String, u64), Notification>,
    notifying: bool,
    /// Whether the store's last response was an error; so each failure is logged once.
    failing: bool,
}

/// Runs until it is stopped.
pub(super) async fn run(shared: Arc<Shared>, notifying: Notifying, mut stopping: watch::Receiver<bool>) {
    let mut changes = shared.in_force.subscribe();
    let mut notifying = notifying == Notifying::Always;
    loop {
        let in_force = changes.borrow_and_update().clone();
        let (sent, mut outcomes) = mpsc::channel(64);
        let start = |notifier: &Arc<Notifier>| Worker::start(notifier.clone(), shared.pace, sent.clone());
        let workers = in_force.notifiers.iter().map(start).collect();
        let shared = shared.clone();
        let mut engine = Engine { shared, in_force, workers, claims: BTreeMap::new(), notifying, failing: false };
        let stop = engine.work(&mut outcomes, &mut changes, &mut stopping).await;
        engine.look().await;
        engine.end(&mut outcomes).await;
        if stop {
            return;
        }
        notifying = engine.notifying;
    }
}

impl Engine {
    /// Runs until it is stopped (returns `true`) or until other rules are in force (returns `false`).
    async fn work(
        &mut self,
        outcomes: &mut mpsc::Receiver<Outcome>,
        changes: &mut watch::Receiver<Arc<InForce>>,
        stopping: &mut watch::Receiver<bool>,
    ) -> bool {
        let shared = self.shared.clone();
        loop {
            let outcome = tokio::select! {
                () = shared.wake.notified() => None,
                () = tokio::time::sleep(LOOK_EVERY) => None,
                outcome = outcomes.recv() => outcome,
                Ok(()) = changes.changed() => return false,
                // An error means that the handle was dropped, which also stops the engine.
                _ = async { stopping.wait_for(|stop| *stop).await.is_ok() } => return true,
            };
            if let Some(outcome) = outcome {
                self.settle(outcome).await;
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let outcome = self.looked().await;
        match &outcome {
            // A command that looks into the store of a daemon: the daemon has the alerts.
            Err(error) if error.is_refusal() => tracing::debug!(%error, "the store takes no alerts"),
            Err(error) if !self.failing => {
                tracing::error!(%error, "the store does not accept alerts; this will be retried")
            }
            Ok(()) if self.failing => tracing::info!("the store accepts alerts again"),
            _ => {}
        }
        self.failing = outcome.is_err();
    }

    async fn looked(&mut self) -> Result<(), StoreError> {
        while let Some(observation) = self.shared.mailbox.take() {
            self.notifying = true;
            if let Err(error) = self.observed(&observation).await {
                // An observation that can never be stored must not delay the others.
                if !matches!(error, StoreError::Refused { .. }) {
                    self.shared.mailbox.put_back(observation);
                    return Err(error);
                }
                tracing::error!(job = observation.job.name, %error, "alerts of a job were dropped");
            }
        }
        if !self.notifying {
            return Ok(());
        }
        // AcqRel: the setter stored its change before it set the flag.
        let everything = self.shared.reconsider.swap(false, Ordering::AcqRel);
        if everything {
            let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Alert)).await;
            let outcome = match records {
                Ok(records) => self.passed(records).await,
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                self.shared.reconsider.store(true, Ordering::Release);
            }
            outcome?;
        }
        for _ in 0..BATCHES_MAX {
            let due = AlertSelection::Due { before_ns: now_ns(), limit: BATCH };
            let records = self.shared.store.alert_records(due).await?;
            let full = records.len() == BATCH as usize;
            self.passed(records).await?;
            if !full {
                break;
            }
        }
        Ok(())
    }

    /// Updates the alerts of a job after a judgement.
    async fn observed(&mut self, observation: &Observation) -> Result<(), StoreError> {
        let Observation { job, sightings, now_ns } = observation;
        let (shared, in_force) = (self.shared.clone(), self.in_force.clone());
        let rules = &in_force.rules;
        for _ in 0..TRIES {
            let records =
                shared.store.alert_records(AlertSelection::OfJob { tenant: &job.tenant, job: &job.name }).await?;
            let mut known: BTreeMap<u64, StoredAlert> =
                records.iter().filter_map(record::read).map(|stored| (stored.alert.id, stored)).collect();
            let mut changes = Vec::new();
            for sighting in sightings {
                let before = known.remove(&sighting.alert.id);
                let alert = before.as_ref().map(|stored| stored.alert.clone());
                changes.push((machine::seen(alert, sighting, job, rules, *now_ns), before));
            }
            for stored in known.into_values() {
                changes.push((machine::missed(stored.alert.clone(), job, rules, *now_ns), Some(stored)));
            }
            changes.retain(|(after, before)| matters(before.as_ref().map(|stored| &stored.alert), after.as_ref()));
            if changes.is_empty() || self.change(changes).await? {
                return Ok(());
            }
        }
        tracing::warn!(job = job.name, "another daemon keeps changing the alerts of this job; they are left to it");
        Ok(())
    }

    /// Writes changes; returns whether all of them succeeded without a conflict.
    async fn change(&self, changes: Vec<(Option<Alert>, Option<StoredAlert>)>) -> Result<bool, StoreError> {
        let now_ns = now_ns();
        let puts: Vec<AlertPut> = changes
            .iter()
            .filter_map(|(after, before)| {
                let version = before.as_ref().map_or(0, |stored| stored.version);
                match (after, before) {
                    // The record is due at once: the next look determines which receivers to notify.
                    (Some(after), _) => Some(record::put(after, version, now_ns)),
                    (None, Some(stored)) => {
                        Some(AlertPut { remove: true, ..record::put(&stored.alert, version, now_ns) })
                    }
                    (None, None) => None,
                }
            })
            .collect();
        let outcomes = self.shared.store.put_alert_records(&puts).await?;
        let changes = changes.into_iter().filter(|(after, before)| after.is_some() || before.is_some());
        let mut alone = true;
        for ((after, before), outcome) in changes.zip(outcomes) {
            match outcome {
                PutOutcome::Done => log(before.as_ref().map(|stored| &stored.alert), after.as_ref()),
                PutOutcome::Conflict => alone = false,
                PutOutcome::Full => self.shared.refuse(after.as_ref().map_or("", |alert| &alert.tenant), 1, "in all"),
            }
        }
        Ok(alone)
    }

    /// Advances time for alerts: updates their states and notifies receivers.
    async fn passed(&mut self, records: Vec<AlertRecord>) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let now_ns = now_ns();
        let silences = self.shared.silences(now_ns).await?;
        let (mut puts, mut steps) = (Vec::new(), Vec::new());
        for record in records {
            let Some(stored) = record::read(&record) else {
                let expected_version = record.version;
                let record = AlertRecord { due_ns: now_ns.saturating_add(UNREADABLE_NS), ..record };
                puts.push(AlertPut { record, expected_version, remove: false });
                steps.push(None);
                continue;
            };
            let before = stored.alert.clone();
            let step = self.step(stored.alert, &silences, now_ns);
            puts.push(match &step {
                Some(step) => record::put(&step.after, stored.version, step.due_ns),
                None => AlertPut { remove: true, ..record::put(&before, stored.version, now_ns) },
            });
            steps.push(Some((before, step)));
        }
        let outcomes = self.shared.store.put_alert_records(&puts).await?;
        let mut messages = Messages::default();
        for (step, outcome) in steps.into_iter().zip(outcomes) {
            // After a conflict nothing is sent: the faster daemon has handled the alert, or it is still due at the next
            // look.
            let (Some((before, step)), PutOutcome::Done) = (step, outcome) else { continue };
            log(Some(&before), step.as_ref().map(|step| &step.after));
            if let Some(step) = step {
                messages.add(step);
            }
        }
        self.send(messages).await;
        Ok(())
    }

    /// The step that one alert needs now; `None` if the alert must be removed.
    fn step(&self, alert: Alert, silences: &[v1::Silence], now_ns: u64) -> Option<Step> {
        let rules = &self.in_force.rules;
        let mut after = machine::tick(alert, rules, now_ns)?;
        let silenced_until_ns = silence::of(silences, &after, now_ns).map(|silence| silence.ends_ns);
        let mut tell = Vec::new();
        for (at, worker) in self.workers.iter().enumerate() {
            let name = worker.notifier.name();
            let Some(receiver) = rules.receiver(name).filter(|_| after.receivers.iter().any(|it| it == name)) else {
                continue;
            };
            let known = after.delivery_mut(name).clone();
            if machine::wants(&after, &known, receiver, rules, silenced_until_ns, now_ns) != machine::Want::Now {
                continue;
            }
            let lasts = self.shared.pace.longest(worker.notifier.timeout()) + BUSY;
            let until_ns = now_ns.saturating_add(lasts.as_nanos() as u64);
            let delivery = after.delivery_mut(name);
            delivery.claimed_until_ns = Some(until_ns);
            delivery.retry_ns = None;
            let sent_before = known.notified_severity.filter(|_| known.notified == Some(Phase::Firing));
            tell.push(Tell {
                worker: at,
                until_ns,
                replaces: sent_before.filter(|before| *before != after.finding.severity),
            });
        }
        let due_ns = machine::due_ns(&after, rules, silenced_until_ns, now_ns);
        Some(Step { after, due_ns, tell })
    }

    async fn send(&mut self, messages: Messages) {
        for ((worker, tenant, _), mut notices) in messages.0 {
            while !notices.is_empty() {
                let rest = notices.split_off(notices.len().min(self.workers[worker].notifier.alerts_max()));
                self.send_one(worker, tenant.clone(), std::mem::replace(&mut notices, rest)).await;
            }
        }
    }

    async fn send_one(&mut self, worker: usize, tenant: String, notices: Vec<(Notice, u64)>) {
        let worker = &self.workers[worker];
        let name = worker.notifier.name().to_owned();
        let claimed_until_ns = notices.iter().map(|(_, until_ns)| *until_ns).min().unwrap_or(0);
        let notices: Vec<Notice> = notices.into_iter().map(|(notice, _)| notice).collect();
        for notice in &notices {
            self.claims.insert((name.clone(), notice.alert.id), Notification::from(&notice.alert));
        }
        if let Err(message) = worker.take(Message { tenant, notices, claimed_until_ns }) {
            let sent = message.notices.iter().map(|notice| Notification::from(&notice.alert)).collect();
            self.settled(&name, sent, &Settled::Later(BUSY_NS)).await;
        }
    }

    /// Records the outcome of a message.
    async fn settle(&mut self, outcome: Outcome) {
        let Outcome { receiver, tenant, sent, result } = outcome;
        let count = sent.len() as u64;
        self.shared.note_sent(&receiver, count, result.is_ok());
        let is_given_up = result.is_err();
        let settled = match result {
            Ok(()) => Settled::Delivered,
            Err(Failed { reason, .. }) => {
                tracing::warn!(
                    receiver,
                    alerts = sent.len(),
                    reason,
                    "a notification was given up; alerts that still fire are retried later"
                );
                let wait_ns = self.in_force.rules.receiver(&receiver).map_or(machine::RETRY_NS, machine::retry_ns);
                Settled::GivenUp { reason, wait_ns }
            }
        };
        self.settled(&receiver, sent, &settled).await;
        // Counted when the reason is stored, so that a reader of the count finds the reason.
        if is_given_up {
            self.shared.given_up.add(&tenant, count);
        }
    }

    async fn settled(&mut self, receiver: &str, sent: Vec<Notification>, settled: &Settled) {
        for sent in &sent {
            self.claims.remove(&(receiver.to_owned(), sent.id));
        }
        if let Err(error) = self.write_down(receiver, sent, settled).await {
            tracing::error!(receiver, %error, "a delivery could not be recorded; the receiver may be notified twice");
        }
    }

    async fn write_down(
        &self,
        receiver: &str,
        mut sent: Vec<Notification>,
        settled: &Settled,
    ) -> Result<(), StoreError> {
        let rules = &self.in_force.rules;
        for _ in 0..TRIES {
            let ids: Vec<u64> = sent.iter().map(|sent| sent.id).collect();
            let records = self.shared.store.alert_records(AlertSelection::Ids(&ids)).await?;
            let now_ns = now_ns();
            let silences = self.shared.silences(now_ns).await?;
            let mut puts = Vec::new();
            for stored in records.iter().filter_map(record::read) {
                let Some(sent) = sent.iter().find(|sent| sent.id == stored.alert.id) else { continue };
                let mut alert = stored.alert;
                settled.apply(&mut alert, receiver, *sent, now_ns);
                let silenced_until_ns = silence::of(&silences, &alert, now_ns).map(|silence| silence.ends_ns);
                let due_ns = machine::due_ns(&alert, rules, silenced_until_ns, now_ns);
                puts.push(record::put(&alert, stored.version, due_ns));
            }
            let outcomes = self.shared.store.put_alert_records(&puts).await?;
            let failed = puts.iter().zip(outcomes).filter(|(_, outcome)| *outcome != PutOutcome::Done);
            let failed: Vec<u64> = failed.map(|(put, _)| put.record.id).collect();
            sent.retain(|sent| failed.contains(&sent.id));
            if sent.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits briefly for pending messages and abandons the rest.
    async fn end(&mut self, outcomes: &mut mpsc::Receiver<Outcome>) {
        let deadline = Instant::now() + LAST_WORDS;
        while !self.claims.is_empty() {
            match tokio::time::timeout_at(deadline, outcomes.recv()).await {
                Ok(Some(outcome)) => self.settle(outcome).await,
                Ok(None) | Err(_) => break,
            }
        }
        for worker in &self.workers {
            worker.abort();
        }
        let mut open: BTreeMap<String, Vec<Notification>> = BTreeMap::new();
        for ((receiver, _), sent) in std::mem::take(&mut self.claims) {
            open.entry(receiver).or_default().push(sent);
        }
        for (receiver, sent) in open {
            tracing::warn!(receiver, alerts = sent.len(), "not delivered before shutdown; the next daemon delivers it");
            self.settled(&receiver, sent, &Settled::Later(0)).await;
        }
    }
}

const BUSY: Duration = Duration::from_nanos(BUSY_NS);

/// The result of advancing time for one alert.
struct Step {
    after: Alert,
    due_ns: u64,
    tell: Vec<Tell>,
}

struct Tell {
    worker: usize,
    until_ns: u64,
    replaces: Option<memctl_model::Severity>,
}

/// Notices by worker, tenant and job, because a message is about one job at most. Each has the end of its claim.
#[derive(Default)]
struct Messages(BTreeMap<(usize, String, String), Vec<(Notice, u64)>>);

impl Messages {
    fn add(&mut self, step: Step) {
        for Tell { worker, until_ns, replaces } in step.tell {
            let notice = Notice { alert: step.after.clone(), replaces };
            self.0
                .entry((worker, step.after.tenant.clone(), step.after.job.clone()))
                .or_default()
                .push((notice, until_ns));
        }
    }
}

enum Settled {
    Delivered,
    /// All attempts failed; the message must be tried again after this many nanoseconds.
    GivenUp {
        reason: String,
        wait_ns: u64,
    },
    /// The message was not tried; it must be tried after this many nanoseconds.
    Later(u64),
}

impl Settled {
    fn apply(&self, alert: &mut Alert, receiver: &str, sent: Notification, now_ns: u64) {
        let delivery = alert.delivery_mut(receiver);
        delivery.claimed_until_ns = None;
        match self {
            Self::Delivered => {
                delivery.notified = Some(sent.phase);
                delivery.notified_fired_ns = sent.fired_ns;
                delivery.notified_severity = Some(sent.severity);
                delivery.notified_ns = now_ns;
                delivery.retry_ns = None;
                delivery.last_error.clear();
            }
            Self::GivenUp { reason, wait_ns } => {
                delivery.given_up = delivery.given_up.saturating_add(1);
                delivery.last_error = cut(reason, ERROR_BYTES_MAX);
                delivery.retry_ns = Some(now_ns.saturating_add(*wait_ns));
            }
            Self::Later(wait_ns) => delivery.retry_ns = Some(now_ns.saturating_add(*wait_ns)),
        }
    }
}

/// Whether a change must be stored. An alert that only continues is stored at intervals.
fn matters(before: Option<&Alert>, after: Option<&Alert>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return before.is_some() || after.is_some() };
    let state = |alert: &Alert| {
        let Alert { phase, finding, fired_ns, missing_ns, run_ended, run_started_ns, attempt, .. } = alert;
        let figures = (finding.severity, finding.rank_count);
        // When a pending alert fires, the epoch of its record is the one in which it fired.
        let epochs = alert.seen_epochs.filter(|_| *phase == Phase::Pending);
        (*phase, figures, epochs, *fired_ns, *missing_ns, *run_ended, *run_started_ns, *attempt)
    };
    state(before) != state(after)
        || before.receivers != after.receivers
        || after.seen_ns.saturating_sub(before.seen_ns) >= REFRESH_NS
}

/// Logs changes of alerts. The log is a receiver that always exists.
fn log(before: Option<&Alert>, after: Option<&Alert>) {
    let Some(after) = after else { return };
    let was = before.map(|alert| (alert.phase, alert.fired_ns));
    if was == Some((after.phase, after.fired_ns)) {
        return;
    }
    let Alert { tenant, rule, run, job, finding: AlertedFinding { kind, severity, title, .. }, .. } = after;
    let (id, severity, ranks) = (after.id_text(), severity.name(), after.rank_list());
    let title = title.escape_debug();
    match after.phase {
        Phase::Firing => {
            tracing::warn!(alert = rule, id, tenant, job, run, kind, severity, ranks, "alert fires: {title}")
        }
        Phase::Resolved => {
            tracing::info!(alert = rule, id, tenant, job, run, kind, severity, "alert resolved: {title}")
        }
        Phase::Pending => tracing::debug!(alert = rule, id, tenant, job, run, kind, severity, "alert is pending"),
    }
}
