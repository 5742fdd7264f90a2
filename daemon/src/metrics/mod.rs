//! Metrics of the daemon and of running jobs, for Prometheus and OpenTelemetry.
//!
//! Guarantees: the number of series is bounded by the limits in [`job`]. Each part of the daemon counts its own events,
//! and a scrape collects the values. If the store is unavailable, only its own metrics are missing.
//! Refuses: labels whose number of values grows with a training.
//!
//! - [`definitions`]: every metric; [`family`]: the types; [`text`]: the format of Prometheus.
//! - [`job`]: the series of a job, from the summaries; `own`: those of the daemon; `process`.

pub mod definitions;
mod exports;
pub mod family;
pub mod job;
mod own;
mod process;
pub mod text;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use exports::Exports;
pub use family::Family;

use crate::access::Gate;
use crate::alerts::Alerts;
use crate::health::Health;
use crate::ingest::counts::Figures;
use crate::judge::Judge;
use crate::listen::Connections;
use crate::notify::Notifier;
use crate::reload::Reloads;
use crate::store::{Scope, Store, Tenant};
use crate::streams::Streams;
use crate::summaries::Summaries;
use crate::supervise::Tasks;

/// The parts of the daemon that have metrics; clones share them.
#[derive(Clone)]
pub struct Sources {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ingest: Figures,
    pub(crate) gate: Gate,
    pub(crate) streams: Streams,
    pub(crate) notifier: Notifier,
    pub(crate) alerts: Alerts,
    pub(crate) tasks: Tasks,
    pub(crate) health: Health,
    pub(crate) reloads: Reloads,
    pub(crate) summaries: Summaries,
    pub(crate) judge: Judge,
    /// The connections of each port.
    pub(crate) ports: Vec<(&'static str, Arc<Connections>)>,
    /// The outcomes of OTLP exports, if metrics are exported.
    pub(crate) exports: Option<Exports>,
    pub(crate) started_ns: u64,
    pub(crate) store_figures: Arc<Mutex<own::StoreFigures>>,
}

impl Sources {
    fn figures(&self) -> MutexGuard<'_, own::StoreFigures> {
        self.store_figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current values that a scope may see: those of its jobs, and those of the daemon that belong to no tenant.
    /// Only callers that see all tenants get sums over all tenants.
    pub async fn gather(&self, scope: &Scope) -> Vec<Family> {
        let mut families = own::families(self, scope).await;
        let mut jobs = self.summaries.shown();
        jobs.retain(|job| scope.admits(&Tenant::stored(&job.tenant)));
        families.extend(job::families(&jobs, &self.figures().kept()));
        families
    }
}
