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
        left("WORST FINDING", 1),
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
            worst(job),
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

/// `warning leak`, `none found`, `inconclusive`: no finding reads as health only where the job was judged.
fn worst(job: &Job) -> (String, Option<Tone>) {
    let Some(verdict) = &job.verdict else { return ("not judged yet".to_owned(), None) };
    match (verdict.severity, &verdict.inconclusive) {
        (Some(severity), undecided) => {
            let kind = verdict.kind.as_deref().unwrap_or("finding").replace('_', " ");
            let tone = if severity == "info" { None } else { Some(Tone::Alert) };
            let open = if undecided.is_some() && severity == "info" { ", inconclusive" } else { "" };
            (format!("{severity}: {kind}{open}"), tone)
        }
        (None, Some(_)) => ("inconclusive".to_owned(), Some(Tone::Alert)),
        (None, None) => ("none found".to_owned(), None),
    }
}
