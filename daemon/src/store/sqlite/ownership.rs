//! Checks that a database's files belong to this user before any of them is opened for writing.
//!
//! Guarantees: no link is followed from a database, its lock or its log to another file. Errors name the file and what
//! to change.
//! Refuses: a folder that other users may change.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Files that SQLite opens beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];
/// Mode bits of a folder: other users may write; users may only remove their own files.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// A file beside a database: its name with a suffix.
pub(super) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Refuses a folder in which another user could replace files.
pub(super) fn check_folder(folder: &Path, database: &Path) -> Result<(), Error> {
    let known = folder.metadata()?;
    let (own, owner) = (rustix::process::geteuid().as_raw(), known.uid());
    // An administrator may maintain a store that belongs to a service's user.
    let is_administered = own == 0 && database.symlink_metadata().is_ok_and(|file| file.uid() == owner);
    if owner != own && owner != 0 && !is_administered {
        let why = format!("{} belongs to user {owner} and not to you ({own})", folder.display());
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    if known.mode() & OTHERS_WRITE != 0 && known.mode() & STICKY == 0 {
        let why = format!("every user may write to {}: make it yours alone (chmod go-w)", folder.display());
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    BESIDE.iter().map(|suffix| beside(database, suffix)).try_for_each(|path| match path.symlink_metadata() {
        Ok(file) => check_file(&file, &path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    })
}

/// Opens a file for reading and writing, creating it if needed; never through a link.
pub(super) fn open_own(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let opened = options.custom_flags(libc::O_NOFOLLOW).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => linked(path),
        _ => error,
    })?;
    check_file(&file.metadata()?, path)?;
    Ok(file)
}

fn check_file(file: &Metadata, path: &Path) -> Result<(), Error> {
    if !file.is_file() || file.nlink() > 1 {
        return Err(linked(path));
    }
    Ok(())
}

fn linked(path: &Path) -> Error {
    let why = format!("{} is a link, or no plain file: remove it, or name the file that is meant", path.display());
    Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, hard_link, read, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn no_link_leads_from_a_database_to_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let (precious, database) = (folder.path().join("precious"), folder.path().join("memctl.db"));
        write(&precious, "all I have").unwrap();
        symlink(&precious, &database).unwrap();
        assert!(open_own(&database).unwrap_err().to_string().contains("is a link"));
        std::fs::remove_file(&database).unwrap();
        hard_link(&precious, &database).unwrap();
        assert!(open_own(&database).is_err(), "a second name of a file is a link, too");
        std::fs::remove_file(&database).unwrap();
        assert!(open_own(&database).is_ok());
        symlink(&precious, beside(&database, "-wal")).unwrap();
        assert!(check_folder(folder.path(), &database).is_err());
        assert_eq!(read(&precious).unwrap(), b"all I have");
    }

    #[test]
    fn a_folder_that_every_user_may_change_holds_no_database() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("memctl.db");
        assert!(check_folder(folder.path(), &database).is_ok());
        set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(check_folder(folder.path(), &database).is_err());
        set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(check_folder(folder.path(), &database).is_ok());
    }
}
