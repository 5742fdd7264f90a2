//! `memctl run` with the real binary: exit codes, signals, environment, and trainers that die in every way.
//!
//! The trainer is this test program itself, started again (`fake_trainer`): it writes into a region as the hook does,
//! without Python and torch. Its events are a pure function of its seed, so stored events are compared one by one. No
//! test waits for a fixed time; every fault is checked to have happened.
//!
//! (Over 400 lines: the trainer and its orders belong together.)

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_agent::internals::link;
use memctl_agent::internals::region::{Region, messages};
use memctl_agent::internals::ring::{Position, Record};
use memctl_agent::internals::ticks;
use memctl_agent::live::Level;
use memctl_agent::now_ns;
use memctl_model::{DeviceIndex, DeviceInfo, Event, Launch, MarkKind, SessionId, SessionInfo, StackId};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::source::Producer;
use memctl_tests::{memctl, run_json, stderr, stdout, stored};
use tonic::transport::{Channel, Endpoint};

/// Longer than any step of these tests; reached only in case of a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for a run: its data, its temporary files, what trainers write.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.path("tmp")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `memctl run FLAGS -- COMMAND`, on a separate store unless the flags name another one.
    fn run(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut run = memctl();
        run.arg("run").arg("--data-dir").arg(self.path("data")).args(flags).arg("--").args(command);
        // The data folder is named, so no daemon of this machine is used.
        run.env("TMPDIR", self.path("tmp")).env_remove("PYTHONPATH");
        run
    }

    /// As [`Self::run`] with this program's trainer as the command.
    fn train(&self, flags: &[&str], orders: &[(&str, &str)]) -> Command {
        let this = std::env::current_exe().unwrap();
        let mut run =
            self.run(flags, &[this.to_str().unwrap(), "--ignored", "--exact", "--nocapture", "run::fake_trainer"]);
        run.env("FAKE_FOLDER", self.0.path()).envs(orders.iter().copied());
        run
    }

    /// As [`Self::run`] with a shell that starts trainers as `$TRAINER`.
    fn script(&self, flags: &[&str], script: &str) -> Command {
        let this = std::env::current_exe().unwrap();
        let mut run = self.run(flags, &["sh", "-c", script]);
        run.env("TRAINER", format!("{} --ignored --exact --nocapture run::fake_trainer", this.display()));
        run.env("FAKE_FOLDER", self.0.path());
        run
    }

    fn assert_nothing_is_left(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("tmp")).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// The report of a job in the place's own store.
    fn query(&self, job: &str) -> serde_json::Value {
        run_json(memctl().args(["query", "--job", job, "-o", "json", "--data-dir"]).arg(self.path("data")))
    }
}

fn output(command: &mut Command) -> Output {
    command.output().expect("memctl starts")
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{signal} {pid}");
}

fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok)
}

// ---------------------------------------------------------------- the trainer

fn order(name: &str) -> Option<String> {
    std::env::var(format!("FAKE_{name}")).ok()
}

/// The events of a trainer by its seed, without stacks.
fn events(seed: u64) -> impl Iterator<Item = Event> {
    Producer::new(seed).map(|event| Event { stack: StackId::NONE, ..event })
}

/// Not a test: a trainer under `memctl run`, controlled by variables. Without a folder it does nothing.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn fake_trainer() {
    let Some(folder) = order("FOLDER").map(PathBuf::from) else { return };
    let number = |name: &str, default: u64| order(name).map_or(default, |text| text.parse().unwrap());
    let rank = number("RANK", 0);
    let attempt = std::env::var("MEMCTL_ATTEMPT").ok().and_then(|text| text.parse().ok());
    let session = SessionInfo {
        attempt: attempt.unwrap_or_else(|| number("ATTEMPT", 0) as u32),
        rank: rank as u32,
        pid: Some(std::process::id()),
        host: order("HOST"),
        launch: Launch { group: order("GROUP"), ..Launch::default() },
        devices: vec![DeviceInfo { index: DeviceIndex(0), ..DeviceInfo::default() }],
        ..SessionInfo::live(
            SessionId(std::array::from_fn(|at| if at < 8 { now_ns().to_le_bytes()[at] } else { rank as u8 })),
            order("JOB").or_else(|| std::env::var("MEMCTL_JOB").ok()).expect("the launcher names the job"),
            now_ns(),
        )
    };
    let region = Region::create(1, 1 << 12).unwrap();
    let socket = std::env::var_os("MEMCTL_RUN_SOCKET").expect("the launcher names its socket");
    let connection = link::greet(Path::new(&socket), &session, region.fd()).expect("the launcher takes it");
    region.set_level(Level::Events);
    push(&region, &folder, rank, number("EVENTS", 20_000));
    end(&region, &folder, connection);
}

/// Pushes events; if there is a file to wait for, half of them before the file exists.
fn push(region: &Arc<Region>, folder: &Path, rank: u64, count: u64) {
    // SAFETY: the only producer of this region.
    let mut producer = unsafe { region.producer(0) };
    let mut notes = region.notes_writer();
    for (done, event) in events(rank + 1).take(count as usize).enumerate() {
        if done as u64 == count / 2
            && let Some(file) = order("WAIT_FOR")
        {
            std::fs::write(folder.join(format!("half{rank}")), std::process::id().to_string()).unwrap();
            wait_for("the order to go on", || folder.join(&file).exists());
        }
        // An exact count needs room in the ring. A real trainer never waits, and a trainer without its launcher must
        // not wait.
        let is_late = done as u64 >= count / 2;
        let may_drop = order("DROP").is_some_and(|when| when != "late" || is_late);
        while !may_drop && !producer.has_room() {
            std::thread::sleep(Duration::from_micros(200));
        }
        producer.push(Record::stamped(ticks(), &event));
    }
    let at = Position { pushed: producer.pushed(), dropped: producer.dropped() };
    notes.push(&[&messages::mark(ticks(), &MarkKind::EpochEnd(0), &[at])]);
}

/// Ends in the ordered way.
fn end(region: &Arc<Region>, folder: &Path, connection: UnixStream) {
    match order("END").as_deref() {
        Some("kill") => kill("KILL", std::process::id()),
        Some("exit") => std::process::exit(3),
        Some("leave") => std::process::exit(0),
        Some("heir") => {
            #[expect(clippy::zombie_processes, reason = "it outlives this process, and the test ends it")]
            let heir = Command::new("sleep")
                .arg("600")
                .stdin(Stdio::from(OwnedFd::from(connection.try_clone().unwrap())))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::fs::write(folder.join("heir"), heir.id().to_string()).unwrap();
            kill("KILL", std::process::id());
        }
        Some("words") => {
            let words = order("WORDS").unwrap_or_else(|| "ValueError: its own words".to_owned());
            region.notes_writer().push(&[&messages::failure(&words)]);
            region.end();
        }
        _ => region.end(),
    }
    drop(connection);
    std::fs::write(folder.join("survived"), "").unwrap();
}

// ---------------------------------------------------------------- the command

#[test]
fn the_command_is_what_it_would_be_without_us() {
    let place = Place::new();
    let ran = |script: &str| output(&mut place.run(&[], &["sh", "-c", script]));
    let three = ran("echo out; echo err >&2; exit 3");
    assert_eq!((three.status.code(), stdout(&three).as_str()), (Some(3), "out\n"));
    assert!(stderr(&three).starts_with("err\n"), "{}", stderr(&three));
    assert!(stderr(&three).contains("nothing was recorded"));
    assert_eq!(ran("exit 0").status.code(), Some(0));
    assert_eq!(ran("kill -9 $$").status.code(), Some(137));
    assert_eq!(ran("kill -TERM $$").status.code(), Some(143));
    let quiet = output(&mut place.run(&["--quiet"], &["true"]));
    assert_eq!((stdout(&quiet), stderr(&quiet)), (String::new(), String::new()));
    let fed = Command::new("sh")
        .env("MEMCTL_SERVICE", "off")
        .args(["-c", "echo fed | \"$@\"", "sh"])
        .arg(memctl_tests::memctl_path())
        .args(["run", "--data-dir"])
        .arg(place.path("data"))
        .args(["-q", "--", "cat"])
        .output()
        .unwrap();
    assert_eq!(stdout(&fed), "fed\n");
    place.assert_nothing_is_left();
}

#[test]
fn a_command_that_cannot_start() {
    let place = Place::new();
    let missing = output(&mut place.run(&[], &["no-such-command-anywhere"]));
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no-such-command-anywhere: command not found"));
    std::fs::write(place.path("plain"), "").unwrap();
    let plain = output(&mut place.run(&[], &[place.path("plain").to_str().unwrap()]));
    assert_eq!(plain.status.code(), Some(126));
    assert!(stderr(&plain).contains("cannot be executed"));
    let wrong = output(&mut place.run(&["--daemon", "ftp://x"], &["true"]));
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    place.assert_nothing_is_left();
}

#[test]
fn the_environment_leads_to_us() {
    let place = Place::new();
    let script = "echo $MEMCTL_JOB; echo $MEMCTL_ATTEMPT; echo $MEMCTL_LABELS; echo $PYTHONPATH; \
                  dirname $MEMCTL_RUN_SOCKET; stat -c %a $(dirname $MEMCTL_RUN_SOCKET); \
                  test -S $MEMCTL_RUN_SOCKET && echo socket; ls ${PYTHONPATH%%:*}";
    let flags = ["--job", "mine", "--attempt", "4", "--label", "a=b"];
    let ran = output(place.run(&flags, &["sh", "-c", script]).env("PYTHONPATH", "/theirs").env("MEMCTL_LABELS", "c=d"));
    let text = stdout(&ran);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["mine", "4", "a=b,c=d"]);
    assert_eq!(lines[3], format!("{}/inject:/theirs", lines[4]));
    assert!(Path::new(lines[4]).starts_with(place.path("tmp")));
    assert_eq!(lines[5..], ["700", "socket", "sitecustomize.py"]);
    let named = output(&mut place.run(&[], &["sh", "-c", "echo $MEMCTL_JOB"]));
    assert_eq!(stdout(&named), "sh\n", "the script names the series");
    place.assert_nothing_is_left();
}

#[test]
fn disabled_means_not_there() {
    let place = Place::new();
    let script = "env | grep -c -e MEMCTL_RUN_SOCKET -e PYTHONPATH; exit 5";
    let ran = output(place.run(&[], &["sh", "-c", script]).env("MEMCTL_DISABLED", "1"));
    assert_eq!((ran.status.code(), stdout(&ran).as_str(), stderr(&ran).as_str()), (Some(5), "0\n", ""));
    assert!(!place.path("data").exists());
    let missing = output(place.run(&[], &["no-such-command-anywhere"]).env("MEMCTL_DISABLED", "1"));
    assert_eq!(missing.status.code(), Some(127));
    let enabled = output(place.run(&[], &["sh", "-c", script]).env("MEMCTL_DISABLED", "0"));
    assert_eq!(stdout(&enabled), "2\n");
}

#[test]
fn without_a_place_for_anything_the_command_runs() {
    let place = Place::new();
    std::fs::write(place.path("data"), "a file").unwrap();
    let ran = output(&mut place.run(&[], &["sh", "-c", "echo ran; exit 6"]));
    assert_eq!((ran.status.code(), stdout(&ran).as_str()), (Some(6), "ran\n"));
    assert!(stderr(&ran).contains("the command runs unrecorded"), "{}", stderr(&ran));
}

/// The same command with default signals: tests in the background of a shell ignore two of them.
fn with_default_signals(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    env
}

#[test]
fn signals_are_passed_on() {
    let place = Place::new();
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        let script = format!("trap 'echo got; exit 9' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut run = with_default_signals(&place.run(&["-q"], &["sh", "-c", &script]));
        let mut launcher = run.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = lines(&mut launcher);
        assert_eq!(said.next().as_deref(), Some("ready"));
        kill(signal, launcher.id());
        assert_eq!(said.next().as_deref(), Some("got"), "SIG{signal}");
        assert_eq!(launcher.wait().unwrap().code(), Some(9), "SIG{signal}");
    }
    place.assert_nothing_is_left();
}

/// The child of a process that is called `sleep`.
fn sleeping_child(pid: u32) -> Option<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_sleep = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    children.into_iter().find(is_sleep)
}

#[test]
fn a_signal_to_the_group_reaches_the_command_once() {
    let place = Place::new();
    // The command counts, and ends at a signal to the launcher alone, which comes last.
    let script = "n=0; trap 'n=$((n+1)); echo got' USR1; trap 'echo counted $n; exit 9' USR2; \
                  echo ready; while :; do sleep 0.05; done";
    let mut run = with_default_signals(&place.run(&["-q"], &["sh", "-c", script]));
    let mut launcher = run.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = lines(&mut launcher);
    assert_eq!(said.next().as_deref(), Some("ready"));
    wait_for("the process that shows signals to the group", || sleeping_child(launcher.id()).is_some());
    for _ in 0..3 {
        let before = sleeping_child(launcher.id());
        let status = Command::new("kill").args(["-USR1", "--", &format!("-{}", launcher.id())]).status().unwrap();
        assert!(status.success());
        assert_eq!(said.next().as_deref(), Some("got"));
        // The launcher replaces it after a signal to the group.
        wait_for("the launcher to decide", || sleeping_child(launcher.id()).is_some_and(|now| Some(now) != before));
    }
    kill("USR1", launcher.id());
    assert_eq!(said.next().as_deref(), Some("got"), "one to the launcher alone is relayed");
    kill("USR2", launcher.id());
    assert_eq!(said.next().as_deref(), Some("counted 4"));
    assert_eq!(launcher.wait().unwrap().code(), Some(9));
    place.assert_nothing_is_left();
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let place = Place::new();
    let this = memctl_tests::memctl_path();
    let ignored = |trap: &str| {
        let ran = Command::new("sh")
            .env("MEMCTL_SERVICE", "off")
            .args(["-c", &format!("{trap} exec \"$@\""), "sh"])
            .arg(&this)
            .args(["run", "-q", "--data-dir"])
            .arg(place.path("data"))
            .args(["--", "grep", "SigIgn", "/proc/self/status"])
            .output()
            .unwrap();
        u64::from_str_radix(stdout(&ran).split_whitespace().last().unwrap(), 16).unwrap()
    };
    const HUP: u64 = 1;
    assert_eq!(ignored("trap '' HUP;") & HUP, HUP, "as under nohup");
    assert_eq!(ignored("") & HUP, 0);
}

// ---------------------------------------------------------------- trainers

async fn channel(daemon: &DaemonProcess) -> Channel {
    Endpoint::from_shared(daemon.url.clone()).unwrap().connect().await.unwrap()
}

/// Asserts that all events of this rank are stored, in order, once.
fn assert_all_stored(all: &[stored::StoredDevice], rank: u32, count: usize) {
    let of_rank: Vec<_> = all.iter().filter(|stored| stored.rank == rank).collect();
    assert_eq!(of_rank.len(), 1, "one session of rank {rank}");
    let plain = |event: &Event| Event { time_ns: 0, ..*event };
    let stored: Vec<Event> = of_rank[0].events.iter().map(plain).collect();
    let pushed: Vec<Event> = events(u64::from(rank) + 1).take(count).map(|event| plain(&event)).collect();
    stored::assert_same(&stored, &pushed);
}

/// State of the job and failure of its only rank.
fn ending(report: &serde_json::Value) -> (String, Option<String>) {
    let failures = report["ranks"][0]["failure"].as_str().map(str::to_owned);
    (report["job"]["state"].as_str().unwrap().to_owned(), failures)
}

#[test]
fn how_a_trainer_ended_is_recorded() {
    let place = Place::new();
    for (end, state, failure, code) in [
        ("", "finished", None, 0),
        ("leave", "finished", None, 0),
        ("exit", "failed", Some("exit code 3"), 3),
        ("kill", "failed", Some("killed by signal 9 (SIGKILL)"), 137),
        ("words", "failed", Some("ValueError: its own words"), 0),
    ] {
        let job = format!("end-{end}");
        let ran = output(&mut place.train(&["--job", &job], &[("FAKE_END", end)]));
        assert_eq!(ran.status.code(), Some(code), "{end}: {}", stderr(&ran));
        assert!(stderr(&ran).contains("Exact: all 20,000 events stored"), "{end}: {}", stderr(&ran));
        let report = place.query(&job);
        assert_eq!(ending(&report), (state.to_owned(), failure.map(str::to_owned)), "{end}");
    }
    place.assert_nothing_is_left();
}

#[test]
fn the_launcher_treats_the_paths_of_its_trainers() {
    let place = Place::new();
    let words = ("FAKE_WORDS", "OSError: cannot read '/home/ann/acme/x.bin'");
    let orders = [("FAKE_END", "words"), words, ("MEMCTL_SOURCE_PATHS_KEY", "a key of this test alone")];
    for (form, keeps) in [("full", "/home/ann/acme/x.bin"), ("short", "acme/x.bin"), ("hashed", "'")] {
        output(&mut place.train(&["--job", form, "--source-paths", form], &orders));
        let failure = ending(&place.query(form)).1.unwrap();
        assert!(failure.starts_with("OSError: cannot read ") && failure.contains(keeps), "{form}: {failure}");
        assert_eq!(failure.contains("acme"), form != "hashed", "{failure}");
        assert_eq!(failure.contains("/ann"), form == "full", "{failure}");
    }
    let short = output(&mut place.train(&["--source-paths", "hashed"], &[("MEMCTL_SOURCE_PATHS_KEY", "short")]));
    assert!(stderr(&short).contains("give 16 or more (MEMCTL_SOURCE_PATHS_KEY); the command runs unrecorded"));
}

#[test]
fn a_token_that_writes_alone_is_told_how_to_get_the_page() {
    let place = Place::new();
    let store = place.path("store");
    let token = |role: &str| {
        let mut command = memctl();
        command.args(["token", "create", role, "--role", role, "--tenant", "default", "-o", "json", "--data-dir"]);
        let made = run_json(command.arg(&store));
        std::fs::write(place.path(role), made["tokens"][0]["secret"].as_str().unwrap()).unwrap();
    };
    std::fs::create_dir(&store).unwrap();
    for role in ["agent", "reader", "operator"] {
        token(role);
    }
    let daemon = DaemonProcess::sqlite(&store, free_port());
    for (role, alone) in [("agent", true), ("operator", false)] {
        let file = place.path(role);
        let flags = ["--job", role, "--daemon", &daemon.url, "--token-file", file.to_str().unwrap()];
        let ran = output(&mut place.train(&flags, &[]));
        let said = stderr(&ran);
        assert!(said.contains(&format!("job {role}: 20,000 events of 1 session stored")), "{said}");
        assert_ne!(said.contains("stored; `memctl query"), alone, "a question that is refused is not proposed: {said}");
        assert_eq!(
            said.contains("writes and does not read: the page needs a token of the role reader"),
            alone,
            "{said}"
        );
    }
    let ask = |role: &str| {
        let query = ["query", "--job", "agent", "--daemon", &daemon.url, "--token-file"];
        output(memctl().args(query).arg(place.path(role)))
    };
    let refused = ask("agent");
    assert_eq!(refused.status.code(), Some(6), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("ask with another token"), "{}", stderr(&refused));
    assert!(stdout(&ask("reader")).contains("20,000"));
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_that_is_killed_loses_nothing_and_others_go_on() {
    let place = Place::new();
    let daemon = DaemonProcess::sqlite(&place.path("store"), free_port());
    let script = "FAKE_RANK=0 FAKE_WAIT_FOR=go $TRAINER & \
                  FAKE_RANK=1 FAKE_END=kill $TRAINER; echo $? > $FAKE_FOLDER/code; touch $FAKE_FOLDER/go; wait";
    let ran = output(&mut place.script(&["--job", "two", "--daemon", &daemon.url], script));
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert_eq!(std::fs::read_to_string(place.path("code")).unwrap().trim(), "137", "it was killed");
    assert!(stderr(&ran).contains("memctl query --job two --daemon"), "{}", stderr(&ran));
    let channel = channel(&daemon).await;
    let all = stored::events(channel.clone(), "two").await;
    assert_all_stored(&all, 0, 20_000);
    assert_all_stored(&all, 1, 20_000);
    let report = run_json(memctl().args(["query", "--job", "two", "-o", "json", "--daemon", &daemon.url]));
    let failures: Vec<_> = report["ranks"].as_array().unwrap().iter().map(|rank| rank["failure"].as_str()).collect();
    assert_eq!(failures, [None, Some("killed by signal 9 (SIGKILL)")]);
    place.assert_nothing_is_left();
}

#[test]
fn an_heir_of_the_connection_keeps_no_session_alive() {
    let place = Place::new();
    let ran = output(&mut place.train(&["--job", "heir"], &[("FAKE_END", "heir")]));
    let heir: u32 = std::fs::read_to_string(place.path("heir")).unwrap().parse().unwrap();
    let alive = Path::new(&format!("/proc/{heir}")).exists();
    kill("KILL", heir);
    assert!(alive, "the heir held the connection to the end");
    assert_eq!(ran.status.code(), Some(137), "{}", stderr(&ran));
    let expected = ("failed".to_owned(), Some("killed by signal 9 (SIGKILL)".to_owned()));
    assert_eq!(ending(&place.query("heir")), expected);
}

#[test]
fn a_trainer_outlives_its_launcher() {
    let place = Place::new();
    let mut run = place.train(&[], &[("FAKE_WAIT_FOR", "go"), ("FAKE_DROP", "1"), ("FAKE_EVENTS", "100000")]);
    let mut launcher = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("half of the events", || place.path("half0").exists());
    kill("KILL", launcher.id());
    assert_eq!(launcher.wait().unwrap().signal(), Some(9), "the launcher was killed");
    std::fs::write(place.path("go"), "").unwrap();
    wait_for("the trainer's own end", || place.path("survived").exists());
    // The next launcher removes the files of the killed one.
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 1);
    assert!(output(&mut place.run(&["-q"], &["true"])).status.success());
    place.assert_nothing_is_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_killed_in_the_middle_costs_nothing() {
    let place = Place::new();
    let port = free_port();
    let daemon = DaemonProcess::sqlite(&place.path("store"), port);
    let url = daemon.url.clone();
    let mut run = place.train(
        &["--job", "j", "--daemon", &url],
        &[("FAKE_WAIT_FOR", "go"), ("FAKE_EVENTS", "200000"), ("FAKE_END", "kill")],
    );
    let launcher = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("half of the events", || place.path("half0").exists());
    daemon.kill();
    std::fs::write(place.path("go"), "").unwrap();
    let daemon = DaemonProcess::sqlite(&place.path("store"), port);
    let ran = launcher.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(137), "{}", stderr(&ran));
    assert_all_stored(&stored::events(channel(&daemon).await, "j").await, 0, 200_000);
    assert!(!stderr(&ran).contains("could not be delivered"), "{}", stderr(&ran));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_daemon_misses_waits_for_the_next_run() {
    let place = Place::new();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let flags = ["--job", "late", "--daemon", &url, "--patience", "0"];
    let ran = output(&mut place.train(&flags, &[("FAKE_END", "exit")]));
    assert_eq!(ran.status.code(), Some(3), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("could not be delivered"), "{}", stderr(&ran));
    let daemon = DaemonProcess::sqlite(&place.path("store"), port);
    let next = output(&mut place.run(&["--daemon", &url], &["true"]));
    assert!(next.status.success() && !stderr(&next).contains("wait in"), "{}", stderr(&next));
    assert_all_stored(&stored::events(channel(&daemon).await, "late").await, 0, 20_000);
    let report = run_json(memctl().args(["query", "--job", "late", "-o", "json", "--daemon", &url]));
    assert_eq!(ending(&report), ("failed".to_owned(), Some("exit code 3".to_owned())));
}

/// The daemon accepts the connection and sends nothing. After some silence everything is on disk, including the end of
/// the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stalls_costs_neither_events_nor_the_end() {
    let place = Place::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let ran = output(&mut place.train(&["--job", "stalled", "--daemon", &url], &[]));
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("storing: 20,000 events of 1 session to go"), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("could not be delivered"), "{}", stderr(&ran));
    drop(silent);
    let daemon = DaemonProcess::sqlite(&place.path("store"), port);
    let next = output(&mut place.run(&["--daemon", &url], &["true"]));
    assert!(next.status.success() && !stderr(&next).contains("wait in"), "{}", stderr(&next));
    assert_all_stored(&stored::events(channel(&daemon).await, "stalled").await, 0, 20_000);
    let report = run_json(memctl().args(["query", "--job", "stalled", "-o", "json", "--daemon", &url]));
    assert_eq!(ending(&report), ("finished".to_owned(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_launcher_had_spooled_is_delivered_by_the_next() {
    let place = Place::new();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    // In the first half it waits for room, so that nothing is dropped; after that the ring is no longer emptied.
    let orders = [("FAKE_WAIT_FOR", "go"), ("FAKE_DROP", "late")];
    let mut run = place.train(&["--job", "cut", "--daemon", &url], &orders);
    let mut launcher = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("half of the events", || place.path("half0").exists());
    let spool = place.path("data/spool").join(format!("daemon-127.0.0.1_{port}"));
    // More than a header: at least a chunk of events. A kill may truncate a write, and a truncated item does not count,
    // so writing must have stopped.
    let mut before = 0;
    wait_for("a chunk in the spool", || {
        let rested = std::mem::replace(&mut before, bytes_below(&spool)) == before;
        rested && before > 2_048
    });
    kill("KILL", launcher.id());
    assert_eq!(launcher.wait().unwrap().signal(), Some(9), "the launcher was killed");
    std::fs::write(place.path("go"), "").unwrap();
    wait_for("the trainer's own end", || place.path("survived").exists());
    let daemon = DaemonProcess::sqlite(&place.path("store"), port);
    let next = output(&mut place.run(&["--daemon", &url], &["true"]));
    assert!(next.status.success() && !stderr(&next).contains("wait in"), "{}", stderr(&next));
    let all = stored::events(channel(&daemon).await, "cut").await;
    assert_eq!(all.len(), 1);
    let plain = |event: &Event| Event { time_ns: 0, ..*event };
    let got: Vec<Event> = all[0].events.iter().map(plain).collect();
    assert!(!got.is_empty() && got.len() <= 10_000, "{}", got.len());
    stored::assert_same(&got, &events(1).take(got.len()).map(|event| plain(&event)).collect::<Vec<_>>());
    assert_eq!(bytes_below(&spool), 0);
}

/// Bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_store_that_is_in_use_is_waited_for_at_the_end() {
    let place = Place::new();
    let holder = DaemonProcess::sqlite(&place.path("data"), free_port());
    let ran = output(&mut place.train(&["--job", "busy", "--patience", "0"], &[]));
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("is in use by"), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("could not be delivered"), "{}", stderr(&ran));
    // A run whose store becomes free while it waits.
    let mut run = place.train(&["--job", "wait"], &[("FAKE_WAIT_FOR", "go"), ("FAKE_RANK", "1")]);
    let launcher = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("half of the events", || place.path("half1").exists());
    assert_eq!(holder.terminate(), 0);
    std::fs::write(place.path("go"), "").unwrap();
    let ran = launcher.wait_with_output().unwrap();
    assert!(ran.status.success() && stderr(&ran).contains("Exact: all 20,000 events stored"), "{}", stderr(&ran));
    for job in ["busy", "wait"] {
        let report = place.query(job);
        assert_eq!(report["completeness"]["events_stored"], 20_000, "{job}");
        assert_eq!(report["completeness"]["exact"], true, "{job}");
    }
}

#[test]
fn a_job_of_its_own_name_is_told_of() {
    let place = Place::new();
    let script = "FAKE_JOB=theirs $TRAINER; FAKE_RANK=1 $TRAINER";
    let ran = output(&mut place.script(&["--job", "mine"], script));
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("mine  finished"), "{}", stderr(&ran));
    assert!(stderr(&ran).contains("memctl query --job theirs"), "{}", stderr(&ran));
    assert_eq!(place.query("theirs")["completeness"]["events_stored"], 20_000);
}

#[test]
fn the_socket_is_for_its_user_alone() {
    let place = Place::new();
    let script = "stat -c %a $(dirname $MEMCTL_RUN_SOCKET) > $FAKE_FOLDER/mode";
    assert!(output(&mut place.script(&["-q"], script)).status.success());
    assert_eq!(std::fs::read_to_string(place.path("mode")).unwrap().trim(), "700");
    // The folder above is not private, so the socket's own mode must be private under any umask.
    std::fs::set_permissions(place.path("tmp"), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(output(&mut place.script(&["-q"], &format!("umask 0; {script}"))).status.success());
    assert_eq!(std::fs::read_to_string(place.path("mode")).unwrap().trim(), "700");
}
