//! `memctl node check`: the processes that hold memory of this machine's devices, and whose they are. For the prolog and
//! epilog of a batch system.
//!
//! Guarantees: changes nothing and ends no process. Asks neither a daemon nor a store. If it cannot be
//! known whether a process has a job, the process counts as unknown, and is never a reason to refuse.

mod view;

use std::io::Write;

use memctl_model::HumanBytes;

use crate::args::node::{NodeCheck, NodeCommand};
use crate::args::{self, Global};
use crate::exit::Failure;
use crate::hosting;
use crate::process_owner::Jobs;
use crate::render::screen::Screen;
use crate::render::text::plural;
use view::{Check, Device, Process};

/// See the module.
///
/// # Errors
/// No driver can be asked, or with `--refuse`, memory is held that no running job explains.
pub fn run(args: &args::Node, global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let NodeCommand::Check(args) = &args.command;
    let devices = hosting::device_readings()
        .map_err(|reason| Failure::unreachable(format!("the devices cannot be asked: {reason}")))?;
    let jobs = Jobs::of_this_machine(args.ended.clone());
    let check = Check::new(devices.into_iter().map(|device| of_device(device, &jobs, args)).collect());
    view::print(&check, global, screen, out).map_err(|error| Failure::output("standard output", &error))?;
    match check.held_without_a_job() {
        held if args.refuse && held.bytes > 0 => Err(Failure::found(format!(
            "{} on {} is held by no running job",
            HumanBytes::of(held.bytes),
            plural(held.devices, "device"),
        ))),
        _ => Ok(()),
    }
}

fn of_device(device: hosting::DeviceUse, jobs: &Jobs, args: &NodeCheck) -> Device {
    let hosting::DeviceUse { ordinal, uuid, name, total_bytes, used_bytes, processes } = device;
    let processes: Option<Vec<Process>> = processes.map(|listed| {
        let all =
            listed.into_iter().map(|(pid, used_bytes)| Process::new(jobs.process(pid, &args.allowed), used_bytes));
        all.collect()
    });
    let of_processes = |listed: &Vec<Process>| {
        // The sum is only known if the driver reports all of them.
        let sizes = listed.iter().map(|process| process.used_bytes);
        sizes.sum::<Option<u64>>().and_then(|sum| used_bytes?.checked_sub(sum))
    };
    let rest = processes.as_ref().and_then(of_processes);
    let no_process_bytes = rest.filter(|&rest| rest >= args.above).unwrap_or(0);
    let is_counted = |process: &&Process| process.owner.is_no_running_job();
    let left =
        processes.iter().flatten().filter(is_counted).map(|process| process.used_bytes.unwrap_or(0)).sum::<u64>();
    let no_job_bytes = if left >= args.above { left } else { 0 };
    Device { ordinal, uuid, name, total_bytes, used_bytes, processes, no_process_bytes, no_job_bytes }
}
