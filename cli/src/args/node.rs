//! The arguments of `memctl node`.
//!
//! Guarantees: parsing does no I/O.

use clap::{Args, Subcommand};

/// `memctl node`.
#[derive(Clone, Debug, Args)]
pub struct Node {
    /// The action.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// The actions of `memctl node`.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Show which processes hold memory of this machine's devices, and of which job they are. For a prolog or epilog.
    Check(NodeCheck),
}

/// `memctl node check`.
#[derive(Clone, Debug, Args)]
pub struct NodeCheck {
    /// Exit with 1 if memory is held by a process of no running job, or by no process.
    #[arg(long)]
    pub refuse: bool,
    /// Ignore less memory than this on a device: 64MiB.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = memctl_answers::conditions::bytes)]
    pub above: u64,
    /// The name of a program that may hold memory without a job (nvidia-cuda-mps-server); may be repeated.
    #[arg(long = "allow", value_name = "PROGRAM")]
    pub allowed: Vec<String>,
    /// A job that has ended: its processes are left over [default in Slurm's epilog: its job].
    #[arg(long = "ended", value_name = "JOB")]
    pub ended: Option<String>,
}
