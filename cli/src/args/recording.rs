//! The flags of `run` and `import`, the commands that record data.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::assert::{Assert, Results};
use super::values::{self, LabelArg};
use crate::hosting::SourcePathsMode;

/// `memctl run`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = RUN_HELP)]
pub struct Run {
    /// Name of the job [default: MEMCTL_JOB, otherwise the name from torchrun, SLURM, MPI or Kubernetes, otherwise a name made from the script's name].
    #[arg(long, value_name = "JOB", value_parser = values::new_job)]
    pub job: Option<String>,
    /// Restart count of the job [default: MEMCTL_ATTEMPT, otherwise the count of torchrun or SLURM].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// A label of the job; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = values::run_label)]
    pub labels: Vec<LabelArg>,
    /// Record events without the stacks of their allocations.
    #[arg(long)]
    pub no_stacks: bool,
    /// Forbid searches in the processes for the Python objects that hold accumulating tensors [env: MEMCTL_HOLDERS=off].
    #[arg(long, conflicts_with = "holders")]
    pub no_holders: bool,
    /// Allow these searches even if MEMCTL_HOLDERS forbids them.
    #[arg(long, hide = true)]
    pub holders: bool,
    /// The form in which this host sends paths of source files.
    #[arg(long, env = "MEMCTL_SOURCE_PATHS", hide_env_values = true, default_value = "full", value_name = "FORM", value_parser = source_paths())]
    pub source_paths: SourcePathsMode,
    /// The longest wait for the storage of all data, after the command has ended [default: as long as storing makes progress, or 5 s if no daemon answers]. Data that is not stored by then waits on disk for the next run.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub patience: Option<Duration>,
    /// After the command, check this condition (see `memctl assert --help`); may be repeated. If one does not hold or is inconclusive and the command succeeded, the exit code is 1.
    #[arg(long = "assert", value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// For the conditions: compare with this job, or with a file of `memctl baseline save`.
    #[arg(long, value_name = "JOB|FILE")]
    pub against: Option<String>,
    /// For the conditions: accept suspected growth, which may be a cache that is still filling.
    #[arg(long)]
    pub allow_suspected: bool,
    /// For the conditions: decide them also if the job failed, was not recorded completely or has too few epochs.
    #[arg(long)]
    pub allow_incomplete: bool,
    /// Where the results of the conditions go.
    #[command(flatten)]
    pub results: Results,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl Run {
    /// The conditions to check after the command; `None` if there are none.
    ///
    /// # Errors
    /// Why they cannot be checked.
    pub fn checks(&self, job: &str) -> Result<Option<Assert>, String> {
        if self.conditions.is_empty() && self.against.is_none() {
            let flag = match (self.allow_suspected, self.allow_incomplete) {
                (true, _) => "--allow-suspected",
                (false, true) => "--allow-incomplete",
                (false, false) => "",
            };
            return match self.results.is_empty() {
                true if flag.is_empty() => Ok(None),
                true => Err(format!("{flag} needs a condition: --assert CONDITION")),
                false => Err("--junit, --sarif and --github need a condition: --assert CONDITION".to_owned()),
            };
        }
        let asked = Assert {
            words: self.conditions.clone(),
            job: Some(job.to_owned()),
            against: self.against.clone(),
            allow_suspected: self.allow_suspected,
            allow_incomplete: self.allow_incomplete,
            results: self.results.clone(),
            ..Assert::default()
        };
        asked.asked().map(|_| Some(asked))
    }
}

const RUN_HELP: &str = "Examples:\n  memctl run -- python train.py\n  memctl run --job vit-17 -- torchrun --nproc-per-node 4 train.py\n\
memctl prints nothing to standard output, which belongs to the command. With MEMCTL_DISABLED=1 the command is not recorded. Exit codes: \
the command's, 128 + n if signal n ended the command, 126 or 127 if it cannot be started, 1 if the command succeeded and a condition of --assert does not hold or is inconclusive, 2 for wrong usage of memctl itself, 4 if the command succeeded and conditions cannot be checked because it recorded nothing.";

/// `memctl import`.
#[derive(Clone, Debug, Args)]
pub struct Import {
    /// Snapshots (.pickle, .pickle.gz, .pickle.zst), or a folder of them. If a file's name contains `rankN`, its rank is N.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Name of the job. The import becomes a new run of the job.
    #[arg(long, env = "MEMCTL_JOB", hide_env_values = true, value_name = "JOB", value_parser = values::new_job)]
    pub job: String,
    /// Add the snapshots to the newest run of the job, as this attempt.
    #[arg(long, value_name = "N", conflicts_with = "replace")]
    pub attempt: Option<u32>,
    /// First delete the newest run of the job, after the files have been checked.
    #[arg(long)]
    pub replace: bool,
    /// A label of the job; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
    /// The form in which this host sends paths of source files.
    #[arg(long, env = "MEMCTL_SOURCE_PATHS", hide_env_values = true, default_value = "full", value_name = "FORM", value_parser = source_paths())]
    pub source_paths: SourcePathsMode,
}

fn source_paths() -> impl TypedValueParser<Value = SourcePathsMode> {
    let value = |mode: SourcePathsMode| {
        PossibleValue::new(mode.name()).help(match mode {
            SourcePathsMode::Full => "Complete paths",
            SourcePathsMode::Short => "Paths relative to the working directory or to the folder of installed packages",
            SourcePathsMode::Hashed => "Keyed hashes in place of the names of your own files and folders",
        })
    };
    // An empty variable counts as not set.
    let nothing = PossibleValue::new("").hide(true);
    let values = SourcePathsMode::ALL.map(value).into_iter().chain([nothing]);
    let named = |name: String| if name.is_empty() { Ok(SourcePathsMode::default()) } else { name.parse() };
    PossibleValuesParser::new(values).try_map(named)
}
