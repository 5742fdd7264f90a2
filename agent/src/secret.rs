//! The secret of a session. Only its agent has it. Without it, a caller can neither continue nor end the session.
//!
//! Guarantees: a secret is 32 random bytes, or a value derived from a recording's content. It is sent to the daemon in
//! a hello and stored in the session's own spool folder. It is not in a log, an export or any other place.

use std::fmt;
use std::sync::Arc;

/// A secret; see the module's documentation.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret(Arc<[u8]>);

impl SessionSecret {
    /// Lengths that a daemon accepts.
    pub(crate) const BYTES: std::ops::RangeInclusive<usize> = 16..=64;

    /// A new secret. It is empty if the system has no random numbers. Only the same principal can continue the session
    /// then.
    #[must_use]
    pub fn random() -> Self {
        let mut secret = [0; 32];
        match getrandom::fill(&mut secret) {
            Ok(()) => Self(secret.as_slice().into()),
            Err(_) => Self::none(),
        }
    }

    /// The secret of a recording. A caller with the file can import it again.
    #[must_use]
    pub fn of_recording(proof: [u8; 32]) -> Self {
        Self(proof.as_slice().into())
    }

    /// The empty secret, for sessions of versions without secrets.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::default())
    }

    /// The secret from the content of a file; empty if the length is not valid.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        if Self::BYTES.contains(&bytes.len()) { Self(bytes.into()) } else { Self::none() }
    }

    /// The bytes for a hello or a file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_not_shown() {
        let (one, other) = (SessionSecret::random(), SessionSecret::random());
        assert_ne!(one, other);
        assert_eq!(one.bytes().len(), 32);
        assert_eq!(format!("{one:?}"), "SessionSecret(…)");
        assert_eq!(SessionSecret::read(one.bytes()), one);
        assert_eq!(SessionSecret::read(b"short"), SessionSecret::none());
    }
}
