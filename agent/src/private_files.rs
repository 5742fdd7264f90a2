//! Creates files and folders that only their owner can access, for any umask.
//!
//! Guarantees: files and folders that are created here have the mode 0600 or 0700. [`folder`] narrows wider permissions
//! of a folder of this user.
//! Refuses: to change files and folders of another user.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Options that create files as 0600.
#[must_use]
pub fn file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Creates a folder and its missing parents as 0700. An existing folder of this user with wider permissions is
/// narrowed.
///
/// # Errors
/// It cannot be created.
pub fn folder(path: &Path) -> io::Result<()> {
    make(path)?;
    let found = std::fs::metadata(path)?;
    if found.mode() & 0o077 != 0 && found.uid() == rustix::process::geteuid().as_raw() {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Creates a folder and its missing parents as 0700. An existing folder stays unchanged, because the user chose it.
///
/// # Errors
/// It cannot be created.
pub fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether this process may create files in a folder.
///
/// # Errors
/// The system's reason, such as a read-only file system.
pub fn writable(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD};
    // (The effective user's rights count, as for the creation of files.)
    Ok(rustix::fs::accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_private_and_what_is_wide_is_narrowed() {
        let folder_of = tempfile::tempdir().unwrap();
        let (outer, inner) = (folder_of.path().join("a"), folder_of.path().join("a/b"));
        folder(&inner).unwrap();
        assert_eq!((mode(&outer), mode(&inner)), (0o700, 0o700));
        file().write(true).create(true).truncate(true).open(inner.join("f")).unwrap();
        assert_eq!(mode(&inner.join("f")), 0o600);
        std::fs::set_permissions(&inner, Permissions::from_mode(0o755)).unwrap();
        make(&inner).unwrap();
        assert_eq!(mode(&inner), 0o755);
        folder(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
    }
}
