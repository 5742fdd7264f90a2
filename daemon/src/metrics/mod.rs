//! Metrics: figures of the daemon and of the jobs that run, for Prometheus and OpenTelemetry.
//!
//! Guarantees: the number of series is bounded by what [`job`] says; each part of the daemon counts its own, and what is told
//! is gathered from them when somebody asks; a store that is away costs the figures of the store and no others.
//! Refuses labels that grow with what a training does.
//!
//! - [`definitions`]: every metric; [`family`]: what one is; [`text`]: as Prometheus reads it.
//! - [`job`]: the series of a job, from what the judge has left on the board; `own`: those of the daemon; `process`.

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

use crate::alerts::Alerts;
use crate::board::Board;
use crate::health::Health;
use crate::ingest::counts::Figures;
use crate::judge::Judge;
use crate::listen::Connections;
use crate::pokes::Pokes;
use crate::reload::Reloads;
use crate::store::{Scope, Store, Tenant};
use crate::streams::Streams;
use crate::supervise::Tasks;

/// The parts of the daemon that are asked; clones ask the same ones.
#[derive(Clone)]
pub struct Sources {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ingest: Figures,
    pub(crate) streams: Streams,
    pub(crate) pokes: Pokes,
    pub(crate) alerts: Alerts,
    pub(crate) tasks: Tasks,
    pub(crate) health: Health,
    pub(crate) reloads: Reloads,
    pub(crate) board: Board,
    pub(crate) judge: Judge,
    /// The connections of each port.
    pub(crate) ports: Vec<(&'static str, Arc<Connections>)>,
    /// How sending them by OTLP goes, where they are sent.
    pub(crate) exports: Option<Exports>,
    pub(crate) started_ns: u64,
    pub(crate) known: Arc<Mutex<own::StoreFigures>>,
}

impl Sources {
    fn figures(&self) -> MutexGuard<'_, own::StoreFigures> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures as they are now, as a scope shows them: of the jobs its own, of the daemon what is nobody's; sums over all
    /// tenants for those alone who see all of them.
    pub async fn gather(&self, scope: &Scope) -> Vec<Family> {
        let mut families = own::families(self, scope).await;
        let mut jobs = self.board.shown();
        jobs.retain(|job| scope.admits(&Tenant::stored(&job.tenant)));
        families.extend(job::families(&jobs, &self.figures().kept()));
        families
    }
}
