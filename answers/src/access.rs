//! `memctl token` and `memctl audit` as data.
//!
//! Guarantees: those of every answer ([`super`]). Only the response that creates a token contains its secret.

use memctl_proto::v1;
use serde::{Deserialize, Serialize};

use super::{Listing, SCHEMA};
use crate::format::csv::Cell;
use crate::format::id::Id;
use crate::format::time::Time;

/// The role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Writes to the jobs that its pattern allows.
    Agent,
    /// Reads.
    Reader,
    /// Reads, writes, silences, deletes.
    Operator,
    /// All of this, and tokens.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Reader, Self::Operator, Self::Admin];

    /// Its name, in JSON as well.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role of a name.
    ///
    /// # Errors
    /// The error names the existing roles.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == name);
        found.ok_or_else(|| format!("there is no role {name:?}; there are agent, reader, operator and admin"))
    }

    /// Converts the role of a request.
    #[must_use]
    pub const fn from_wire(role: v1::Role) -> Option<Self> {
        match role {
            v1::Role::Unspecified => None,
            v1::Role::Agent => Some(Self::Agent),
            v1::Role::Reader => Some(Self::Reader),
            v1::Role::Operator => Some(Self::Operator),
            v1::Role::Admin => Some(Self::Admin),
        }
    }
}

/// The caller, as the daemon sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Caller {
    /// What the log calls it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Its tenant, `*` for all.
    pub tenant: String,
    /// Jobs that it may write to; `*` stands for anything.
    pub jobs: String,
}

/// Tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tokens {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// By name, then by when they were made.
    pub tokens: Vec<Token>,
}

/// One token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// What it may do; null where a newer memctl made it.
    pub role: Option<Role>,
    /// Its tenant, `*` for all.
    pub tenant: String,
    /// Jobs that it may write to; `*` stands for anything.
    pub jobs: String,
    /// Whether it counts.
    pub state: TokenState,
    /// When it was made.
    pub created_at: Time,
    /// When it expires.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// The token itself, where it was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Whether a token is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It does.
    Valid,
    /// No longer: its time is over.
    Expired,
    /// No longer: an admin has revoked it.
    Revoked,
}

impl TokenState {
    /// Its name, in JSON as well.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// The caller over HTTP, as in `/api/v1/caller`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Known {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// What the log calls the caller.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Its tenant, `*` for all.
    pub tenant: String,
    /// Whether it came with a token, and can sign out.
    pub signed_in: bool,
    /// The daemon's version.
    pub version: &'static str,
}

impl Known {
    /// A caller.
    #[must_use]
    pub const fn new(name: String, role: Role, tenant: String, signed_in: bool, version: &'static str) -> Self {
        Self { schema: SCHEMA, name, role, tenant, signed_in, version }
    }
}

impl Listing for Tokens {
    type Row = Token;
    const COLUMNS: &'static [&'static str] =
        &["id", "name", "role", "tenant", "jobs", "state", "created_at", "expires_at", "revoked_at"];

    fn rows(&self) -> &[Token] {
        &self.tokens
    }

    fn cells(token: &Token) -> Vec<Cell> {
        vec![
            Cell::plain(token.id),
            Cell::text(&*token.name),
            Cell::maybe(token.role.map(Role::name)),
            Cell::text(&*token.tenant),
            Cell::text(&*token.jobs),
            Cell::plain(token.state.name()),
            Cell::plain(token.created_at),
            Cell::maybe(token.expires_at),
            Cell::maybe(token.revoked_at),
        ]
    }
}

/// The audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Audit {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The newest first.
    pub entries: Vec<Entry>,
}

/// One entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub at: Time,
    /// The tenant that it concerns, `*` for all.
    pub tenant: String,
    /// Who.
    pub caller: String,
    /// From where.
    pub peer: String,
    /// What was asked for.
    pub action: String,
    /// Of what.
    pub subject: String,
    /// Whether it was refused.
    pub refused: bool,
    /// What came of it.
    pub outcome: String,
}

impl Listing for Audit {
    type Row = Entry;
    const COLUMNS: &'static [&'static str] =
        &["at", "tenant", "caller", "peer", "action", "subject", "refused", "outcome"];

    fn rows(&self) -> &[Entry] {
        &self.entries
    }

    fn cells(entry: &Entry) -> Vec<Cell> {
        let Entry { at, tenant, caller, peer, action, subject, refused, outcome } = entry;
        vec![
            Cell::plain(at),
            Cell::text(&**tenant),
            Cell::text(&**caller),
            Cell::text(&**peer),
            Cell::text(&**action),
            Cell::text(&**subject),
            Cell::plain(refused),
            Cell::text(&**outcome),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_in_json() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
        for state in [TokenState::Valid, TokenState::Expired, TokenState::Revoked] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }
}
