//! The flags of `run` and `import`: what brings data in.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::values::{self, LabelArg};
use crate::hosting::SourcePathsMode;

/// `memctl run`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = RUN_HELP)]
pub struct Run {
    /// Name of the job [default: MEMCTL_JOB, the name that torchrun, SLURM, MPI or Kubernetes use, or one made from the script's name].
    #[arg(long, value_name = "JOB", value_parser = values::new_job)]
    pub job: Option<String>,
    /// Restart count of the job [default: MEMCTL_ATTEMPT, or that of torchrun and SLURM].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// A label of the job; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = values::run_label)]
    pub labels: Vec<LabelArg>,
    /// Record events without the stacks of their allocations.
    #[arg(long)]
    pub no_stacks: bool,
    /// Forbid to look into the processes for which Python objects hold tensors that accumulate [env: MEMCTL_HOLDERS=off].
    #[arg(long, conflicts_with = "holders")]
    pub no_holders: bool,
    /// Ask them even if MEMCTL_HOLDERS forbids it.
    #[arg(long, hide = true)]
    pub holders: bool,
    /// What leaves this host of the paths of source files.
    #[arg(long, env = "MEMCTL_SOURCE_PATHS", hide_env_values = true, default_value = "full", value_name = "FORM", value_parser = source_paths())]
    pub source_paths: SourcePathsMode,
    /// Longest wait, after the command has ended, until everything is stored [default: as long as storing makes progress; 5 s when no daemon answers]. What is not stored waits on disk for the next run.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub patience: Option<Duration>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

const RUN_HELP: &str = "Examples:\n  memctl run -- python train.py\n  memctl run --job vit-17 -- torchrun --nproc-per-node 4 train.py\n\
Standard output is the command's. MEMCTL_DISABLED=1 runs it unrecorded. Exit codes: the command's, \
128 + n when signal n ended it, 126 and 127 when it cannot be started, 2 for wrong usage of memctl itself.";

/// `memctl import`.
#[derive(Clone, Debug, Args)]
pub struct Import {
    /// Snapshots (.pickle, .pickle.gz, .pickle.zst), or a folder of them; `rankN` in a file's name is its rank.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Name of the job; the import is a new run of it.
    #[arg(long, env = "MEMCTL_JOB", hide_env_values = true, value_name = "JOB", value_parser = values::new_job)]
    pub job: String,
    /// Add the snapshots to the newest run of the job, as this attempt.
    #[arg(long, value_name = "N", conflicts_with = "replace")]
    pub attempt: Option<u32>,
    /// Delete the newest run of that name first, once the files have been checked.
    #[arg(long)]
    pub replace: bool,
    /// A label of the job; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
    /// What leaves this host of the paths of source files.
    #[arg(long, env = "MEMCTL_SOURCE_PATHS", hide_env_values = true, default_value = "full", value_name = "FORM", value_parser = source_paths())]
    pub source_paths: SourcePathsMode,
}

fn source_paths() -> impl TypedValueParser<Value = SourcePathsMode> {
    let value = |mode: SourcePathsMode| {
        PossibleValue::new(mode.name()).help(match mode {
            SourcePathsMode::Full => "All of them",
            SourcePathsMode::Short => "What follows the working directory, or the folder of installed packages",
            SourcePathsMode::Hashed => "Keyed hashes instead of the names of your own files and folders",
        })
    };
    // A variable that is set to nothing says nothing.
    let nothing = PossibleValue::new("").hide(true);
    let values = SourcePathsMode::ALL.map(value).into_iter().chain([nothing]);
    let named = |name: String| if name.is_empty() { Ok(SourcePathsMode::default()) } else { name.parse() };
    PossibleValuesParser::new(values).try_map(named)
}
