//! Names of a batch system's jobs: how a job is labelled with them, and how a selection refers to them.

/// The label with the id of SLURM's job as `squeue` shows it: `1234`, or `1234_7` for a task of an array.
pub const SLURM_JOB_LABEL: &str = "slurm.job";
/// The label with the id of a task of an array as a job of its own (`SLURM_JOB_ID`), which differs from the one above.
pub const SLURM_RAW_JOB_LABEL: &str = "slurm.job_id";
/// The label with the number of SLURM's step.
pub const SLURM_STEP_LABEL: &str = "slurm.step";
/// The label with the host memory that was asked for on each node, in MiB.
pub const SLURM_MEM_LABEL: &str = "slurm.mem_per_node";
/// The label with the number of GPUs that a node gives the job.
pub const SLURM_GPUS_LABEL: &str = "slurm.gpus_on_node";

/// A job of SLURM, written `slurm:JOB`, `slurm:JOB.STEP`, or with `ARRAY_TASK` as `JOB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlurmJob<'a> {
    /// `1234`, or `1234_7`.
    pub id: &'a str,
    /// The number of the step, if only that step is meant.
    pub step: Option<&'a str>,
}

impl<'a> SlurmJob<'a> {
    /// Parses `slurm:1234`, `slurm:1234_7` and `slurm:1234.0`; `None` for any other text.
    #[must_use]
    pub fn written(text: &'a str) -> Option<Self> {
        let text = text.strip_prefix("slurm:")?;
        let (id, step) = text.split_once('.').map_or((text, None), |(id, step)| (id, Some(step)));
        let (job, task) = id.split_once('_').map_or((id, None), |(job, task)| (job, Some(task)));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(job) && task.is_none_or(is_number) && step.is_none_or(is_number)).then_some(Self { id, step })
    }

    /// Whether labels are those of this job.
    #[must_use]
    pub fn is(&self, labels: &[(String, String)]) -> bool {
        let is_id = |key: &str| value(labels, key) == Some(self.id);
        (is_id(SLURM_JOB_LABEL) || is_id(SLURM_RAW_JOB_LABEL)) && self.is_step(labels)
    }

    /// Whether labels are those of a task of this job, if it is an array.
    #[must_use]
    pub fn is_array_of(&self, labels: &[(String, String)]) -> bool {
        let task = value(labels, SLURM_JOB_LABEL).and_then(|label| label.strip_prefix(self.id));
        task.is_some_and(|rest| rest.starts_with('_')) && self.is_step(labels)
    }

    fn is_step(&self, labels: &[(String, String)]) -> bool {
        self.step.is_none_or(|step| value(labels, SLURM_STEP_LABEL) == Some(step))
    }
}

fn value<'a>(labels: &'a [(String, String)], key: &str) -> Option<&'a str> {
    labels.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_names_a_job_a_task_or_a_step() {
        let labels =
            |id: &str| vec![(SLURM_JOB_LABEL.to_owned(), id.to_owned()), (SLURM_STEP_LABEL.into(), "0".into())];
        let is = |text: &str, id: &str| SlurmJob::written(text).unwrap().is(&labels(id));
        assert!(is("slurm:1234", "1234") && is("slurm:1234_7", "1234_7") && !is("slurm:1234", "1234_7"));
        assert!(is("slurm:1234.0", "1234") && !is("slurm:1234.1", "1234"));
        assert!(!is("slurm:123", "1234") && !is("slurm:1234_7", "1234") && !is("slurm:1234_7", "1234_70"));
        let array = |text: &str, id: &str| SlurmJob::written(text).unwrap().is_array_of(&labels(id));
        assert!(array("slurm:1234", "1234_7") && array("slurm:1234.0", "1234_7") && !array("slurm:1234", "12345_7"));
        let raw = [labels("1234_7"), vec![(SLURM_RAW_JOB_LABEL.to_owned(), "1241".to_owned())]].concat();
        assert!(SlurmJob::written("slurm:1241").unwrap().is(&raw));
        for other in ["slurm:", "slurm:x", "slurm:1_", "slurm:1.", "slurm:1_x", "1234", "slurm/1", "slurm:1.2.3"] {
            assert_eq!(SlurmJob::written(other), None, "{other}");
        }
    }
}
