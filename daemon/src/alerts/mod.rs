//! Alerts: turns findings into delivered notifications.
//!
//! [`Alerts::observe`] takes the findings of a job. The engine applies the rules, keeps the state of each alert in the
//! store and notifies receivers.
//!
//! Guarantees: observing never waits, and its memory is bounded. State survives restarts. If several daemons use one
//! database, exactly one makes each change and sends each notification, because every change is a compare-and-set in
//! the store. The claims of a crashed daemon expire, and another daemon takes them over. So a notification may be sent
//! twice, but it is not lost.
//!
//! A receiver cannot delay judging, storing or another receiver.
//!
//! - [`rules`]: the TOML file; [`alert`]: an alert's data; [`machine`]: its states, pure; [`silence`]: silences;
//!   [`record`]: the stored form; [`notice`]: the messages; [`deliver`]: workers; `engine`: the task; `service`: the
//!   gRPC service.

pub mod alert;
pub(crate) mod certificates;
pub mod deliver;
mod engine;
pub mod machine;
mod mailbox;
pub mod notice;
pub mod record;
pub mod rules;
mod service;
pub mod silence;
mod tenant_counts;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use memctl_model::Finding;
use memctl_proto::v1;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub use alert::{JobFacts, Phase};
pub use deliver::Pace;
pub use rules::{Rules, RulesError};

use crate::access::Audit;
use crate::store::{AlertKind, AlertSelection, Scope, Store, StoreError};
use crate::supervise::Tasks;
use deliver::Notifier;
use mailbox::{Mailbox, Observation};
use tenant_counts::ByTenant;

/// The most alerts of one judgement. Beyond it the mildest are left out and counted.
const JOB_ALERTS_MAX: usize = 256;
/// Time limit for the last notifications when the daemon shuts down.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A handle to alerting; clones share it.
#[derive(Clone)]
pub struct Alerts {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    store: Arc<dyn Store>,
    in_force: watch::Sender<Arc<InForce>>,
    pace: Pace,
    mailbox: Mailbox,
    wake: Notify,
    /// Whether silences changed, so that the due times of alerts must be computed again.
    reconsider: AtomicBool,
    /// Alerts that were not created because there were too many.
    refused: ByTenant,
    /// Notifications that were given up.
    given_up: ByTenant,
    audit: Audit,
    /// By receiver: alerts that were delivered, and alerts that were not.
    notified: std::sync::Mutex<BTreeMap<String, (u64, u64)>>,
    /// Held during a test of the receivers, because each test starts programs and connections.
    testing: tokio::sync::Mutex<()>,
}

/// The rules in force, and the receivers.
pub(crate) struct InForce {
    rules: Rules,
    notifiers: Vec<Arc<Notifier>>,
}

impl InForce {
    fn new(rules: Rules) -> Arc<Self> {
        let notifiers = rules.receivers.iter().map(|receiver| Arc::new(Notifier::new(receiver, &rules))).collect();
        Arc::new(Self { rules, notifiers })
    }
}

/// Alerting, while it runs.
pub struct Alerting {
    /// The handle.
    pub alerts: Alerts,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// When notifications are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notifying {
    /// As soon as they are due.
    Always,
    /// Only after something was observed, so that a process that only answers a query notifies no receiver.
    AfterObserving,
}

impl Alerting {
    /// Starts alerting over a store.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, rules: Rules, pace: Pace, notifying: Notifying) -> Self {
        Self::supervised(store, rules, pace, notifying, &Tasks::default())
    }

    /// The same as [`Self::start`], as one of the daemon's tasks, which is restarted if it fails.
    #[must_use]
    pub fn supervised(store: Arc<dyn Store>, rules: Rules, pace: Pace, notifying: Notifying, tasks: &Tasks) -> Self {
        let audit = Audit::new(store.clone());
        let shared = Arc::new(Shared {
            store,
            audit,
            in_force: watch::channel(InForce::new(rules)).0,
            pace,
            mailbox: Mailbox::default(),
            wake: Notify::new(),
            reconsider: AtomicBool::new(false),
            refused: ByTenant::default(),
            given_up: ByTenant::default(),
            notified: std::sync::Mutex::default(),
            testing: tokio::sync::Mutex::default(),
        });
        let (stop, stopping) = watch::channel(false);
        let behind = shared.clone();
        let task = tasks.supervise("alerts", move || engine::run(behind.clone(), notifying, stopping.clone()));
        Self { alerts: Alerts { shared }, stop, task }
    }

    /// Ends alerting. Observations are stored and due notifications are sent within a few seconds. The next daemon
    /// sends the rest.
    pub async fn finish(self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(LAST_WORDS * 2, self.task).await.is_err() {
            tracing::error!(
                "alerting did not end in time; claimed notifications are sent when the claims have expired"
            );
        }
    }
}

impl Alerts {
    /// Takes the findings of a job. Call it each time the job was judged, and when the job ended or was deleted.
    ///
    /// It never waits. If a run has several unprocessed judgements, only the latest counts.
    pub fn observe(&self, job: &JobFacts, findings: &[Finding], now_ns: u64) {
        let in_force = self.shared.in_force();
        if job.imported && !in_force.rules.imported {
            // An imported job neither raises nor resolves alerts.
            return;
        }
        let mut sightings = alert::sightings(&in_force.rules, job, findings, now_ns);
        if sightings.len() > JOB_ALERTS_MAX {
            sightings.sort_by_key(|sighting| std::cmp::Reverse(sighting.alert.finding.severity));
            self.shared.refuse(&job.tenant, (sightings.len() - JOB_ALERTS_MAX) as u64, "of one job");
            sightings.truncate(JOB_ALERTS_MAX);
        }
        if !self.shared.mailbox.put(Observation { job: job.clone(), sightings, now_ns }) {
            tracing::warn!(job = job.name, "too many judgements wait for alerting; this one was dropped");
        }
        self.shared.wake.notify_one();
    }

    /// Puts other rules in force. Waiting notifications follow the new rules if their receiver still exists.
    pub fn replace_rules(&self, rules: Rules) {
        self.shared.in_force.send_replace(InForce::new(rules));
        // Release: an engine that sees the flag also sees the rules.
        self.shared.reconsider.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }

    /// Alerts that were not created because there were too many.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shared.refused.of(&Scope::All)
    }

    /// Each receiver in force, with the number of alerts that were delivered and that were not.
    #[must_use]
    pub fn notified(&self) -> Vec<(String, u64, u64)> {
        let sent = self.shared.notified.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |notifier: &Arc<Notifier>| {
            let (delivered, failed) = sent.get(notifier.name()).copied().unwrap_or_default();
            (notifier.name().to_owned(), delivered, failed)
        };
        self.shared.in_force().notifiers.iter().map(of).collect()
    }

    /// The number of alerts in each state.
    pub(crate) async fn states(&self) -> Result<[(&'static str, u64); 3], StoreError> {
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Alert)).await?;
        let mut states = Phase::ALL.map(|phase| (phase, 0));
        for stored in records.iter().filter_map(record::read) {
            states[stored.alert.phase as usize].1 += 1;
        }
        Ok(states.map(|(phase, count)| (phase.name(), count)))
    }

    pub(crate) async fn silences(&self, now_ns: u64) -> Result<Vec<v1::Silence>, StoreError> {
        self.shared.silences(now_ns).await
    }
}

impl Shared {
    fn in_force(&self) -> Arc<InForce> {
        self.in_force.borrow().clone()
    }

    /// Counts alerts that a receiver got, or did not get.
    fn note_sent(&self, receiver: &str, count: u64, delivered: bool) {
        let mut sent = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        let (reached, missed) = sent.entry(receiver.to_owned()).or_default();
        *if delivered { reached } else { missed } += count;
    }

    fn refuse(&self, tenant: &str, count: u64, why: &str) {
        let is_first = self.refused.of(&Scope::All) == 0;
        self.refused.add(tenant, count);
        if is_first {
            tracing::warn!(
                count,
                why,
                "there are too many alerts; further ones are not created; `memctl alerts` counts them"
            );
        }
    }

    /// Silences that have not ended, ordered by their end.
    async fn silences(&self, now_ns: u64) -> Result<Vec<v1::Silence>, StoreError> {
        let records = self.store.alert_records(AlertSelection::All(AlertKind::Silence)).await?;
        let mut silences: Vec<v1::Silence> = records.iter().filter_map(record::read_silence).collect();
        silences.retain(|silence| silence.ends_ns > now_ns);
        silences.sort_by(|a, b| (a.ends_ns, &a.id).cmp(&(b.ends_ns, &b.id)));
        Ok(silences)
    }
}
