//! Connects to a socket in a folder whose path may be longer than a socket's address.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Bytes of a Unix address without the NUL.
const ADDRESS_BYTES_MAX: usize = 107;

/// Connects. A path that is too long is reached through an open descriptor of its folder.
///
/// # Errors
/// No process listens there.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return UnixStream::connect(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)?;
    UnixStream::connect(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
}

/// The pid of the process that listens at a socket, in this process's namespace.
///
/// # Errors
/// No process listens there, or it is not visible (another PID namespace).
pub fn server_process(path: &Path) -> io::Result<i32> {
    let stream = connect(path)?;
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    Ok(credentials.pid.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_long_path_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let open = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(&long).unwrap();
        let _listener = UnixListener::bind(format!("/proc/self/fd/{}/a.sock", open.as_raw_fd())).unwrap();
        assert!(connect(&long.join("a.sock")).is_ok());
        assert_eq!(server_process(&long.join("a.sock")).unwrap(), std::process::id() as i32);
        assert!(connect(&long.join("b.sock")).is_err());
    }
}
