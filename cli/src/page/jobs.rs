//! The page of `memctl jobs`: a table of the jobs.

use memctl_answers::Job;
use memctl_answers::format::time;
use memctl_answers::jobs::Jobs;
use memctl_answers::naming::shell_word;
use memctl_model::{HumanBytes, JobState};

use super::{Page, next};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, safe};

impl Page for Jobs {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(jobs: &Jobs, screen: &Screen) -> String {
    if jobs.jobs.is_empty() && jobs.filtered {
        return "No job matches.\n".to_owned();
    }
    if let (true, Some(tenant)) = (jobs.jobs.is_empty(), &jobs.tenant) {
        let line = format!(
            "No job of tenant {}. `memctl jobs --tenant '*'` lists the jobs of all tenants, for callers that may see them.",
            safe(tenant)
        );
        return format!("{}\n", screen.wrapped(&line, 0));
    }
    if jobs.jobs.is_empty() {
        let ways = [
            ("memctl run --job NAME -- python train.py".to_owned(), "a training, while it runs"),
            ("memctl demo".to_owned(), "a recorded 4-GPU job, without a GPU"),
            ("memctl import FOLDER --job NAME".to_owned(), "PyTorch memory snapshots"),
        ];
        return format!("No jobs yet.\n{}", next(&ways, screen));
    }
    // Jobs of different tenants may have the same name.
    let several = jobs.jobs.iter().any(|job| job.tenant != jobs.jobs[0].tenant);
    let attempts = jobs.jobs.iter().any(|job| job.attempt > 0);
    let mut columns = vec![
        right("AGE", 0),
        left("JOB", 0),
        left("STATE", 0),
        left("VERDICT", 1),
        right("RANKS", 2),
        right("LASTED", 2),
        right("STORED", 3),
        right("EVENTS", 4),
        left("STARTED", 5),
        left("SOURCE", 5),
        left("LABELS", 6),
    ];
    // The attempt's column comes after the job's column.
    if attempts {
        columns.insert(2, right("ATTEMPT", 1));
    }
    if several {
        columns.insert(1, left("TENANT", 0));
    }
    let mut table = Table::new(&columns);
    for job in &jobs.jobs {
        let tone = match job.state {
            JobState::Failed | JobState::Lost => Some(Tone::Alert),
            JobState::Running => Some(Tone::Good),
            JobState::Finished => None,
        };
        let labels: Vec<String> =
            job.labels.iter().map(|(key, value)| format!("{key}={}", shell_word(value))).collect();
        let mut cells = vec![
            (time::age(jobs.now_ns.saturating_sub(job.arrived_at.0)), None),
            (job.id.clone(), Some(Tone::Strong)),
            (job.state.name().to_owned(), tone),
            verdict(job),
            (super::ranks_of(job).replace(" ranks", "").replace(" rank", ""), None),
            (job.ended_at.map(|end| time::duration(end.0.saturating_sub(job.started_at.0))).unwrap_or_default(), None),
            (HumanBytes::of(job.stored_bytes).to_string(), None),
            (count(job.events), None),
            (time::date(job.started_at.0), None),
            (job.source.as_deref().unwrap_or("-").to_owned(), None),
            (labels.join(" "), None),
        ];
        if attempts {
            cells.insert(2, (job.attempt.to_string(), None));
        }
        if several {
            cells.insert(1, (job.tenant.clone(), None));
        }
        table.toned(cells);
    }
    table.show(screen)
}

/// The text of a verdict, such as `leak`, `growing` or `steady`. If the memory has no problem, the worst other finding,
/// such as `warning: rank lost`.
fn verdict(job: &Job) -> (String, Option<Tone>) {
    let Some(judged) = &job.verdict else { return ("not judged yet".to_owned(), None) };
    let Some(verdict) = &judged.verdict else { return ("-".to_owned(), None) };
    let alert = verdict.words();
    match (judged.severity.as_deref(), &judged.finding) {
        (Some(severity @ ("warning" | "critical")), Some(kind)) if !verdict.is_grave() => {
            (format!("{severity}: {}", kind.replace('_', " ")), Some(Tone::Alert))
        }
        _ => (alert.to_owned(), verdict.is_grave().then_some(Tone::Alert)),
    }
}

#[cfg(test)]
mod tests {
    use memctl_answers::Job;

    use super::*;

    #[test]
    fn jobs_of_several_tenants_say_whose_they_are() {
        let of = |tenants: &[&str]| {
            let job = |tenant: &&str| Job { id: "cache".into(), tenant: (*tenant).to_owned(), ..Job::default() };
            let jobs = Jobs { jobs: tenants.iter().map(job).collect(), ..Jobs::default() };
            page(&jobs, &Screen { columns: Some(80), unicode: true, colour: false })
        };
        let several = of(&["default", "vision"]);
        assert!(several.contains("TENANT") && several.contains("vision"), "{several}");
        assert!(!of(&["default", "default"]).contains("TENANT"));
    }

    #[test]
    fn without_a_job_of_the_tenant_its_name_is_shown() {
        let screen = Screen { columns: Some(200), unicode: true, colour: false };
        let jobs = Jobs { tenant: Some("visoin".to_owned()), ..Jobs::default() };
        assert!(page(&jobs, &screen).starts_with("No job of tenant visoin. `memctl jobs --tenant '*'`"));
        assert!(page(&Jobs::default(), &screen).starts_with("No jobs yet."));
    }
}
