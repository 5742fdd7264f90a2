//! The local service of a data folder: this user's daemon for that folder. The first command that needs it starts it.
//!
//! Guarantees: when several commands start the service at once, one starts it and the others wait for it. A killed
//! service is replaced at the next connection. The starting process is not forked: the program `memctl` detaches
//! itself.
//! Refuses: a folder of another user, and a folder that cannot be written.

mod files;
mod socket;
mod start;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use files::{Alive, Files, host};
pub use socket::{connect, server_process};
pub use start::{Answer, KEPT_VARIABLES};

/// The environment variable that can disable the service. With `off`, no command starts or uses a service.
pub const VARIABLE: &str = "MEMCTL_SERVICE";
/// Whether the environment allows a service.
#[must_use]
pub fn is_allowed() -> bool {
    !std::env::var(VARIABLE).is_ok_and(|value| value == "off" || value == "0")
}

/// The program `memctl`: next to another program (the interpreter of a virtual environment), otherwise on the search
/// path.
#[must_use]
pub fn program(beside: Option<&Path>) -> Option<PathBuf> {
    let near = beside.and_then(Path::parent).map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    near.into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("memctl"))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// How long a service may take to start. It may have to migrate a large store first.
const START_MAX: Duration = Duration::from_secs(90);
/// Interval between checks of whether another command has started the service.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The service of a folder, and the program that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    files: Files,
    program: PathBuf,
}

/// Why the service does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Unstarted {
    /// The folder cannot hold a service.
    #[error("{}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another host runs the service of this folder.
    #[error(
        "the local service of {} runs on host {host}: run a daemon for both (--daemon), or name a folder of this host's own (--data-dir)",
        folder.display()
    )]
    Elsewhere {
        /// The folder.
        folder: PathBuf,
        /// The host.
        host: String,
    },
    /// The program cannot be started.
    #[error("{} cannot be started: {source}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The service started and ended with this message.
    #[error("{0}")]
    Ended(String),
    /// The service does not respond.
    #[error("the local service did not answer within {} s; its log is {}", START_MAX.as_secs(), log.display())]
    Silent {
        /// Its log.
        log: PathBuf,
    },
}

impl Service {
    /// The service of a folder.
    ///
    /// # Errors
    /// The folder belongs to another user, or its path cannot be resolved.
    pub fn of(folder: &Path, program: &Path) -> std::io::Result<Self> {
        Ok(Self { files: Files::of(folder)?, program: program.to_owned() })
    }

    /// The service's files.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Whether the service responds now.
    #[must_use]
    pub fn answers(&self) -> bool {
        connect(&self.files.socket()).is_ok()
    }

    /// Starts the service unless it responds, and waits until it does. Blocks.
    ///
    /// # Errors
    /// See [`Unstarted`].
    pub fn ensure(&self) -> Result<(), Unstarted> {
        if self.answers() {
            return Ok(());
        }
        if let Some(host) = self.files.other_host() {
            let host = host.split(' ').next().unwrap_or_default().to_owned();
            return Err(Unstarted::Elsewhere { folder: self.files.folder().to_owned(), host });
        }
        let end = Instant::now() + START_MAX;
        let cannot = |source| Unstarted::Folder { folder: self.files.folder().to_owned(), source };
        let starting = loop {
            if let Some(lock) = self.files.lock_starting().map_err(cannot)? {
                break lock;
            }
            // Another command starts the service, which may respond before that command is done.
            std::thread::sleep(LOOK_EVERY);
            if self.answers() {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(Unstarted::Silent { log: self.files.log() });
            }
        };
        if self.answers() {
            return Ok(());
        }
        let started = start::start(&self.program, &self.files, end.saturating_duration_since(Instant::now()));
        drop(starting);
        started
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn script(folder: &Path, text: &str) -> PathBuf {
        let program = folder.join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn the_words_of_a_program_that_ends_are_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "echo \"-the store is in use by $2 $3\"; exit 3");
        let service = Service::of(&folder.path().join("data"), &program).unwrap();
        let error = service.ensure().unwrap_err().to_string();
        assert_eq!(error, "the store is in use by service --data-dir");
        assert!(!service.answers());
        let silent = Service::of(&folder.path().join("data"), &script(folder.path(), "exit 0")).unwrap();
        assert!(matches!(silent.ensure(), Err(Unstarted::Ended(_))), "an end is no start");
        let none = Service::of(&folder.path().join("data"), Path::new("/nowhere/memctl")).unwrap();
        assert!(matches!(none.ensure(), Err(Unstarted::Program { .. })));
    }

    #[test]
    fn of_commands_that_come_at_once_one_starts_it() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        // Listens for the duration of the test, at the service's address.
        let listen = "python3 -c 'import socket,sys,time,os; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(64); \
                      print(\"+\", flush=True); os.close(1); time.sleep(20)' \"$4/service.sock\" &";
        let program = script(folder.path(), &format!("echo x >> {}\n{listen}", count.display()));
        let service = Service::of(&folder.path().join("data"), &program).unwrap();
        std::thread::scope(|threads| {
            for _ in 0..16 {
                threads.spawn(|| service.ensure().unwrap());
            }
        });
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
        let pid = server_process(&service.files().socket()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}
