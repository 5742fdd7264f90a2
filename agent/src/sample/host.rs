//! Reads processes from `/proc`: resident memory, descendants, whether a process lives, and how it died.
//!
//! A process is identified by its pid and its start time ([`ProcessKey`]), because pids are reused.
//! Guarantees: work and memory are bounded for any content of `/proc`. A process that ends while it is read counts as
//! gone and is not an error.
//! Refuses: to read `smaps`, which locks the address space that it describes, and to wait for or signal a process.

use std::collections::{HashSet, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of bytes that are read from one file of `/proc`. `stat` is below 1 KiB, and `children` with 4,000
/// processes is below 32 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of descendants of one process that are read. A trainer may have hundreds of DataLoader workers, and
/// their helpers.
const DESCENDANTS_MAX: usize = 1_024;
/// Maximum number of threads of one process whose children are read. A trainer has hundreds.
const THREADS_MAX: usize = 4_096;
/// Maximum number of entries of `/proc` that are read where the kernel does not list children.
const PROCESSES_MAX: usize = 32_768;

/// Identifies a process until the machine reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    /// Process id, in the reader's namespace.
    pub pid: u32,
    /// Start time of the process, in clock ticks after boot.
    pub start_ticks: u64,
}

/// A descendant of a process: a DataLoader worker, a compiler's subprocess, a rank under a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descendant {
    /// The process.
    pub key: ProcessKey,
    /// Its parent's pid.
    pub parent_pid: u32,
    /// The kernel's name for the process. DataLoader workers are `pt_data_worker` in newer versions of PyTorch and
    /// `python` in older ones.
    pub name: String,
    /// Resident bytes. Pages that are shared with the parent count in both.
    pub resident_bytes: Option<u64>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(u8),
    /// A signal killed it.
    Signal {
        /// Its number.
        number: u8,
        /// Whether the kernel wrote a core file.
        core: bool,
    },
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, core } => {
                write!(f, "killed by signal {number}{}", if *core { " (core written)" } else { "" })
            }
        }
    }
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs (or sleeps, or is stopped).
    Alive,
    /// It ended and its parent has not reaped it yet. `None` when the kernel does not show this user how it ended.
    Zombie(Option<Exit>),
    /// It is gone, or its pid belongs to another process now.
    Gone,
}

/// The fields of `stat` that are used.
struct Stat {
    name: String,
    state: char,
    parent_pid: u32,
    start_ticks: u64,
    exit_code: Option<i32>,
}

/// A `/proc` file system.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
    page_bytes: u64,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at(Path::new("/proc"))
    }
}

impl Proc {
    /// The `/proc` mounted at `root`.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        // SAFETY: sysconf reads a constant of the system.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        Self { root: root.to_owned(), page_bytes: u64::try_from(page_bytes).unwrap_or(4_096) }
    }

    /// The process that has this pid now.
    #[must_use]
    pub fn key(&self, pid: u32) -> Option<ProcessKey> {
        self.stat(pid).map(|stat| ProcessKey { pid, start_ticks: stat.start_ticks })
    }

    /// The current state of a process.
    #[must_use]
    pub fn fate(&self, process: ProcessKey) -> Fate {
        match self.stat(process.pid) {
            Some(stat) if stat.start_ticks == process.start_ticks => match stat.state {
                'Z' => Fate::Zombie(stat.exit_code.and_then(exit)),
                'X' | 'x' => Fate::Gone,
                _ => Fate::Alive,
            },
            _ => Fate::Gone,
        }
    }

    /// Resident bytes of a process; `None` when it is gone (a zombie has 0).
    #[must_use]
    pub fn resident_bytes(&self, pid: u32) -> Option<u64> {
        let statm = self.read(&format!("{pid}/statm"))?;
        let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
        pages.checked_mul(self.page_bytes)
    }

    /// All live descendants of a process, nearest first, at most 1,024.
    #[must_use]
    pub fn descendants(&self, pid: u32) -> Vec<Descendant> {
        let by_scan = if self.lists_children(pid) { None } else { Some(self.parents()) };
        let mut found = Vec::new();
        // A pid that is reused meanwhile could close a cycle.
        let mut seen = HashSet::from([pid]);
        let mut open = VecDeque::from([pid]);
        while let Some(parent_pid) = open.pop_front() {
            let children = match &by_scan {
                Some(pairs) => pairs.iter().filter(|(_, parent)| *parent == parent_pid).map(|(pid, _)| *pid).collect(),
                None => self.children(parent_pid),
            };
            for child in children {
                if found.len() == DESCENDANTS_MAX {
                    return found;
                }
                if !seen.insert(child) {
                    continue;
                }
                let Some(stat) = self.stat(child).filter(|stat| !matches!(stat.state, 'Z' | 'X' | 'x')) else {
                    continue;
                };
                found.push(Descendant {
                    key: ProcessKey { pid: child, start_ticks: stat.start_ticks },
                    // The parent's pid comes from `stat`, because a thread that forked may have ended and left its
                    // children to another.
                    parent_pid: stat.parent_pid,
                    name: stat.name,
                    resident_bytes: self.resident_bytes(child),
                });
                open.push_back(child);
            }
        }
        found
    }

    /// Whether pids from the driver are valid here. In a container with its own pid namespace they may be those of the
    /// host.
    #[must_use]
    pub fn is_initial_pid_namespace(&self) -> bool {
        /// `PROC_PID_INIT_INO` of the kernel's `proc_ns.h`, fixed since Linux 3.8.
        const INITIAL: &str = "pid:[4026531836]";
        std::fs::read_link(self.root.join("self/ns/pid")).is_ok_and(|link| link.as_os_str() == INITIAL)
    }

    /// Whether this kernel lists children (`CONFIG_PROC_CHILDREN`).
    fn lists_children(&self, pid: u32) -> bool {
        self.root.join(format!("{pid}/task/{pid}/children")).exists()
    }

    /// The children of a process from the kernel's lists. There is one list for each thread that forked.
    fn children(&self, pid: u32) -> Vec<u32> {
        let Ok(threads) = std::fs::read_dir(self.root.join(format!("{pid}/task"))) else { return Vec::new() };
        let mut children = Vec::new();
        for thread in threads.flatten().take(THREADS_MAX) {
            let listed = read(&thread.path().join("children")).unwrap_or_default();
            children.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        children.truncate(DESCENDANTS_MAX);
        children
    }

    /// Every process and its parent, for kernels that do not list children.
    fn parents(&self) -> Vec<(u32, u32)> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .take(PROCESSES_MAX)
            .filter_map(|pid| Some((pid, self.stat(pid)?.parent_pid)))
            .collect()
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        parse_stat(&self.read(&format!("{pid}/stat"))?)
    }

    fn read(&self, path: &str) -> Option<String> {
        read(&self.root.join(path))
    }
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses `stat`. The name is in brackets and may itself contain brackets and blanks, so the last bracket ends it.
fn parse_stat(text: &str) -> Option<Stat> {
    let (front, back) = text.rsplit_once(')')?;
    let name = front.split_once('(')?.1.to_owned();
    // The next field is number 3 of proc(5).
    let mut fields = back.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent_pid = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(22 - 5)?.parse().ok()?;
    // A kernel without the 52nd field only lacks the exit code.
    let exit_code = fields.nth(52 - 23).and_then(|code| code.parse().ok());
    Some(Stat { name, state, parent_pid, start_ticks, exit_code })
}

/// How a process ended, from a status in the form of `wait`. The kernel also shows 0 to a user without permission to
/// see it.
fn exit(status: i32) -> Option<Exit> {
    let status = u32::try_from(status).ok().filter(|&status| status <= 0xffff)?;
    let (code, signal) = ((status >> 8) as u8, (status & 0x7f) as u8);
    match signal {
        0 => Some(Exit::Code(code)),
        0x7f => None,
        number => Some(Exit::Signal { number, core: status & 0x80 != 0 }),
    }
}
