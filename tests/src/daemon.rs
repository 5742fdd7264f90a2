//! A real daemon in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::memctl;

/// A running daemon; killed when dropped.
pub struct DaemonProcess {
    child: Child,
    /// Its address.
    pub url: String,
}

/// A port of the loopback interface that nobody uses now.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

impl DaemonProcess {
    /// Starts a daemon on a SQLite store below `data_dir` and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn sqlite(data_dir: &Path, port: u16) -> Self {
        Self::start(memctl().arg("daemon").arg("--data-dir").arg(data_dir), port)
    }

    /// The same with more flags.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn sqlite_with(data_dir: &Path, port: u16, flags: &[&str]) -> Self {
        Self::start(memctl().arg("daemon").arg("--data-dir").arg(data_dir).args(flags), port)
    }

    /// Starts a daemon on a store's URL.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn store(url: &str, port: u16) -> Self {
        Self::start(memctl().arg("daemon").arg("--store").arg(url), port)
    }

    fn start(command: &mut Command, port: u16) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let mut child = command
            .args(["--listen", &listen])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the daemon starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        assert!(first.contains("listens on"), "the daemon did not come up: {first:?}");
        Self { child, url: format!("http://{listen}") }
    }

    /// SIGKILL: nothing is flushed, nothing is said. Waits until it is gone and asserts that this is how it went.
    ///
    /// # Panics
    /// When it ended in another way, before.
    pub fn kill(mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        self.child.kill().expect("the daemon can be killed");
        let status = self.child.wait().expect("the daemon ends");
        assert_eq!(status.signal(), Some(9), "the daemon was to die of SIGKILL, it ended with {status}");
    }

    /// SIGTERM: it drains. Gives its exit code.
    ///
    /// # Panics
    /// When it dies of a signal.
    pub fn terminate(mut self) -> i32 {
        run_kill(self.child.id());
        let status = self.child.wait().expect("the daemon ends");
        status.code().expect("an exit code")
    }
}

fn run_kill(pid: u32) {
    let status = Command::new("kill").arg(pid.to_string()).status().expect("kill runs");
    assert!(status.success());
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // A test that failed must leave nothing running; one that ended it already gets an error here, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
