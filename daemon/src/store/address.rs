//! The address of a store (`memory:`, `sqlite:PATH`, `postgres://…`), and opening it.
//!
//! Guarantees: an address is printed without its password, also in `Debug`. The error for an unknown form names the
//! known forms.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::secrets::without_secrets;
use super::{PostgresStore, SqliteStore, Store, StoreError};

/// The location of a store.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process; lost when it ends.
    Memory,
    /// A file.
    Sqlite(PathBuf),
    /// A server; the URL as given, password included.
    Postgres(String),
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is no store: give sqlite:PATH, postgres://USER@HOST/DATABASE or memory:")]
pub struct AddressError {
    shown: String,
}

impl FromStr for StoreAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let unknown = || AddressError { shown: without_secrets(text) };
        match text.split_once(':') {
            Some(("memory", "")) | Some(("sqlite", ":memory:")) => Ok(Self::Memory),
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() { Err(unknown()) } else { Ok(Self::Sqlite(path.into())) }
            }
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => Ok(Self::Postgres(text.into())),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_secrets(url)),
        }
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opens a store. `opener` is a name of this process (for example the daemon's address). If another process finds the
/// SQLite file in use, its error has this name.
///
/// # Errors
/// Those of [`SqliteStore::open`] and [`PostgresStore::open`].
pub async fn open(address: &StoreAddress, holder: &str) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match address {
        StoreAddress::Memory => Arc::new(SqliteStore::in_memory().await?),
        StoreAddress::Sqlite(path) => Arc::new(SqliteStore::open(path, holder).await?),
        StoreAddress::Postgres(url) => Arc::new(PostgresStore::open(url).await?),
    })
}

/// Opens a store read-only: nothing in it changes, and writes are refused.
///
/// # Errors
/// Those of [`SqliteStore::open_read_only`] and [`PostgresStore::open_read_only`].
pub async fn open_read_only(address: &StoreAddress) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match address {
        StoreAddress::Memory => Arc::new(SqliteStore::in_memory().await?),
        StoreAddress::Sqlite(path) => Arc::new(SqliteStore::open_read_only(path).await?),
        StoreAddress::Postgres(url) => Arc::new(PostgresStore::open_read_only(url).await?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_and_nothing_else() {
        let parsed = |text: &str| text.parse::<StoreAddress>();
        assert_eq!(parsed("memory:"), Ok(StoreAddress::Memory));
        assert_eq!(parsed("sqlite::memory:"), Ok(StoreAddress::Memory));
        assert_eq!(parsed("sqlite:a/b.db"), Ok(StoreAddress::Sqlite("a/b.db".into())));
        assert_eq!(parsed("sqlite:///var/b.db"), Ok(StoreAddress::Sqlite("/var/b.db".into())));
        assert_eq!(parsed("postgresql://h/d"), Ok(StoreAddress::Postgres("postgresql://h/d".into())));
        for wrong in ["", "sqlite:", "a.db", "mysql://h/d", "postgres:h", "memory:x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn passwords_are_never_shown() {
        for url in [
            "postgres://me:s?ecret@h:1/d?password=secret",
            "postgres://me:sec@ret/x@h:1/d",
            "postgres://me:secret@h/d?sslpassword=secret",
            "mysql://me:secret@h/d",
            "postgres:me:secret@h/d",
        ] {
            let shown = match url.parse::<StoreAddress>() {
                Ok(address) => format!("{address} {address:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!["sec", "cret", "me:"].iter().any(|part| shown.contains(part)), "{shown}");
            assert!(shown.contains("me"), "{shown}");
        }
    }
}
