//! The arguments of `memctl diff` and `memctl baseline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use super::job_names::job_names;
use super::which::Which;

/// As [`CHANGE_BYTES`](memctl_analysis::display_threshold::CHANGE_BYTES).
const IGNORED: &str = "64KiB";

/// `memctl diff`.
#[derive(Clone, Debug, Args)]
pub struct Diff {
    /// The two runs, the earlier one first: JOB, JOB#RUN, or a file of `memctl baseline save` (a word with / or .json). One name means its newest run and the run before it [default: the newest job's].
    #[arg(value_name = "RUN", num_args = 0..=2, add = ArgValueCandidates::new(job_names))]
    pub runs: Vec<String>,
    /// Do not report changes up to this size.
    #[arg(long, value_name = "BYTES", value_parser = memctl_answers::conditions::bytes, default_value = IGNORED)]
    pub ignore: u64,
    /// Write Markdown, for a pull request.
    #[arg(long)]
    pub markdown: bool,
}

/// `memctl baseline`.
#[derive(Clone, Debug, Args)]
pub struct Baseline {
    /// What to do.
    #[command(subcommand)]
    pub verb: BaselineVerb,
}

/// What `memctl baseline` does.
#[derive(Clone, Debug, Subcommand)]
pub enum BaselineVerb {
    /// Save a run's peaks, sites, classes, growth and findings into a small file.
    Save(Save),
}

/// `memctl baseline save`.
#[derive(Clone, Debug, Args)]
pub struct Save {
    /// Which job.
    #[command(flatten)]
    pub which: Which,
    /// The file.
    #[arg(short, long, value_name = "FILE", default_value = "memory.json")]
    pub file: PathBuf,
    /// Take this many of the newest runs of the same name: the differences of their peaks and of their leaks' rates are allowed later on.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
}
