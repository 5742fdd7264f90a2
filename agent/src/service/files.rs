//! The files of a local service, all in its data folder, and the locks that allow only one service per folder.
//!
//! Guarantees: a lock is held until its holder is dropped or its process ends in any way. A lock file that
//! no process has locked has no meaning.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::private_files;

/// A service that starts with a log larger than this begins a new log.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// The files; see the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    folder: PathBuf,
}

/// The lock of the service of a folder. It is held while the service runs.
#[derive(Debug)]
pub struct Alive {
    _file: File,
}

impl Files {
    /// The files of a data folder.
    ///
    /// # Errors
    /// The folder belongs to another user. Root, for example, would leave files there that the owner cannot open.
    pub fn of(folder: &Path) -> std::io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        match folder.metadata() {
            Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
                Err(Error::new(ErrorKind::PermissionDenied, "it belongs to another user"))
            }
            Ok(_) => Ok(Self { folder }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self { folder }),
            Err(error) => Err(error),
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The socket to which agents and commands connect.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("service.sock")
    }

    /// The socket that serves the page.
    #[must_use]
    pub fn page_socket(&self) -> PathBuf {
        self.folder.join("page.sock")
    }

    /// The service's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("service.log")
    }

    /// Opens the log for appending. A long log is first renamed to `service.log.1`.
    pub(super) fn open_log(&self) -> std::io::Result<File> {
        let log = self.log();
        if log.metadata().is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
            std::fs::rename(&log, self.folder.join("service.log.1"))?;
        }
        private_files::file().append(true).create(true).open(log)
    }

    /// Takes the lock of the process that starts a service. Returns `None` while another process holds it.
    pub(super) fn lock_starting(&self) -> std::io::Result<Option<File>> {
        private_files::make(&self.folder)?;
        lock(&self.folder.join("service.start"))
    }

    /// Takes the lock of the service itself. Returns `None` while another service runs or is ending.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn lock_alive(&self) -> std::io::Result<Option<Alive>> {
        let Some(mut file) = lock(&self.folder.join("service.lock"))? else { return Ok(None) };
        file.set_len(0)?;
        file.write_all(host().as_bytes())?;
        Ok(Some(Alive { _file: file }))
    }

    /// The host whose service holds this folder, if it is another host. Its process cannot be seen or reached from
    /// here.
    #[must_use]
    pub fn other_host(&self) -> Option<String> {
        let known = std::fs::read_to_string(self.folder.join("service.lock")).ok()?;
        (self.is_alive() && !known.is_empty() && known != host()).then_some(known)
    }

    /// Whether a service holds this folder.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Ok(file) = File::open(self.folder.join("service.lock")) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

/// The host's name and boot id. After a reboot, a machine counts as another host.
#[must_use]
pub fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {}", rustix::system::uname().nodename().to_string_lossy(), boot.trim())
}

fn lock(path: &Path) -> std::io::Result<Option<File>> {
    let file = private_files::file().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_service_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path()).unwrap();
        assert!(!files.is_alive());
        let alive = files.lock_alive().unwrap();
        assert!(alive.is_some() && files.is_alive());
        assert!(files.lock_alive().unwrap().is_none());
        assert_eq!(files.other_host(), None, "it is this one");
        std::fs::write(folder.path().join("service.lock"), "gpu-2 another-boot").unwrap();
        assert_eq!(files.other_host().as_deref(), Some("gpu-2 another-boot"));
        drop(alive);
        assert!(!files.is_alive() && files.lock_alive().unwrap().is_some());
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path()).unwrap();
        std::fs::write(files.log(), vec![b'x'; LOG_BYTES_MAX as usize + 1]).unwrap();
        assert_eq!(files.open_log().unwrap().metadata().unwrap().len(), 0);
        assert!(folder.path().join("service.log.1").exists());
    }
}
