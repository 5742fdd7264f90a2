//! Stores as files and databases, without a daemon: backup, restore, check.
//!
//! Guarantees: uses the store that a daemon with the same flags uses. Backups and checks run while a daemon writes, and
//! do not change the store.

use std::path::Path;

use memctl_daemon::store::{StoreAddress, StoreError};
use memctl_daemon::{config, entry};

pub use memctl_daemon::store::checking::Checked;
pub use memctl_daemon::store::copying::Copied;

use super::store_failure;
use crate::exit::Failure;

/// A store that is named by flags.
#[derive(Clone, Debug)]
pub struct Place {
    address: StoreAddress,
}

impl Place {
    /// The store of `--store`, else of a data folder.
    ///
    /// # Errors
    /// The URL names no store.
    pub fn of(store: Option<&str>, data_dir: &Path) -> Result<Self, Failure> {
        let address = match store {
            Some(url) => {
                url.parse().map_err(|error: memctl_daemon::store::AddressError| Failure::usage(error.to_string()))?
            }
            None => config::in_folder(data_dir),
        };
        Ok(Self { address })
    }

    /// The address without secrets.
    pub fn shown(&self) -> String {
        self.address.to_string()
    }
}

fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::Refused { what, .. } => Failure::usage(what),
        error @ (StoreError::Damaged { .. } | StoreError::Unsound { .. }) => Failure::input(error.to_string()),
        error => store_failure(&error),
    }
}

/// Writes a backup.
///
/// # Errors
/// The file exists, or the store cannot be read.
pub async fn backup(place: &Place, target: &Path) -> Result<Copied, Failure> {
    entry::backup(&place.address, target).await.map_err(failure)
}

/// Restores a backup.
///
/// # Errors
/// The backup is damaged, or the store is not empty.
pub async fn restore(source: &Path, place: &Place, damaged: bool) -> Result<Copied, Failure> {
    if !source.exists() {
        return Err(Failure::input(format!("there is no file {}", source.display())));
    }
    entry::restore(source, &place.address, damaged).await.map_err(failure)
}

/// Checks a store.
///
/// # Errors
/// A store that cannot be opened.
pub async fn check(place: &Place, deep: bool) -> Result<Checked, Failure> {
    entry::check(&place.address, deep).await.map_err(failure)
}

/// Makes a file as small as its content, and able to shrink by itself later; returns the bytes before and after.
///
/// # Errors
/// The store is in use or is not a file.
pub async fn compact(place: &Place) -> Result<(u64, u64), Failure> {
    let StoreAddress::Sqlite(path) = &place.address else {
        return Err(Failure::usage("only SQLite files are compacted; Postgres reuses what is free by itself"));
    };
    entry::compact(path).await.map_err(failure)
}
