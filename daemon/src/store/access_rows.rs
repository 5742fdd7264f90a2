//! Rows of tokens and of the audit log.
//!
//! Guarantees: the number of rows of each kind is limited. Only the hash of a token's secret is stored.

use super::opening::SecretHash;

/// Limit of stored tokens, including revoked and expired ones.
pub const TOKENS_MAX: u64 = 10_000;
/// Limit of audit entries about completed actions.
pub const AUDIT_DONE_MAX: u64 = 100_000;
/// Limit of audit entries about refusals. They have a limit of their own so that repeated attempts cannot push out
/// completed actions.
pub const AUDIT_REFUSED_MAX: u64 = 10_000;

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its public half; the store finds the token by it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its role's name.
    pub role: String,
    /// Its tenant's name, `*` for all.
    pub tenant: String,
    /// Pattern of the jobs that it may write to; `*` matches anything.
    pub jobs: String,
    /// The hash of its secret half.
    pub secret: SecretHash,
    /// When it was made, nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// When it expires.
    pub expires_ns: Option<u64>,
    /// When it was revoked.
    pub revoked_ns: Option<u64>,
}

impl TokenRow {
    /// Whether it is valid at this moment.
    #[must_use]
    pub fn counts(&self, now_ns: u64) -> bool {
        self.revoked_ns.is_none() && self.expires_ns.is_none_or(|expires_ns| now_ns < expires_ns)
    }
}

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AuditRow {
    /// Its number, assigned by the store.
    pub id: i64,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The tenant that it concerns, `*` for all.
    pub tenant: String,
    /// The caller's name.
    pub caller: String,
    /// The caller's address.
    pub peer: String,
    /// The action requested.
    pub action: String,
    /// The object of the action.
    pub subject: String,
    /// Whether it was refused.
    pub refused: bool,
    /// The result.
    pub outcome: String,
}
