//! The lock file beside the database: one process at a time, and the others learn who it is.
//!
//! Guarantees: the lock goes with the process, however it ends; a file that is left behind means nothing. The
//! database file itself is never opened here, because closing it would drop SQLite's own locks on it.
//! Refuses: to wait.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::StoreError;

/// More than any address is long; the rest of a file that is not ours is of no interest.
const HOLDER_BYTES_MAX: u64 = 512;

/// A lock that is held.
pub(super) struct LockFile {
    file: File,
}

impl LockFile {
    /// Takes the lock of a database and writes down the holder.
    pub(super) fn take(database: &Path, place: &str, holder: &str) -> Result<Self, StoreError> {
        let path = path_of(database);
        let cannot = |error: std::io::Error| told(place, &path, &error);
        if let Some(folder) = database.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(cannot)?;
        }
        // Not truncated: it may be another's.
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::InUse { place: place.into(), holder: read_holder(&file) });
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        file.set_len(0).map_err(cannot)?;
        file.write_all(format!("process {} ({holder})", std::process::id()).as_bytes()).map_err(cannot)?;
        Ok(Self { file })
    }

    /// Forgets the holder; the lock itself goes when this is dropped.
    pub(super) fn clear(&self) {
        // What is left in an unlocked file means nothing, so failing here does no harm.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

/// `memctl.db` → `memctl.db.lock`.
fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn read_holder(file: &File) -> String {
    let mut text = Vec::new();
    // The holder may not have written yet, and on some systems a locked file cannot be read.
    let read = file.take(HOLDER_BYTES_MAX).read_to_end(&mut text);
    let text: String = String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).collect();
    if read.is_err() || text.is_empty() { "another process".into() } else { text }
}

fn told(place: &str, path: &Path, error: &std::io::Error) -> StoreError {
    let reason = format!("{}: {error}", path.display());
    let place = place.to_owned();
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { place, reason },
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { place, reason },
        _ => StoreError::Unreachable { place, reason },
    }
}
