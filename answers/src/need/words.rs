//! The answer of `memctl need` in sentences, and what to know with it.
//!
//! Guarantees: each sentence holds for any job: one that still runs, that failed, whose devices are shared or of unknown
//! size, or whose memory outside the allocator was not measured.

use std::cmp::Reverse;

use memctl_model::{HumanBytes, JobState, VerdictKind};

use super::rows::Row;
use super::{Failure, Fit, Size};
use crate::format::text::{capital, count, plural};
use crate::naming::{name_of, place};
use crate::report::Report;

/// What is needed, and which sizes have it.
pub(super) fn answer(report: &Report, rows: &[Row], sizes: &[Size]) -> String {
    let Some(row) = subject(rows) else {
        return match rows.is_empty() {
            true => "No process of this job is known to have used a device.".to_owned(),
            false => "The peak of no process is recorded, so the memory that the job needs is not known.".to_owned(),
        };
    };
    let is_running = report.job.state == JobState::Running;
    let sentences = [needs(row, rows, is_running), enough(sizes, is_running), less(sizes), unknown(sizes)];
    sentences.into_iter().filter(|sentence| !sentence.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The row that the answer is about: of those that failed, or else of all, the one with the highest need.
fn subject(rows: &[Row]) -> Option<&Row> {
    let known = rows.iter().filter(|row| row.demand.is_some());
    known.max_by_key(|row| (row.device.ooms > 0, row.device.needed_bytes, Reverse(row.at)))
}

fn needs(row: &Row, rows: &[Row], is_running: bool) -> String {
    let device = &row.device;
    let name = named(row, rows);
    let used = used(row);
    let is_highest = rows.len() > 1 && rows.iter().all(|row| row.demand.is_some());
    let others = if is_highest { "; no other process or device of the job needs more" } else { "" };
    if device.ooms > 0 {
        let failed = plural(device.ooms, "request");
        return capital(&format!("{name} did not get the memory that it needs: {failed} failed. It had used {used}."));
    }
    let verb = if is_running { "has needed" } else { "needs" };
    let so_far = if is_running { " so far" } else { "" };
    capital(&format!("{name} {verb} {used}{so_far}{others}."))
}

/// `rank 3`, with its device if the process used several.
fn named(row: &Row, rows: &[Row]) -> String {
    let device = &row.device;
    let is_own = |other: &&Row| (other.device.rank, &other.device.process) == (device.rank, &device.process);
    let name = name_of(&device.process, device.rank);
    if rows.iter().filter(is_own).nth(1).is_some() { format!("{name} on cuda:{}", device.device) } else { name }
}

/// `13.2 GiB of 80.0 GiB (12.1 GiB reserved by its allocator, 1.10 GiB outside it)`.
fn used(row: &Row) -> String {
    let device = &row.device;
    let needed = bytes(device.needed_bytes.unwrap_or(0));
    let of = device.device_total_bytes.map_or_else(String::new, |total| format!(" of {}", bytes(total)));
    let reserved = bytes(device.peak_reserved_bytes.unwrap_or(0));
    match (device.outside_bytes, device.assumed_outside_bytes) {
        (Some(outside), _) => {
            format!("{needed}{of} ({reserved} reserved by its allocator, {} outside it)", bytes(outside))
        }
        (None, assumed) => format!(
            "{needed}{of} ({reserved} reserved by its allocator; {} is assumed for memory outside it, which no measurement shows)",
            bytes(assumed.unwrap_or(0))
        ),
    }
}

/// The smallest size that is enough.
fn enough(sizes: &[Size], is_running: bool) -> String {
    let so_far = if is_running { " so far" } else { "" };
    match sizes.iter().find(|size| size.outcome == Fit::Fits) {
        Some(size) => format!("A device of {} would have been enough{so_far}.", with_bytes(size)),
        None if sizes.iter().all(|size| size.outcome == Fit::Fails) => {
            sizes.last().map_or_else(String::new, |size| format!("No size up to {} is enough.", size.name))
        }
        None => String::new(),
    }
}

/// The sizes below: after retries, and the largest that fails.
fn less(sizes: &[Size]) -> String {
    let retried = sizes.iter().find(|size| size.outcome == Fit::FitsAfterRetries);
    let retried = retried.map(|size| {
        let times = match size.retries {
            Some(1) => "one retry".to_owned(),
            times => format!("up to {} retries of a process", count(times.unwrap_or(0))),
        };
        let name = with_bytes(size);
        format!("With {name} every request is served, after {times} in which the allocator gives its cache back.")
    });
    let failing = sizes.iter().rev().find(|size| size.outcome == Fit::Fails);
    let failing = failing.and_then(|size| Some(format!("With {}, {}.", size.name, fails(size.failure.as_ref()?))));
    [retried, failing].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// `step 41 of rank 0 fails: 1.00 GiB asked in forward (train.py:30)`.
fn fails(failure: &Failure) -> String {
    let Failure { rank, process, event, step, requested_bytes, site, .. } = failure;
    let name = name_of(process, *rank);
    if event.is_none() {
        return format!("{name} runs out of memory");
    }
    let within = site.as_ref().map_or_else(String::new, |site| format!(" in {}", place(site)));
    let asked = requested_bytes.map_or_else(String::new, |asked| format!(": {} asked{within}", bytes(asked)));
    match step {
        Some(step) => format!("step {step} of {name} fails{asked}"),
        None => format!("a request of {name} fails{asked}"),
    }
}

/// The smallest size of which nothing is known.
fn unknown(sizes: &[Size]) -> String {
    let unknown = || sizes.iter().filter(|size| size.outcome == Fit::Unknown);
    let (Some(smallest), Some(largest)) = (unknown().next(), unknown().next_back()) else { return String::new() };
    let names = match smallest.name == largest.name {
        true => smallest.name.clone(),
        false => format!("{} to {}", smallest.name, largest.name),
    };
    let why = smallest.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("Whether {names} is enough is not known{why}.")
}

fn with_bytes(size: &Size) -> String {
    match size.asked {
        true => size.name.clone(),
        false => format!("{} ({} usable)", size.name, bytes(size.usable_bytes)),
    }
}

/// What to know with the answer.
pub(super) fn notes(report: &Report, rows: &[Row]) -> Vec<String> {
    [of_job(report), of_recording(report), of_rows(rows)].concat()
}

fn of_job(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    match report.job.state {
        JobState::Running => notes.push("The job still runs: a later step may need more.".to_owned()),
        JobState::Failed => notes.push("The job failed: a complete run may need more.".to_owned()),
        JobState::Lost => notes.push("The end of the job is not recorded: a complete run may need more.".to_owned()),
        JobState::Finished => {}
    }
    let verdict = report.verdict.as_ref().and_then(|verdict| verdict.known_kind());
    if matches!(verdict, Some(VerdictKind::Growing | VerdictKind::Filling)) {
        notes.push("Its memory grows: a longer run needs more. `memctl leaks` shows what grows.".to_owned());
    }
    notes
}

fn of_recording(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if report.job.source.as_deref() == Some("import") {
        notes.push("The job was imported: a snapshot covers a part of a training.".to_owned());
    }
    if report.completeness.events_dropped > 0 || report.completeness.gaps > 0 {
        notes.push("Events are missing: a peak may be higher than it is shown.".to_owned());
    }
    if let Some(world) = report.job.world_size.filter(|&world| world > report.job.ranks) {
        let recorded = count(u64::from(report.job.ranks));
        notes.push(format!("Of {} only {recorded} are recorded.", plural(u64::from(world), "rank")));
    }
    notes
}

fn of_rows(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    let said = |holds: &dyn Fn(&Row) -> bool| -> Option<String> {
        let mut found = rows.iter().filter(|row| holds(row));
        let first = named(found.next()?, rows);
        let others = found.count() as u64;
        Some(if others > 0 { format!("{first} and {} more", count(others)) } else { first })
    };
    if let Some(names) = said(&|row| row.device.assumed_outside_bytes.is_some()) {
        notes.push(format!("No measurement shows the memory outside the allocator: {names}."));
    }
    if let Some(names) = said(&|row| row.demand.is_none()) {
        notes.push(format!("The peak is not recorded: {names}."));
    }
    if let Some(names) = said(&|row| row.device.device_total_bytes.is_none()) {
        notes.push(format!("The size of the device is not recorded: {names}."));
    }
    if let Some(names) = said(&|row| !row.device.shared_with.is_empty()) {
        notes.push(format!("Processes of the job share a device, which needs the sum of what they need: {names}."));
    }
    let Some(row) = subject(rows) else { return notes };
    let cached = row.demand.map_or(0, |it| it.peak_reserved_bytes.saturating_sub(it.peak_allocated_bytes));
    if cached > 0 {
        let name = named(row, rows);
        notes.push(capital(&format!(
            "{name} had at least {} reserved and not allocated when most was reserved. `memctl what-if` shows settings that need less.",
            bytes(cached)
        )));
    }
    notes
}

fn bytes(bytes: u64) -> String {
    HumanBytes::of(bytes).to_string()
}
