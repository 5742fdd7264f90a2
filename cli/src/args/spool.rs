//! The arguments of `memctl spool`.

use clap::{Args, Subcommand};

/// Number of characters of a session's id that are shown, and that a user types.
pub const ID_SHOWN: usize = 8;

/// `memctl spool`.
#[derive(Clone, Debug, Args)]
pub struct Spool {
    /// The action. Without one, the spool is listed.
    #[command(subcommand)]
    pub command: Option<SpoolCommand>,
}

/// The actions on recordings that wait.
#[derive(Clone, Debug, Subcommand)]
pub enum SpoolCommand {
    /// Deliver the waiting recordings to this store or to --daemon, regardless of their original destination.
    Deliver {
        /// The sessions, by the beginning of their id or by their job [default: all].
        sessions: Vec<String>,
    },
    /// Delete waiting recordings. They cannot be recovered.
    Discard(Discard),
}

/// `memctl spool discard`.
#[derive(Clone, Debug, Args)]
pub struct Discard {
    /// The sessions, by the beginning of their id or by their job.
    #[arg(required_unless_present = "all")]
    pub sessions: Vec<String>,
    /// All recordings that wait.
    #[arg(long, conflicts_with = "sessions")]
    pub all: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}
