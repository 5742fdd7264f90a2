//! Tests with the `/proc` of processes that the tests start, and with a folder that imitates `/proc` with false
//! content.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::host::{Exit, Fate, Proc, ProcessKey};

/// A child that is ended and reaped, regardless of how the test ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(script: &str) -> (Started, ProcessKey) {
    let child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().expect("a shell");
    let key = Proc::default().key(child.id()).expect("a child that was not reaped");
    (Started(child), key)
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ended(key: ProcessKey) -> Fate {
    let proc = Proc::default();
    until("the child never ended", || Some(proc.fate(key)).filter(|fate| *fate != Fate::Alive))
}

#[test]
fn a_zombie_tells_how_it_died() {
    for (script, wanted) in [
        ("exit 7", Exit::Code(7)),
        ("exit 0", Exit::Code(0)),
        ("kill -KILL $$", Exit::Signal { number: 9, core: false }),
        ("kill -TERM $$", Exit::Signal { number: 15, core: false }),
    ] {
        let (mut child, key) = start(script);
        assert_eq!(ended(key), Fate::Zombie(Some(wanted)), "{script}");
        child.0.wait().expect("reaped");
        assert_eq!(Proc::default().fate(key), Fate::Gone);
    }
    assert_eq!(Exit::Signal { number: 9, core: false }.to_string(), "killed by signal 9");
}

#[test]
fn a_pid_of_another_start_is_another_process() {
    let (child, key) = start("read line");
    let proc = Proc::default();
    assert_eq!(proc.fate(key), Fate::Alive);
    assert_eq!(proc.fate(ProcessKey { start_ticks: key.start_ticks + 1, ..key }), Fate::Gone);
    drop(child);
    assert_eq!(proc.fate(key), Fate::Gone);
}

#[test]
fn children_and_theirs_are_found_with_their_memory() {
    // The process is a shell whose child is a shell whose child sleeps. Ending the sleeping process ends them all.
    let (child, key) = start("sh -c 'sleep 600 & wait'; :");
    let proc = Proc::default();
    let is_sleeper = |name: &str| name == "sleep";
    let found = until("no grandchild", || {
        Some(proc.descendants(key.pid)).filter(|found| found.iter().any(|it| is_sleeper(&it.name)))
    });
    let sleeper = found.iter().find(|it| is_sleeper(&it.name)).expect("found above");
    let shell = found.iter().find(|it| it.key.pid == sleeper.parent_pid).expect("its parent descends too");
    assert_eq!((found.len(), shell.parent_pid), (2, key.pid));
    assert!(sleeper.resident_bytes.is_some_and(|bytes| bytes > 0));
    let mine = proc.descendants(std::process::id());
    assert!(mine.iter().any(|it| it.key == sleeper.key), "descendants of descendants");
    let status = Command::new("kill").arg(sleeper.key.pid.to_string()).status().expect("kill runs");
    assert!(status.success());
    assert!(matches!(ended(key), Fate::Zombie(Some(Exit::Code(_)))));
    drop(child);
}

/// Without lists of children, all processes are scanned, with the same result.
#[test]
fn without_lists_of_children_the_processes_are_scanned() {
    let folder = tempfile::tempdir().expect("a folder");
    for (pid, parent, name) in
        [(10, 1, "train.py"), (11, 10, "worker (1)"), (12, 11, "a) R 1 ("), (13, 1, "other"), (14, 10, "dead")]
    {
        std::fs::create_dir(folder.path().join(pid.to_string())).expect("a folder");
        let state = if name == "dead" { "Z" } else { "S" };
        let stat = format!("{pid} ({name}) {state} {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {} 0 0", pid * 100);
        std::fs::write(folder.path().join(format!("{pid}/stat")), stat).expect("written");
        std::fs::write(folder.path().join(format!("{pid}/statm")), "9 3 1").expect("written");
    }
    std::fs::create_dir(folder.path().join("sys")).expect("a folder");
    let proc = Proc::at(folder.path());
    let found = proc.descendants(10);
    let seen: Vec<_> =
        found.iter().map(|it| (it.key.pid, it.parent_pid, it.name.as_str(), it.key.start_ticks)).collect();
    assert_eq!(seen, [(11, 10, "worker (1)", 1_100), (12, 11, "a) R 1 (", 1_200)]);
    let page = found[0].resident_bytes.expect("3 pages") / 3;
    assert!(page >= 4_096 && page.is_power_of_two());
    assert_eq!(
        proc.fate(ProcessKey { pid: 14, start_ticks: 1_400 }),
        Fate::Zombie(None),
        "a kernel without the exit code"
    );
}

#[test]
fn a_proc_that_lies_gives_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let proc = Proc::at(folder.path());
    assert_eq!((proc.key(1), proc.resident_bytes(1), proc.descendants(1)), (None, None, Vec::new()));
    std::fs::create_dir_all(folder.path().join("1/task/1")).expect("a folder");
    // The list has a process that is its own child, a process that does not exist, and an invalid number.
    std::fs::write(folder.path().join("1/task/1/children"), "1 2 99999999999 x -3").expect("written");
    for stat in [
        &b""[..],
        b"1",
        b"1 (",
        b"1 (a",
        b"1 )a(",
        b"1 (a)",
        b"1 (a) S",
        b"1 (a) S x",
        b"\xff (\xff) S 1 2 3",
        &[b'('; 100_000],
    ] {
        std::fs::write(folder.path().join("1/stat"), stat).expect("written");
        assert_eq!((proc.key(1), proc.descendants(1).len()), (None, 0));
    }
    for statm in ["", "1", "1 x", "1 -1", "1 18446744073709551615"] {
        std::fs::write(folder.path().join("1/statm"), statm).expect("written");
        assert_eq!(proc.resident_bytes(1), None, "{statm}");
    }
}

#[test]
fn more_descendants_than_anybody_has_are_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    for pid in 1..1_500 {
        std::fs::create_dir(folder.path().join(pid.to_string())).expect("a folder");
        let parent = if pid == 1 { 0 } else { 1 };
        let stat = format!("{pid} (p) S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0");
        std::fs::write(folder.path().join(format!("{pid}/stat")), stat).expect("written");
    }
    assert_eq!(Proc::at(folder.path()).descendants(1).len(), 1_024);
}
