//! Shows whether a signal was sent to the whole process group, the command included, or to this process alone. The kernel
//! does not say so to the one that gets the signal.
//!
//! A process that only sleeps is started in the group, with all signals blocked. A signal to the group stays pending
//! there, and `/proc` shows it. (proc(5): `ShdPnd`.)
//! Guarantees: it ends with this process, also if this one is killed. Without it, each signal counts as sent to this
//! process alone.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What it sleeps, in seconds: the longest time that every `sleep` accepts.
const SLEEP: &str = "2147483647";
/// How long a sender that signals process by process may take from this process to the other one.
const SENDER_MAX: Duration = Duration::from_millis(50);
/// Interval between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The other process of the group.
pub(super) struct GroupWitness(Option<Child>);

impl GroupWitness {
    /// Starts it. It ends with the calling thread.
    pub(super) fn start() -> Self {
        let mut command = Command::new("sleep");
        command.arg(SLEEP).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: the closure runs between fork and exec, and calls only functions that may be called there.
        unsafe { command.pre_exec(block_all) };
        let started = command.spawn().inspect_err(|error| tracing::debug!(%error, "`sleep` does not start"));
        Self(started.ok())
    }

    /// Whether this signal, which this process got, was sent to the group.
    pub(super) fn has_got(&self, number: libc::c_int) -> bool {
        let Some(child) = &self.0 else { return false };
        let end = Instant::now() + SENDER_MAX;
        loop {
            if pending(child.id()).is_some_and(|signals| signals & (1 << (number - 1)) != 0) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts another one, because a pending signal hides the next one of its number.
    pub(super) fn renew(&mut self) {
        *self = Self::start();
    }
}

impl Drop for GroupWitness {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It can only have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn block_all() -> std::io::Result<()> {
    // SAFETY: a set of ours that the first call fills; the others read it, or take numbers.
    let done = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all) == 0
            && libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()) == 0
            && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The signals that a process blocks and has got, as bits.
fn pending(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bits = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_sent_to_it_as_well_is_seen() {
        let mut witness = GroupWitness::start();
        let pid = witness.0.as_ref().unwrap().id();
        assert!(!witness.has_got(libc::SIGUSR1));
        // SAFETY: the pid of a child that is not reaped.
        unsafe { libc::kill(pid as libc::pid_t, libc::SIGUSR1) };
        assert!(witness.has_got(libc::SIGUSR1) && !witness.has_got(libc::SIGTERM));
        witness.renew();
        assert!(!witness.has_got(libc::SIGUSR1));
        let pid = witness.0.as_ref().unwrap().id();
        drop(witness);
        assert_eq!(pending(pid), None, "it has ended");
    }
}
