//! `memctl jobs` as data.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Answer, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// Jobs, newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Jobs {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// For the page: only some states or labels were asked for.
    #[serde(skip)]
    pub filtered: bool,
    /// For the page: when it was asked.
    #[serde(skip)]
    pub now_ns: u64,
}

impl Answer for Jobs {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.jobs.iter().try_for_each(|job| json::line(out, job))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(
            out,
            &[
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
            ],
        )?;
        self.jobs.iter().try_for_each(|job| {
            let labels: Vec<String> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let cells = [
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
            ];
            csv::record(out, &cells)
        })
    }
}
