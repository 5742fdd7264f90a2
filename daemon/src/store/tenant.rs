//! Tenants, which own jobs, alerts and silences, and the scope that a request may see.
//!
//! Guarantees: a tenant's name is short and has only plain characters, so that it fits log lines, labels and commands.

use std::sync::Arc;

/// Bytes of a tenant's name.
const NAME_BYTES_MAX: usize = 64;
/// The tenant of callers that name no tenant.
pub const DEFAULT_TENANT: &str = "default";

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Default for Tenant {
    fn default() -> Self {
        Self(DEFAULT_TENANT.into())
    }
}

impl Tenant {
    /// Parses a tenant's name: letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    ///
    /// # Errors
    /// The fault in the name.
    pub fn named(name: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
            return Ok(Self(name.into()));
        }
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        Err(format!(
            "{shown:?} is not a tenant's name: it has letters, digits, `-`, `_` and `.`, begins with a letter or digit, and \
             has {NAME_BYTES_MAX} characters at most"
        ))
    }

    /// A tenant read from the store; its name was checked when it was written.
    #[must_use]
    pub(crate) fn stored(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The tenants whose data a request may see.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Scope {
    /// All tenants.
    #[default]
    All,
    /// One tenant.
    One(Tenant),
}

impl Scope {
    /// For SQL: the tenant's name, or `None` for all tenants.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::All => None,
            Self::One(tenant) => Some(tenant.name()),
        }
    }

    /// Whether a tenant is in the scope.
    #[must_use]
    pub fn admits(&self, tenant: &Tenant) -> bool {
        match self {
            Self::All => true,
            Self::One(own) => own == tenant,
        }
    }

    /// The intersection of two scopes. Two different tenants have none in common: the result is a tenant with an empty
    /// name, which no stored tenant has.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, other) => other.clone(),
            (own, Self::All) => own.clone(),
            (own, other) if own == other => own.clone(),
            _ => Self::One(Tenant::stored("")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["default", "team-a", "a.b_c", "7", &"x".repeat(64)] {
            assert_eq!(Tenant::named(name).unwrap().name(), name);
        }
        for name in ["", "*", "-a", "a b", "a/b", "ä", "a\0", "a\n", &"x".repeat(65)] {
            assert!(Tenant::named(name).unwrap_err().contains("not a tenant's name"), "{name:?}");
        }
    }

    #[test]
    fn two_scopes_admit_what_both_do() {
        let one = |name| Scope::One(Tenant::named(name).unwrap());
        assert_eq!(Scope::All.and(&one("a")), one("a"));
        assert_eq!(one("a").and(&Scope::All), one("a"));
        assert_eq!(one("a").and(&one("a")), one("a"));
        let none = one("a").and(&one("b"));
        assert!(!none.admits(&Tenant::named("a").unwrap()) && !none.admits(&Tenant::named("b").unwrap()));
        assert!(none.name().is_some(), "nothing is not everything");
    }
}
