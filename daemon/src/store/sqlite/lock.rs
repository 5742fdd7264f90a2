//! The lock of a database. One process holds it at a time, and other processes can read which process that is.
//!
//! Guarantees: the lock ends with the process, however the process ends; a leftover file has no effect. There are two
//! locks. One is on a file beside the database that names the holder. The other is on the database itself, so that a
//! second process is kept out even if the first file is removed. Taking the lock never waits.
//!
//! If this process holds a database, that is detected without opening the file, because closing the file would drop
//! SQLite's own locks.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::StoreError;
use super::fault::WAY_OUT;
use super::ownership::{beside, check_folder, open_own};

/// This is longer than any address. The rest of a foreign file is not read.
const HOLDER_BYTES_MAX: u64 = 512;

/// Device and inode of the databases held by this process.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A lock that is held.
pub(super) struct LockFile {
    file: File,
    /// Closed last, because SQLite's locks end when this file is closed.
    database: Mutex<Option<(File, (u64, u64))>>,
}

impl LockFile {
    /// Takes the lock of a database, creating the file if needed, and records the holder.
    pub(super) fn take(database: &Path, place: &str, holder: &str) -> Result<Self, StoreError> {
        let path = path_of(database);
        let cannot = |error: std::io::Error| store_error(place, &path, &error);
        if let Some(folder) = database.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(cannot)?;
            check_folder(folder, database).map_err(cannot)?;
        }
        // The file is not truncated, because another process may hold its lock.
        let mut file = open_own(&path).map_err(cannot)?;
        // An earlier version may have created the file with other permissions. A failure is ignored: another user's
        // file cannot be changed and need not be.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::InUse { place: place.into(), holder: read_holder(&file) });
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        let database = Mutex::new(Some(Self::take_database(database, place)?));
        file.set_len(0).map_err(cannot)?;
        file.write_all(format!("process {} ({holder})", std::process::id()).as_bytes()).map_err(cannot)?;
        Ok(Self { file, database })
    }

    fn take_database(path: &Path, place: &str) -> Result<(File, (u64, u64)), StoreError> {
        let cannot = |error: std::io::Error| store_error(place, path, &error);
        // The lock file was removed; otherwise it would have named the holder.
        let in_use = |who: &str| StoreError::InUse {
            place: place.into(),
            holder: format!(
                "{who} (a read-only daemon serves it, a backup is made, or the lock file {} was removed)",
                path_of(path).display()
            ),
        };
        // This lock is held until the database is registered, so that two threads do not open one file.
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
        if path.metadata().is_ok_and(|file| held.contains(&identity(file))) {
            return Err(in_use("this process"));
        }
        let file = open_own(path).map_err(cannot)?;
        let identity = identity(file.metadata().map_err(cannot)?);
        match file.try_lock() {
            Ok(()) => {
                held.insert(identity);
                Ok((file, identity))
            }
            Err(TryLockError::WouldBlock) => Err(in_use("another process")),
            Err(TryLockError::Error(error)) => Err(cannot(error)),
        }
    }

    /// Removes the holder's name. The lock itself ends when this is dropped.
    pub(super) fn clear(&self) {
        self.release();
        // The content of an unlocked file has no meaning, so a failure is harmless.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }

    fn release(&self) {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((file, identity)) = database {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&identity);
            drop(file);
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.release();
    }
}

/// Whether this process has a database open for writing.
pub(super) fn is_held_here(path: &Path) -> bool {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    path.metadata().is_ok_and(|file| held.contains(&(file.dev(), file.ino())))
}

/// `memctl.db` → `memctl.db.lock`.
fn path_of(database: &Path) -> PathBuf {
    beside(database, ".lock")
}

fn read_holder(file: &File) -> String {
    let mut text = Vec::new();
    // The holder may not have written its name yet, and on some systems a locked file cannot be read.
    let read = file.take(HOLDER_BYTES_MAX).read_to_end(&mut text);
    let text: String = String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).collect();
    if read.is_err() || text.is_empty() { "another process".into() } else { text }
}

fn store_error(place: &str, path: &Path, error: &std::io::Error) -> StoreError {
    let reason = format!("{}: {error}", path.display());
    let place = place.to_owned();
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { place, reason, way_out: WAY_OUT }
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { place, reason },
        _ => StoreError::Unreachable { place, reason },
    }
}
