//! The processes of a job on a page. If ranks do not identify the processes, each process has a row. If there are many,
//! only the outliers have rows, and the others are counted by role.
//!
//! Guarantees: every process that allocated memory is shown or counted. If the ranks identify the processes, there is
//! no second table beside the table of ranks.

use memctl_model::JobState;
use std::collections::BTreeMap;

use memctl_answers::processes::Process;
use memctl_answers::report::Report;

use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, rank_list, safe};

/// Maximum number of processes that have a row.
const SHOWN: usize = 16;

/// The table, and the number of processes without a row; empty if ranks identify all processes.
#[must_use]
pub fn table(report: &Report, screen: &Screen) -> String {
    let mut out = String::new();
    if !report.processes.iter().all(Process::is_rank) {
        out.push_str(&rows(report, screen));
        out.push('\n');
    }
    let earlier = report.job.earlier_sessions;
    if earlier > 0 {
        let those = if earlier == 1 { "It is" } else { "They are" };
        let text = format!(
            "Not shown: {} that a later one of the same place followed (attached again, imported again, or an earlier run of \
             this name). {those} not judged.",
            plural(u64::from(earlier), "session")
        );
        out.push_str(&super::prose::hanging("", &text, usize::MAX, screen));
        out.push('\n');
    }
    out
}

fn rows(report: &Report, screen: &Screen) -> String {
    let mut table = Table::new(&[
        left("PROCESS", 0),
        right("RANK", 2),
        left("HOST", 5),
        right("PID", 1),
        left("DEVICES", 2),
        right("EVENTS", 1),
        left("STATE", 3),
    ]);
    let processes = &report.processes;
    let folded = processes.len() > SHOWN;
    let is_odd = |process: &&Process| {
        process.state != report.job.state
            || process.failure.is_some()
            || !process.completeness.exact
            || is_told(report, process)
    };
    let shown: Vec<&Process> =
        if folded { processes.iter().filter(is_odd).take(SHOWN).collect() } else { processes.iter().collect() };
    for process in &shown {
        table.toned(row(process, report.job.state));
    }
    let mut out = if shown.is_empty() { String::new() } else { table.show(screen) };
    if folded {
        let mut roles: BTreeMap<&str, u64> = BTreeMap::new();
        for process in processes {
            let role = if process.is_rank() { "rank" } else { process.role.as_deref().unwrap_or("process") };
            *roles.entry(role).or_default() += 1;
        }
        let counts: Vec<String> =
            roles.into_iter().map(|(role, number)| format!("{} {}", count(number), safe(role))).collect();
        let beside = processes.len() - shown.len();
        let text = format!(
            "{} processes in all ({}); {} as the others are not listed (-o json has them all)",
            count(processes.len() as u64),
            counts.join(", "),
            count(beside as u64)
        );
        out.push_str(&format!("{}\n", screen.wrapped(&text, 0)));
    }
    out
}

/// Whether a finding is about this process, and not about all processes.
fn is_told(report: &Report, process: &Process) -> bool {
    report
        .findings
        .iter()
        .any(|finding| finding.processes.contains(&process.process) && finding.processes.len() < report.processes.len())
}

fn row(process: &Process, job_state: JobState) -> Vec<(String, Option<Tone>)> {
    let state = match &process.failure {
        Some(failure) => safe(failure).into_owned(),
        None if process.state == job_state => String::new(),
        None => process.state.name().to_owned(),
    };
    vec![
        (safe(&process.process).into_owned(), None),
        (process.rank.to_string(), None),
        (process.host.as_deref().map(|host| safe(host).into_owned()).unwrap_or_default(), None),
        (process.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()), None),
        (if process.devices.is_empty() { "-".to_owned() } else { rank_list(&process.devices) }, None),
        (count(process.events), None),
        (state, process.failure.as_ref().map(|_| Tone::Alert)),
    ]
}
