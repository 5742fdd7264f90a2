//! `memctl jobs` as data.

use serde::{Deserialize, Serialize};

use super::{Job, Listing};
use crate::format::csv::Cell;

/// Jobs, newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Jobs {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// For the page: only some states or labels were asked for.
    #[serde(skip)]
    pub filtered: bool,
    /// For the page: the tenant whose jobs were requested, if one was named.
    #[serde(skip)]
    pub tenant: Option<String>,
    /// For the page: when it was asked.
    #[serde(skip)]
    pub now_ns: u64,
}

impl Listing for Jobs {
    type Row = Job;
    const COLUMNS: &'static [&'static str] = &[
        "job",
        "run",
        "attempt",
        "state",
        "started_at",
        "ended_at",
        "world_size",
        "ranks",
        "events",
        "stored_bytes",
        "source",
        "labels",
        "worst_severity",
        "worst_kind",
        "inconclusive",
        "verdict",
        "sentence",
        "tenant",
    ];

    fn rows(&self) -> &[Job] {
        &self.jobs
    }

    fn cells(job: &Job) -> Vec<Cell> {
        let labels: Vec<String> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            Cell::text(&job.name),
            Cell::maybe(job.run),
            Cell::plain(job.attempt),
            Cell::plain(job.state.name()),
            Cell::plain(job.started_at),
            Cell::maybe(job.ended_at),
            Cell::maybe(job.world_size),
            Cell::plain(job.ranks),
            Cell::plain(job.events),
            Cell::plain(job.stored_bytes),
            Cell::maybe(job.source.as_deref()),
            Cell::text(labels.join(" ")),
            Cell::maybe(job.verdict.as_ref().and_then(|verdict| verdict.severity.as_deref())),
            Cell::maybe_text(job.verdict.as_ref().and_then(|verdict| verdict.finding.as_deref())),
            Cell::maybe_text(job.verdict.as_ref().and_then(|verdict| verdict.inconclusive.as_deref())),
            Cell::maybe_text(job.memory().map(|verdict| verdict.kind.as_str())),
            Cell::maybe_text(job.memory().map(|verdict| verdict.sentence.as_str())),
            Cell::text(&job.tenant),
        ]
    }
}
