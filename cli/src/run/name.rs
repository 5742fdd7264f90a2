//! The job's name for all processes of a run: from the flags, the environment and the command line.
//!
//! A launcher on every node (`memctl run -- torchrun …`) must choose the same name on each. The id that torchrun puts
//! into its workers' environment (`--rdzv-id`) is read from its arguments before it runs. Guarantees: the wire accepts
//! every name; the only inputs besides the arguments are the environment, the clock and the host's name.

use crate::args::Run;
use crate::args::values::LabelArg;
use crate::hosting::SourcePathsMode;
use crate::hosting::identity::{Identity, IdentityOverrides, Process, Source, identify};

/// The name of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The job.
    pub job: String,
    /// Labels for its sessions, those of the environment included.
    pub labels: Vec<(String, String)>,
    /// This launcher's rank if several were started (srun, mpirun); otherwise 0.
    pub rank: u32,
    /// Sentences about values that were ignored.
    pub complaints: Vec<String>,
}

/// Names a run.
pub fn of(args: &Run) -> Name {
    let words: Vec<String> = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let process = Process {
        // If the script's name must not be sent from this host, it is not used for the job's name.
        script: script(&words).filter(|_| args.source_paths != SourcePathsMode::Hashed),
        host: host(),
        pid: std::process::id(),
        started_ns: crate::hosting::now_ns(),
        ..Process::default()
    };
    name(args, &words, &process, &|name| std::env::var(name).ok())
}

fn name(args: &Run, words: &[String], process: &Process, environment: &dyn Fn(&str) -> Option<String>) -> Name {
    let said = Torchrun::read(words);
    let environment = |name: &str| said.variable(name).or_else(|| environment(name)).filter(|value| !value.is_empty());
    let labels = args.labels.iter().map(|LabelArg(key, value)| (key.clone(), value.clone())).collect();
    let given =
        IdentityOverrides { job: args.job.clone(), attempt: args.attempt, labels, ..IdentityOverrides::default() };
    let Identity { job, labels, rank, source_of_rank, complaints, .. } = identify(&environment, &given, process);
    let rank = if source_of_rank == Source::Made { 0 } else { rank };
    Name { job, labels, rank, complaints }
}

/// The script that the command runs: the first Python file or module among its words, else the command.
fn script(words: &[String]) -> Option<String> {
    let file = words.iter().find(|word| word.ends_with(".py") && !word.starts_with('-'));
    let module = || {
        let at = words.iter().position(|word| word == "-m" || word == "--module")?;
        // `python -m torch.distributed.run -m train`: the last module is the user's.
        let last = words.iter().rposition(|word| word == "-m" || word == "--module")?;
        words.get(at.max(last) + 1)
    };
    file.or_else(module).or_else(|| words.first()).cloned()
}

fn host() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
}

/// The values that torchrun's workers will find in their environment, read from its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Torchrun {
    run_id: Option<String>,
}

impl Torchrun {
    fn read(words: &[String]) -> Self {
        let is_torchrun = |word: &String| {
            let name = word.rsplit('/').next().unwrap_or_default();
            matches!(name, "torchrun" | "torch.distributed.run" | "torch.distributed.launch")
        };
        let Some(at) = words.iter().position(is_torchrun) else { return Self::default() };
        let options = &words[at + 1..];
        let value = |name: &str| value(options, name);
        Self { run_id: value("rdzv-id") }
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "TORCHELASTIC_RUN_ID" => self.run_id.clone(),
            _ => None,
        }
    }
}

/// The value of `--name value` or `--name=value`, with - or _ inside the name, before the script.
pub(super) fn value(options: &[String], name: &str) -> Option<String> {
    let mut options = options.iter();
    while let Some(option) = options.next() {
        // The script and its arguments begin here. The value of an unknown option neither begins with - nor ends in
        // .py, so it is skipped.
        if option.ends_with(".py") && !option.starts_with('-') {
            return None;
        }
        let Some(long) = option.strip_prefix("--") else { continue };
        let (key, inline) = long.split_once('=').map_or((long, None), |(key, value)| (key, Some(value)));
        if key.replace('_', "-") == name {
            return inline.map(str::to_owned).or_else(|| options.next().cloned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn named(line: &str, environment: &[(&str, &str)]) -> Name {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let args = Run { command: words.iter().map(OsString::from).collect(), ..Run::default() };
        let process =
            Process { script: script(&words), host: Some("n1".into()), pid: 7, started_ns: 1, ..Process::default() };
        name(&args, &words, &process, &|name| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_script_names_the_job() {
        for (line, script) in [
            ("python train.py --lr 3", "train"),
            ("/usr/bin/python3 -u /a/b/train.py", "train"),
            ("python -m pkg.train", "pkg.train"),
            ("python -m torch.distributed.run -m mine.train", "mine.train"),
            ("torchrun --nproc-per-node 4 fit.py x.py", "fit"),
            ("./run.sh", "run.sh"),
        ] {
            let job = named(line, &[]).job;
            assert_eq!(job, script, "{line}");
        }
    }

    #[test]
    fn who_gives_a_name_is_heard() {
        assert_eq!(named("python t.py", &[("MEMCTL_JOB", "mine")]).job, "mine");
        assert_eq!(named("python t.py", &[("SLURM_JOB_ID", "12"), ("SLURM_JOB_NAME", "fit")]).job, "fit-12");
        let name = named("python t.py", &[("SLURM_PROCID", "3"), ("MEMCTL_LABELS", "a=b")]);
        assert_eq!((name.rank, name.labels), (3, vec![("a".to_owned(), "b".to_owned())]));
    }

    #[test]
    fn nodes_agree() {
        let line = |node: u32, rest: &str| format!("torchrun --nnodes=2 --node_rank={node} {rest} t.py --rdzv-id no");
        assert_eq!(named(&line(0, "--rdzv-id exp"), &[]).job, "exp");
        assert_eq!(named(&line(0, "--rdzv_id=17"), &[]).job, "t-17");
        assert_eq!(named(&line(1, "--master_addr h"), &[]).job, "t");
    }
}
