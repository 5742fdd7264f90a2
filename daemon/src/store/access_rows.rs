//! Tokens and the audit log as the store keeps them.
//!
//! Guarantees: both are bounded; of a token's secret only its hash is kept. Refuses: to know what a role may do.

use super::opening::SecretHash;

/// Tokens that are kept, those that were revoked or have expired included.
pub const TOKENS_MAX: u64 = 10_000;
/// Entries of the audit log about what was done.
pub const AUDIT_DONE_MAX: u64 = 100_000;
/// Entries about what was refused: whoever tries often cannot push out what was done.
pub const AUDIT_REFUSED_MAX: u64 = 10_000;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its public half, by which it is found.
    pub id: u64,
    /// What it is called.
    pub name: String,
    /// Its role's name.
    pub role: String,
    /// Its tenant's name, `*` for all.
    pub tenant: String,
    /// Jobs that it may write to: a name in which `*` stands for anything.
    pub jobs: String,
    /// The hash of its secret half.
    pub secret: SecretHash,
    /// When it was made, nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// When it stops to count.
    pub expires_ns: Option<u64>,
    /// When it was revoked.
    pub revoked_ns: Option<u64>,
}

impl TokenRow {
    /// Whether it counts at this moment.
    #[must_use]
    pub fn counts(&self, now_ns: u64) -> bool {
        self.revoked_ns.is_none() && self.expires_ns.is_none_or(|expires_ns| now_ns < expires_ns)
    }
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AuditRow {
    /// Its number; given by the store.
    pub id: i64,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
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
