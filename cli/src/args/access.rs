//! `memctl token` and `memctl audit` as clap sees them.
//!
//! Guarantees: parsing does no I/O; no flag takes a token, because every user of the machine can see command lines.

use clap::{Args, Subcommand, ValueEnum};
use memctl_proto::v1;

use super::alerts::SilenceTime;

/// `memctl token`.
#[derive(Clone, Debug, Args)]
pub struct Token {
    /// What is done.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What can be done with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it, once. Only its hash is kept.
    Create(CreateToken),
    /// List tokens, those that no longer count included.
    List,
    /// Revoke a token: within seconds it is refused, and its streams end.
    Revoke {
        /// Its id, or its name where one valid token alone has it.
        token: String,
    },
}

/// `memctl token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateToken {
    /// Its name: who or what will use it.
    pub name: String,
    /// What it may do.
    #[arg(long, value_enum, value_name = "ROLE")]
    pub role: RoleArg,
    /// Jobs that it may write to; `*` stands for anything [default: all].
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    pub jobs: String,
    /// It expires after this: 45s, 90m, 2h, 90d [default: never].
    #[arg(long, value_name = "TIME")]
    pub expires: Option<SilenceTime>,
}

/// What a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Write to the jobs that the pattern allows.
    Agent,
    /// Ask questions.
    Reader,
    /// Ask, write, silence, delete.
    Operator,
    /// All of it, and tokens.
    Admin,
}

impl RoleArg {
    /// The role on the wire.
    #[must_use]
    pub const fn to_wire(self) -> v1::Role {
        match self {
            Self::Agent => v1::Role::Agent,
            Self::Reader => v1::Role::Reader,
            Self::Operator => v1::Role::Operator,
            Self::Admin => v1::Role::Admin,
        }
    }
}

/// `memctl audit`.
#[derive(Clone, Debug, Args)]
pub struct Audit {
    /// So many entries at most, the newest.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u32,
}
