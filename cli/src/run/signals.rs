//! Relays signals to the command.
//!
//! A signal from the terminal, or to the whole process group, reaches the command as well, so it is not relayed; one
//! that is sent to this process alone is. Slurm signals every process of a step, so its signals are not relayed either.
//! After the command has ended, a signal ends the wait for storing.
//! Guarantees: a signal that was ignored when we started (`nohup`) stays ignored, for the command too; a handler only
//! writes to a pipe. Never sends a signal to a pid that may already be another process's.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::group_witness::GroupWitness;

/// The signals that are passed on.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// `si_code` of a signal that the kernel sends: for these signals that is the terminal.
const SI_KERNEL: libc::c_int = 0x80;

/// The process of Slurm that signals all processes of a step, by the name that the kernel has for it.
const STEP_DAEMON: &str = "slurmstepd";
/// Bytes that a handler writes: the signal, whether the terminal sent it, and the sender's pid.
const WORD: usize = 6;

/// Where the handlers write; -1 before there is a pipe. It is never closed: a handler may run at any time.
static PIPE: AtomicI32 = AtomicI32::new(-1);

enum Command {
    /// Signals stay in the pipe.
    NotStarted,
    Running(libc::pid_t),
    Ended,
}

/// Passes signals on.
pub struct Relay {
    command: Mutex<Command>,
    /// The pipe's read end, until the relay's thread takes it.
    signals: Mutex<Option<File>>,
    witness: Mutex<Option<GroupWitness>>,
    hurry: Arc<AtomicBool>,
}

extern "C" fn on_signal(number: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure (SA_SIGINFO), or none.
    let info = unsafe { info.as_ref() };
    let code = info.map_or(0, |info| info.si_code);
    // SAFETY: a signal that a process sent has its pid; for others the bytes are there as well, and are not used.
    let sender = info.filter(|info| info.si_code <= 0).map_or(0, |info| unsafe { info.si_pid() });
    let [a, b, c, d] = sender.to_ne_bytes();
    let word: [u8; WORD] = [number as u8, u8::from(code == SI_KERNEL), a, b, c, d];
    // SAFETY: errno is this thread's, and what interrupted code finds there must be its own; write is
    // async-signal-safe, the descriptor is never closed, and it does not block.
    unsafe {
        let errno = *libc::__errno_location();
        // Relaxed: set once, before the handlers are.
        libc::write(PIPE.load(Ordering::Relaxed), word.as_ptr().cast(), word.len());
        *libc::__errno_location() = errno;
    }
}

impl Relay {
    /// Takes over the signals. If that fails they keep their default effect, and the run continues.
    pub fn install() -> Self {
        let signals = pipe().map_err(|error| tracing::warn!(%error, "signals are not passed on")).ok();
        if signals.is_some() {
            PASSED_ON.into_iter().for_each(take_over);
        }
        Self {
            command: Mutex::new(Command::NotStarted),
            signals: Mutex::new(signals),
            witness: Mutex::default(),
            hurry: Arc::default(),
        }
    }

    /// Set when a signal arrives after the command's end: all waits end.
    pub fn hurry(&self) -> Arc<AtomicBool> {
        self.hurry.clone()
    }

    fn command(&self) -> MutexGuard<'_, Command> {
        self.command.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when the command runs: relays the signals that arrived before.
    pub fn begin(self: &Arc<Self>, pid: u32) {
        *self.command() = libc::pid_t::try_from(pid).map_or(Command::Ended, Command::Running);
        let signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(signals) = signals else { return };
        let relay = self.clone();
        let started = std::thread::Builder::new().name("memctl-signals".into()).spawn(move || relay.pass_on(signals));
        if let Err(error) = started {
            tracing::warn!(%error, "signals are not passed on");
        }
    }

    /// Called when the command has ended and is about to be reaped. From then on its pid may be another process's.
    pub fn end(&self) {
        *self.command() = Command::Ended;
        drop(self.witness().take());
    }

    fn witness(&self) -> MutexGuard<'_, Option<GroupWitness>> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a signal reaches the command without being relayed.
    fn reaches_all(&self, number: libc::c_int, from_terminal: bool, sender: i32) -> bool {
        let mut witness = self.witness();
        let Some(witness) = &mut *witness else { return from_terminal };
        let reaches = from_terminal || is_step_daemon(sender) || witness.has_got(number);
        if reaches {
            witness.renew();
        }
        reaches
    }

    fn pass_on(&self, mut signals: File) {
        let mut word = [0; WORD];
        *self.witness() = Some(GroupWitness::start());
        while signals.read_exact(&mut word).is_ok() {
            let [number, from_terminal, sender @ ..] = word;
            let number = libc::c_int::from(number);
            let reaches_all = self.reaches_all(number, from_terminal != 0, i32::from_ne_bytes(sender));
            // Held while the signal is sent, see `end`.
            match *self.command() {
                Command::Running(pid) if !reaches_all => {
                    // SAFETY: no pointers; the pid is that of our child, which is not reaped yet.
                    unsafe { libc::kill(pid, number) };
                }
                Command::Ended if !matches!(number, libc::SIGUSR1 | libc::SIGUSR2) => {
                    // Relaxed: only a hint; nothing else is synchronized by it.
                    self.hurry.store(true, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}

/// Whether a process is Slurm's, which signals the command as well.
fn is_step_daemon(pid: i32) -> bool {
    pid > 0 && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == STEP_DAEMON)
}

/// Makes the pipe and returns its read end.
fn pipe() -> io::Result<File> {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors. Not inherited by the command.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // If the pipe is full (10,922 unread signals), signals are lost rather than blocking the interrupted code. SAFETY:
    // a descriptor of ours.
    unsafe { libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK) };
    // Relaxed: read by handlers that are set after this, on this thread.
    PIPE.store(ends[1], Ordering::Relaxed);
    // SAFETY: new and owned here alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(ends[0]) }))
}

fn take_over(number: libc::c_int) {
    // SAFETY: all bits zero is a valid `sigaction`; the calls read and write structures of ours; the handler does only
    // what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(number, std::ptr::null(), &raw mut action) != 0 || action.sa_sigaction == libc::SIG_IGN {
            return;
        }
        action = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(number, &raw const action, std::ptr::null_mut());
    }
}
