//! The table of jobs.

use memctl_answers::Job;
use memctl_answers::format::time;
use memctl_answers::jobs::Jobs;
use memctl_answers::naming::shell_word;
use memctl_model::{HumanBytes, JobState};

use super::{Page, next};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::count;

impl Page for Jobs {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// See the module.
#[must_use]
pub fn page(jobs: &Jobs, screen: &Screen) -> String {
    if jobs.jobs.is_empty() && jobs.filtered {
        return "No job matches.\n".to_owned();
    }
    if jobs.jobs.is_empty() {
        let ways = [
            ("memctl demo".to_owned(), "a recorded 4-GPU job, without a GPU"),
            ("memctl import FOLDER --job NAME".to_owned(), "PyTorch memory snapshots"),
        ];
        return format!("No jobs yet.\n{}", next(&ways, screen));
    }
    let mut table = Table::new(&[
        left("JOB", 0),
        right("ATTEMPT", 4),
        left("STATE", 0),
        left("VERDICT", 1),
        right("RANKS", 2),
        left("STARTED", 4),
        right("LASTED", 3),
        right("EVENTS", 2),
        right("STORED", 3),
        left("SOURCE", 5),
        left("LABELS", 6),
    ]);
    for job in &jobs.jobs {
        let tone = match job.state {
            JobState::Failed | JobState::Lost => Some(Tone::Alert),
            JobState::Running => Some(Tone::Good),
            JobState::Finished => None,
        };
        let labels: Vec<String> =
            job.labels.iter().map(|(key, value)| format!("{key}={}", shell_word(value))).collect();
        let cells = [
            (job.id.clone(), Some(Tone::Strong)),
            (job.attempt.to_string(), None),
            (job.state.name().to_owned(), tone),
            verdict(job),
            (super::ranks_of(job).replace(" ranks", "").replace(" rank", ""), None),
            (time::date(job.started_ns), None),
            (job.ended_ns.map(|end| time::duration(end.saturating_sub(job.started_ns))).unwrap_or_default(), None),
            (count(job.events), None),
            (HumanBytes::of(job.stored_bytes).to_string(), None),
            (job.source.unwrap_or("-").to_owned(), None),
            (labels.join(" "), None),
        ];
        table.toned(cells.into());
    }
    table.show(screen)
}

/// `leak`, `growing, cause open`, `steady`; beside memory that is well the worst finding: `warning: rank lost`.
fn verdict(job: &Job) -> (String, Option<Tone>) {
    let Some(judged) = &job.verdict else { return ("not judged yet".to_owned(), None) };
    let Some(verdict) = &judged.verdict else { return ("-".to_owned(), None) };
    let alert = verdict.words();
    match (judged.severity, &judged.finding) {
        (Some(severity @ ("warning" | "critical")), Some(kind)) if !verdict.is_grave() => {
            (format!("{severity}: {}", kind.replace('_', " ")), Some(Tone::Alert))
        }
        _ => (alert.to_owned(), verdict.is_grave().then_some(Tone::Alert)),
    }
}
