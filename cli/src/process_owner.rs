//! Whose a process is: its user, its program, and its job.
//!
//! A process's control group names its job under Slurm (`job_1234`, cgroup plugin) and its pod under Kubernetes
//! (`kubepods`). Without such a group, its environment names the job that started it, which may have ended.
//! Guarantees: each fact is missing if the kernel does not show it. A program that Slurm provides ends within five
//! seconds or is killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

/// At most this many bytes of a process's environment are read; the kernel allows more.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// How long Slurm's program may take. slurmd, which it asks, is on the same machine.
const LIST_MAX: Duration = Duration::from_secs(5);

/// To whom a process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A job or pod that runs.
    Job,
    /// A job that has ended.
    EndedJob,
    /// No job.
    NoJob,
    /// A program that may hold memory without a job.
    Allowed,
    /// It cannot be known: the process is not visible, or belongs to another user.
    Unknown,
}

impl Owner {
    /// Whether the process is known to belong to no job that runs.
    pub const fn is_no_running_job(self) -> bool {
        matches!(self, Self::NoJob | Self::EndedJob)
    }
}

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its id.
    pub pid: u32,
    /// The id of its user.
    pub uid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Its job, as Slurm numbers it, or `pod`.
    pub job: Option<String>,
    /// To whom it belongs.
    pub owner: Owner,
}

/// The jobs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    ended: Option<String>,
    /// Jobs that run here; `None` if Slurm does not say.
    running: Option<BTreeSet<String>>,
}

impl Jobs {
    /// Asks Slurm, if it is installed. `ended` has ended although Slurm may still list it.
    pub fn of_this_machine(ended: Option<String>) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_epilog = variable("SLURM_SCRIPT_CONTEXT").is_some_and(|context| context.starts_with("epilog"));
        let ended = ended.or_else(|| variable("SLURM_JOB_ID").filter(|_| is_epilog));
        Self { ended, running: listed(variable("SLURMD_NODENAME").as_deref()).map(|text| jobs_of(&text)) }
    }

    /// What is known of a process.
    pub fn process(&self, pid: u32, allowed: &[String]) -> Facts {
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let program = text("comm").map(|name| name.trim_end().to_owned());
        let uid = text("status").as_deref().and_then(uid_of);
        let of_group = text("cgroup").as_deref().and_then(job_of_group);
        let environment = if of_group.is_some() { None } else { environment(pid) };
        let (job, owner) = match (of_group, &environment) {
            (Some(job), _) if self.ended.as_ref() == Some(&job) => (Some(job), Owner::EndedJob),
            (Some(job), _) => (Some(job), Owner::Job),
            (None, Some(environment)) => self.of_environment(environment),
            (None, None) => (None, Owner::Unknown),
        };
        let is_allowed = owner != Owner::Job && program.as_ref().is_some_and(|name| is_named(name, allowed));
        Facts { pid, uid, program, job, owner: if is_allowed { Owner::Allowed } else { owner } }
    }

    fn of_environment(&self, environment: &[u8]) -> (Option<String>, Owner) {
        let Some(job) = job_of_environment(environment) else { return (None, Owner::NoJob) };
        let has_ended =
            self.ended.as_ref() == Some(&job) || self.running.as_ref().is_some_and(|jobs| !jobs.contains(&job));
        (Some(job), if has_ended { Owner::EndedJob } else { Owner::Job })
    }
}

/// The kernel keeps 15 bytes of a program's name.
fn is_named(program: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|name| name == program || (program.len() == 15 && name.starts_with(program)))
}

fn environment(pid: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The effective user of `/proc/PID/status`.
fn uid_of(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)?.parse().ok())
}

fn job_of_group(groups: &str) -> Option<String> {
    let parts = || groups.lines().flat_map(|line| line.split('/'));
    let of_slurm = parts().find_map(|part| part.strip_prefix("job_").filter(|number| is_number(number)));
    let is_pod = || parts().any(|part| part.starts_with("kubepods"));
    of_slurm.map(str::to_owned).or_else(|| is_pod().then(|| "pod".to_owned()))
}

fn job_of_environment(environment: &[u8]) -> Option<String> {
    let value = |line: &[u8]| Some(std::str::from_utf8(line.strip_prefix(b"SLURM_JOB_ID=")?).ok()?.to_owned());
    environment.split(|&byte| byte == 0).find_map(value).filter(|number| is_number(number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The output of `scontrol listpids`, which asks slurmd on this machine; `None` without Slurm, or if it fails.
fn listed(node: Option<&str>) -> Option<String> {
    let mut command = Command::new("scontrol");
    command.arg("listpids").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(node) = node {
        // Without a job, the node is named by a variable.
        command.env("SLURMD_NODENAME", node);
    }
    let mut child = command.spawn().ok()?;
    let end = Instant::now() + LIST_MAX;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= end {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The jobs of a list with the head `PID JOBID STEPID LOCALID GLOBALID`.
fn jobs_of(list: &str) -> BTreeSet<String> {
    let job = |line: &str| line.split_whitespace().nth(1).filter(|job| is_number(job)).map(str::to_owned);
    list.lines().filter_map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_names_the_job() {
        for (groups, job) in [
            ("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n", Some("1234")),
            ("9:memory:/slurm/uid_1000/job_7/step_batch\n0::/\n", Some("7")),
            ("0::/kubepods.slice/kubepods-burstable.slice/x\n", Some("pod")),
            ("0::/user.slice/user-1000.slice/job_x\n", None),
            ("", None),
        ] {
            assert_eq!(job_of_group(groups).as_deref(), job, "{groups}");
        }
    }

    #[test]
    fn an_environment_names_a_job_that_may_have_ended() {
        let own = std::process::id();
        let environment = b"HOME=/\0SLURM_JOB_ID=12\0SLURM_JOB_ID_X=3\0";
        let of = |jobs: &Jobs| jobs.of_environment(environment);
        let running = |jobs: &[&str]| Some(jobs.iter().map(|&job| job.to_owned()).collect());
        let job = Some("12".to_owned());
        assert_eq!(of(&Jobs::default()), (job.clone(), Owner::Job), "nothing says that it has ended");
        let ended = Jobs { ended: job.clone(), running: running(&["12"]) };
        assert_eq!(of(&ended), (job.clone(), Owner::EndedJob));
        assert_eq!(of(&Jobs { ended: None, running: running(&["13"]) }), (job, Owner::EndedJob));
        assert_eq!(Jobs::default().of_environment(b"SLURM_JOB_ID=x\0"), (None, Owner::NoJob));
        let facts = Jobs::default().process(own, &[]);
        assert!(facts.program.is_some() && facts.uid.is_some() && facts.owner != Owner::Unknown, "{facts:?}");
        assert_eq!(Jobs::default().process(u32::MAX, &[]).owner, Owner::Unknown);
    }

    #[test]
    fn long_names_are_compared_as_the_kernel_cuts_them() {
        let allowed = ["nvidia-cuda-mps-server".to_owned(), "dcgm".to_owned()];
        assert!(is_named("nvidia-cuda-mps", &allowed) && is_named("dcgm", &allowed));
        assert!(!is_named("nvidia", &allowed) && !is_named("python", &allowed));
    }

    #[test]
    fn a_list_of_slurm() {
        let list = "PID      JOBID    STEPID   LOCALID GLOBALID\n 81       4        batch    0       0\n 90       5        0        -       -\n";
        assert_eq!(jobs_of(list), BTreeSet::from(["4".to_owned(), "5".to_owned()]));
        assert_eq!(jobs_of("No steps found\n"), BTreeSet::new());
    }
}
