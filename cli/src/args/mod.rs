//! The command line as clap sees it: every verb, every flag, and what `--help` says about them.
//!
//! Guarantees: parsing does no I/O; wrong usage ends with exit code 2 and a sentence. The values
//! themselves are parsed in [`values`].
//!
//! (Over 400 lines: a table of verbs and flags with the words that users read; nothing here decides anything.)

pub mod alerts;
pub mod job_names;
pub mod values;

use memctl_model::JobState;
use memctl_model::limits::{JOBS_LISTED, TIMELINE_POINTS_MAX};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCandidates;
use jiff::Timestamp;
use memctl_proto::v1;

use memctl_answers::conditions::{Condition, Tolerance};

use job_names::job_names;
use values::{EpochRange, LabelArg, RankList, TimeBound};

/// Where a daemon listens unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7717";

/// Show what GPU memory does in a training job: what grows, where it was allocated, on which rank.
#[derive(Debug, Parser)]
#[command(name = "memctl", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What every command understands.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a finding at or above --fail-on or an assert that does not hold, 2 wrong usage, \
3 no daemon or store can be reached, 4 no such job, 5 bad input (nothing of it was stored).\n\
Try `memctl demo` first: no GPU, no Python, no server.";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Ask this daemon (http://host:port) [env: MEMCTL_DAEMON, unless --data-dir is given].
    #[arg(long, global = true, value_name = "URL")]
    pub daemon: Option<String>,
    /// Without a daemon: the folder of the store, which this command opens itself.
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Format of the answer. CSV escapes control characters and puts ' before text that a spreadsheet would compute.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Print without colours (as NO_COLOR and pipes do).
    #[arg(long, global = true)]
    pub no_color: bool,
    /// Print the answer alone, without progress and advice.
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Global {
    /// The daemon that was named, unless the name is empty.
    #[must_use]
    pub fn daemon(&self) -> Option<&str> {
        self.daemon.as_deref().filter(|url| !url.is_empty())
    }

    /// What the environment says, where no flag says otherwise: a flag that names another place wins.
    #[must_use]
    pub fn or_environment(mut self, daemon: Option<String>) -> Self {
        if self.daemon.is_none() && self.data_dir.is_none() {
            self.daemon = daemon;
        }
        self
    }
}

/// Shape of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// One JSON object.
    Json,
    /// One JSON object a line.
    Ndjson,
    /// Comma-separated values with a header.
    Csv,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Import a recorded 4-GPU job and ask about it. Needs no GPU and leaves nothing behind.
    Demo,
    /// Run a command and record every PyTorch process in it; exits with the command's exit code.
    Run(Run),
    /// Receive events from agents, store them, judge jobs and answer questions.
    Daemon(Daemon),
    /// Import PyTorch memory snapshots (torch.cuda.memory._dump_snapshot) as a job.
    Import(Import),
    /// List jobs, newest first.
    Jobs(Jobs),
    /// Summarize a job: levels and peaks by rank, what is wrong and where.
    Query(Query),
    /// Show what grows, each finding in full.
    Leaks(Leaks),
    /// Compare the ranks and show what stands out.
    Ranks(Ranks),
    /// Show how each rank's memory is fragmented, what pins it, and whether a request would fail.
    Frag(Frag),
    /// Explain failed requests: the arithmetic, and what filled the device.
    Oom(Oom),
    /// Break down the device's memory: parameters, gradients, activations, cache, context, other processes.
    Ledger(Ledger),
    /// Write a one-page diagnosis: what is wrong, in which line, what to change, how to prove it.
    Diagnose(Diagnose),
    /// Check conditions, for CI: exit code 1 when one does not hold.
    Assert(Assert),
    /// Show memory over time, as a plot or as data.
    Timeline(Timeline),
    /// Show live memory by allocation site at one moment.
    Sites(Sites),
    /// List alerts, test receivers, and silence alerts.
    Alerts(alerts::Alerts),
    /// Export what is stored in another tool's format.
    Export(Export),
    /// Check the store, the daemon and the recording environment, and say what to do.
    Doctor,
    /// Delete a job, or one attempt of it, and everything stored for it.
    Delete(Delete),
    /// Print the completion script for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

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

/// `memctl daemon`.
#[derive(Clone, Debug, Args)]
pub struct Daemon {
    /// Address to listen on [default: 127.0.0.1:7717].
    #[arg(long, env = "MEMCTL_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// The store: sqlite:PATH or postgres://… [default: SQLite in the data directory].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// A TOML file with settings; flags and environment variables take precedence.
    #[arg(long, env = "MEMCTL_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete jobs that ended longer ago (30d, 12h).
    #[arg(long, value_name = "AGE")]
    pub retain_age: Option<String>,
    /// Delete the oldest events beyond this size (20GiB, 500MB).
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes: Option<String>,
    /// A TOML file with alert rules and receivers [default: the built-in rules, with the log as receiver].
    #[arg(long, env = "MEMCTL_ALERT_RULES", value_name = "FILE")]
    pub alert_rules: Option<PathBuf>,
    /// Check the settings and the store, print both, and exit.
    #[arg(long)]
    pub check: bool,
}

/// `memctl import`.
#[derive(Clone, Debug, Args)]
pub struct Import {
    /// Snapshots (.pickle, .pickle.gz, .pickle.zst), or a folder of them; `rankN` in a file's name is its rank.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Name of the job.
    #[arg(long, env = "MEMCTL_JOB", hide_env_values = true, value_name = "JOB", value_parser = values::new_job)]
    pub job: String,
    /// Add the snapshots to the job as this attempt.
    #[arg(long, value_name = "N", conflicts_with = "replace")]
    pub attempt: Option<u32>,
    /// Delete the job of that name first, once the files have been checked.
    #[arg(long)]
    pub replace: bool,
    /// A label of the job; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
}

/// `memctl jobs`.
#[derive(Clone, Debug, Args)]
pub struct Jobs {
    /// The most jobs to list.
    #[arg(long, default_value_t = JOBS_LISTED, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Only jobs in this state; may be repeated.
    #[arg(long = "state", value_parser = job_state(), value_name = "STATE")]
    pub states: Vec<JobState>,
    /// Only jobs with this label; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
}

fn job_state() -> impl TypedValueParser<Value = JobState> {
    let value = |state: JobState| {
        PossibleValue::new(state.name()).help(match state {
            JobState::Running => "Still being recorded",
            JobState::Finished => "Ended without a failure",
            JobState::Failed => "Ended with a failure",
            JobState::Lost => "Stopped reporting without ending",
        })
    };
    let named = |name: String| JobState::ALL.into_iter().find(|state| state.name() == name);
    PossibleValuesParser::new(JobState::ALL.map(value)).try_map(move |name| named(name).ok_or("no such state"))
}

/// Which part of which job.
#[derive(Clone, Debug, Args)]
pub struct Narrow {
    /// The job's name; `latest` is the newest.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub job: String,
    /// The attempt [default: the last].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Only these ranks: 0-3,7.
    #[arg(long, value_name = "LIST")]
    pub rank: Option<RankList>,
    /// Only the process of this name, or all of this role (worker-1, worker); may be repeated.
    #[arg(long = "process", value_name = "NAME")]
    pub processes: Vec<String>,
    /// Only devices with these indexes within their process: 0,2-3.
    #[arg(long, value_name = "LIST")]
    pub device: Option<RankList>,
    /// Only these epochs: 2..5 (both ends included), 2.., 3.
    #[arg(long, value_name = "RANGE")]
    pub epoch: Option<EpochRange>,
    /// Only from this time on: 2026-11-20T10:00:00Z, or 10m for ten minutes ago.
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeBound>,
    /// Only until this time.
    #[arg(long, value_name = "TIME")]
    pub until: Option<TimeBound>,
}

impl Narrow {
    /// As the daemon wants it.
    #[must_use]
    pub fn selection(&self, now: Timestamp) -> v1::Selection {
        let Self { job, attempt, rank, processes, device, epoch, since, until } = self;
        v1::Selection {
            job: job.clone(),
            attempt: *attempt,
            ranks: rank.clone().unwrap_or_default().0,
            processes: processes.clone(),
            devices: device.clone().unwrap_or_default().0,
            first_epoch: epoch.and_then(|range| range.first),
            last_epoch: epoch.and_then(|range| range.last),
            since_ns: since.map(|moment| moment.resolve(now)),
            until_ns: until.map(|moment| moment.resolve(now)),
        }
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Severity {
    /// Informational.
    Info,
    /// Likely to cause a failure.
    Warning,
    /// Causing a failure.
    Critical,
}

impl From<Severity> for memctl_model::Severity {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// `memctl query`.
#[derive(Clone, Debug, Args)]
pub struct Query {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// Exit with code 1 when there is a finding of this severity or worse.
    #[arg(long, value_enum, value_name = "SEVERITY")]
    pub fail_on: Option<Severity>,
}

/// `memctl leaks`.
#[derive(Clone, Debug, Args)]
pub struct Leaks {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// Include suspected growth (severity info).
    #[arg(long)]
    pub all: bool,
}

/// `memctl ranks`.
#[derive(Clone, Debug, Args)]
pub struct Ranks {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl frag`.
#[derive(Clone, Debug, Args)]
pub struct Frag {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl oom`.
#[derive(Clone, Debug, Args)]
pub struct Oom {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl ledger`.
#[derive(Clone, Debug, Args)]
pub struct Ledger {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// When.
    #[command(flatten)]
    pub at: LedgerAt,
    /// List every live block with its class and its birth, as data (-o csv, json or ndjson); 200,000 per rank at most.
    #[arg(long)]
    pub blocks: bool,
}

/// At which moment.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub struct LedgerAt {
    /// When most was allocated, on each rank (the default).
    #[arg(long)]
    pub peak: bool,
    /// At the end of this epoch.
    #[arg(long, value_name = "N")]
    pub epoch_end: Option<u32>,
    /// At the end of the recording.
    #[arg(long)]
    pub end: bool,
}

impl LedgerAt {
    /// As the daemon wants it.
    #[must_use]
    pub fn moment(&self) -> v1::ledger_request::Moment {
        use v1::ledger_request::Moment as Wire;
        match *self {
            Self { epoch_end: Some(epoch), .. } => Wire::EpochEnd(epoch),
            Self { end: true, .. } => Wire::End(true),
            _ => Wire::Peak(true),
        }
    }
}

/// `memctl diagnose`.
#[derive(Clone, Debug, Args)]
pub struct Diagnose {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
}

/// `memctl assert`.
#[derive(Clone, Debug, Args)]
#[command(after_help = ASSERT_HELP)]
pub struct Assert {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// What must hold: stable, no-leak, 'peak<10GiB', 'peak_reserved<12GiB', 'reserved/allocated<1.3', 'growth<1MiB/epoch'.
    #[arg(required_unless_present = "against", value_name = "CONDITION")]
    pub conditions: Vec<Condition>,
    /// Not worse than this job: peaks higher by 5 % at most, no finding that it does not have.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub against: Option<String>,
    /// Judge only what follows the end of this epoch; that end is the first that counts.
    #[arg(long, value_name = "N")]
    pub after_epoch: Option<u32>,
    /// For stable: how far allocated memory at later epoch ends may exceed that at the first, 5% or 16MiB [default: 1%, at least 1 MiB].
    #[arg(long, value_name = "AMOUNT")]
    pub tolerance: Option<Tolerance>,
    /// Judge a job that is still running, ended badly, was not recorded completely or has too few epochs.
    #[arg(long)]
    pub allow_incomplete: bool,
    /// Accept suspected growth, which may be a cache that is still filling.
    #[arg(long)]
    pub allow_suspected: bool,
}

const ASSERT_HELP: &str = "Conditions:\n  \
no-leak                 no finding of growing live memory, suspected growth included\n  \
stable                  no-leak, nothing else grows, and allocated memory at epoch ends stays within the tolerance\n  \
'peak<10GiB'            the peak of allocated bytes on every rank (also <=; KiB, MiB, GiB, TiB, KB, MB, GB, TB)\n  \
'peak_reserved<12GiB'   the peak of reserved bytes\n  \
'reserved/allocated<R'  the ratio of these two peaks\n  \
'growth<1MiB/epoch'     growth of every rank, also /step and /minute\n  \
'fragmentation<R'       the share of reserved bytes that nothing uses at epoch ends, 0..1\n\
Exit codes: 0 all hold, 1 one does not hold or is inconclusive (the data does not say), 2 wrong usage.";

/// `memctl timeline`.
#[derive(Clone, Debug, Args)]
pub struct Timeline {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// The most points per rank [default: the plot's columns, 240 for data].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(TIMELINE_POINTS_MAX)))]
    pub points: Option<u32>,
}

/// `memctl sites`.
#[derive(Clone, Debug, Args)]
pub struct Sites {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// When.
    #[command(flatten)]
    pub at: SitesAt,
    /// As a tree of calls (the default).
    #[arg(long, conflicts_with = "folded")]
    pub tree: bool,
    /// As folded stacks for flamegraph.pl, inferno or speedscope.
    #[arg(long)]
    pub folded: bool,
    /// Show library frames too, not only your own code.
    #[arg(long)]
    pub all_frames: bool,
    /// Omit branches below this share of the memory, in percent.
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    pub min_percent: f64,
}

/// At which moment.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub struct SitesAt {
    /// When most was allocated (on each rank).
    #[arg(long)]
    pub peak: bool,
    /// At the end of this epoch.
    #[arg(long, value_name = "N")]
    pub epoch_end: Option<u32>,
    /// At this time: 2026-11-20T10:00:00Z, or 10m for ten minutes ago.
    #[arg(long, value_name = "TIME")]
    pub at: Option<TimeBound>,
    /// At the end of the recording [default: at the end of the last epoch].
    #[arg(long)]
    pub end: bool,
}

impl SitesAt {
    /// As the daemon wants it.
    #[must_use]
    pub fn moment(&self, now: Timestamp) -> Option<v1::sites_request::Moment> {
        use v1::sites_request::Moment as Wire;
        match *self {
            Self { peak: true, .. } => Some(Wire::Peak(true)),
            Self { epoch_end: Some(epoch), .. } => Some(Wire::EpochEnd(epoch)),
            Self { at: Some(at), .. } => Some(Wire::AtNs(at.resolve(now))),
            Self { end: true, .. } => Some(Wire::End(true)),
            _ => None,
        }
    }
}

/// What `memctl export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A PyTorch snapshot of one rank: `python -m torch.cuda._memory_viz stats FILE`, pytorch.org/memory_viz.
    MemoryViz,
    /// Live memory at the slice's end as folded stacks, for flame graphs.
    Folded,
    /// One line per event.
    Csv,
}

/// `memctl export`.
#[derive(Clone, Debug, Args)]
pub struct Export {
    /// Which part of which job.
    #[command(flatten)]
    pub narrow: Narrow,
    /// The format.
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// Write to this file; `{rank}` in its name becomes the rank, one file each [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `memctl delete`.
#[derive(Clone, Debug, Args)]
pub struct Delete {
    /// The job's name.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub job: String,
    /// Only this attempt [default: all].
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_selection_takes_every_flag() {
        let cli = parse(
            "memctl query --job j --attempt 2 --rank 0-1,3 --process worker-1 --process trainer --device 1 --epoch 2..5 --since 1970-01-01T00:00:01Z --until 1970-01-01T00:00:02Z -o json",
        )
        .unwrap();
        assert_eq!(cli.global.output, Format::Json);
        let Command::Query(query) = cli.command else { panic!("not a query") };
        let expected = v1::Selection {
            job: "j".into(),
            attempt: Some(2),
            ranks: vec![0, 1, 3],
            processes: vec!["worker-1".into(), "trainer".into()],
            devices: vec![1],
            first_epoch: Some(2),
            last_epoch: Some(5),
            since_ns: Some(1_000_000_000),
            until_ns: Some(2_000_000_000),
        };
        assert_eq!(query.narrow.selection(Timestamp::UNIX_EPOCH), expected);
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        let daemon = |line: &str| {
            let global = parse(line).unwrap().global.or_environment(Some("http://env:1".into()));
            global.daemon().map(str::to_owned)
        };
        assert_eq!(daemon("memctl jobs").as_deref(), Some("http://env:1"));
        assert_eq!(daemon("memctl jobs --daemon http://flag:1").as_deref(), Some("http://flag:1"));
        assert_eq!(daemon("memctl jobs --data-dir /d"), None);
    }

    #[test]
    fn one_moment_at_most() {
        use v1::sites_request::Moment as Wire;
        let moment = |flags: &str| match parse(&format!("memctl sites --job j {flags}")).map(|cli| cli.command) {
            Ok(Command::Sites(sites)) => Some(sites.at.moment(Timestamp::UNIX_EPOCH)),
            _ => None,
        };
        assert_eq!(moment(""), Some(None));
        assert_eq!(moment("--end"), Some(Some(Wire::End(true))));
        assert_eq!(moment("--peak"), Some(Some(Wire::Peak(true))));
        assert_eq!(moment("--epoch-end 0"), Some(Some(Wire::EpochEnd(0))));
        assert_eq!(moment("--at 1970-01-01T00:00:00.000000007Z"), Some(Some(Wire::AtNs(7))));
        assert_eq!(moment("--peak --end"), None);
    }

    #[test]
    fn wrong_usage_is_exit_code_2() {
        for line in [
            "memctl",
            "memctl query",
            "memctl nothing",
            "memctl query --job j --rank x",
            "memctl import --job j",
            "memctl import p",
            "memctl import p --job latest",
            "memctl import p --job j --replace --attempt 1",
            "memctl export --job j",
            "memctl ledger",
            "memctl ledger --job j --peak --end",
            "memctl query --job j -o yaml",
            "memctl query --job j --fail-on much",
            "memctl assert --job j",
            "memctl assert --job= no-leak",
            "memctl query --job=",
            "memctl delete --job=",
            "memctl assert --job j leak",
            "memctl assert stable",
            "memctl assert --job j stable --tolerance much",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
