//! The arguments of `memctl alerts`.
//!
//! Guarantees: parsing does no I/O. The daemon knows the rules and kinds, so the daemon checks a silence.

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
    /// Another action. Without one, alerts are listed.
    #[command(subcommand)]
    pub command: Option<AlertsCommand>,
}

/// The actions of `memctl alerts`, except for the list of alerts.
#[derive(Clone, Debug, Subcommand)]
pub enum AlertsCommand {
    /// Send a test alert to every receiver and print each result. The exit code is 1 if one failed.
    Test {
        /// Test only this receiver.
        #[arg(long, value_name = "NAME")]
        receiver: Option<String>,
    },
    /// Suppress notifications about matching alerts. The alerts still fire and are listed.
    Silence(Silence),
    /// End a silence.
    Unsilence {
        /// The silence's id, from `memctl alerts silences`.
        id: String,
    },
    /// List silences.
    Silences,
    /// Print the rules in force, as a TOML file.
    Rules,
}

/// `memctl alerts silence`.
#[derive(Clone, Debug, Args)]
pub struct Silence {
    /// Only alerts of this job. `*` stands for any text.
    #[arg(long, value_name = "JOB", add = ArgValueCandidates::new(job_names))]
    pub job: Option<String>,
    /// Only this kind of finding: leak, fragmentation, oom, …
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only alerts of this rule.
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Only alerts about these ranks and no others: 0-3,7.
    #[arg(long, value_name = "LIST")]
    pub rank: Option<RankList>,
    /// Only jobs with this label; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<LabelArg>,
    /// How long the silence lasts: 45s, 90m, 2h, 7d.
    #[arg(long = "for", value_name = "TIME", default_value = "2h")]
    pub duration: SilenceTime,
    /// The reason.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub comment: String,
    /// The author of the silence [default: the user].
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true, default_value = "")]
    pub author: String,
}

/// How long a silence lasts, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilenceTime(pub u64);

impl FromStr for SilenceTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ns = memctl_model::quantity::duration_ns(text).ok();
        if ns == Some(0) {
            return Err(format!("`{text}` is no time at all; write a longer one, like 45s, 90m, 2h or 7d"));
        }
        ns.map(Self).ok_or_else(|| format!("`{text}` is not a duration; write it like 45s, 90m, 2h or 7d"))
    }
}
