//! The flags of `backup`, `restore`, `check` and `delete`, the commands for a store.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::job_names::job_names;
use super::values;

/// `memctl backup`.
#[derive(Clone, Debug, Args)]
pub struct Backup {
    /// The file to write; it must not exist.
    #[arg(value_name = "FILE")]
    pub target: PathBuf,
    /// The store: sqlite:PATH or postgres://… [default: SQLite in the data folder].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
}

/// `memctl restore`.
#[derive(Clone, Debug, Args)]
pub struct Restore {
    /// The backup.
    #[arg(value_name = "FILE")]
    pub source: PathBuf,
    /// The store to fill: sqlite:PATH or postgres://… [default: SQLite in the data folder].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// Restore the backup even if some of its data is damaged. This data stays damaged.
    #[arg(long)]
    pub damaged: bool,
}

/// `memctl check`.
#[derive(Clone, Debug, Args)]
pub struct Check {
    /// Read all data: the database's pages, and every item with its checksum.
    #[arg(long)]
    pub deep: bool,
    /// First reduce the SQLite file to the size of its content. No daemon may have the file open.
    #[arg(long)]
    pub compact: bool,
    /// The store: sqlite:PATH or postgres://… [default: SQLite in the data folder].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
}

/// `memctl delete`.
#[derive(Clone, Debug, Args)]
pub struct Delete {
    /// The job, which means its newest run, or a run such as gpt2#3.
    #[arg(value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names), conflicts_with = "job", required_unless_present = "job")]
    pub named: Option<String>,
    /// The job's name, as a flag.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub job: Option<String>,
    /// Only this attempt [default: all].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Delete every run of the job.
    #[arg(long)]
    pub all_runs: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

impl Delete {
    /// The job's name. It has no default, so no command deletes the newest job by accident.
    #[must_use]
    pub fn name(&self) -> &str {
        self.named.as_deref().or(self.job.as_deref()).unwrap_or_default()
    }
}
