//! The private folder of a run: the socket that trainers find, and the file that Python programs start with.
//!
//! Guarantees: only this user can enter it; it is removed when the run is over; the socket's path fits into a Unix
//! address. Uses `$XDG_RUNTIME_DIR` only as the last resort, because it disappears when the user logs out while a
//! training run continues.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::exit::Failure;

/// What Python runs at its start, because its folder comes first in PYTHONPATH.
const SITE_CUSTOMIZE: &str = include_str!("../../../agent/python/memctl_agent/inject/sitecustomize.py");
/// Bytes of a Unix address without the NUL.
const ADDRESS_BYTES_MAX: usize = 107;
const PREFIX: &str = "memctl-run-";
const SOCKET: &str = "socket";
/// The socket's name before it listens; not longer than the final name.
const YOUNG: &str = "young";
const INJECT: &str = "inject";

/// See the module.
pub struct Folder {
    folder: TempDir,
    listener: Option<UnixListener>,
}

impl Folder {
    /// Makes the folder in the first place that allows it.
    ///
    /// # Errors
    /// No place allows it.
    pub fn make() -> Result<Self, Failure> {
        let mut last = None;
        for place in places() {
            match Self::make_in(&place) {
                Ok(folder) => return Ok(folder),
                Err(error) => last = Some(format!("{}: {error}", place.display())),
            }
        }
        let last = last.unwrap_or_default();
        Err(Failure::unreachable(format!(
            "the folder for this run cannot be created ({last}); set TMPDIR to a local folder"
        )))
    }

    fn make_in(place: &Path) -> std::io::Result<Self> {
        remove_abandoned(place);
        let folder =
            tempfile::Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir_in(place)?;
        let socket = folder.path().join(SOCKET);
        if socket.as_os_str().len() > ADDRESS_BYTES_MAX {
            return Err(std::io::Error::other("its path is too long for a socket"));
        }
        let inject = folder.path().join(INJECT);
        std::fs::create_dir(&inject)?;
        std::fs::write(inject.join("sitecustomize.py"), SITE_CUSTOMIZE)?;
        std::fs::write(folder.path().join(super::programs::FILE), "")?;
        // The socket gets its name once it listens: a named socket that does not listen was left by a run that was
        // killed.
        let young = folder.path().join(YOUNG);
        let listener = UnixListener::bind(&young)?;
        std::fs::rename(&young, &socket)?;
        Ok(Self { folder, listener: Some(listener) })
    }

    /// The listener, once.
    ///
    /// # Errors
    /// It was taken.
    pub fn listener(&mut self) -> std::io::Result<UnixListener> {
        self.listener.take().ok_or_else(|| std::io::Error::other("the socket is in use"))
    }

    /// The socket's path.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The first entry of PYTHONPATH.
    pub fn inject(&self) -> PathBuf {
        self.folder.path().join(INJECT)
    }

    /// PYTHONPATH with our folder in front, without that of an enclosing run.
    pub fn python_path(&self, before: Option<OsString>) -> OsString {
        let mut path = self.inject().into_os_string();
        let before = before.unwrap_or_default();
        let outer = |folder: &&OsStr| is_injected(Path::new(folder));
        // An empty entry means the current folder: keep the user's entries, but do not add one for an empty variable.
        if !before.is_empty() {
            for folder in before.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes).filter(|it| !outer(it)) {
                path.push(":");
                path.push(folder);
            }
        }
        path
    }
}

/// Whether this is the folder that a run puts in front of PYTHONPATH.
fn is_injected(folder: &Path) -> bool {
    folder.file_name() == Some(OsStr::new(INJECT))
        && folder.parent().and_then(Path::file_name).is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

fn places() -> Vec<PathBuf> {
    let mut places = vec![std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    places.extend(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute()));
    places.retain(|place| place.is_absolute());
    places.dedup();
    places
}

/// Removes folders of killed runs, whose sockets have no listener. A run that is just starting is left alone, see
/// [`Folder::make_in`].
fn remove_abandoned(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())) {
        use std::os::unix::fs::MetadataExt as _;
        // SAFETY: no arguments, cannot fail.
        let ours = |metadata: &std::fs::Metadata| metadata.is_dir() && metadata.uid() == unsafe { libc::geteuid() };
        // Metadata of the entry itself: a link is not followed.
        if !entry.metadata().is_ok_and(|metadata| ours(&metadata)) {
            continue;
        }
        let refused = std::os::unix::net::UnixStream::connect(entry.path().join(SOCKET))
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if refused {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder::make_in(place.path()).unwrap();
        let path = folder.folder.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(path.join("inject/sitecustomize.py").exists());
        assert!(folder.listener().is_ok());
        assert!(folder.listener().is_err());
        drop(folder);
        assert!(!path.exists());
        assert!(Folder::make_in(Path::new("/nowhere")).is_err());
        let long = place.path().join("x".repeat(100));
        std::fs::create_dir(&long).unwrap();
        assert!(Folder::make_in(&long).is_err());
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let dead = place.path().join("memctl-run-dead");
        let other = place.path().join("memctl-run-young");
        std::fs::create_dir(&dead).unwrap();
        std::fs::create_dir(&other).unwrap();
        drop(UnixListener::bind(dead.join(SOCKET)).unwrap());
        let living = Folder::make_in(place.path()).unwrap();
        assert!(!dead.exists());
        assert!(other.exists(), "its socket is yet to come");
        let _second = Folder::make_in(place.path()).unwrap();
        assert!(living.socket().exists());
    }

    #[test]
    fn runs_that_start_at_once_leave_each_other_alone() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..250 {
                        let folder = Folder::make_in(place).unwrap();
                        assert!(folder.socket().exists() && folder.inject().exists());
                    }
                });
            }
        });
    }

    #[test]
    fn the_path_of_python() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::make_in(place.path()).unwrap();
        let ours = folder.folder.path().join("inject").into_os_string().into_string().unwrap();
        let path = |before: Option<&str>| folder.python_path(before.map(OsString::from)).into_string().unwrap();
        assert_eq!(path(None), ours);
        assert_eq!(path(Some("")), ours);
        assert_eq!(path(Some("/a::b")), format!("{ours}:/a::b"));
        assert_eq!(path(Some("/tmp/memctl-run-x/inject:/a/inject")), format!("{ours}:/a/inject"));
    }
}
