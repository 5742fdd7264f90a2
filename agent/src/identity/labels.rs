//! Determines the labels of a job: the caller's, those of `MEMCTL_LABELS`, and those of the scheduler.
//!
//! | label | source |
//! |---|---|
//! | `slurm.job` | `SLURM_JOB_ID`; for a task of an array `SLURM_ARRAY_JOB_ID`, `_` and `SLURM_ARRAY_TASK_ID` |
//! | `slurm.job_id` | `SLURM_JOB_ID` of a task of an array |
//! | `slurm.step` | `SLURM_STEP_ID`, only for a step that a user started (not `batch` or `extern`) |
//! | `slurm.name`, `slurm.account`, `slurm.partition`, `slurm.cluster`, `slurm.user` | `SLURM_JOB_NAME`, `SLURM_JOB_ACCOUNT`, `SLURM_JOB_PARTITION`, `SLURM_CLUSTER_NAME`, `SLURM_JOB_USER` |
//! | `slurm.mem_per_node` | `SLURM_MEM_PER_NODE`, else `SLURM_MEM_PER_CPU` × `SLURM_CPUS_ON_NODE`: MiB of host memory |
//! | `slurm.gpus_on_node` | `SLURM_GPUS_ON_NODE` |
//! | `k8s.namespace` | `POD_NAMESPACE` |
//!
//! A job has one set of labels. What differs between its processes (the node, the pod, the restart) is no label: the
//! host and the attempt have fields of their own.

use memctl_model::limits::{LABEL_BYTES_MAX, LABELS_MAX};
use memctl_model::scheduler::{
    SLURM_GPUS_LABEL, SLURM_JOB_LABEL, SLURM_MEM_LABEL, SLURM_RAW_JOB_LABEL, SLURM_STEP_LABEL,
};

use super::text::{SPECIAL_STEPS, cut, value_of};
use super::{Complaints, Environment};

/// Labels from the scheduler whose value is the value of one variable.
const OF_VARIABLES: [(&str, &str); 7] = [
    ("slurm.name", "SLURM_JOB_NAME"),
    ("slurm.account", "SLURM_JOB_ACCOUNT"),
    ("slurm.partition", "SLURM_JOB_PARTITION"),
    ("slurm.cluster", "SLURM_CLUSTER_NAME"),
    ("slurm.user", "SLURM_JOB_USER"),
    (SLURM_GPUS_LABEL, "SLURM_GPUS_ON_NODE"),
    ("k8s.namespace", "POD_NAMESPACE"),
];

/// The labels, each key once: the first source that has a key decides its value.
pub(super) fn labels(
    environment: Environment<'_>,
    given: &[(String, String)],
    complaints: &mut Complaints,
) -> Vec<(String, String)> {
    let mut labels = given_by_user(environment, given, complaints);
    for (key, value) in of_scheduler(environment) {
        if labels.len() < LABELS_MAX && labels.iter().all(|(known, _)| known != key) {
            labels.push((key.to_owned(), cut(&value, LABEL_BYTES_MAX).to_owned()));
        }
    }
    labels
}

/// The id of an allocation as `squeue` and `sacct` show it: `JOB`, or `ARRAY_TASK`.
pub(super) fn slurm_id(environment: Environment<'_>) -> Option<String> {
    match (value_of(environment, "SLURM_ARRAY_JOB_ID"), value_of(environment, "SLURM_ARRAY_TASK_ID")) {
        (Some(job), Some(task)) => Some(format!("{job}_{task}")),
        _ => value_of(environment, "SLURM_JOB_ID"),
    }
}

/// The number of a step that a user starts; SLURM has steps of its own (`batch`, `extern`).
pub(super) fn slurm_step(environment: Environment<'_>) -> Option<u32> {
    value_of(environment, "SLURM_STEP_ID")?.parse().ok().filter(|step| *step < SPECIAL_STEPS)
}

/// The host memory that was asked for on each node, in MiB. SLURM writes 0 where all memory of a node was asked for.
fn slurm_mebibytes(environment: Environment<'_>) -> Option<u64> {
    let number = |name: &str| value_of(environment, name)?.parse::<u64>().ok().filter(|number| *number > 0);
    let of_cpus = || number("SLURM_MEM_PER_CPU")?.checked_mul(number("SLURM_CPUS_ON_NODE")?);
    number("SLURM_MEM_PER_NODE").or_else(of_cpus)
}

fn of_scheduler(environment: Environment<'_>) -> Vec<(&'static str, String)> {
    let mut labels = Vec::new();
    if let Some(id) = slurm_id(environment) {
        let raw = value_of(environment, "SLURM_JOB_ID").filter(|raw| *raw != id);
        labels.push((SLURM_JOB_LABEL, id));
        labels.extend(raw.map(|raw| (SLURM_RAW_JOB_LABEL, raw)));
        labels.extend(slurm_step(environment).map(|step| (SLURM_STEP_LABEL, step.to_string())));
        labels.extend(slurm_mebibytes(environment).map(|mebibytes| (SLURM_MEM_LABEL, mebibytes.to_string())));
    }
    labels.extend(OF_VARIABLES.iter().filter_map(|&(key, variable)| Some((key, value_of(environment, variable)?))));
    labels
}

/// The labels of the caller, then the labels of `MEMCTL_LABELS` (`key=value,key=value`) whose keys are new.
fn given_by_user(
    environment: Environment<'_>,
    given: &[(String, String)],
    complaints: &mut Complaints,
) -> Vec<(String, String)> {
    let from_environment = value_of(environment, "MEMCTL_LABELS").unwrap_or_default();
    let mut labels: Vec<(String, String)> = Vec::new();
    let pairs = given.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))).chain(
        from_environment
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').map_or((pair, None), |(key, value)| (key.trim(), Some(value.trim())))),
    );
    for (key, value) in pairs {
        let shown = cut(key, 64);
        match value {
            None => complaints.add(|| format!("the label {shown:?} is ignored: it has no \"=value\"")),
            Some(_) if key.is_empty() => complaints.add(|| "a label without a key is ignored".to_owned()),
            Some(value) if key.len().max(value.len()) > LABEL_BYTES_MAX => {
                complaints.add(|| format!("the label {shown:?} is ignored: over {LABEL_BYTES_MAX} bytes"));
            }
            Some(_) if labels.iter().any(|(known, _)| known == key) => {}
            Some(_) if labels.len() == LABELS_MAX => {
                complaints.add(|| format!("the label {shown:?} is ignored: a job has at most {LABELS_MAX}"));
            }
            Some(value) => labels.push((key.to_owned(), value.to_owned())),
        }
    }
    labels
}
