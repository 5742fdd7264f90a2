//! Determines the group: a name that the processes of one launch share across all hosts. They form one run of their
//! job.
//!
//! | source | group |
//! |---|---|
//! | `MEMCTL_RUN_ID` | `id/VALUE` |
//! | a step of SLURM with several tasks | `slurm/CLUSTER/JOB.STEP` |
//! | torchrun's run id (not `none`) | `torchrun/ID` |
//! | MPI's `PMIX_NAMESPACE` | `mpi/NAMESPACE` |
//! | `MASTER_ADDR:MASTER_PORT` of several ranks | `master/ADDRESS:PORT`, with the host where the address is this host's own |
//! | an indexed job of Kubernetes | `kubernetes/NAMESPACE/JOB` |
//!
//! A later launch may have the same group, because an address is used repeatedly. The daemon distinguishes launches by
//! the ranks that are already in use.

use memctl_model::limits::LABEL_BYTES_MAX;

use super::job::{job_of_pod, run_id};
use super::labels::slurm_step;
use super::text::{cut, number, value_of};
use super::{Complaints, Environment};

/// The group; `None` for a process that was started alone.
pub(super) fn group(environment: Environment<'_>, world_size: Option<u32>, host: Option<&str>) -> Option<String> {
    let candidates: [&dyn Fn() -> Option<String>; 6] = [
        &|| Some(format!("id/{}", value_of(environment, "MEMCTL_RUN_ID")?)),
        &|| slurm(environment),
        &|| Some(format!("torchrun/{}", run_id(environment)?)),
        &|| Some(format!("mpi/{}", value_of(environment, "PMIX_NAMESPACE")?)),
        &|| world_size.filter(|size| *size > 1).and_then(|_| master(environment, host)),
        &|| kubernetes(environment),
    ];
    let group = candidates.into_iter().find_map(|candidate| candidate())?;
    Some(cut(&group, LABEL_BYTES_MAX).to_owned())
}

fn slurm(environment: Environment<'_>) -> Option<String> {
    let mut unheard = Complaints::default();
    let step = slurm_step(environment)?;
    // A shell is a step of one task. Every program that is started in it is its own launch.
    let tasks = number(environment, "SLURM_STEP_NUM_TASKS", u32::MAX, &mut unheard);
    let tasks = tasks.or_else(|| number(environment, "SLURM_NTASKS", u32::MAX, &mut unheard))?;
    let job = value_of(environment, "SLURM_JOB_ID").filter(|_| tasks > 1)?;
    let cluster = value_of(environment, "SLURM_CLUSTER_NAME").unwrap_or_default();
    Some(format!("slurm/{cluster}/{job}.{step}"))
}

fn master(environment: Environment<'_>, host: Option<&str>) -> Option<String> {
    let address = value_of(environment, "MASTER_ADDR")?;
    let port = value_of(environment, "MASTER_PORT").unwrap_or_default();
    let is_own = address == "localhost" || address == "::1" || address.starts_with("127.");
    let of_host = if is_own { format!("@{}", host.unwrap_or_default()) } else { String::new() };
    Some(format!("master/{address}:{port}{of_host}"))
}

fn kubernetes(environment: Environment<'_>) -> Option<String> {
    let index = value_of(environment, "JOB_COMPLETION_INDEX")?;
    let pod = value_of(environment, "POD_NAME").or_else(|| value_of(environment, "HOSTNAME"))?;
    let namespace = value_of(environment, "POD_NAMESPACE").unwrap_or_default();
    Some(format!("kubernetes/{namespace}/{}", job_of_pod(&pod, Some(&index))))
}
