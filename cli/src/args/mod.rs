//! The command line for clap: every command, every flag, and their texts in `--help`.
//!
//! Guarantees: parsing does no I/O. Wrong usage ends with exit code 2 and a sentence. Each group of commands has a file
//! with its arguments. [`values`] parses the values of flags.

pub mod access;
pub mod alerts;
mod assert;
mod compare;
pub mod help;
pub mod job_names;
mod mcp;
pub mod node;
mod questions;
mod recording;
mod serving;
pub mod spool;
mod stores;
mod ui;
pub mod values;
mod which;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::hosting::{Credentials, DaemonAddress, Tls, TokenSource};
use crate::render::screen::Colour;
pub use assert::{Assert, Results};
pub use compare::{Baseline, BaselineVerb, Diff};
pub use mcp::Mcp;
pub use node::Node;
pub use questions::{
    Diagnose, Export, ExportFormat, FailOn, Fit, Frag, Holders, Jobs, Leaks, Ledger, Need, Oom, Part, Query, Ranks,
    Report, Sites, Timeline, WhatIf,
};
pub use recording::{Import, Run};
pub use serving::{Daemon, LocalService, LogFormat};
pub use stores::{Backup, Check, Delete, Restore};
pub use ui::{Demo, UI_PORT, Ui};
pub use which::NEWEST;

/// Show what GPU memory does in a training job: what grows, where it was allocated, on which rank.
#[derive(Debug, Parser)]
#[command(name = "memctl", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 a finding at or above --fail-on, or a condition that does not hold or is inconclusive, 2 wrong usage, \
3 no daemon or store can be reached, 4 no such job, 5 invalid input (none of it was stored), 6 not allowed (token, certificate or role).\n\
Try `memctl demo` first: it needs no GPU, no Python and no server.";

/// The heading of flags that choose the daemon or the store.
const CONNECTION: &str = "Connection";
/// The heading of flags for the output.
const OUTPUT: &str = "Output";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Use this daemon (unix:/path, http://host:port, https://host:port) [env: MEMCTL_DAEMON, unless --data-dir is given].
    #[arg(long, global = true, value_name = "URL", help_heading = CONNECTION)]
    pub daemon: Option<String>,
    /// Use the store in this data folder, through its local service [default: ~/.local/share/memctl].
    #[arg(long, global = true, value_name = "DIR", help_heading = CONNECTION)]
    pub data_dir: Option<PathBuf>,
    /// Open the store in this process, without the local service [env: MEMCTL_SERVICE=off].
    #[arg(long, global = true, hide_short_help = true, help_heading = CONNECTION)]
    pub in_process: bool,
    /// For https://: a PEM file with the certificate authorities to trust [default: the system's; env: MEMCTL_TLS_CA].
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true, help_heading = CONNECTION)]
    pub tls_ca: Option<PathBuf>,
    /// A PEM file with memctl's own certificate and its chain: the client's certificate, or for `memctl daemon` the daemon's [env: MEMCTL_TLS_CERT].
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true, help_heading = CONNECTION)]
    pub tls_cert: Option<PathBuf>,
    /// A PEM file with the private key of the certificate in --tls-cert [env: MEMCTL_TLS_KEY].
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true, help_heading = CONNECTION)]
    pub tls_key: Option<PathBuf>,
    /// A file that contains the token for the daemon [env: MEMCTL_TOKEN_FILE, or MEMCTL_TOKEN with the token itself].
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true, help_heading = CONNECTION)]
    pub token_file: Option<PathBuf>,
    /// The tenant to use, for callers that may use all tenants; * means all [env: MEMCTL_TENANT].
    #[arg(long, global = true, value_name = "TENANT", value_parser = clap::builder::NonEmptyStringValueParser::new(), hide_short_help = true, help_heading = CONNECTION)]
    pub tenant: Option<String>,
    /// Format of the output. CSV escapes control characters, and puts ' before text that a spreadsheet would run as a formula.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, help_heading = OUTPUT)]
    pub output: Format,
    /// When to print colours.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Colour::Auto, help_heading = OUTPUT)]
    pub color: Colour,
    /// The same as --color never.
    #[arg(long, global = true, conflicts_with = "color", hide_short_help = true, help_heading = OUTPUT)]
    pub no_color: bool,
    /// Print only the result, without progress and advice.
    #[arg(short, long, global = true, help_heading = OUTPUT)]
    pub quiet: bool,
    /// Of `memctl mcp`: the credentials of the caller whose question is asked.
    #[arg(skip)]
    pub callers: Option<Credentials>,
}

impl Global {
    /// When to print colours, from --color or --no-color.
    #[must_use]
    pub const fn colour(&self) -> Colour {
        if self.no_color { Colour::Never } else { self.color }
    }

    /// The daemon that was named, unless the name is empty.
    #[must_use]
    pub fn daemon(&self) -> Option<&str> {
        self.daemon.as_deref().filter(|url| !url.is_empty())
    }

    /// The files for `https://`: flags first, then the environment.
    #[must_use]
    pub fn tls(&self) -> Tls {
        let Tls { ca, cert, key } = Tls::from_environment(&|name| std::env::var(name).ok());
        // A certificate and its key come from the same source.
        let (cert, key) = match (&self.tls_cert, &self.tls_key) {
            (None, None) => (cert, key),
            flags => (flags.0.clone(), flags.1.clone()),
        };
        Tls { ca: self.tls_ca.clone().or(ca), cert, key }
    }

    /// The address of the daemon that was named.
    #[must_use]
    pub fn daemon_address(&self) -> Option<DaemonAddress> {
        self.daemon().map(|url| DaemonAddress { tls: self.tls(), ..DaemonAddress::from(url) })
    }

    /// The token and tenant that are sent with requests: flags first, then the environment.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        if let Some(callers) = &self.callers {
            return callers.clone();
        }
        let Credentials { token, tenant } = Credentials::from_environment(&|name| std::env::var(name).ok());
        let named = self.token_file.clone().map(TokenSource::File);
        Credentials { token: named.or(token), tenant: self.tenant.clone().or(tenant) }
    }

    /// Uses the environment's daemon unless a flag names a daemon or a folder.
    #[must_use]
    pub fn or_environment(mut self, daemon: Option<String>) -> Self {
        if self.daemon.is_none() && self.data_dir.is_none() {
            self.daemon = daemon;
        }
        // A relative path becomes absolute here, because a recorded program may run in another folder.
        self.daemon = self.daemon.map(|url| DaemonAddress::from(url).url);
        self
    }
}

/// Formats of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text and tables for people.
    Table,
    /// One JSON object.
    Json,
    /// One JSON object per line.
    Ndjson,
    /// Comma-separated values with a header.
    Csv,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Import a recorded 4-GPU job and show its analysis. Needs no GPU and leaves no files.
    Demo(Demo),
    /// Show jobs, their memory and their sites in a browser, until Ctrl-C.
    Ui(Ui),
    /// Answer the questions of an AI assistant about recorded jobs, read-only, over the Model Context Protocol.
    Mcp(Mcp),
    /// Run a command and record all its PyTorch processes. Exits with the command's exit code.
    Run(Run),
    /// Receive events from agents, store them, analyse jobs and answer queries.
    Daemon(Daemon),
    /// Import PyTorch memory snapshots (torch.cuda.memory._dump_snapshot) as a job.
    Import(Import),
    /// List jobs, newest first.
    #[command(visible_aliases = ["ls", "list"])]
    Jobs(Jobs),
    /// Summarize a job: levels and peaks by rank, problems and their places.
    #[command(visible_aliases = ["show", "status"])]
    Query(Query),
    /// Show memory that grows, each finding in full.
    Leaks(Leaks),
    /// Compare the ranks and show the outliers.
    Ranks(Ranks),
    /// Show how each rank's memory is fragmented, which sites cause it, and whether a request would fail.
    Frag(Frag),
    /// Explain failed requests: the reason, and the memory that filled the device.
    Oom(Oom),
    /// Replay a job under other allocator settings and limits, and show the memory that each would need.
    WhatIf(WhatIf),
    /// Show how much memory a training needs, the sizes of devices and MIG slices that would have been enough, and what it left unused.
    Need(Need),
    /// Forecast the memory of a training at other sizes or with changes. Shows which sizes fit, what the peak consists of, and which changes save memory.
    Fit(Fit),
    /// Find the Python objects that hold the tensors of a site in a running process. The search pauses the process for a limited time.
    Holders(Holders),
    /// Break down the device's memory into parameters, gradients, activations, cache, context and other processes.
    Ledger(Ledger),
    /// Write a one-page diagnosis: the problem, its line of code, the change to make, and how to prove the change.
    Diagnose(Diagnose),
    /// Write a report that you can send: one HTML file that works offline, or Markdown for a pull request.
    Report(Report),
    /// Check conditions, for CI. The exit code is 1 if a condition does not hold.
    Assert(Assert),
    /// Compare the memory of two runs: peaks, sites, classes, settings, findings.
    Diff(Diff),
    /// Save a run's figures into a file to commit, for `memctl assert --against FILE`.
    Baseline(Baseline),
    /// Show memory over time, as a plot or as data.
    Timeline(Timeline),
    /// Show live memory by allocation site at one moment.
    Sites(Sites),
    /// List alerts, test receivers, and silence alerts.
    Alerts(alerts::Alerts),
    /// Create, list and revoke tokens, for admins.
    Token(access::Token),
    /// Show the audit log, for admins: which caller deleted a job, silenced alerts, created a token or tested a receiver, and refused attempts.
    Audit(access::Audit),
    /// Export stored data in the format of another tool.
    Export(Export),
    /// List recordings that wait on this disk because no daemon accepted them; deliver or discard them.
    Spool(spool::Spool),
    /// Check the store, the daemon and the recording environment, and name remedies.
    Doctor,
    /// Check this machine's devices, for a prolog or epilog.
    Node(Node),
    /// Delete a run of a job, or one attempt of it, with all its data.
    #[command(visible_alias = "rm")]
    Delete(Delete),
    /// Write all stored data into one new file. A daemon may write to the store meanwhile.
    Backup(Backup),
    /// Load a backup into an empty store, SQLite or Postgres.
    Restore(Restore),
    /// Check that stored data is complete and undamaged. A daemon may write to the store meanwhile. Nothing is changed without --compact.
    Check(Check),
    /// Print the completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the version.
    Version,
}

impl Command {
    /// The job that a query is about; `None` for commands that are not about one job, or that change it.
    #[must_use]
    pub fn job(&self) -> Option<String> {
        let which = match self {
            Self::Query(Query { narrow, .. })
            | Self::Leaks(Leaks { narrow, .. })
            | Self::Ranks(Ranks { narrow, .. })
            | Self::Frag(Frag { narrow, .. })
            | Self::Oom(Oom { narrow, .. })
            | Self::Ledger(Ledger { narrow, .. })
            | Self::Diagnose(Diagnose { narrow, .. })
            | Self::Report(Report { narrow, .. })
            | Self::Timeline(Timeline { narrow, .. })
            | Self::Sites(Sites { narrow, .. })
            | Self::Export(Export { narrow, .. }) => &narrow.which,
            Self::WhatIf(WhatIf { which, .. })
            | Self::Need(Need { which, .. })
            | Self::Holders(Holders { which, .. }) => which,
            Self::Assert(assert) => return assert.asked().ok().map(|(job, _)| job),
            _ => return None,
        };
        Some(which.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use jiff::Timestamp;
    use memctl_proto::v1;

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
            launcher: None,
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
            "memctl query j --job j",
            "memctl nothing",
            "memctl query --job j --rank x",
            "memctl import --job j",
            "memctl import p",
            "memctl import p --job latest",
            "memctl import p --job j --replace --attempt 1",
            "memctl export --job j",
            "memctl ledger j k",
            "memctl holders j --job k",
            "memctl holders --job j --budget 0ms",
            "memctl holders --job j --budget 1m",
            "memctl holders --job j --rank 0-3",
            "memctl holders --job j --site=",
            "memctl ledger --job j --peak --end",
            "memctl query --job j -o yaml",
            "memctl query --job j --fail-on much",
            "memctl assert --job j",
            "memctl assert --job= no-leak",
            "memctl query --job=",
            "memctl delete --job=",
            "memctl assert --job j stable --tolerance much",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
