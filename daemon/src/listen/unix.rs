//! Binds a socket in the file system.
//!
//! Guarantees: from the start, only users that the mode allows can connect to a socket; by default only its owner. A
//! socket with a listener is never removed. If two daemons start at once, one of them gets the path. On exit a daemon
//! removes only its own socket.
//! Refuses: a private folder that belongs to another user or is a link.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use tokio::net::UnixListener;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1_024;

/// A bound socket; dropping it removes its file.
pub(super) struct Socket {
    path: PathBuf,
    /// Identifies the file. When this is dropped, the path may already belong to another daemon's socket.
    id: FileId,
}

/// Device, inode and time of the last change. The time is needed because inodes are reused.
type FileId = (u64, u64, i64, i64);

fn id(found: &std::fs::Metadata) -> FileId {
    (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
}

/// Listens at a path. The mode decides which users may connect.
pub(super) fn bound(path: &Path, own_folder: bool, mode: u32) -> io::Result<(UnixListener, Socket)> {
    let folder = path.parent().ok_or_else(|| refused("it has no folder".into()))?;
    if own_folder {
        make_private(folder)?;
    }
    // Checking, removing and binding are three steps. The folder's lock makes them atomic among daemons.
    let lock = File::open(folder)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    remove_stale(path)?;
    let address = SocketAddrUnix::new(path)
        .map_err(|_| refused(format!("the path has {} bytes, and a socket's may have 107", path.as_os_str().len())))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The mode is set before the socket has a name. So the file is created with this mode, and there is no gap.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, &address)?;
    // The umask may have removed bits.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    let made = std::fs::symlink_metadata(path)?;
    listen(&socket, BACKLOG)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok((listener, Socket { path: path.to_owned(), id: id(&made) }))
}

/// Creates the folder, or checks that it belongs to this user, and closes it to all others.
fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Links are not followed, because their owner could redirect them.
    let found = std::fs::symlink_metadata(folder)?;
    let shown = folder.display();
    if !found.is_dir() {
        return Err(refused(format!("{shown} is a link or a file, not a folder")));
    }
    let me = rustix::process::geteuid().as_raw();
    if found.uid() != me {
        return Err(refused(format!("{shown} belongs to uid {}, not to you (uid {me})", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Removes the socket of a daemon that died. Fails if a daemon listens at the path.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(refused("there is something that is no socket".into()));
    }
    let address = SocketAddrUnix::new(path)?;
    // The socket is non-blocking, because a full queue also means that a daemon listens there.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Ok(()) | Err(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

fn refused(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path).is_ok_and(|found| id(&found) == self.id);
        if is_ours {
            // If the file cannot be removed, the next daemon treats it as stale and replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memctl/daemon.sock");
        let (listener, socket) = bound(&path, true, 0o600).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        let error = bound(&path, true, 0o600).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "a daemon listens there");
        // The state after a kill: the file remains without a listener.
        std::mem::forget(socket);
        drop(listener);
        let (_listener, socket) = bound(&path, true, 0o600).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_has_the_mode_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        for mode in crate::listen::SocketAccess::ALL.map(crate::listen::SocketAccess::mode) {
            let path = folder.path().join(format!("{mode:o}.sock"));
            let _bound = bound(&path, false, mode).unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o777, mode);
        }
    }

    #[tokio::test]
    async fn another_ones_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (listener, older) = bound(&path, false, 0o600).unwrap();
        drop(listener);
        let (_listener, newer) = bound(&path, false, 0o600).unwrap();
        drop(older);
        assert!(path.exists());
        drop(newer);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_place_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let words = |path: &Path, own| bound(path, own, 0o600).err().unwrap().to_string();
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(words(&folder.path().join("link/daemon.sock"), true).contains("is a link"));
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(words(&folder.path().join("file"), false).contains("no socket"));
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"", "it is not touched");
        let long = folder.path().join("x".repeat(108));
        assert!(words(&long, false).contains("107"));
        // An own folder that is open to other users is closed.
        let open = folder.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let _bound = bound(&open.join("daemon.sock"), true, 0o600).unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o700);
    }
}
