//! The page of `memctl need`: the answer in sentences, the devices, the sizes around what is needed, and the hosts.
//!
//! The page begins with the answer. It ends with what was not analysed.

use memctl_answers::format::time;
use memctl_answers::naming::{name_of, place};
use memctl_answers::need::{Device, Fit, Need, Size};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, heading, place_of, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, safe};

/// Maximum number of rows of the devices, those with the highest need, and of the hosts. The data formats have more.
const ROWS: usize = 8;
/// Maximum number of usual sizes that fit, of those that fail, and of those of which nothing is known.
const SIZES: usize = 3;

impl Page for Need {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Need, screen: &Screen) -> String {
    let mut out = heading(&answer.job, screen);
    out.push_str(&format!("\n{}", paragraph(&answer.answer, 0, screen)));
    for part in [devices(answer, screen), sizes(answer, screen), hosts(answer, screen), unused(answer, screen)] {
        if !part.is_empty() {
            out.push_str(&format!("\n{part}"));
        }
    }
    for (title, lines) in [("Notes:", &answer.notes), ("Not looked at:", &answer.not_looked_at)] {
        if !lines.is_empty() {
            let lines: String = lines.iter().map(|line| paragraph(line, 2, screen)).collect();
            out.push_str(&format!("\n{title}\n{lines}"));
        }
    }
    out.push('\n');
    out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
    out
}

fn devices(answer: &Need, screen: &Screen) -> String {
    let mut highest: Vec<&Device> = answer.devices.iter().collect();
    highest.sort_by_key(|device| std::cmp::Reverse(device.needed_bytes));
    let mut table = Table::new(&[
        right("RANK", 0),
        right("CUDA", 1),
        left("GPU", 7),
        right("TOTAL", 2),
        right("ALLOCATED", 4),
        right("RESERVED", 3),
        right("OUTSIDE", 3),
        right("NEEDED", 0),
        right("UNUSED", 1),
    ]);
    for device in highest.iter().take(ROWS) {
        table.row(vec![
            place_of(&device.process, device.rank),
            // A column without values is not shown.
            if has_several(answer) { device.device.to_string() } else { String::new() },
            device.gpu_name.clone().unwrap_or_default(),
            bytes(device.device_total_bytes),
            bytes(device.peak_allocated_bytes),
            bytes(device.peak_reserved_bytes),
            match device.assumed_outside_bytes {
                Some(assumed) => format!("~{}", bytes(Some(assumed))),
                None => bytes(device.outside_bytes),
            },
            bytes(device.needed_bytes),
            bytes(device.unused_bytes),
        ]);
    }
    if highest.is_empty() { String::new() } else { table.show(screen) + &left_out(highest.len(), "device", screen) }
}

/// Whether a process used several devices.
fn has_several(answer: &Need) -> bool {
    answer.devices.iter().any(|device| device.device > 0)
}

/// The sizes around what is needed: the smallest that fit, the largest that fail, and those between them.
fn sizes(answer: &Need, screen: &Screen) -> String {
    let of = |outcome: Fit| answer.sizes.iter().filter(move |size| size.outcome == outcome && !size.asked);
    let fitting: Vec<&str> = of(Fit::Fits).take(SIZES).map(|size| &*size.name).collect();
    let failing: Vec<&str> = of(Fit::Fails).rev().take(SIZES).map(|size| &*size.name).collect();
    let unknown: Vec<&str> = of(Fit::Unknown).take(SIZES).map(|size| &*size.name).collect();
    let is_shown = |size: &&Size| match size.outcome {
        _ if size.asked => true,
        Fit::Fits => fitting.contains(&&*size.name),
        Fit::Fails => failing.contains(&&*size.name),
        Fit::Unknown => unknown.contains(&&*size.name),
        Fit::FitsAfterRetries => true,
    };
    let mut table = Table::new(&[right("SIZE", 0), right("USABLE", 1), left("OUTCOME", 0)]);
    for size in answer.sizes.iter().filter(is_shown) {
        let (text, tone) = outcome(size);
        table.toned(vec![(size.name.clone(), None), (bytes(Some(size.usable_bytes)), None), (text, tone)]);
    }
    if answer.devices.is_empty() { String::new() } else { table.show(screen) }
}

fn outcome(size: &Size) -> (String, Option<Tone>) {
    match size.outcome {
        Fit::Fits => ("fits".to_owned(), Some(Tone::Good)),
        Fit::FitsAfterRetries => (format!("fits, retries: {}", count(size.retries.unwrap_or(0))), None),
        Fit::Fails => (fails(size), Some(Tone::Alert)),
        Fit::Unknown => ("unknown".to_owned(), None),
    }
}

/// `FAILS: rank 0, step 41, forward (train.py:30)`.
fn fails(size: &Size) -> String {
    let Some(failure) = &size.failure else { return "FAILS".to_owned() };
    let name = Some(name_of(&failure.process, failure.rank));
    let event = failure.event.filter(|_| failure.step.is_none()).map(|event| format!("event {event}"));
    let step = failure.step.map(|step| format!("step {step}"));
    let parts = [name, step, event, failure.site.as_ref().map(place)];
    format!("FAILS: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn hosts(answer: &Need, screen: &Screen) -> String {
    let mut table = Table::new(&[
        left("HOST", 0),
        right("PROCESSES", 3),
        right("HOST MEMORY", 0),
        right("ASKED", 1),
        right("DEVICES", 2),
        right("DEVICES ASKED", 2),
    ]);
    for host in answer.hosts.iter().take(ROWS) {
        table.row(vec![
            host.host.clone().unwrap_or_else(|| "-".to_owned()),
            host.processes.to_string(),
            bytes(host.highest_bytes),
            bytes(host.asked_bytes),
            host.devices.to_string(),
            host.devices_asked.map_or_else(|| "-".to_owned(), |devices| devices.to_string()),
        ]);
    }
    let is_known = |host: &memctl_answers::need::Host| host.highest_bytes.or(host.asked_bytes).is_some();
    match answer.hosts.iter().any(is_known) {
        true => table.show(screen) + &left_out(answer.hosts.len(), "host", screen),
        false => String::new(),
    }
}

/// `Unused: 264 GiB h of device memory in 12 h 3 min.`
fn unused(answer: &Need, screen: &Screen) -> String {
    let (Some(hours), Some(seconds)) = (answer.unused_gib_hours, answer.seconds) else { return String::new() };
    let unused = HumanBytes::of((hours * (1_u64 << 30) as f64) as u64);
    let took = time::duration((seconds * 1e9) as u64);
    let devices = plural(answer.devices.len() as u64, "device");
    let text = format!("Never used: {unused} hours of device memory, on {devices} for up to {took}.");
    paragraph(&text, 0, screen)
}

fn left_out(rows: usize, noun: &str, screen: &Screen) -> String {
    let more = rows.saturating_sub(ROWS) as u64;
    let text = format!("({} more: -o json)", plural(more, noun));
    if more > 0 { paragraph(&text, 0, screen) } else { String::new() }
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| HumanBytes::of(bytes).to_string())
}

fn paragraph(text: &str, indent: usize, screen: &Screen) -> String {
    let lines = prose::wrap(&safe(text), prose::columns(screen).saturating_sub(indent));
    lines.into_iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}
