//! kill -9 of each process involved, many times: a training process, the daemon, a connection of Postgres, Postgres
//! itself.
//!
//! Guarantees checked: events that an agent knew to be stored when a process was killed are stored once, as
//! produced. A process that runs to its end delivers everything. Every kill is asserted to have hit an active stream.
//!
//! `MEMCTL_KILLS=2000 cargo test -p memctl-tests --release --test e2e kill_any::` runs the long form.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memctl_agent::Agent;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres;
use memctl_tests::streaming::{self, PATIENCE, compare, until};

/// Concurrent training processes.
const PROCESSES: usize = 2;
/// What one round kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Process(usize),
    Daemon,
    Connection,
    Server,
}

const VICTIMS: [Victim; 8] = [
    Victim::Process(0),
    Victim::Daemon,
    Victim::Process(1),
    Victim::Connection,
    Victim::Daemon,
    Victim::Process(0),
    Victim::Connection,
    Victim::Server,
];

fn kills() -> usize {
    std::env::var("MEMCTL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(VICTIMS.len())
}

fn order(name: &str) -> Option<String> {
    std::env::var(format!("MEMCTL_KILL_ANY_{name}")).ok()
}

fn name(number: u64) -> String {
    format!("process-{number}")
}

/// Not a test: a training process that streams until its input ends. It does nothing unless the environment orders it.
#[test]
#[ignore = "started by the other test as a process of its own"]
fn training_process() {
    let (Some(number), Some(url)) = (order("NUMBER"), order("URL")) else { return };
    let name = name(number.parse().unwrap());
    let agent = Agent::start(streaming::config(&name, &url)).expect("the agent starts");
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Relaxed);
    });
    let mut said = 0;
    let pushed = streaming::stream(&agent, &name, &ended, |stored| {
        if stored != said {
            say(&format!("stored {stored}"));
            said = stored;
        }
    });
    let outcome = agent.stop(None, PATIENCE);
    assert!(outcome.delivered && outcome.counts.dropped == 0, "{outcome:?}");
    say(&format!("produced {pushed}"));
}

/// Prints a separate line, because the test runner's output does not end with a line break.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").and_then(|()| out.flush()).expect("the test listens");
}

/// A running training process.
struct Process {
    number: u64,
    child: Child,
    /// Events that it knew to be stored.
    stored: Arc<AtomicU64>,
    /// Reads its output to the end; the number of events that it produced, if it printed one.
    listening: JoinHandle<Option<u64>>,
}

impl Process {
    fn start(number: u64, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill_any::training_process", "--ignored", "--nocapture"])
            .env("MEMCTL_KILL_ANY_NUMBER", number.to_string())
            .env("MEMCTL_KILL_ANY_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a training process");
        let (stored, out) = (Arc::new(AtomicU64::new(0)), child.stdout.take().unwrap());
        let heard = stored.clone();
        let listening = std::thread::spawn(move || {
            let mut produced = None;
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                match line.split_once(' ') {
                    Some(("stored", count)) => heard.store(count.parse().expect("a count"), Ordering::Relaxed),
                    Some(("produced", count)) => produced = Some(count.parse().expect("a count")),
                    _ => {}
                }
            }
            produced
        });
        Self { number, child, stored, listening }
    }

    fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// SIGKILL in the middle of its stream.
    fn kill(mut self) -> EndedTrainer {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9), "process {} was to die of SIGKILL", self.number);
        assert_eq!(self.listening.join().unwrap(), None, "process {} had ended by itself", self.number);
        EndedTrainer { number: self.number, known: self.stored.load(Ordering::Relaxed), produced: None }
    }

    /// Ends it regularly.
    fn end(mut self) -> EndedTrainer {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success(), "process {}", self.number);
        let produced = self.listening.join().unwrap();
        assert!(produced.is_some(), "process {} says how much it was", self.number);
        EndedTrainer { number: self.number, known: self.stored.load(Ordering::Relaxed), produced }
    }
}

/// A training process that has ended.
struct EndedTrainer {
    number: u64,
    /// Events that it knew to be stored.
    known: u64,
    /// All produced events; unknown if it was killed.
    produced: Option<u64>,
}

/// A Postgres only for this test, so that its deaths do not affect others.
struct Server {
    folder: tempfile::TempDir,
    url: String,
}

impl Server {
    fn start() -> Self {
        // The server may run as another user, which must be able to enter the folder.
        let folder = tempfile::Builder::new().prefix("memctl-kill").tempdir_in("/tmp").unwrap();
        let url = postgres::start(folder.path());
        Self { folder, url }
    }

    /// SIGKILL of the postmaster; it is restarted on the same port when all its processes have ended.
    fn kill(&self) {
        let file = self.folder.path().join("data/postmaster.pid");
        let pid: u32 = std::fs::read_to_string(file).unwrap().lines().next().unwrap().trim().parse().unwrap();
        // The postmaster has no children for a moment while it restarts after one of them was killed.
        until("a postmaster has children", || !children(pid).is_empty());
        let children = children(pid);
        signal(pid, "-KILL");
        until("Postgres is gone", || !alive(pid) && !children.iter().any(|&child| alive(child)));
        assert_eq!(postgres::start(self.folder.path()), self.url, "it comes back where it was");
    }

    /// SIGKILL of a process that serves the daemon: the server ends all other connections and recovers from its log.
    fn kill_connection(&self, runtime: &tokio::runtime::Runtime) {
        let pid = runtime.block_on(postgres::pid_of_a_connection(&self.url));
        assert!(alive(pid), "a connection's process");
        signal(pid, "-KILL");
        until("the connection is gone", || !alive(pid));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        postgres::stop(self.folder.path());
    }
}

fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn alive(pid: u32) -> bool {
    // A zombie counts as ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success(), "kill {signal} {pid}");
}

/// The store under test.
enum Place {
    Sqlite(PathBuf),
    Postgres(Server),
}

impl Place {
    fn daemon(&self, port: u16) -> DaemonProcess {
        match self {
            Self::Sqlite(folder) => DaemonProcess::sqlite(folder, port),
            Self::Postgres(server) => DaemonProcess::store(&server.url, port),
        }
    }

    fn has(&self, victim: Victim) -> bool {
        matches!(self, Self::Postgres(_)) || !matches!(victim, Victim::Connection | Victim::Server)
    }
}

fn rounds(place: &Place) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = free_port();
    let mut daemon = place.daemon(port);
    let url = daemon.url.clone();
    let mut next = 0..;
    let mut start = || Process::start(next.next().unwrap(), &url);
    let mut running: Vec<Process> = (0..PROCESSES).map(|_| start()).collect();
    let mut ended = Vec::new();
    for round in 0..kills() {
        let victim = VICTIMS[round % VICTIMS.len()];
        if !place.has(victim) {
            continue;
        }
        // In the middle of a stream: every process has had an acknowledgement since the last kill.
        let before: Vec<u64> = running.iter().map(Process::stored).collect();
        until(&format!("round {round}: every stream goes on"), || {
            running.iter().zip(&before).all(|(process, before)| process.stored() > *before)
        });
        // A different moment of the commit cycle in every round.
        std::thread::park_timeout(Duration::from_millis(round as u64 * 7 % 40));
        match (victim, place) {
            (Victim::Process(index), _) => ended.push(std::mem::replace(&mut running[index], start()).kill()),
            (Victim::Daemon, _) => {
                daemon.kill();
                daemon = place.daemon(port);
            }
            (Victim::Connection, Place::Postgres(server)) => server.kill_connection(&runtime),
            (Victim::Server, Place::Postgres(server)) => server.kill(),
            (Victim::Connection | Victim::Server, Place::Sqlite(_)) => {}
        }
    }
    ended.extend(running.into_iter().map(Process::end));
    // The last victim may have been the server, which must first recover from its log.
    until("the store answers", || {
        let asked = memctl_tests::memctl().args(["jobs", "--daemon", &url]).output().unwrap();
        asked.status.success()
    });
    for EndedTrainer { number, known, produced } in ended {
        runtime.block_on(compare(&url, &name(number), known, produced));
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn nothing_that_was_acknowledged_is_lost_or_doubled_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    rounds(&Place::Sqlite(Path::new(folder.path()).into()));
}

#[test]
fn nothing_that_was_acknowledged_is_lost_or_doubled_on_postgres() {
    rounds(&Place::Postgres(Server::start()));
}
