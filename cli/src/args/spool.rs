//! `memctl spool` as clap sees it.

use clap::{Args, Subcommand};

/// Characters of a session's id that are shown, and that a person types.
pub const ID_SHOWN: usize = 8;

/// `memctl spool`.
#[derive(Clone, Debug, Args)]
pub struct Spool {
    /// What is done; without it the spool is listed.
    #[command(subcommand)]
    pub command: Option<SpoolCommand>,
}

/// What can be done with what waits.
#[derive(Clone, Debug, Subcommand)]
pub enum SpoolCommand {
    /// Deliver what waits to this store, or to --daemon, whichever destination it was meant for.
    Deliver {
        /// Sessions by the beginning of their id, or by their job [default: all].
        sessions: Vec<String>,
    },
    /// Discard what waits: nothing brings it back.
    Discard(Discard),
}

/// `memctl spool discard`.
#[derive(Clone, Debug, Args)]
pub struct Discard {
    /// Sessions by the beginning of their id, or by their job.
    #[arg(required_unless_present = "all")]
    pub sessions: Vec<String>,
    /// Everything that waits.
    #[arg(long, conflicts_with = "sessions")]
    pub all: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}
