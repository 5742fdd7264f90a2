//! Describes how a trainer ended that did not end its session, from what the kernel shows while the process is still
//! visible.
//!
//! There are four sources:
//! - The zombie in `/proc`, which its parent may reap within microseconds.
//! - `/proc` while the process is dying. Its connection ends before it becomes a zombie.
//! - Its pidfd. From Linux 6.15 on it has the exit status also after the process was reaped.
//! - The launcher, if it reaped the process as its own child.
//!
//! Guarantees: exit code 0 is not a failure. The out-of-memory killer is named only if the kernel counted a kill.
//! Refuses: to wait longer than its limits. An unknown end is reported as unknown.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::sample::host::{Exit, Fate, Proc, ProcessKey};

/// How long to look for a dead process. A waiting parent reaps it within microseconds. If the launcher is the parent,
/// it reports its child soon after.
const LOOK_MAX: Duration = Duration::from_millis(200);
/// Interval between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Maximum number of children of the launcher whose exit is remembered. The launcher has one child.
const EXITS_MAX: usize = 64;

/// The text when no source has more.
const UNKNOWN: &str = "ended without a goodbye";

/// How children of this process ended, recorded when it reaped them.
#[derive(Default)]
pub(super) struct Exits(Mutex<HashMap<u32, Exit>>);

impl Exits {
    pub(super) fn add(&self, pid: u32, exit: Exit) {
        let mut exits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if exits.len() < EXITS_MAX {
            exits.insert(pid, exit);
        }
    }

    fn get(&self, pid: u32) -> Option<Exit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied()
    }
}

/// A process and what is needed to find out how it died.
pub(super) struct Watched {
    proc: Proc,
    key: Option<ProcessKey>,
    process: Option<OwnedFd>,
    /// The exit status, if it was read while the process was dying.
    dying: OnceLock<Exit>,
    kills: Option<Kills>,
}

impl Watched {
    /// Begins to watch a process. `pid` is 0 for a process that is not visible from here. `process` is its pidfd, if
    /// there is one.
    pub(super) fn new(proc: Proc, pid: u32, process: Option<OwnedFd>) -> Self {
        let key = if pid == 0 { None } else { proc.key(pid) };
        Self { kills: Kills::of(pid), proc, key, process, dying: OnceLock::new() }
    }

    pub(super) fn key(&self) -> Option<ProcessKey> {
        self.key
    }

    /// The pidfd, which becomes readable when the process is dead; negative without a pidfd.
    pub(super) fn fd(&self) -> RawFd {
        self.process.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Reads the exit status of a process that is about to die or has just died. The process may be gone a moment
    /// later.
    pub(super) fn look(&self) {
        if let Some(exit) = self.key.and_then(dying) {
            let _ = self.dying.set(exit);
        }
    }

    /// Why the process failed; `None` when it ended with exit code 0. For a process that is dead or about to die.
    pub(super) fn failure(&self, exits: &Exits) -> Option<String> {
        match self.exit(exits) {
            Some(Exit::Code(0)) => None,
            Some(exit) => Some(self.in_words(exit)),
            None => Some(UNKNOWN.to_owned()),
        }
    }

    /// Like [`Self::failure`], but an unknown end is not a failure, because the process had ended its session.
    pub(super) fn known_failure(&self, exits: &Exits) -> Option<String> {
        self.exit(exits).filter(|exit| *exit != Exit::Code(0)).map(|exit| self.in_words(exit))
    }

    fn exit(&self, exits: &Exits) -> Option<Exit> {
        let key = self.key?;
        let end = Instant::now() + LOOK_MAX;
        loop {
            if let Fate::Zombie(Some(exit)) = self.proc.fate(key) {
                return Some(exit);
            }
            let known = exits.get(key.pid).or_else(|| reaped(self.process.as_ref()?)).or(self.dying.get().copied());
            if known.is_some() || Instant::now() >= end {
                return known;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn in_words(&self, exit: Exit) -> String {
        let Exit::Signal { number, .. } = exit else { return exit.to_string() };
        let mut text = format!("killed by signal {number}");
        if let Some(name) = signal_name(number) {
            text.push_str(&format!(" ({name})"));
        }
        if i32::from(number) == libc::SIGKILL && self.kills.as_ref().is_some_and(Kills::has_grown) {
            text.push_str(", probably the kernel's out-of-memory killer");
        }
        text
    }
}

/// How a process ended, from a status in the form of `wait`.
fn exit(status: i32) -> Option<Exit> {
    let status = u32::try_from(status).ok().filter(|&status| status <= 0xffff)?;
    match (status & 0x7f) as u8 {
        0 => Some(Exit::Code((status >> 8) as u8)),
        0x7f => None,
        number => Some(Exit::Signal { number, core: status & 0x80 != 0 }),
    }
}

/// The exit of a process that is dying or not reaped yet. `None` for status 0, which a living process has as well.
fn dying(key: ProcessKey) -> Option<Exit> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", key.pid)).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    // proc(5): the state is field 3, the start 22, the exit code 52.
    let start_ticks: u64 = fields.nth(22 - 3)?.parse().ok()?;
    let status: i32 = fields.nth(52 - 23)?.parse().ok()?;
    (start_ticks == key.start_ticks && status != 0).then(|| exit(status)).flatten()
}

/// The exit of a process that its parent has already reaped.
fn reaped(process: &OwnedFd) -> Option<Exit> {
    const EXIT: u64 = libc::PIDFD_INFO_EXIT as u64;
    // SAFETY: all bits zero is a valid `pidfd_info`: it holds integers only.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = EXIT;
    // SAFETY: a pidfd and a structure of ours whose size is encoded in the request's number. Kernels before 6.13 refuse
    // the request, and kernels before 6.15 do not set the bit.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & EXIT != 0).then(|| exit(info.exit_code)).flatten()
}

/// The name of a signal that ends processes.
fn signal_name(number: u8) -> Option<&'static str> {
    Some(match i32::from(number) {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    })
}

/// The kernel's count of out-of-memory kills in the group of a process, and its value at the start.
struct Kills {
    file: PathBuf,
    before: u64,
}

impl Kills {
    /// The count of the process's control group, otherwise of the whole machine. It is read at the start, because a
    /// dead process has no group.
    fn of(pid: u32) -> Option<Self> {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        files(&groups, Path::new("/sys/fs/cgroup"))
            .into_iter()
            .chain([PathBuf::from("/proc/vmstat")])
            .find_map(|file| count(&file).map(|before| Self { file, before }))
    }

    fn has_grown(&self) -> bool {
        count(&self.file).is_some_and(|now| now > self.before)
    }
}

/// Files with the count of kills in the groups of a `/proc/PID/cgroup`. Version 2 comes before version 1.
fn files(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        // A line is `0::/path` or `9:memory:/path`.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        if path.split('/').any(|part| part == "..") {
            continue;
        }
        if controllers.is_empty() {
            files.push(root.join(path).join("memory.events"));
            files.push(root.join("unified").join(path).join("memory.events"));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            files.push(root.join("memory").join(path).join("memory.oom_control"));
        }
    }
    files
}

/// The number after `oom_kill` in one of those files.
fn count(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn dead(script: &str) -> (Child, Watched) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let watched = Watched::new(Proc::default(), child.id(), super::super::wait::process(child.id()));
        assert!(watched.key().is_some());
        (child, watched)
    }

    #[test]
    fn a_zombie_tells_how_it_died() {
        let exits = Exits::default();
        for (script, words) in [
            ("exit 3", Some("exit code 3")),
            ("exit 0", None),
            ("kill -9 $$", Some("killed by signal 9 (SIGKILL)")),
            ("kill -TERM $$", Some("killed by signal 15 (SIGTERM)")),
        ] {
            let (mut child, watched) = dead(script);
            assert_eq!(watched.failure(&exits).as_deref(), words, "{script}");
            assert_eq!(watched.known_failure(&exits).as_deref(), words, "{script}");
            child.wait().unwrap();
        }
    }

    /// Whether this kernel keeps the exit status after a process was reaped.
    fn kernel_remembers() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
    }

    #[test]
    fn who_reaped_it_knows() {
        let (mut child, mut watched) = dead("exit 7");
        child.wait().unwrap();
        let exits = Exits::default();
        let words = if kernel_remembers() { "exit code 7" } else { UNKNOWN };
        assert_eq!(watched.failure(&exits).as_deref(), Some(words));
        watched.process = None;
        assert_eq!(watched.failure(&exits).as_deref(), Some(UNKNOWN));
        assert_eq!(watched.known_failure(&exits), None, "it said goodbye");
        exits.add(child.id(), Exit::Code(7));
        assert_eq!(watched.failure(&exits).as_deref(), Some("exit code 7"));
        assert_eq!(Watched::new(Proc::default(), 0, None).failure(&exits).as_deref(), Some(UNKNOWN));
    }

    #[test]
    fn what_was_seen_of_a_dying_process_is_kept() {
        let me = Proc::default().key(std::process::id()).unwrap();
        assert_eq!(dying(me), None, "it lives");
        let (mut child, mut watched) = dead("exit 4");
        // The process is not reaped. A zombie serves as the dying process.
        while dying(watched.key().unwrap()).is_none() {
            std::thread::yield_now();
        }
        watched.look();
        watched.process = None;
        child.wait().unwrap();
        assert_eq!(watched.failure(&Exits::default()).as_deref(), Some("exit code 4"));
        assert_eq!([0x7f, 0x1_0000, -1].map(exit), [None; 3]);
        assert_eq!(exit(0x8b), Some(Exit::Signal { number: 11, core: true }));
    }

    #[test]
    fn the_killer_is_named_only_where_it_was_counted() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("job/memory.events");
        std::fs::create_dir(folder.path().join("job")).unwrap();
        std::fs::write(&events, "low 0\noom 4\noom_kill 3\noom_group_kill 0\n").unwrap();
        let found = files("12:memory:/old\n0::/job\n1:name=systemd:/x\n0::/../etc\n", folder.path());
        let relative: Vec<_> = found.iter().map(|file| file.strip_prefix(folder.path()).unwrap()).collect();
        assert_eq!(
            relative,
            ["memory/old/memory.oom_control", "job/memory.events", "unified/job/memory.events"].map(Path::new)
        );
        let kills = Kills { before: count(&events).unwrap(), file: events.clone() };
        let watched = Watched { kills: Some(kills), ..Watched::new(Proc::default(), 0, None) };
        let killed = Exit::Signal { number: 9, core: false };
        assert_eq!(watched.in_words(killed), "killed by signal 9 (SIGKILL)");
        std::fs::write(&events, "oom_kill 4\n").unwrap();
        assert!(watched.in_words(killed).ends_with("out-of-memory killer"));
        assert_eq!(watched.in_words(Exit::Signal { number: 15, core: false }), "killed by signal 15 (SIGTERM)");
        assert_eq!(watched.in_words(Exit::Signal { number: 34, core: false }), "killed by signal 34");
    }
}
