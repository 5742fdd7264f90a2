//! Identifies a training process: job, attempt, rank, size of the job, role and labels. They are read from the
//! environment that the launcher set.
//!
//! The functions are pure: the environment is passed as a function, and time and host as values. A table of tests has a
//! row for every launcher. Each field is filled by the first source that has it ([`Source`] lists the sources in
//! order). The wire accepts every result. Values that were ignored or cleaned are listed in [`Identity::complaints`],
//! for a log. Identification never fails: without other sources the job has the name of the script.

mod group;
mod job;
mod labels;
mod role;
mod text;

#[cfg(test)]
mod tests;

use memctl_model::limits::LABEL_BYTES_MAX;

use text::{cut, number, value_of};

/// The wire refuses a session with a rank beyond this, which would be a mistake.
const RANKS_MAX: u32 = 1 << 20;
/// Factor that keeps two restart counts apart in one number: the batch system's and, within one of its starts, the
/// elastic launcher's.
const RESTARTS_APART: u32 = 1_000;
/// Maximum number of complaints. An environment full of invalid values must not flood the log.
const COMPLAINTS_MAX: usize = 16;

/// The source of a value, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The caller gave it: a flag, or an argument of `attach`.
    Given,
    /// A variable `MEMCTL_*`.
    Memctl,
    /// torchrun, or another launcher that sets PyTorch's `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// SLURM.
    Slurm,
    /// Open MPI, PMIx, PMI, MVAPICH.
    Mpi,
    /// Kubernetes.
    Kubernetes,
    /// No source had it, so it was made up here.
    Made,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Given => "given",
            Self::Memctl => "MEMCTL_*",
            Self::Torchrun => "torchrun",
            Self::Slurm => "SLURM",
            Self::Mpi => "MPI",
            Self::Kubernetes => "Kubernetes",
            Self::Made => "made",
        })
    }
}

/// Values from the caller; they take precedence over the environment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct IdentityOverrides {
    /// The job's name.
    pub job: Option<String>,
    /// Restart count.
    pub attempt: Option<u32>,
    /// Rank in the job.
    pub rank: Option<u32>,
    /// Ranks in the job.
    pub world_size: Option<u32>,
    /// Labels. They take precedence over `MEMCTL_LABELS` key by key.
    pub labels: Vec<(String, String)>,
    /// The role of the process in the job.
    pub role: Option<String>,
}

/// Facts about the process that are not in the environment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Process {
    /// The program, for a made-up name: `train.py`, a path to it, or a module's name.
    pub script: Option<String>,
    /// Host name from the kernel. Without it, `HOSTNAME` or `SLURMD_NODENAME` is used.
    pub host: Option<String>,
    /// Process id.
    pub pid: u32,
    /// Nanoseconds since the Unix epoch at which the process (or its recording) began.
    pub started_ns: u64,
    /// The title of the process. Frameworks put its role there (`ray::Rollout.sample`).
    pub title: Option<String>,
    /// Set if another process of the job started this one, with `multiprocessing` or a similar library. The value is
    /// the name that this process has there, or empty.
    pub child: Option<String>,
    /// Whether the process inherited the rank in its environment from its parent. It then works for that rank.
    pub rank_is_inherited: bool,
}

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job's name. The wire accepts it.
    pub job: String,
    /// Restart count. With a batch system and an elastic launcher it is `1000 × batch + elastic`. Neither kind of
    /// restart then has the number of an earlier one.
    pub attempt: u32,
    /// Rank in the job; 0 when no source has one.
    pub rank: u32,
    /// Number of ranks in the job, if known. It is greater than `rank`.
    pub world_size: Option<u32>,
    /// Rank on this host, if known.
    pub local_rank: Option<u32>,
    /// Host name, if known.
    pub host: Option<String>,
    /// Labels of the job, each key once.
    pub labels: Vec<(String, String)>,
    /// The group of its launch (see `group.rs`).
    pub group: Option<String>,
    /// Its role in the job, if known (see `role.rs`).
    pub role: Option<String>,
    /// Source of the job's name.
    pub source_of_job: Source,
    /// Source of the rank; [`Source::Made`] when no source has one.
    pub source_of_rank: Source,
    /// One sentence for each value that was ignored or changed, with the reason.
    pub complaints: Vec<String>,
}

/// The environment. A variable that is empty counts as absent.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Collects a bounded number of complaints.
#[derive(Default)]
pub(crate) struct Complaints(Vec<String>);

impl Complaints {
    pub(crate) fn add(&mut self, complaint: impl FnOnce() -> String) {
        if self.0.len() < COMPLAINTS_MAX {
            self.0.push(complaint());
        }
    }
}

const RANK: [(&str, Source); 7] = [
    ("MEMCTL_RANK", Source::Memctl),
    ("RANK", Source::Torchrun),
    // MPI precedes SLURM here and in the other lists. Under `mpirun` in an allocation, SLURM_PROCID belongs to mpirun's
    // daemon on the node and is the same for all its ranks. Under `srun` both are set and agree.
    ("OMPI_COMM_WORLD_RANK", Source::Mpi),
    ("PMIX_RANK", Source::Mpi),
    ("PMI_RANK", Source::Mpi),
    ("MV2_COMM_WORLD_RANK", Source::Mpi),
    ("SLURM_PROCID", Source::Slurm),
];
/// Read after all of [`RANK`], because a pod that runs a launcher has several ranks.
const POD_INDEX: (&str, Source) = ("JOB_COMPLETION_INDEX", Source::Kubernetes);

/// The environment variables in which launchers put a process's rank.
pub fn rank_variables() -> impl Iterator<Item = &'static str> {
    RANK.iter().map(|(name, _)| *name)
}

const WORLD_SIZE: [(&str, Source); 6] = [
    ("MEMCTL_WORLD_SIZE", Source::Memctl),
    ("WORLD_SIZE", Source::Torchrun),
    ("OMPI_COMM_WORLD_SIZE", Source::Mpi),
    ("PMI_SIZE", Source::Mpi),
    ("MV2_COMM_WORLD_SIZE", Source::Mpi),
    ("SLURM_STEP_NUM_TASKS", Source::Slurm),
];

const LOCAL_RANK: [(&str, Source); 4] = [
    ("LOCAL_RANK", Source::Torchrun),
    ("OMPI_COMM_WORLD_LOCAL_RANK", Source::Mpi),
    ("MV2_COMM_WORLD_LOCAL_RANK", Source::Mpi),
    ("SLURM_LOCALID", Source::Slurm),
];

/// Identifies the process from its environment. Never fails and never panics.
#[must_use]
pub fn identify(environment: Environment<'_>, given: &IdentityOverrides, process: &Process) -> Identity {
    let mut complaints = Complaints::default();
    let (rank, source_of_rank) = rank(environment, given.rank, &mut complaints);
    let world_size = world_size(environment, given.world_size, rank, &mut complaints);
    let local_rank = first(environment, &LOCAL_RANK, RANKS_MAX - 1, &mut complaints).map(|(value, _)| value);
    let attempt = given.attempt.unwrap_or_else(|| attempt(environment, &mut complaints));
    let host = host(environment, process);
    let labels = labels::labels(environment, &given.labels, &mut complaints);
    let (job, source_of_job) = job::name(environment, given.job.as_deref(), process, &mut complaints);
    let is_rank = source_of_rank == Source::Given || source_of_rank != Source::Made && !process.rank_is_inherited;
    let group = group::group(environment, world_size, host.as_deref());
    let role = role::role(environment, given.role.as_deref(), process, is_rank);
    let complaints = complaints.0;
    Identity {
        job,
        attempt,
        rank,
        world_size,
        local_rank,
        host,
        labels,
        group,
        role,
        source_of_job,
        source_of_rank,
        complaints,
    }
}

/// The value of the first variable of `names` that holds a number of at most `most`.
fn first(
    environment: Environment<'_>,
    names: &[(&str, Source)],
    most: u32,
    complaints: &mut Complaints,
) -> Option<(u32, Source)> {
    names.iter().find_map(|&(name, source)| number(environment, name, most, complaints).map(|value| (value, source)))
}

fn rank(environment: Environment<'_>, given: Option<u32>, complaints: &mut Complaints) -> (u32, Source) {
    match given {
        Some(rank) if rank < RANKS_MAX => return (rank, Source::Given),
        Some(rank) => complaints.add(|| format!("the given rank {rank} is ignored: a rank is below {RANKS_MAX}")),
        None => {}
    }
    first(environment, &RANK, RANKS_MAX - 1, complaints)
        .or_else(|| first(environment, &[POD_INDEX], RANKS_MAX - 1, complaints))
        .unwrap_or((0, Source::Made))
}

/// The size of the job, if known. A size that does not fit the rank is ignored: it belongs to another launcher, or it
/// counts pods instead of processes.
fn world_size(environment: Environment<'_>, given: Option<u32>, rank: u32, complaints: &mut Complaints) -> Option<u32> {
    let size = given
        .or_else(|| first(environment, &WORLD_SIZE, RANKS_MAX, complaints).map(|(value, _)| value))
        // In a batch script outside a step, SLURM_NTASKS is the requested number of tasks, not the running one.
        .or_else(|| {
            value_of(environment, "SLURM_STEP_ID")
                .and_then(|_| number(environment, "SLURM_NTASKS", RANKS_MAX, complaints))
        })?;
    if size <= rank {
        complaints.add(|| format!("a job of {size} ranks has no rank {rank}: its size counts as unknown"));
        return None;
    }
    Some(size)
}

fn attempt(environment: Environment<'_>, complaints: &mut Complaints) -> u32 {
    if let Some(attempt) = number(environment, "MEMCTL_ATTEMPT", u32::MAX, complaints) {
        return attempt;
    }
    let elastic = number(environment, "TORCHELASTIC_RESTART_COUNT", u32::MAX, complaints).unwrap_or(0);
    let batch = number(environment, "SLURM_RESTART_COUNT", u32::MAX, complaints).unwrap_or(0);
    // A requeued job begins with elastic restart 0. The elastic count alone would repeat the number of the requeued
    // attempt.
    batch.saturating_mul(RESTARTS_APART).saturating_add(elastic)
}

fn host(environment: Environment<'_>, process: &Process) -> Option<String> {
    process
        .host
        .clone()
        .filter(|host| !host.is_empty())
        .or_else(|| value_of(environment, "HOSTNAME"))
        .or_else(|| value_of(environment, "SLURMD_NODENAME"))
        .map(|host| cut(&host, LABEL_BYTES_MAX).to_owned())
}
