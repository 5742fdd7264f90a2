//! The arguments of `memctl token` and `memctl audit`.
//!
//! Guarantees: parsing does no I/O. No flag takes a token, because every user of the machine can see command lines.

use clap::{Args, Subcommand, ValueEnum};
use memctl_proto::v1;

use super::alerts::SilenceTime;

/// `memctl token`.
#[derive(Clone, Debug, Args)]
pub struct Token {
    /// The action.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// The actions of `memctl token`.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print it once. Only its hash is stored.
    Create(CreateToken),
    /// List all tokens, also expired and revoked ones.
    List,
    /// Revoke a token. Within seconds, memctl refuses it and ends its streams.
    Revoke {
        /// The token's id, or its name if only one valid token has this name.
        token: String,
    },
}

/// `memctl token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateToken {
    /// The token's name, such as the name of its user.
    pub name: String,
    /// The role of the token.
    #[arg(long, value_enum, value_name = "ROLE")]
    pub role: RoleArg,
    /// The jobs that it may write to. `*` stands for any text [default: all].
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    pub jobs: String,
    /// The time after which it expires: 45s, 90m, 2h, 90d [default: never].
    #[arg(long, value_name = "TIME")]
    pub expires: Option<SilenceTime>,
}

/// The role of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Write to the jobs of --jobs.
    Agent,
    /// Send queries.
    Reader,
    /// Send queries, write, silence alerts, delete jobs.
    Operator,
    /// All actions of an operator, and manage tokens.
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
    /// The maximum number of entries. The newest entries are shown.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u32,
}
