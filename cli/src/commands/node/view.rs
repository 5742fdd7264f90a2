//! The response of `memctl node check`, as a page and as data.

use std::io::{self, Write};

use memctl_answers::SCHEMA;
use memctl_answers::format::csv::{self, Cell};
use memctl_answers::format::json;
use memctl_model::HumanBytes;
use serde::Serialize;

use crate::args::{Format, Global};
use crate::process_owner::{Facts, Owner};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, safe};

/// A process with memory on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its bytes on the device; `None` if the driver does not report them.
    pub used_bytes: Option<u64>,
    /// The id of its user.
    pub uid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Its job of Slurm, or `pod`.
    pub job: Option<String>,
    /// To whom it belongs.
    pub owner: Owner,
}

impl Process {
    /// A process with its memory.
    pub fn new(facts: Facts, used_bytes: Option<u64>) -> Self {
        let Facts { pid, uid, program, job, owner } = facts;
        Self { pid, used_bytes, uid, program, job, owner }
    }
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its number on this machine.
    pub ordinal: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its name.
    pub name: Option<String>,
    /// Its memory.
    pub total_bytes: Option<u64>,
    /// The memory that programs use.
    pub used_bytes: Option<u64>,
    /// Its processes; `None` if the driver does not list them.
    pub processes: Option<Vec<Process>>,
    /// Memory of processes of no running job, 0 if less than `--above`.
    pub no_job_bytes: u64,
    /// Memory in use that no listed process holds, 0 if less than `--above`.
    pub no_process_bytes: u64,
}

/// The whole response.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    schema: u32,
    /// Devices by number.
    pub devices: Vec<Device>,
}

/// Memory that no running job explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Bytes on all devices.
    pub bytes: u64,
    /// Devices with such memory.
    pub devices: u64,
}

impl Check {
    /// The response about these devices.
    pub const fn new(devices: Vec<Device>) -> Self {
        Self { schema: SCHEMA, devices }
    }

    /// Memory that no running job explains.
    pub fn held_without_a_job(&self) -> Held {
        let of = |device: &Device| device.no_job_bytes + device.no_process_bytes;
        let held = self.devices.iter().map(of).filter(|&bytes| bytes > 0);
        Held { bytes: held.clone().sum(), devices: held.count() as u64 }
    }
}

/// Prints the response.
///
/// # Errors
/// The writer's.
pub fn print(check: &Check, global: &Global, screen: &Screen, out: &mut dyn Write) -> io::Result<()> {
    match global.output {
        Format::Table => out.write_all(page(check, screen).as_bytes()),
        Format::Json => json::pretty(out, check),
        Format::Ndjson => check.devices.iter().try_for_each(|device| json::line(out, device)),
        Format::Csv => {
            csv::header(out, &["device", "pid", "used_bytes", "uid", "program", "job", "owner"])?;
            let rows = check
                .devices
                .iter()
                .flat_map(|device| device.processes.iter().flatten().map(|process| (device.ordinal, process)));
            for (ordinal, process) in rows {
                csv::record(
                    out,
                    &[
                        Cell::plain(ordinal),
                        Cell::plain(process.pid),
                        Cell::maybe(process.used_bytes),
                        Cell::maybe(process.uid),
                        Cell::maybe_text(process.program.as_deref()),
                        Cell::maybe_text(process.job.as_deref()),
                        Cell::plain(word(process.owner)),
                    ],
                )?;
            }
            Ok(())
        }
    }
}

const fn word(owner: Owner) -> &'static str {
    match owner {
        Owner::Job => "job",
        Owner::EndedJob => "ended_job",
        Owner::NoJob => "no_job",
        Owner::Allowed => "allowed",
        Owner::Unknown => "unknown",
    }
}

fn page(check: &Check, screen: &Screen) -> String {
    let held = check.held_without_a_job();
    let devices = plural(check.devices.len() as u64, "device");
    let is_unknown = |process: &Process| process.owner == Owner::Unknown;
    let has_unknown = check.devices.iter().any(|device| device.processes.iter().flatten().any(is_unknown));
    let sentence = match held.bytes {
        0 if has_unknown => format!("No memory of {devices} is known to be held without a running job."),
        0 => screen.paint(Tone::Good, &format!("No memory of {devices} is held without a running job.")),
        bytes => screen.paint(
            Tone::Alert,
            &format!("{} on {} of {devices} is held by no running job.", HumanBytes::of(bytes), held.devices),
        ),
    };
    let mut out = format!("{sentence}\n\n");
    let mut table = Table::new(&[
        right("GPU", 0),
        right("USED", 1),
        right("OF", 2),
        right("PID", 0),
        right("HOLDS", 0),
        left("PROGRAM", 3),
        right("USER", 4),
        left("WHOSE", 0),
    ]);
    for device in &check.devices {
        rows(device, &mut table);
    }
    out.push_str(&table.show(screen));
    if has_unknown {
        out.push_str(
            "\nThe jobs of some processes are unknown: run this as root, on the host and not in a container.\n",
        );
    }
    out
}

fn rows(device: &Device, table: &mut Table) {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| HumanBytes::of(bytes).to_string());
    let mut first = vec![device.ordinal.to_string(), size(device.used_bytes), size(device.total_bytes)];
    let mut row = |rest: [String; 5]| {
        table.row(first.drain(..).chain(std::iter::repeat_n(String::new(), 3)).take(3).chain(rest).collect());
    };
    let none = || [String::new(), String::new(), String::new(), String::new()];
    let with = |cells: [String; 4], whose: &str| {
        let [pid, holds, program, user] = cells;
        [pid, holds, program, user, whose.to_owned()]
    };
    match device.processes.as_deref() {
        None => row(with(none(), "the driver does not list processes")),
        Some([]) if device.no_process_bytes == 0 => row(with(none(), "free")),
        Some(processes) => {
            for process in processes {
                let program = process.program.as_deref().map_or_else(|| "-".to_owned(), |name| safe(name).into_owned());
                let user = process.uid.map_or_else(|| "-".to_owned(), |uid| uid.to_string());
                row(with([process.pid.to_string(), size(process.used_bytes), program, user], &whose(process)));
            }
        }
    }
    if device.no_process_bytes > 0 {
        let holds = size(Some(device.no_process_bytes));
        row(with(
            ["-".to_owned(), holds, "-".to_owned(), "-".to_owned()],
            "no process: see nvidia-smi, or reset the device",
        ));
    }
}

fn whose(process: &Process) -> String {
    let job = process.job.as_deref().map_or_else(String::new, safe_job);
    match process.owner {
        Owner::Job => job,
        Owner::EndedJob => format!("{job}, which has ended"),
        Owner::NoJob => "no job".to_owned(),
        Owner::Allowed => "allowed".to_owned(),
        Owner::Unknown => "unknown".to_owned(),
    }
}

fn safe_job(job: &str) -> String {
    if job == "pod" { "a pod".to_owned() } else { format!("job {}", safe(job)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { columns: Some(100), unicode: true, colour: false };

    fn process(pid: u32, mebibytes: u64, job: Option<&str>, owner: Owner) -> Process {
        let facts = Facts { pid, uid: Some(1000), program: Some("python".into()), job: job.map(str::to_owned), owner };
        Process::new(facts, Some(mebibytes << 20))
    }

    fn device(ordinal: u32, processes: Option<Vec<Process>>, no_job: u64, no_process: u64) -> Device {
        let (no_job_bytes, no_process_bytes) = (no_job << 20, no_process << 20);
        let (total_bytes, used_bytes) = (Some(80 << 30), Some(900 << 20));
        let uuid = format!("GPU-{ordinal}");
        Device { ordinal, uuid, name: None, total_bytes, used_bytes, processes, no_job_bytes, no_process_bytes }
    }

    #[test]
    fn a_page() {
        let used = vec![process(7, 600, Some("12"), Owner::EndedJob), process(9, 300, Some("13"), Owner::Job)];
        let devices = vec![device(0, Some(used), 600, 0), device(1, Some(Vec::new()), 0, 900), device(2, None, 0, 0)];
        let check = Check::new(devices);
        assert_eq!(check.held_without_a_job(), Held { bytes: 1_500 << 20, devices: 2 });
        insta::assert_snapshot!(page(&check, &SCREEN), @"
        1.46 GiB on 2 of 3 devices is held by no running job.

        GPU     USED        OF  PID    HOLDS  PROGRAM  USER  WHOSE
          0  900 MiB  80.0 GiB    7  600 MiB  python   1000  job 12, which has ended
                                  9  300 MiB  python   1000  job 13
          1  900 MiB  80.0 GiB    -  900 MiB  -           -  no process: see nvidia-smi, or reset the device
          2  900 MiB  80.0 GiB                               the driver does not list processes
        ");
        let free = Check::new(vec![device(0, Some(vec![process(9, 300, None, Owner::Unknown)]), 0, 0)]);
        insta::assert_snapshot!(page(&free, &SCREEN), @"
        No memory of 1 device is known to be held without a running job.

        GPU     USED        OF  PID    HOLDS  PROGRAM  USER  WHOSE
          0  900 MiB  80.0 GiB    9  300 MiB  python   1000  unknown

        The jobs of some processes are unknown: run this as root, on the host and not in a container.
        ");
    }
}
