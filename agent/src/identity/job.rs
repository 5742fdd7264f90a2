//! Determines the job's name: its sources, and a made-up name when no source has one.
//!
//! | source | name |
//! |---|---|
//! | the caller, `MEMCTL_JOB` | as given |
//! | torchrun | `--rdzv-id` (not `none`); after the script's name when it is only a number, and not when it is SLURM's job id |
//! | SLURM | `NAME-JOBID`, `NAME-ARRAYJOB_TASK`, with `.STEP` for a step after the first |
//! | Kubernetes | the pod's name without the part that differs between the pods of one job (`-INDEX-xxxxx`, `-worker-3`), after `NAMESPACE/` |
//! | made | the script's (`job` when there is none) |
//!
//! The name identifies a series of runs. Another launch with the same name is a new run (`group.rs` defines which
//! processes belong together).

use super::labels::{slurm_id, slurm_step};
use super::text::{cleaned, cut, value_of};
use super::{Complaints, Environment, Process, Source};

/// Returns the job's name and the source of the name.
pub(super) fn name(
    environment: Environment<'_>,
    given: Option<&str>,
    process: &Process,
    complaints: &mut Complaints,
) -> (String, Source) {
    let script = script(process);
    let candidates: [(Source, &dyn Fn() -> Option<String>); 5] = [
        (Source::Given, &|| given.filter(|name| !name.trim().is_empty()).map(str::to_owned)),
        (Source::Memctl, &|| value_of(environment, "MEMCTL_JOB")),
        (Source::Torchrun, &|| torchrun(environment, &script)),
        (Source::Slurm, &|| slurm(environment)),
        (Source::Kubernetes, &|| kubernetes(environment)),
    ];
    for (source, candidate) in candidates {
        let Some(name) = candidate() else { continue };
        let clean = cleaned(&name);
        if clean.as_deref() != Some(name.as_str()) {
            let shown = cut(&name, 64);
            complaints.add(|| match &clean {
                Some(clean) => format!(
                    "the job's name {shown:?} ({source}) becomes {clean:?}: letters, digits and ._:@/+- are allowed"
                ),
                None => format!("the job's name {shown:?} ({source}) is ignored: nothing of it can be used"),
            });
        }
        if let Some(clean) = clean {
            return (clean, source);
        }
    }
    (script, Source::Made)
}

/// The script's name without folders and `.py`, cleaned and short enough for a suffix.
fn script(process: &Process) -> String {
    let script = process.script.as_deref().unwrap_or_default();
    let file = script.rsplit('/').next().unwrap_or_default();
    let file = file.strip_suffix(".py").unwrap_or(file);
    cleaned(cut(file, 64)).unwrap_or_else(|| "job".to_owned())
}

fn torchrun(environment: Environment<'_>, script: &str) -> Option<String> {
    let id = run_id(environment)?;
    if is_random(&id) || value_of(environment, "SLURM_JOB_ID").is_some_and(|slurm| slurm == id) {
        return None;
    }
    Some(if id.bytes().all(|b| b.is_ascii_digit()) { format!("{script}-{id}") } else { id })
}

/// torchrun's run id, unless it is the default `none`.
pub(super) fn run_id(environment: Environment<'_>) -> Option<String> {
    value_of(environment, "TORCHELASTIC_RUN_ID").filter(|id| !id.eq_ignore_ascii_case("none"))
}

/// Whether an id is a random UUID, as `--standalone` makes. It distinguishes runs, but it is not a name.
fn is_random(id: &str) -> bool {
    let digits = id.bytes().filter(u8::is_ascii_hexdigit).count();
    digits == 32 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn slurm(environment: Environment<'_>) -> Option<String> {
    let id = slurm_id(environment)?;
    // Two trainings in one allocation are two steps and therefore two jobs.
    let step = slurm_step(environment).filter(|step| *step > 0).map_or_else(String::new, |step| format!(".{step}"));
    Some(match value_of(environment, "SLURM_JOB_NAME") {
        // SLURM accepts names of any length. The id must not be cut off.
        Some(name) => format!("{}-{id}{step}", cut(&name, 160)),
        None => format!("slurm-{id}{step}"),
    })
}

fn kubernetes(environment: Environment<'_>) -> Option<String> {
    let index = value_of(environment, "JOB_COMPLETION_INDEX");
    let inside = index.is_some() || value_of(environment, "KUBERNETES_SERVICE_HOST").is_some();
    // Inside a pod, the host's name is the pod's. Elsewhere it is a machine's.
    let pod = value_of(environment, "POD_NAME").or_else(|| value_of(environment, "HOSTNAME").filter(|_| inside))?;
    let job = job_of_pod(&pod, index.as_deref());
    Some(match value_of(environment, "POD_NAMESPACE") {
        Some(namespace) => format!("{namespace}/{job}"),
        None => job.to_owned(),
    })
}

/// A pod's name without the part that distinguishes it from the other pods of its job: an indexed job's
/// `-INDEX[-xxxxx]`, or a training operator's `-worker-3`. Without either, the pod is the whole job. Its random suffix
/// distinguishes one attempt from the next.
pub(super) fn job_of_pod<'a>(pod: &'a str, index: Option<&str>) -> &'a str {
    if let Some(index) = index {
        let without_random = pod.rsplit_once('-').filter(|(_, end)| end.len() == 5).map_or(pod, |(job, _)| job);
        for name in [without_random, pod] {
            if let Some((job, end)) = name.rsplit_once('-')
                && end == index
                && !job.is_empty()
            {
                return job;
            }
        }
        return pod;
    }
    const ROLES: [&str; 6] = ["-master", "-worker", "-launcher", "-chief", "-node", "-trainer"];
    let replica = pod.rsplit_once('-').filter(|(_, end)| !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit()));
    replica
        .and_then(|(front, _)| ROLES.iter().find_map(|role| front.strip_suffix(role)))
        .filter(|job| !job.is_empty())
        .unwrap_or(pod)
}
