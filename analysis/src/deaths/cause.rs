//! How a process ended, derived from the recorded words about its end, and what to do about it.
//!
//! The words are the agent's (`killed by signal 9 (SIGKILL)`, `exit code 3`, `ValueError: …`). Guarantees: an
//! unrecognised cause is reported as recorded. The out-of-memory killer is blamed only for ends that it can have
//! caused. An illegal memory access is not an out of memory.

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CauseOfDeath {
    /// Nothing more was received from the process.
    Silent,
    /// The process no longer existed, and its end was not seen.
    Unseen,
    /// Killed by a signal.
    Signal {
        /// Its number.
        number: u8,
        /// Whether the kernel counted an out-of-memory kill at that time.
        oom_killer: bool,
    },
    /// The process ended itself with this code.
    ExitCode(u8),
    /// It ran out of memory, of a device or of the host. Another finding reports this.
    OutOfMemory,
    /// An uncaught exception.
    Exception {
        /// Its type.
        name: String,
        /// Its message's first line.
        message: String,
    },
    /// Any other cause.
    Other(String),
}

const SIGHUP: u8 = 1;
const SIGINT: u8 = 2;
const SIGQUIT: u8 = 3;
const SIGILL: u8 = 4;
const SIGABRT: u8 = 6;
const SIGBUS: u8 = 7;
const SIGFPE: u8 = 8;
const SIGKILL: u8 = 9;
const SIGUSR1: u8 = 10;
const SIGSEGV: u8 = 11;
const SIGUSR2: u8 = 12;
const SIGPIPE: u8 = 13;
const SIGTERM: u8 = 15;
const SIGXCPU: u8 = 24;
const SIGXFSZ: u8 = 25;

/// Maximum characters of a message in a sentence.
const MESSAGE_CHARS_MAX: usize = 160;

/// Messages of a process whose peer no longer exists, in lower case.
const PEER_GONE: [&str; 16] = [
    "closed by peer",
    "connection reset",
    "broken pipe",
    "remote process exited",
    "remote peer",
    "ncclremoteerror",
    "ncclsystemerror",
    "connection closed",
    "socket timeout",
    "store timeout",
    "wait timeout",
    "timed out waiting",
    "collective operation timeout",
    "watchdog",
    "heartbeat",
    "signal sent by the launcher",
];
/// Types of exceptions that are raised when another rank no longer exists.
const PEER_GONE_TYPES: [&str; 9] = [
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
    "ConnectionResetError",
    "BrokenPipeError",
    "ConnectionAbortedError",
    "SignalException",
    "EOFError",
];

/// Whether these words report that memory ran out: of a device's allocator, of a library, or of the host.
#[must_use]
pub fn says_out_of_memory(failure: &str) -> bool {
    let failure = failure.to_ascii_lowercase();
    ["out of memory", "outofmemory", "out_of_memory", "oom-kill", "cannot allocate memory", "memoryerror"]
        .iter()
        .any(|words| failure.contains(words))
}

impl CauseOfDeath {
    /// Derives the cause from the recorded words. `None` means that nothing more was received from the process.
    #[must_use]
    pub fn of(failure: Option<&str>) -> Self {
        let Some(failure) = failure else { return Self::Silent };
        let text = failure.trim();
        if let Some(rest) = text.strip_prefix("killed by signal ") {
            return match leading_number(rest) {
                Some(number) => Self::Signal { number, oom_killer: rest.contains("out-of-memory killer") },
                None => Self::Other(text.to_owned()),
            };
        }
        if let Some(code) = text.strip_prefix("exit code ").and_then(leading_number) {
            // A shell reports a signal as 128 plus its number.
            return match code {
                129..=159 => Self::Signal { number: code - 128, oom_killer: false },
                _ => Self::ExitCode(code),
            };
        }
        if text == "ended without a goodbye" {
            return Self::Unseen;
        }
        if says_out_of_memory(text) {
            return Self::OutOfMemory;
        }
        match text.split_once(": ").map_or((text, ""), |(name, message)| (name, message)) {
            (name, message) if is_type_name(name) => {
                Self::Exception { name: name.to_owned(), message: message.to_owned() }
            }
            _ => Self::Other(text.to_owned()),
        }
    }

    /// Whether the end of another process causes this end: a launcher stops the process, or its peer no longer exists.
    /// If the first of a job's deaths has such a cause, the cause came from outside the job.
    #[must_use]
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::Signal { number, .. } => matches!(*number, SIGTERM | SIGINT | SIGHUP),
            Self::Exception { name, message } => {
                let message = message.to_ascii_lowercase();
                name == "KeyboardInterrupt"
                    || PEER_GONE_TYPES.contains(&last_part(name))
                    || PEER_GONE.iter().any(|words| message.contains(words))
            }
            _ => false,
        }
    }

    /// Whether this end may also be the effect of another process's end. If that process ended earlier, no cause of
    /// its own is reported. Launchers kill processes that ignore SIGTERM, and watchdogs of collectives abort.
    #[must_use]
    pub fn may_be_consequence(&self) -> bool {
        self.is_consequence()
            || matches!(
                self,
                Self::Signal { number: SIGKILL | SIGABRT, oom_killer: false } | Self::Unseen | Self::Silent
            )
    }

    /// Whether a person or a scheduler requested the end.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            Self::Signal { number, .. } => matches!(*number, SIGTERM | SIGINT | SIGHUP | SIGUSR1 | SIGUSR2 | SIGXCPU),
            Self::Exception { name, .. } => matches!(last_part(name), "KeyboardInterrupt" | "SignalException"),
            _ => false,
        }
    }

    /// The name in evidence and JSON; never changes.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Unseen => "unseen",
            Self::Signal { oom_killer: true, .. } => "out_of_memory_killer",
            Self::Signal { .. } => "signal",
            Self::ExitCode(_) => "exit_code",
            Self::OutOfMemory => "out_of_memory",
            Self::Exception { .. } => "exception",
            Self::Other(_) => "other",
        }
    }

    /// The cause as words that follow "died" or "ended": `by SIGKILL`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Silent => "without notice".to_owned(),
            Self::Unseen => "without reporting its end".to_owned(),
            Self::Signal { number, oom_killer: true } => {
                format!("by {}, probably the kernel's out-of-memory killer", signal(*number))
            }
            Self::Signal { number, .. } => format!("by {}", signal(*number)),
            Self::ExitCode(code) => format!("with exit code {code}"),
            Self::OutOfMemory => "by running out of memory".to_owned(),
            Self::Exception { name, message } if message.is_empty() => format!("by {}", last_part(name)),
            Self::Exception { name, message } => format!("by {}: {}", last_part(name), cut(message)),
            Self::Other(text) => format!("by: {}", cut(text)),
        }
    }

    /// The key of the cause; ends with equal keys are alike: `SIGSEGV`, an exception's type.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Exception { name, .. } => last_part(name).to_owned(),
            Self::Signal { number, .. } => signal(*number),
            Self::ExitCode(code) => format!("exit code {code}"),
            Self::Silent => "no word".to_owned(),
            Self::Unseen => "no goodbye".to_owned(),
            Self::OutOfMemory => "out of memory".to_owned(),
            Self::Other(text) => cut(text),
        }
    }

    /// Advice about this cause.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Silent => {
                "check whether its host is up and reaches the daemon; the scheduler's log shows a node that failed"
            }
            Self::Unseen => "the output of the job and of its launcher shows how it ended",
            Self::Signal { oom_killer: true, .. } => {
                "the host's memory or the container's limit was full: `dmesg -T` and the container's memory.events show the kill; start fewer DataLoader workers, prefetch less, or raise the limit"
            }
            Self::Signal { number: SIGKILL, .. } => {
                "SIGKILL comes from the kernel's out-of-memory killer, from a container's memory limit, from a scheduler after its grace period, or from a person: `dmesg -T`, the container's memory.events and the scheduler's log show which"
            }
            Self::Signal { number: SIGTERM | SIGUSR1 | SIGUSR2 | SIGXCPU, .. } => {
                "it was asked to end by the launcher, the scheduler (time limit, preemption, a cancelled job) or a person; their logs show by whom"
            }
            Self::Signal { number: SIGINT | SIGHUP | SIGQUIT, .. } => {
                "the terminal ended it (Ctrl-C, or a session that was closed); start it under nohup, tmux or a scheduler to keep it"
            }
            Self::Signal { number: SIGABRT, .. } => {
                "native code gave up (a failed assertion, a corrupted heap, or the watchdog of a collective whose peer hung): its last lines on stderr say which; with PYTHONFAULTHANDLER=1 it also prints the Python stack"
            }
            Self::Signal { number: SIGSEGV | SIGBUS | SIGILL | SIGFPE, .. } => {
                "native code crashed: run it again with PYTHONFAULTHANDLER=1 for the Python stack, and look at extensions and their versions; SIGBUS also comes from a full /dev/shm (DataLoader workers)"
            }
            Self::Signal { number: SIGPIPE | SIGXFSZ, .. } => {
                "what it wrote to is closed or full: check the pipe behind its output and the file system's limits"
            }
            Self::Signal { .. } => "the launcher's and the scheduler's logs show who sent that signal",
            Self::ExitCode(_) => "it chose that exit code itself; its last lines of output say why",
            Self::OutOfMemory => "see the finding about out of memory",
            Self::Exception { name, message } => of_exception(last_part(name), &message.to_ascii_lowercase()),
            Self::Other(_) => "its last lines of output say more",
        }
    }
}

/// The advice for an exception's type and message.
fn of_exception(name: &str, message: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    if says(&["device-side assert"]) {
        return "a kernel found an index out of range (labels, embeddings, gather): run it again with CUDA_LAUNCH_BLOCKING=1, which shows the Python line that launched it, or on the CPU, which names the index";
    }
    if says(&["illegal memory access", "misaligned address", "illegal instruction", "unspecified launch failure"]) {
        return "a kernel accessed memory that it must not access: run it again with CUDA_LAUNCH_BLOCKING=1 for the Python line, then under compute-sanitizer; look at custom kernels and extensions first";
    }
    if says(&["ecc error", "uncorrectable", "device is lost", "fallen off the bus", "nvlink error", "hardware error"]) {
        return "the device itself failed: `nvidia-smi -q` and `dmesg` (lines with Xid) name the error; take the device out and run on another one";
    }
    if says(&["no kernel image", "not compiled with", "driver version is insufficient", "invalid device function"]) {
        return "this build of PyTorch or of an extension does not fit the device or its driver: compare torch.version.cuda, torch.cuda.get_arch_list() and nvidia-smi";
    }
    if says(&["dataloader worker"]) {
        return "a DataLoader worker died: of memory (fewer workers, smaller prefetch_factor), of a full /dev/shm, or of an error in the data set; num_workers=0 shows the traceback";
    }
    if says(&["timeout", "timed out", "watchdog"]) {
        return "a peer did not reach the same collective: it hung, died, or took another path; `memctl timeline --job JOB` shows which rank stopped allocating first, TORCH_DISTRIBUTED_DEBUG=DETAIL which collective differs";
    }
    if name.starts_with("Dist") || says(&["nccl", "gloo", "closed by peer", "connection reset"]) {
        return "another rank or the network between them failed: look for the rank that ended first; NCCL_DEBUG=WARN names the link";
    }
    if name == "AcceleratorError" || says(&["cuda error", "cublas_status", "cudnn_status"]) {
        return "the device refused a kernel or a library's call, and errors come late: run it again with CUDA_LAUNCH_BLOCKING=1, which shows the Python line that launched it";
    }
    match name {
        "KeyboardInterrupt" => "Ctrl-C was pressed, or the launcher passed it on",
        "SignalException" => {
            "the launcher was asked to end (time limit, preemption, a cancelled job); the scheduler's log shows by whom"
        }
        _ => "the traceback in the job's output names the line",
    }
}

fn signal(number: u8) -> String {
    let name = match number {
        SIGHUP => "SIGHUP",
        SIGINT => "SIGINT",
        SIGQUIT => "SIGQUIT",
        SIGILL => "SIGILL",
        SIGABRT => "SIGABRT",
        SIGBUS => "SIGBUS",
        SIGFPE => "SIGFPE",
        SIGKILL => "SIGKILL",
        SIGUSR1 => "SIGUSR1",
        SIGSEGV => "SIGSEGV",
        SIGUSR2 => "SIGUSR2",
        SIGPIPE => "SIGPIPE",
        SIGTERM => "SIGTERM",
        SIGXCPU => "SIGXCPU",
        SIGXFSZ => "SIGXFSZ",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// The last part of a qualified name: `torch.AcceleratorError` → `AcceleratorError`.
fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn leading_number(text: &str) -> Option<u8> {
    let digits: &str = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn is_type_name(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|part| {
            part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_alphanumeric() || c == '_')
        })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_words_are_understood() {
        assert_eq!(
            CauseOfDeath::of(Some("killed by signal 9 (SIGKILL)")),
            CauseOfDeath::Signal { number: SIGKILL, oom_killer: false }
        );
        assert_eq!(
            CauseOfDeath::of(Some("killed by signal 9 (SIGKILL), probably the kernel's out-of-memory killer")),
            CauseOfDeath::Signal { number: SIGKILL, oom_killer: true }
        );
        assert_eq!(CauseOfDeath::of(Some("exit code 3: no data")), CauseOfDeath::ExitCode(3));
        assert_eq!(
            CauseOfDeath::of(Some("exit code 143")),
            CauseOfDeath::Signal { number: SIGTERM, oom_killer: false }
        );
        assert_eq!(CauseOfDeath::of(Some("ended without a goodbye")), CauseOfDeath::Unseen);
        assert_eq!(CauseOfDeath::of(Some("out of memory: CUDA out of memory. Tried")), CauseOfDeath::OutOfMemory);
        assert_eq!(CauseOfDeath::of(Some("MemoryError")), CauseOfDeath::OutOfMemory);
        assert_eq!(CauseOfDeath::of(None), CauseOfDeath::Silent);
        let CauseOfDeath::Exception { name, .. } =
            CauseOfDeath::of(Some("AcceleratorError: CUDA error: an illegal memory access"))
        else {
            panic!("an illegal access is no out of memory")
        };
        assert_eq!(name, "AcceleratorError");
        assert_eq!(
            CauseOfDeath::of(Some("the agent was dropped")),
            CauseOfDeath::Other("the agent was dropped".into())
        );
    }

    #[test]
    fn advice_fits_the_cause_and_the_kernels_log_is_read_for_sigkill_alone() {
        let advice = |failure: &str| CauseOfDeath::of(Some(failure)).advice();
        assert!(advice("killed by signal 9 (SIGKILL)").contains("dmesg"));
        for other in [
            "killed by signal 15 (SIGTERM)",
            "ValueError: x",
            "AcceleratorError: CUDA error: device-side assert triggered",
            "exit code 2",
        ] {
            assert!(!advice(other).contains("dmesg"), "{other}: {}", advice(other));
        }
        assert!(advice("killed by signal 15 (SIGTERM)").contains("scheduler"));
        assert!(advice("killed by signal 11 (SIGSEGV)").contains("PYTHONFAULTHANDLER"));
        assert!(
            advice("AcceleratorError: CUDA error: device-side assert triggered").contains("CUDA_LAUNCH_BLOCKING=1")
        );
        assert!(advice("DistBackendError: Watchdog caught collective operation timeout").contains("a peer"));
        assert!(advice("RuntimeError: CUDA error: uncorrectable ECC error encountered").contains("Xid"));
    }

    #[test]
    fn what_peers_suffer_is_told_from_what_a_process_does_itself() {
        let is = |failure: &str| CauseOfDeath::of(Some(failure)).is_consequence();
        assert!(is("killed by signal 15 (SIGTERM)"));
        assert!(is("RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]"));
        assert!(is("DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"));
        assert!(!is("killed by signal 9 (SIGKILL)"));
        assert!(!is("ValueError: shapes"));
        assert!(!is("AcceleratorError: CUDA error: device-side assert triggered"));
    }
}
