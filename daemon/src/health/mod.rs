//! Health: whether the daemon works, for load balancers, service managers and callers.
//!
//! Guarantees: the store is probed on a connection of its own, one probe at a time. If it does not respond, this is
//! known within [`Store::patience`] plus `PROBE_EVERY`. Alive (`/healthz`, the watchdog) means that all tasks run.
//! Ready (`/readyz`) also means that the store responds, that it took the last write, and that no shutdown was
//! requested. Only a probe decides that the store is unavailable, never a slow request.

mod guard;

use std::sync::Arc;
use std::time::Duration;

use memctl_proto::v1::alerts_server::AlertsServer;
use memctl_proto::v1::ingest_server::IngestServer;
use memctl_proto::v1::query_server::QueryServer;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

pub(crate) use guard::{GuardLayer, while_the_store_answers};

use crate::alerts::Alerts;
use crate::ingest::IngestService;
use crate::ingest::counts::WriteFault;
use crate::query::QueryService;
use crate::store::Store;
use crate::supervise::{Tasks, words};

/// Time between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(400);

/// How long a late probe is awaited.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// A write that failed counts for this long. Then agents are let in again, because only a write shows whether the store
/// takes writes.
const WRITE_FAULT_COUNTS: Duration = Duration::from_secs(60);

/// The result of the last probe of the store.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Probe {
    /// The reason why the store cannot be used; `None` while it responds.
    pub fault: Option<String>,
    /// How long the response took, if there was one.
    pub took: Option<Duration>,
}

/// The daemon's health; clones share it.
#[derive(Clone)]
pub struct Health {
    tasks: Tasks,
    store: watch::Receiver<Probe>,
    writes: watch::Receiver<Option<WriteFault>>,
    shutting_down: watch::Receiver<bool>,
}

impl Health {
    /// Starts to watch the tasks, the writes of ingest, and a store that was just opened.
    pub fn watch(
        store: Arc<dyn Store>,
        writes: watch::Receiver<Option<WriteFault>>,
        tasks: Tasks,
        shutting_down: watch::Receiver<bool>,
        watching: &mut JoinSet<()>,
    ) -> Self {
        let (sender, probe) = watch::channel(Probe::default());
        watching.spawn(probing(store, sender));
        Self { tasks, store: probe, writes, shutting_down }
    }

    /// The last probe.
    #[must_use]
    pub fn store(&self) -> Probe {
        self.store.borrow().clone()
    }

    /// Returns the reason as soon as the store does not respond.
    pub async fn store_away(&self) -> String {
        let mut store = self.store.clone();
        let fault = store.wait_for(|probe| probe.fault.is_some()).await.ok().and_then(|probe| probe.fault.clone());
        match fault {
            Some(fault) => fault,
            // Probing has stopped because the daemon is shutting down, which the daemon reports itself.
            None => std::future::pending().await,
        }
    }

    /// The reasons why the daemon is not alive; empty if it is. They are public: they name tasks of the daemon, but no
    /// address, path or user. The log has the full failures.
    #[must_use]
    pub fn dead(&self) -> Vec<String> {
        let states = self.tasks.states().into_iter().filter(|(_, state)| !state.running);
        states.map(|(name, _)| format!("the task {name} is down; the log says why")).collect()
    }

    /// The reasons why the daemon is not ready; empty if it is. They are as public as those of [`Self::dead`].
    #[must_use]
    pub fn unready(&self) -> Vec<String> {
        let mut reasons = self.dead();
        reasons.extend(self.store().fault.map(|_| "the store does not answer; the log says why".to_owned()));
        if self.write_fault_counts_for().is_some() {
            reasons.push("the store took no writes at the last attempt; the log says why".to_owned());
        }
        if *self.shutting_down.borrow() {
            reasons.push("the daemon is shutting down".to_owned());
        }
        reasons
    }

    /// How long a failed write still counts; `None` without one.
    fn write_fault_counts_for(&self) -> Option<Duration> {
        let at = self.writes.borrow().as_ref()?.at;
        WRITE_FAULT_COUNTS.checked_sub(at.elapsed())
    }

    /// Returns when the health may have changed.
    async fn changed(&mut self, tasks: &mut watch::Receiver<u64>) -> bool {
        let left = self.write_fault_counts_for();
        let expired = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expired => true,
            changed = self.writes.changed() => changed.is_ok(),
            changed = tasks.changed() => changed.is_ok(),
            changed = self.store.changed() => changed.is_ok(),
            changed = self.shutting_down.changed() => changed.is_ok(),
        }
    }
}

/// Probes the store repeatedly. A late probe is awaited, so that a store that hangs is not probed again in the
/// meantime.
async fn probing(store: Arc<dyn Store>, sender: watch::Sender<Probe>) {
    loop {
        let begun = Instant::now();
        let asked = store.clone();
        let mut probe = JoinSet::new();
        probe.spawn(async move { asked.probe().await });
        let late = tokio::time::timeout(store.patience(), probe.join_next()).await;
        let answer = match late {
            Ok(answer) => answer,
            Err(_) => {
                let fault = format!("no answer within {} s", store.patience().as_secs_f64());
                tell(&sender, Probe { fault: Some(fault), took: None });
                // A connection to a lost server never responds, so a new connection is tried after a while.
                let Ok(answer) = tokio::time::timeout(PROBE_MAX, probe.join_next()).await else { continue };
                answer
            }
        };
        let fault = match answer {
            Some(Ok(Ok(()))) => None,
            Some(Ok(Err(error))) => Some(error.to_string()),
            Some(Err(error)) => Some(words(error)),
            None => None,
        };
        let took = fault.is_none().then(|| begun.elapsed());
        tell(&sender, Probe { fault, took });
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Wakes watchers only if the fault changes, not for each duration.
fn tell(sender: &watch::Sender<Probe>, probe: Probe) {
    sender.send_if_modified(|known| {
        let is_news = known.fault.is_some() != probe.fault.is_some();
        match (&known.fault, &probe.fault) {
            (None, Some(fault)) => {
                tracing::error!(fault, "the store does not answer; streams wait, questions are refused")
            }
            (Some(_), None) => tracing::info!("the store answers again"),
            _ => {}
        }
        *known = probe;
        is_news
    });
}

/// Reports the services by their names in gRPC's health service. The empty name is the whole daemon.
pub async fn report(health: &Health, reporter: &HealthReporter) {
    let status = |so: bool| if so { ServingStatus::Serving } else { ServingStatus::NotServing };
    let states = health.tasks.states();
    let runs = |name: &str| states.get(name).is_none_or(|state| state.running);
    let answers = health.store().fault.is_none() && !*health.shutting_down.borrow();
    reporter.set_service_status(IngestServer::<IngestService>::NAME, status(answers && runs("committer"))).await;
    reporter.set_service_status(QueryServer::<QueryService>::NAME, status(answers)).await;
    reporter.set_service_status(AlertsServer::<Alerts>::NAME, status(answers && runs("alerts"))).await;
    reporter.set_service_status("", status(health.unready().is_empty())).await;
}

/// Keeps gRPC's health service up to date.
pub async fn keep_reporting(mut health: Health, reporter: HealthReporter) {
    let mut tasks = health.tasks.changes();
    loop {
        report(&health, &reporter).await;
        if !health.changed(&mut tasks).await {
            return;
        }
    }
}
