//! How a trainer that said no goodbye ended, in words: asked of the kernel while the process is still to be seen.
//!
//! Sources, in their order: the zombie in `/proc`, the launcher that reaped it as its own child, nothing.
//! Guarantees: exit code 0 is no failure; the out-of-memory killer is named only where the kernel counted a kill.
//! Refuses: to wait longer than its limits; what is not known is called so.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sample::host::{Exit, Fate, Proc, ProcessKey};

/// How long the dead are looked for: a parent that waits reaps within microseconds, and then the launcher's own word
/// for its child comes soon after.
const LOOK_MAX: Duration = Duration::from_millis(200);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Children of the launcher whose end is remembered: it has one.
const EXITS_MAX: usize = 64;

/// What nobody knows better.
const UNKNOWN: &str = "ended without a goodbye";

/// How children of this process ended, as it learnt when it reaped them.
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

/// A process and what is needed to say how it died.
pub(super) struct Watched {
    proc: Proc,
    key: Option<ProcessKey>,
    kills: Option<Kills>,
}

impl Watched {
    /// `pid` 0: a process that is not to be seen from here.
    pub(super) fn new(proc: Proc, pid: u32) -> Self {
        let key = if pid == 0 { None } else { proc.key(pid) };
        Self { kills: Kills::of(pid), proc, key }
    }

    pub(super) fn key(&self) -> Option<ProcessKey> {
        self.key
    }

    /// Why it failed; `None` when it ended with exit code 0. For a process that is dead or about to be.
    pub(super) fn failure(&self, exits: &Exits) -> Option<String> {
        match self.exit(exits) {
            Some(Exit::Code(0)) => None,
            Some(exit) => Some(self.in_words(exit)),
            None => Some(UNKNOWN.to_owned()),
        }
    }

    fn exit(&self, exits: &Exits) -> Option<Exit> {
        let key = self.key?;
        let end = Instant::now() + LOOK_MAX;
        loop {
            if let Fate::Zombie(Some(exit)) = self.proc.fate(key) {
                return Some(exit);
            }
            if let Some(exit) = exits.get(key.pid) {
                return Some(exit);
            }
            if Instant::now() >= end {
                return None;
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

/// The kernel's count of out-of-memory kills where a process lives, and what it was at first.
struct Kills {
    file: PathBuf,
    before: u64,
}

impl Kills {
    /// Of the process's control group, else of the whole machine. Read at the start: a dead process has no group.
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

/// Files that count the kills in the groups of a `/proc/PID/cgroup`: of version 2, then of version 1.
fn files(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        // 0::/path or 9:memory:/path
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

/// The number behind `oom_kill` in one of those files.
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
        let watched = Watched::new(Proc::default(), child.id());
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
            child.wait().unwrap();
        }
    }

    #[test]
    fn who_reaped_it_knows() {
        let (mut child, watched) = dead("exit 7");
        child.wait().unwrap();
        let exits = Exits::default();
        assert_eq!(watched.failure(&exits).as_deref(), Some(UNKNOWN));
        exits.add(child.id(), Exit::Code(7));
        assert_eq!(watched.failure(&exits).as_deref(), Some("exit code 7"));
        assert_eq!(Watched::new(Proc::default(), 0).failure(&exits).as_deref(), Some(UNKNOWN));
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
        let watched = Watched { proc: Proc::default(), key: None, kills: Some(kills) };
        let killed = Exit::Signal { number: 9, core: false };
        assert_eq!(watched.in_words(killed), "killed by signal 9 (SIGKILL)");
        std::fs::write(&events, "oom_kill 4\n").unwrap();
        assert!(watched.in_words(killed).ends_with("out-of-memory killer"));
        assert_eq!(watched.in_words(Exit::Signal { number: 15, core: false }), "killed by signal 15 (SIGTERM)");
        assert_eq!(watched.in_words(Exit::Signal { number: 34, core: false }), "killed by signal 34");
    }
}
