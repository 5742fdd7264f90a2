//! Translates SQLite's result codes into [`StoreError`]s.
//!
//! Guarantees: a full disk, a read-only file and a damaged one are distinguished by code, never by the text of a
//! message.

use sqlx::Error;

use super::StoreError;
use crate::store::row_reader::Fault;

/// What a user can do about a file that cannot be written.
pub(super) const WAY_OUT: &str = "make it writable or use another data folder";

/// Translates a fault while an open file is read or written.
pub(in crate::store) fn store_error(place: &str, operation: &'static str, fault: Fault) -> StoreError {
    let place = place.to_owned();
    match fault {
        Fault::Store(error) => error,
        Fault::Damaged(what) => StoreError::Damaged { place, what },
        Fault::Overtaken => StoreError::Failed { place, operation, reason: "another writer was faster".into() },
        Fault::Sql(Error::PoolClosed) => StoreError::Closed { place },
        Fault::Sql(error) => {
            let reason = reason(&error);
            match code(&error) {
                Some(FULL | IOERR_SHMSIZE) => StoreError::Full { place, reason },
                Some(code) if code & PRIMARY == READONLY => StoreError::ReadOnly { place, reason, way_out: WAY_OUT },
                Some(code) if code & PRIMARY == CORRUPT || code == NOTADB => {
                    StoreError::Damaged { place, what: format!("invalid pages ({reason})") }
                }
                _ => StoreError::Failed { place, operation, reason },
            }
        }
    }
}

/// Translates a fault while a file is being opened.
pub(in crate::store) fn store_error_at_open(place: &str, fault: Fault) -> StoreError {
    if let Fault::Sql(error) = &fault
        && code(error) == Some(NOTADB)
    {
        return foreign(place, "it is not a SQLite database");
    }
    match store_error(place, "opening", fault) {
        StoreError::Failed { place, reason, .. } => StoreError::Unreachable { place, reason },
        error => error,
    }
}

/// A file that belongs to another program.
pub(in crate::store) fn foreign(place: &str, why: &str) -> StoreError {
    StoreError::Unreachable {
        place: place.into(),
        reason: format!("{why}; it is left as it is: name another file or data folder, or move it away"),
    }
}

/// Whether pages of the file are damaged.
pub(in crate::store) fn is_damage(error: &Error) -> bool {
    code(error).is_some_and(|code| code & PRIMARY == CORRUPT || code == NOTADB)
}

// https://sqlite.org/rescode.html: the low byte is the primary code; the other bits give details.
const PRIMARY: i32 = 0xff;
const READONLY: i32 = 8;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const NOTADB: i32 = 26;
/// The shared-memory file could not grow. SQLite reports this as an I/O error, but the disk is full.
const IOERR_SHMSIZE: i32 = 10 | (19 << 8);

fn code(error: &Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn reason(error: &Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}
