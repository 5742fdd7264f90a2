//! A real daemon in a separate process.

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
    /// The addresses of its HTTP port.
    pub http: Vec<String>,
}

/// A port of the loopback interface that is free now.
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
    /// When it does not listen.
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

    /// Starts the daemon of a command line, on a port, and waits until it listens.
    ///
    /// # Panics
    /// When it does not listen.
    #[must_use]
    pub fn start(command: &mut Command, port: u16) -> Self {
        Self::of(command.args(["--listen", &format!("127.0.0.1:{port}")]))
    }

    /// Starts the daemon of a command line and waits until it listens; the URL is the first address that it prints.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the daemon starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        let places = first.split_once("listens on ").and_then(|(_, rest)| rest.split([',', ' ']).next());
        let url = places.unwrap_or_else(|| panic!("the daemon did not come up: {first:?}")).to_owned();
        let http = first.split_once("metrics and health on ").and_then(|(_, rest)| rest.split_once(", and stores"));
        let http = http.map_or_else(Vec::new, |(places, _)| places.split(", ").map(str::to_owned).collect());
        Self { child, url, http }
    }

    /// Its standard error, if the command line that started it has a pipe there.
    pub fn said(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; returns the signal that ended it, if any.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn died_of(mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt as _;
        self.child.wait().expect("the daemon ends").signal()
    }

    /// Its peak resident memory.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
    }

    /// SIGKILL: nothing is flushed or printed. Waits until it has ended, and asserts that the signal ended it.
    ///
    /// # Panics
    /// When it had already ended in another way.
    pub fn kill(mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        self.child.kill().expect("the daemon can be killed");
        let status = self.child.wait().expect("the daemon ends");
        assert_eq!(status.signal(), Some(9), "the daemon was to die of SIGKILL, it ended with {status}");
    }

    /// SIGTERM: it drains. Returns its exit code.
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
        // A failed test must leave nothing running; if the process has ended already, the error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
