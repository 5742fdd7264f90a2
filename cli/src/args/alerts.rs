//! `memctl alerts` as clap sees it.
//!
//! Guarantees: parsing does no I/O; the daemon, which knows rules and kinds, checks a silence.

use std::str::FromStr;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use super::job_names::job_names;
use super::values::{LabelArg, RankList};

/// `memctl alerts`.
#[derive(Clone, Debug, Args)]
pub struct Alerts {
    /// List only alerts that fire.
    #[arg(long)]
    pub firing: bool,
    /// What else; without it alerts are listed.
    #[command(subcommand)]
    pub command: Option<AlertsCommand>,
}

/// What can be done with alerts other than listing them.
#[derive(Clone, Debug, Subcommand)]
pub enum AlertsCommand {
    /// Send a test alert to every receiver and print each answer; exit code 1 when one failed.
    Test {
        /// Test only this receiver.
        #[arg(long, value_name = "NAME")]
        receiver: Option<String>,
    },
    /// Suppress notifications of matching alerts; they still fire and are listed.
    Silence(Silence),
    /// End a silence.
    Unsilence {
        /// Its id, as `memctl alerts silences` shows it.
        id: String,
    },
    /// List silences.
    Silences,
    /// Print the rules in force, as the TOML file that would give them.
    Rules,
}

/// `memctl alerts silence`.
#[derive(Clone, Debug, Args)]
pub struct Silence {
    /// Of this job; `*` stands for anything.
    #[arg(long, value_name = "JOB", add = ArgValueCandidates::new(job_names))]
    pub job: Option<String>,
    /// Of this kind of finding: leak, fragmentation, oom, …
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Of this rule.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// About no other ranks than these: 0-3,7.
    #[arg(long, value_name = "LIST")]
    pub rank: Option<RankList>,
    /// With this label; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
    /// How long: 45s, 90m, 2h, 7d.
    #[arg(long = "for", value_name = "TIME", default_value = "2h")]
    pub duration: SilenceTime,
    /// The reason.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub comment: String,
    /// Who silences [default: the user].
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true, default_value = "")]
    pub author: String,
}

/// How long a silence lasts, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceTime(pub u64);

impl FromStr for SilenceTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ns = memctl_model::quantity::duration_ns(text).ok().filter(|ns| *ns > 0);
        ns.map(Self).ok_or_else(|| format!("`{text}` is not a duration; write it like 45s, 90m, 2h or 7d"))
    }
}
