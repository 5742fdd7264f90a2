//! `memctl token` and `memctl audit` as data.
//!
//! Guarantees: as every answer ([`super`]). A token's secret is in the answer to its making and in no other.

use std::io::{self, Write};

use jiff::Timestamp;
use memctl_proto::v1;
use serde::Serialize;

use super::{Answer, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::time;

/// Tokens.
#[derive(Clone, Debug, Serialize)]
pub struct Tokens {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// By name, then by when they were made.
    pub tokens: Vec<Token>,
}

/// One token.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `agent`, `reader`, `operator` or `admin`; null where a newer memctl made it.
    pub role: Option<&'static str>,
    /// Its tenant, `*` for all.
    pub tenant: String,
    /// Jobs that it may write to; `*` stands for anything.
    pub jobs: String,
    /// `valid`, `expired` or `revoked`.
    pub state: &'static str,
    /// When it was made.
    pub created_at: String,
    /// When it expires.
    pub expires_at: Option<String>,
    /// When it was revoked.
    pub revoked_at: Option<String>,
    /// The token itself, where it was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Who asks, as the daemon sees it.
#[derive(Clone, Debug, Serialize)]
pub struct Known {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// What the log calls the caller.
    pub name: String,
    /// `agent`, `reader`, `operator` or `admin`.
    pub role: &'static str,
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
    pub const fn new(name: String, role: &'static str, tenant: String, signed_in: bool, version: &'static str) -> Self {
        Self { schema: SCHEMA, name, role, tenant, signed_in, version }
    }
}

const fn role(role: v1::Role) -> Option<&'static str> {
    match role {
        v1::Role::Unspecified => None,
        v1::Role::Agent => Some("agent"),
        v1::Role::Reader => Some("reader"),
        v1::Role::Operator => Some("operator"),
        v1::Role::Admin => Some("admin"),
    }
}

impl Token {
    /// From the daemon's answer.
    #[must_use]
    pub fn new(wire: v1::Token, now: Timestamp) -> Self {
        let role = role(wire.role());
        let v1::Token { id, name, role: _, tenant, jobs, created_ns, expires_ns, revoked_ns } = wire;
        let now_ns = u64::try_from(now.as_nanosecond()).unwrap_or(0);
        let state = match (revoked_ns, expires_ns) {
            (Some(_), _) => "revoked",
            (None, Some(expires_ns)) if expires_ns <= now_ns => "expired",
            (None, _) => "valid",
        };
        Self {
            id,
            name,
            role,
            tenant,
            jobs,
            state,
            created_at: time::rfc3339(created_ns),
            expires_at: expires_ns.map(time::rfc3339),
            revoked_at: revoked_ns.map(time::rfc3339),
            secret: None,
        }
    }
}

impl Tokens {
    /// From the daemon's answer.
    #[must_use]
    pub fn new(tokens: Vec<v1::Token>, now: Timestamp) -> Self {
        Self { schema: SCHEMA, tokens: tokens.into_iter().map(|token| Token::new(token, now)).collect() }
    }
}

impl Answer for Tokens {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.tokens.iter().try_for_each(|token| json::line(out, token))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["id", "name", "role", "tenant", "jobs", "state", "created_at", "expires_at", "revoked_at"])?;
        self.tokens.iter().try_for_each(|token| {
            let cells = [
                Cell::text(&token.id),
                Cell::text(&*token.name),
                Cell::maybe(token.role),
                Cell::text(&*token.tenant),
                Cell::text(&*token.jobs),
                Cell::plain(token.state),
                Cell::plain(&token.created_at),
                Cell::maybe(token.expires_at.as_deref()),
                Cell::maybe(token.revoked_at.as_deref()),
            ];
            csv::record(out, &cells)
        })
    }
}

/// The audit log.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The newest first.
    pub entries: Vec<Entry>,
}

/// One entry.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// When.
    pub at: String,
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

impl From<v1::ListAuditResponse> for Audit {
    fn from(wire: v1::ListAuditResponse) -> Self {
        let entry = |wire: v1::AuditEntry| {
            let v1::AuditEntry { time_ns, tenant, caller, peer, action, subject, refused, outcome } = wire;
            Entry { at: time::rfc3339(time_ns), tenant, caller, peer, action, subject, refused, outcome }
        };
        Self { schema: SCHEMA, entries: wire.entries.into_iter().map(entry).collect() }
    }
}

impl Answer for Audit {
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.entries.iter().try_for_each(|entry| json::line(out, entry))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["at", "tenant", "caller", "peer", "action", "subject", "refused", "outcome"])?;
        self.entries.iter().try_for_each(|entry| {
            let Entry { at, tenant, caller, peer, action, subject, refused, outcome } = entry;
            let cells = [
                Cell::plain(at),
                Cell::text(&**tenant),
                Cell::text(&**caller),
                Cell::text(&**peer),
                Cell::text(&**action),
                Cell::text(&**subject),
                Cell::plain(refused),
                Cell::text(&**outcome),
            ];
            csv::record(out, &cells)
        })
    }
}
