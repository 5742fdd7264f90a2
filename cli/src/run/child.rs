//! The command as a child process: start, end, exit code.
//!
//! Guarantees: the child has our input, output, folder, process group and limits; its end is seen before it is reaped,
//! so that its `/proc` entry can still be read; exit codes are a shell's (126 cannot be executed, 127 not found, 128 +
//! signal).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};

use crate::hosting::host::Exit;
use crate::render::text::safe;

/// A shell's exit code for a command that does not exist.
const NOT_FOUND: u8 = 127;
/// A shell's exit code for a command that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// The offset of a shell's exit codes for death by a signal.
const SIGNALLED: u8 = 128;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    /// The exit code that memctl ends with.
    pub code: u8,
    /// Whether it ran at all.
    pub ran: bool,
}

impl CommandEnd {
    /// Uses the exit seen before reaping, else the reaped status.
    pub fn of(seen: Option<Exit>, status: io::Result<ExitStatus>) -> Self {
        let exit = seen.or_else(|| {
            let status = status.ok()?;
            let signal = || Some(Exit::Signal { number: u8::try_from(status.signal()?).ok()?, core: false });
            status.code().map(|code| Exit::Code(code as u8)).or_else(signal)
        });
        let code = match exit {
            Some(Exit::Code(code)) => code,
            Some(Exit::Signal { number, .. }) => SIGNALLED.saturating_add(number),
            None => 1,
        };
        Self { code, ran: true }
    }
}

fn command(words: &[OsString]) -> Command {
    // The arguments have at least one word; an empty one is a command that is not found.
    let mut command = Command::new(words.first().map(OsString::as_os_str).unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default());
    command
}

/// Starts the command with these variables added to our own.
///
/// # Errors
/// It does not start; the error was printed.
pub fn start(words: &[OsString], environment: &[(&'static str, OsString)]) -> Result<Child, CommandEnd> {
    let mut command = command(words);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.spawn().map_err(|error| CommandEnd { code: print_start_error(words, &error), ran: false })
}

/// Replaces this process with the command. Returns only on failure.
pub fn replace(words: &[OsString]) -> u8 {
    print_start_error(words, &command(words).exec())
}

fn print_start_error(words: &[OsString], error: &io::Error) -> u8 {
    let shown = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let shown = safe(&shown);
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!("memctl: {shown}: command not found; give its path, or check PATH");
        return NOT_FOUND;
    }
    eprintln!("memctl: {shown} cannot be executed: {error}");
    NOT_EXECUTABLE
}

/// Waits for the end of a child but does not reap it. `None`: the system does not report how it ended.
pub async fn ended(pid: u32) -> Option<Exit> {
    tokio::task::spawn_blocking(move || wait(pid)).await.ok().flatten()
}

fn wait(pid: u32) -> Option<Exit> {
    loop {
        // SAFETY: all bits zero is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: a structure of ours that lives until the call returns; the child stays a zombie (WNOWAIT).
        let result = unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        if result != 0 {
            if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return None;
        }
        // SAFETY: filled by waitid for a child that ended.
        let status = unsafe { info.si_status() };
        return Some(match info.si_code {
            libc::CLD_EXITED => Exit::Code(status as u8),
            code => Exit::Signal { number: u8::try_from(status).ok()?, core: code == libc::CLD_DUMPED },
        });
    }
}

/// The limit of open descriptors, and its maximum.
fn descriptor_limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit)
}

/// How many descriptors we can have once the command runs.
// The fields are 64 bits wide here and 32 on other systems.
#[allow(clippy::useless_conversion)]
pub fn descriptors_max() -> u64 {
    descriptor_limit().map_or(0, |limit| u64::from(limit.rlim_max))
}

/// Raises the limit of descriptors to its maximum, because each trainer needs about a dozen.
pub fn raise_descriptor_limit() {
    let Some(limit) = descriptor_limit() else { return };
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: a structure of ours. If it fails, fewer trainers can be recorded.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        let code = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let exit = wait(child.id());
            let ended = CommandEnd::of(exit, child.wait());
            assert_eq!(ended, CommandEnd::of(None, child.wait()), "both ways agree");
            ended.code
        };
        assert_eq!(code("exit 0"), 0);
        assert_eq!(code("exit 255"), 255);
        assert_eq!(code("kill -9 $$"), 137);
        assert_eq!(code("kill -TERM $$"), 143);
        assert_eq!(CommandEnd::of(None, Err(io::Error::other("gone"))).code, 1);
    }
}
