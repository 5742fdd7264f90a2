//! Determines the role of a process in its job: `trainer`, `worker`, `loader`, `gw0`.
//!
//! | source | role |
//! |---|---|
//! | the caller, `MEMCTL_ROLE` | as given |
//! | pytest-xdist | the worker's name, `gw0` |
//! | torchrun | `--role`, when it is not the default |
//! | the process's title | what the framework wrote there: `ray::Rollout.sample` is a `Rollout`, `VLLM::EngineCore_DP0` an `EngineCore` |
//! | `multiprocessing` | the name that the program gave the process, without its number; `worker` when it gave none |
//!
//! A rank of a launcher is not a worker. All ranks do the same, so one word for all of them would carry no information.
//! A program that a user started alone has no role either.
//! Guarantees: a role is short, printable and without control characters, or `None`.

use memctl_model::limits::LABEL_BYTES_MAX;

use super::text::{cut, value_of};
use super::{Environment, Process};

/// Prefixes of process titles in which frameworks name the role.
const TITLES: [&str; 2] = ["ray::", "VLLM::"];
/// Default names of processes of `multiprocessing` or of an executor. Numbers follow them.
const UNNAMED: [&str; 7] = [
    "Process",
    "SpawnProcess",
    "ForkProcess",
    "ForkServerProcess",
    "SpawnPoolWorker",
    "ForkPoolWorker",
    "ForkServerPoolWorker",
];
/// The role of a process with a default name.
const WORKER: &str = "worker";

/// The role of a process. `is_rank` states whether a launcher gave it a rank.
pub(super) fn role(
    environment: Environment<'_>,
    given: Option<&str>,
    process: &Process,
    is_rank: bool,
) -> Option<String> {
    let torchrun = || value_of(environment, "ROLE_NAME").filter(|role| role != "default" && is_torchrun(environment));
    given
        .map(str::to_owned)
        .or_else(|| value_of(environment, "MEMCTL_ROLE"))
        .or_else(|| value_of(environment, "PYTEST_XDIST_WORKER"))
        .or_else(torchrun)
        .or_else(|| process.title.as_deref().and_then(titled))
        .or_else(|| process.child.as_deref().filter(|_| !is_rank).map(named))
        .and_then(|role| cleaned(&role))
}

/// Whether torchrun started the process. Other programs also use the variable `ROLE_NAME`.
fn is_torchrun(environment: Environment<'_>) -> bool {
    value_of(environment, "TORCHELASTIC_RUN_ID").is_some()
}

/// The role in a title such as `ray::Rollout.sample()`: the text after the prefix, up to a method, an argument or a
/// number.
fn titled(title: &str) -> Option<String> {
    let name = TITLES.iter().find_map(|mark| title.trim_start().strip_prefix(mark))?;
    let name = name.split(['.', '(', ':', ' ', '\0']).next().unwrap_or_default();
    // An idle worker of Ray has no role yet.
    Some(without_number(name).to_owned()).filter(|name| !name.is_empty() && name != "IDLE")
}

/// The role from a process's name within its program.
fn named(name: &str) -> String {
    // Default names are `Process-1`, `SpawnProcess-2:3`, `ForkPoolWorker-4`.
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-' || c == ':');
    if plain.is_empty() || UNNAMED.contains(&plain) { WORKER.to_owned() } else { without_number(name).to_owned() }
}

/// Removes the number of a name. For example, `rollout-3` and `EngineCore_DP0` are each one of several processes with
/// the same role.
fn without_number(name: &str) -> &str {
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if plain.len() == name.len() {
        return name;
    }
    // The letters that name a kind of parallelism are removed, too.
    let kinds = ["_DP", "_TP", "_PP", "_EP"];
    let plain = kinds.iter().find_map(|kind| plain.strip_suffix(kind)).unwrap_or(plain);
    let plain = plain.trim_end_matches(['-', '_', ':', '.', ' ', '#']);
    if plain.is_empty() { name } else { plain }
}

/// Limits a role to what the wire and a terminal accept.
fn cleaned(role: &str) -> Option<String> {
    let printable: String = role.trim().chars().filter(|c| !c.is_control()).collect();
    let short = cut(&printable, LABEL_BYTES_MAX.min(64)).trim_end();
    (!short.is_empty()).then(|| short.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(environment: &[(&str, &str)], process: &Process, is_rank: bool) -> Option<String> {
        let environment =
            |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        role(&environment, None, process, is_rank)
    }

    fn child(name: &str) -> Process {
        Process { child: Some(name.into()), ..Process::default() }
    }

    #[test]
    fn a_program_by_itself_and_a_rank_have_none() {
        assert_eq!(of(&[], &Process::default(), false), None);
        assert_eq!(of(&[("ROLE_NAME", "default"), ("TORCHELASTIC_RUN_ID", "x")], &Process::default(), true), None);
        assert_eq!(of(&[("ROLE_NAME", "admin")], &Process::default(), false), None, "not torchrun's");
        assert_eq!(of(&[], &child("SpawnProcess-1"), true), None);
    }

    #[test]
    fn what_is_said_wins() {
        let named = [("MEMCTL_ROLE", "rollout"), ("PYTEST_XDIST_WORKER", "gw3")];
        assert_eq!(of(&named, &child("SpawnProcess-1"), true).as_deref(), Some("rollout"));
        assert_eq!(of(&named[1..], &child("SpawnProcess-1"), false).as_deref(), Some("gw3"));
        let torchrun = [("ROLE_NAME", "trainer"), ("TORCHELASTIC_RUN_ID", "x")];
        assert_eq!(of(&torchrun, &Process::default(), true).as_deref(), Some("trainer"));
        assert_eq!(role(&|_| None, Some("engine"), &child("x"), false).as_deref(), Some("engine"));
        assert_eq!(of(&[("MEMCTL_ROLE", "  \u{1b}[31m\n ")], &Process::default(), false).as_deref(), Some("[31m"));
        assert_eq!(of(&[("MEMCTL_ROLE", " \n ")], &Process::default(), false), None);
        assert_eq!(
            of(&[("MEMCTL_ROLE", &"é".repeat(99))], &Process::default(), false).map(|role| role.len()),
            Some(64)
        );
    }

    #[test]
    fn children_are_workers_or_what_their_program_calls_them() {
        for (name, role) in [
            ("", "worker"),
            ("Process-1", "worker"),
            ("SpawnProcess-12:3", "worker"),
            ("ForkPoolWorker-4", "worker"),
            ("rollout-3", "rollout"),
            ("rollout", "rollout"),
            ("EngineCore_DP0", "EngineCore"),
            ("VllmWorker-1", "VllmWorker"),
            ("7", "worker"),
        ] {
            assert_eq!(of(&[], &child(name), false).as_deref(), Some(role), "{name:?}");
        }
    }

    #[test]
    fn titles_of_frameworks() {
        for (title, role) in [
            ("ray::Rollout.sample()", Some("Rollout")),
            ("ray::IDLE", None),
            ("ray::", None),
            ("VLLM::EngineCore_DP0", Some("EngineCore")),
            ("VLLM::Worker_TP1", Some("Worker")),
            ("python train.py", None),
        ] {
            let process = Process { title: Some(title.into()), ..Process::default() };
            assert_eq!(of(&[], &process, true).as_deref(), role, "{title:?}");
        }
    }
}
