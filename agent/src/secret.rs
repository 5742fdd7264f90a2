//! What an agent alone knows of its session: whoever lacks it neither continues nor ends the session.
//!
//! Guarantees: 32 random bytes, or what follows from a recording's content; it goes to the daemon in a hello and to the
//! session's own folder in the spool, and nowhere else: not into a log, not into what is exported.

use std::fmt;
use std::sync::Arc;

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret(Arc<[u8]>);

impl SessionSecret {
    /// Bytes that a daemon takes.
    pub(crate) const BYTES: std::ops::RangeInclusive<usize> = 16..=64;

    /// A new one; none where the system has no random numbers: such a session is continued by the same caller alone.
    #[must_use]
    pub fn random() -> Self {
        let mut secret = [0; 32];
        match getrandom::fill(&mut secret) {
            Ok(()) => Self(secret.as_slice().into()),
            Err(_) => Self::none(),
        }
    }

    /// The secret of a recording: whoever has the file can import it again.
    #[must_use]
    pub fn of_recording(proof: [u8; 32]) -> Self {
        Self(proof.as_slice().into())
    }

    /// Of sessions that have none: they were recorded before there were secrets.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::default())
    }

    /// From a file.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        if Self::BYTES.contains(&bytes.len()) { Self(bytes.into()) } else { Self::none() }
    }

    /// For a hello or a file.
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
