//! `memctl leaks` as data: the findings about growing memory, in full.

use std::io::{self, Write};

use memctl_model::{FindingKind, VerdictKind};
use serde::Serialize;

use super::finding::{self, Finding};
use super::judged::Scope;
use super::report::Report;
use super::verdict::Verdict;
use super::{Answer, Completeness, Job, SCHEMA};
use crate::format::json;

/// The findings about growth.
#[derive(Clone, Debug, Serialize)]
pub struct Leaks {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// What grows, the worst first.
    pub findings: Vec<Finding>,
    /// Findings of severity `info` that are left out: suspected, and perhaps harmless.
    pub suspected_left_out: usize,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// What the job's memory did; null from a daemon that does not say.
    pub verdict: Option<Verdict>,
    /// What they were found in.
    #[serde(skip)]
    pub report: Report,
}

/// Whether a kind is about growth.
#[must_use]
pub const fn grows(kind: FindingKind) -> bool {
    kind.growth().is_some()
}

impl Leaks {
    /// Makes the answer from a report; `all` includes suspected findings. If memory grows and no other finding explains
    /// it, suspected findings are always included, because they name the place.
    #[must_use]
    pub fn new(report: Report, all: bool) -> Self {
        let growing: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.known_kind().is_some_and(grows)).collect();
        let is_growing = |verdict: &Verdict| verdict.known_kind() == Some(VerdictKind::Growing);
        let is_unexplained = !growing.iter().any(|finding| finding.is_warning_or_worse());
        let all = all || (is_unexplained && report.verdict.as_ref().is_some_and(is_growing));
        let (findings, left_out): (Vec<Finding>, Vec<Finding>) =
            growing.into_iter().cloned().partition(|finding| all || finding.is_warning_or_worse());
        Self {
            schema: SCHEMA,
            job: report.job.clone(),
            completeness: report.completeness,
            findings,
            suspected_left_out: left_out.len(),
            scope: report.scope.clone(),
            verdict: report.verdict.clone(),
            report,
        }
    }
}

impl Answer for Leaks {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.findings.iter().try_for_each(|finding| json::line(out, finding))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        finding::csv(&self.findings, out)
    }
}
