//! What `memctl run` and the agent in Python would find on this machine: devices, kernel, compiler, package.
//!
//! Guarantees: nothing here fails the doctor, because queries need none of this; every program that is run has a
//! timeout; nothing is written. Refuses to import torch, which takes seconds.

use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Check, Outcome, ok};
use crate::hosting;
use crate::render::text::plural;

/// Timeout of a program: Python starts in 20 ms from a local disk, in seconds from a network drive.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often a running program is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of a program's output that are read; only the first line is shown.
const ANSWER_BYTES_MAX: u64 = 4 << 10;
/// The compilers that the package tries, in this order, if `CXX` names none.
const COMPILERS: [&str; 3] = ["g++", "c++", "clang++"];
/// Prints the versions. The package's own check, `python -m memctl_agent doctor`, tests more.
const PYTHON: &str = "import sys, memctl_agent; print(memctl_agent.__version__, 'for Python', sys.version.split()[0])";

/// All checks of this machine.
pub fn checks() -> Vec<Check> {
    vec![devices(), system(), compiler(), python()]
}

fn note(check: &'static str, found: String, advice: &str) -> Check {
    Check { check, verdict: Outcome::Warning, found, advice: Some(advice.to_owned()) }
}

fn devices() -> Check {
    match hosting::devices() {
        Ok((driver, names)) => {
            let first = names.first().map_or_else(String::new, |name| format!(" ({name})"));
            ok("devices", format!("driver {driver}, {}{first}", plural(names.len() as u64, "GPU")))
        }
        Err(reason) => {
            note("devices", reason, "without it, the device's memory and its other processes are not recorded")
        }
    }
}

fn system() -> Check {
    if hosting::host::can_watch_processes() {
        return ok("kernel", "reports the end of processes".to_owned());
    }
    note(
        "kernel",
        "does not report the end of processes (Linux before 5.3, or a sandbox)".to_owned(),
        "`memctl run` then notices the end of a process by its connection alone",
    )
}

fn compiler() -> Check {
    let named = std::env::var("CXX").ok().and_then(|text| text.split_whitespace().next().map(str::to_owned));
    let names = named.map_or_else(|| COMPILERS.map(str::to_owned).to_vec(), |name| vec![name]);
    match names.iter().find_map(|name| find(name)) {
        Some(path) => {
            let version = answer(Command::new(&path).arg("--version"));
            ok("compiler", version.unwrap_or_else(|_| path.display().to_string()))
        }
        None => note(
            "compiler",
            format!("no C++ compiler ({})", names.join(", ")),
            "the package compiles its shim once for each version of torch for which it contains none; install g++ or set CXX",
        ),
    }
}

fn python() -> Check {
    // The imported package must not attach, and no compiled files may be written.
    match answer(Command::new("python3").args(["-B", "-c", PYTHON]).env("MEMCTL_DISABLED", "1")) {
        Ok(version) => ok("python", format!("memctl_agent {version}")),
        Err(reason) => note(
            "python",
            format!("python3 cannot import memctl_agent: {reason}"),
            "activate the environment that you train in and install the wheel memctl-agent there",
        ),
    }
}

/// Finds a program in the search path.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The first line that a program prints, or an error: the last line of its standard error.
fn answer(command: &mut Command) -> Result<String, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let end = Instant::now() + ANSWER_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer in {} s", ANSWER_MAX.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    // The program has ended, so its whole output is in the pipes. A child of it that keeps them open is not waited for.
    fn said(stream: Option<impl std::io::Read + AsRawFd>) -> String {
        let Some(stream) = stream else { return String::new() };
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut bytes = Vec::new();
        // The read ends at the end of the stream, or when no more data is available.
        let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
    let line = |text: String, last: bool| {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        if last { lines.next_back() } else { lines.next() }.map(str::to_owned)
    };
    match (status.success(), line(said(child.stdout.take()), false)) {
        (true, Some(line)) => Ok(line),
        _ => Err(line(said(child.stderr.take()), true).unwrap_or_else(|| status.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says() {
        let sh = |script: &str| answer(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo; echo one; echo two").as_deref(), Ok("one"));
        assert_eq!(sh("echo one; echo why >&2; echo because >&2; exit 1"), Err("because".to_owned()));
        assert_eq!(sh("sleep 20 & echo one").as_deref(), Ok("one"), "its child is not waited for");
        assert!(sh("exit 3").unwrap_err().contains('3'));
        assert!(answer(&mut Command::new("no-such-program")).is_err());
        assert!(find("sh").is_some() && find("no-such-program").is_none() && find("/bin").is_none());
    }

    #[test]
    fn every_line_says_what_to_do_when_it_is_not_well() {
        for check in checks() {
            assert!(!check.found.is_empty());
            assert_eq!(check.advice.is_some(), check.verdict == Outcome::Warning, "{check:?}");
        }
    }
}
