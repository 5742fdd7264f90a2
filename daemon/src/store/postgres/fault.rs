//! Translates Postgres's SQLSTATE codes into [`StoreError`]s.
//!
//! Guarantees: errors are distinguished by code, never by the text of a message, which may be in any language. Text of
//! the driver that could contain the URL is never shown.

use sqlx::Error;

use super::StoreError;
use crate::store::row_reader::Fault;

/// A fault while the database is read or written.
pub(in crate::store) fn store_error(place: &str, operation: &'static str, fault: Fault) -> StoreError {
    let place = place.to_owned();
    match fault {
        Fault::Store(error) => error,
        Fault::Damaged(what) => StoreError::Damaged { place, what },
        Fault::Overtaken => StoreError::Failed { place, operation, reason: "another writer was faster".into() },
        Fault::Sql(Error::PoolClosed) => StoreError::Closed { place },
        Fault::Sql(error) => {
            let reason = reason(&error);
            match code(&error).as_deref() {
                Some("53100") => StoreError::Full { place, reason },
                // Read-only transaction: a standby, or a server configured that way.
                Some("25006") => {
                    StoreError::ReadOnly { place, reason, way_out: "omit --read-only, or name the primary server" }
                }
                // Data or an index is corrupted.
                Some("XX001" | "XX002") => StoreError::Damaged { place, what: format!("invalid pages ({reason})") },
                Some(code) if code.starts_with("08") || code.starts_with("57P") => {
                    StoreError::Unreachable { place, reason }
                }
                Some(_) => StoreError::Failed { place, operation, reason },
                None => match error {
                    Error::Io(_) | Error::Tls(_) | Error::PoolTimedOut => StoreError::Unreachable { place, reason },
                    _ => StoreError::Failed { place, operation, reason },
                },
            }
        }
    }
}

/// Translates a fault while connecting or migrating. Errors without a more specific kind become
/// [`StoreError::Unreachable`].
pub(in crate::store) fn store_error_at_open(place: &str, fault: Fault) -> StoreError {
    match store_error(place, "opening", fault) {
        StoreError::Failed { place, reason, .. } => StoreError::Unreachable { place, reason },
        error => error,
    }
}

/// Serialization failure or deadlock: nothing was done, and a retry may succeed.
pub(in crate::store) fn is_passing(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("40001" | "40P01"))
}

/// Whether the error comes from a race of two daemons that create the same thing, and this one was slower. Either the
/// key of a catalogue row is taken, or the schema, the table or the table's row type already exists.
pub(in crate::store) fn is_race(error: &Error) -> bool {
    matches!(code(error).as_deref(), Some("23505" | "42P06" | "42P07" | "42710"))
}

fn code(error: &Error) -> Option<String> {
    error.as_database_error()?.code().map(Into::into)
}

fn reason(error: &Error) -> String {
    match error {
        Error::Database(error) => format!("{} ({})", error.message(), error.code().unwrap_or_default()),
        Error::Io(error) => error.to_string(),
        Error::PoolTimedOut => "no connection within 15 seconds".into(),
        Error::Tls(error) => format!("TLS: {error}"),
        Error::Configuration(_) => "the URL's parameters cannot be used".into(),
        error => error.to_string(),
    }
}
