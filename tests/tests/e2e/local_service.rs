//! The local service: the first command starts it, all share it, a killed one is replaced, an idle one ends.
//!
//! Trainers are those of [`crate::run`]. No test waits for a fixed time; every fault is checked to have happened.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{http, memctl, run, run_json, stderr, stdout};

const PATIENCE: Duration = Duration::from_secs(60);
/// Events of a trainer of [`crate::run`].
const EVENTS: u64 = 20_000;

/// A user with an empty home folder. Its service ends when this value is dropped.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.0.path().join("tmp")).unwrap();
        home
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("share/memctl")
    }

    fn memctl(&self, words: &[&str]) -> Command {
        let mut command = memctl();
        command.env_remove("MEMCTL_SERVICE").env("MEMCTL_SERVICE_IDLE", "10m");
        command.env("HOME", self.0.path()).env("XDG_DATA_HOME", self.0.path().join("share"));
        command.env("TMPDIR", self.0.path().join("tmp")).args(words);
        command
    }

    /// `memctl run` of a trainer that writes into this home.
    fn train(&self, job: &str, orders: &[(&str, &str)]) -> Child {
        let this = std::env::current_exe().unwrap();
        let mut run = self.memctl(&["run", "--job", job, "--"]);
        run.arg(this).args(["--ignored", "--exact", "--nocapture", "run::fake_trainer"]);
        run.env("FAKE_FOLDER", self.0.path()).envs(orders.iter().copied());
        run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Processes that are the service of this home.
    fn services(&self) -> Vec<i32> {
        let wanted = self.data().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words: Vec<String> =
                words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
            if words.iter().any(|word| word == "service") && words.contains(&wanted) {
                found.push(pid);
            }
        }
        found
    }

    /// The one that serves now.
    fn service(&self) -> i32 {
        let status = run_json(&mut self.memctl(&["daemon", "status", "-o", "json"]));
        status["pid"].as_i64().expect("it runs") as i32
    }

    fn events(&self, job: &str) -> u64 {
        let report = run_json(&mut self.memctl(&["query", job, "-q", "-o", "json"]));
        report["job"]["events"].as_u64().unwrap()
    }

    fn has(&self, name: &str) -> bool {
        self.0.path().join(name).exists()
    }

    fn order(&self, name: &str) {
        std::fs::write(self.0.path().join(name), "").unwrap();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.memctl(&["daemon", "stop", "-q"]).status();
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(pid: i32) {
    assert!(kills(pid), "it runs");
    wait_for("the end of a killed process", || !is_running(pid));
}

/// Kills a process; returns whether it existed.
fn kills(pid: i32) -> bool {
    Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

#[test]
fn of_many_commands_at_once_one_starts_the_service_and_all_are_answered() {
    let home = Home::new();
    let imports: Vec<Child> = (0..6)
        .map(|number| {
            let job = format!("job{number}");
            let mut import = home.memctl(&["import", "-q", "--job", &job]);
            import.arg(folder("cnn_rank0_cache")).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut import in imports {
        assert!(import.wait().unwrap().success());
    }
    let jobs = run_json(&mut home.memctl(&["jobs", "-o", "json"]));
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 6);
    assert_eq!(home.services(), [home.service()], "one");
    let log = std::fs::read_to_string(home.data().join("service.log")).unwrap();
    assert_eq!(log.matches("memctl_daemon::server: serving").count(), 1, "{log}");
    for name in ["service.sock", "page.sock", "service.log"] {
        assert_eq!(home.data().join(name).metadata().unwrap().permissions().mode() & 0o177, 0, "{name}");
    }
}

#[test]
fn it_detaches_from_the_process_that_started_it() {
    let home = Home::new();
    run(home
        .memctl(&["import", "-q", "--job", "a"])
        .arg(folder("cnn_rank0_cache"))
        .env("MEMCTL_TOKEN", "secret-of-this-test"));
    let pid = home.service();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "a session of its own");
    assert_eq!(fields[4], "0", "no terminal");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("secret-of-this-test"));
    let status = run(&mut home.memctl(&["daemon", "status"]));
    assert!(status.contains(&format!("running (process {pid})")) && status.contains("0 streaming"), "{status}");
    let stopped = home.memctl(&["daemon", "stop"]).output().unwrap();
    assert!(stopped.status.success() && stderr(&stopped).contains("has ended"), "{}", stderr(&stopped));
    assert!(!is_running(pid));
    let none = home.memctl(&["daemon", "status"]).output().unwrap();
    assert_eq!((none.status.code(), stdout(&none).as_str()), (Some(3), ""), "{}", stderr(&none));
    assert!(home.memctl(&["daemon", "stop"]).output().unwrap().status.success(), "there is none to stop");
}

#[test]
fn it_ends_by_itself_when_no_one_is_connected() {
    let home = Home::new();
    run(home
        .memctl(&["import", "-q", "--job", "a"])
        .arg(folder("cnn_rank0_cache"))
        .env("MEMCTL_SERVICE_IDLE", "100ms"));
    wait_for("its end", || home.services().is_empty());
    assert!(!home.data().join("service.sock").exists(), "it takes its socket along");
    assert_eq!(home.events("a"), 46_872, "the next command starts another one");
}

#[test]
fn what_runs_is_asked_meanwhile_and_runs_stay_beside_each_other() {
    let home = Home::new();
    let mut runs: Vec<Child> = ["one", "two", "three"]
        .into_iter()
        .enumerate()
        .map(|(rank, job)| home.train(job, &[("FAKE_RANK", &rank.to_string()), ("FAKE_WAIT_FOR", "go")]))
        .collect();
    wait_for("three trainers", || (0..3).all(|rank| home.has(&format!("half{rank}"))));
    for job in ["one", "two", "three"] {
        wait_for("what was recorded so far", || home.events(job) == EVENTS / 2);
    }
    for words in
        [&["jobs"][..], &["diagnose", "two"], &["report", "one", "--markdown"], &["doctor"], &["ranks", "three"]]
    {
        let answered = home.memctl(words).output().unwrap();
        assert!(answered.status.success(), "{words:?}: {}", stderr(&answered));
    }
    run(home.memctl(&["import", "-q", "--job", "imported"]).arg(folder("cnn_rank0_cache")));
    home.order("go");
    for run in &mut runs {
        let ended =
            run.stderr.take().map(BufReader::new).map(|said| said.lines().map_while(Result::ok).collect::<Vec<_>>());
        assert!(run.wait().unwrap().success());
        assert!(ended.unwrap().iter().any(|line| line.contains("finished")), "each shows its page");
    }
    assert!(["one", "two", "three"].iter().all(|job| home.events(job) == EVENTS));
    assert_eq!(home.services().len(), 1);
}

#[test]
fn a_service_that_is_killed_is_replaced_and_nothing_is_lost() {
    let home = Home::new();
    let mut run = home.train("killed", &[("FAKE_WAIT_FOR", "go")]);
    wait_for("half of it", || home.has("half0") && home.events("killed") == EVENTS / 2);
    for _ in 0..3 {
        let pid = home.service();
        kill(pid);
        wait_for("another one", || !home.services().is_empty());
        assert_eq!(home.events("killed"), EVENTS / 2, "what was acknowledged is there");
        assert_ne!(home.service(), pid);
    }
    home.order("go");
    assert!(run.wait().unwrap().success());
    assert_eq!(home.events("killed"), EVENTS);
}

/// Kills the service, the launcher or the trainer in turn, at random moments. `MEMCTL_ROUNDS` sets the number of
/// rounds.
#[test]
fn kills_at_random_lose_nothing_that_was_acknowledged() {
    let rounds = std::env::var("MEMCTL_ROUNDS").map_or(9, |text| text.parse().unwrap());
    let home = Home::new();
    let mut killed = 0;
    for round in 0..rounds {
        let job = format!("round{round}");
        // A trainer never waits for a launcher that has died; in other rounds there must be room for every event.
        let orders = [("FAKE_JOB", &*job), ("FAKE_DROP", "yes")];
        let mut run = home.train(&job, if round % 3 == 1 { &orders } else { &orders[..1] });
        let moment = Duration::from_micros(u64::from(u16::from_le_bytes(random())) * 2);
        std::thread::sleep(moment);
        let known = |home: &Home| match home.memctl(&["query", &job, "-q", "-o", "json"]).output() {
            Ok(answer) if answer.status.success() => {
                let report: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
                report["job"]["events"].as_u64().unwrap_or(0)
            }
            _ => 0,
        };
        let before = known(&home);
        match round % 3 {
            0 => home.services().into_iter().for_each(|pid| {
                // (It may have been replaced already.)
                killed += u64::from(kills(pid));
            }),
            1 => killed += u64::from(run.kill().is_ok()),
            _ => {
                let children =
                    std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap_or_default();
                for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
                    killed += u64::from(kills(pid));
                }
            }
        }
        let ended = run.wait().unwrap();
        let after = known(&home);
        assert!(after >= before, "round {round}: {before} events were stored, and now {after}");
        if round % 3 == 0 && ended.success() {
            assert_eq!(after, EVENTS, "round {round}: the launcher had everything");
        }
        assert!(home.services().len() <= 1, "round {round}: {:?}", home.services());
    }
    assert!(killed >= rounds / 2, "faults happened: {killed}");
}

fn random() -> [u8; 2] {
    let mut bytes = [0; 2];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
fn the_page_is_served_beside_a_run_and_needs_its_key() {
    let home = Home::new();
    run(home.memctl(&["import", "-q", "--job", "a"]).arg(folder("cnn_rank0_cache")));
    let mut ui = home.memctl(&["ui", "-q", "--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(ui.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let (base, key) = address.trim().split_once("/enter").unwrap();
    let asked = |path: &str, cookie: &str| {
        http::get_with(&format!("{base}{path}"), &format!("Cookie: {cookie}\r\n")).expect("an answer")
    };
    assert_eq!(asked("/api/v1/jobs", "a=b").0, 401);
    let (status, head, _) = asked(&format!("/enter{key}"), "a=b");
    assert_eq!(status, 303, "{head}");
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(asked(&format!("/enter{key}"), "a=b").0, 403, "once");
    let (status, _, jobs) = asked("/api/v1/jobs", cookie);
    assert!(status == 200 && jobs.contains("\"a\""), "{jobs}");
    kill(home.service());
    wait_for("the page of another service", || asked("/api/v1/jobs", cookie).0 == 200);
    ui.kill().unwrap();
    ui.wait().unwrap();
}

#[test]
fn without_a_service_a_store_is_read_beside_its_writer() {
    let home = Home::new();
    let mut run = home.train("alone", &[("FAKE_WAIT_FOR", "go"), ("MEMCTL_SERVICE", "off")]);
    wait_for("half of it", || home.has("half0"));
    let asked = || home.memctl(&["query", "alone", "-q", "--in-process", "-o", "json"]).output().unwrap();
    wait_for("an answer beside it", || asked().status.success());
    assert!(home.services().is_empty());
    home.order("go");
    assert!(run.wait().unwrap().success());
}

#[test]
fn a_daemon_of_ones_own_goes_first_and_is_said_where_it_has_the_store() {
    let home = Home::new();
    let daemon = DaemonProcess::sqlite(&home.data(), free_port());
    let asked = home.memctl(&["jobs"]).output().unwrap();
    assert!(asked.status.success(), "the store is read beside it: {}", stderr(&asked));
    assert!(stderr(&asked).contains(&daemon.url), "{}", stderr(&asked));
    assert!(home.services().is_empty());
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_daemon_of_ones_own_follows_a_service_that_takes_nothing() {
    let home = Home::new();
    run(home.memctl(&["import", "-q", "--job", "a"]).arg(folder("cnn_rank0_cache")));
    let service = home.service();
    let daemon = DaemonProcess::sqlite(&home.data(), free_port());
    assert!(!is_running(service), "it gave way");
    assert_eq!(
        run_json(memctl().args(["jobs", "-o", "json", "--daemon", &daemon.url]))["jobs"].as_array().unwrap().len(),
        1
    );
    assert_eq!(daemon.terminate(), 0);
    let mut training = home.train("streams", &[("FAKE_WAIT_FOR", "go")]);
    wait_for("half of it", || home.has("half0") && home.events("streams") == EVENTS / 2);
    let refused = home.memctl(&["daemon", "--data-dir"]).arg(home.data()).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("`memctl daemon stop`"), "{}", stderr(&refused));
    // A daemon whose configuration names another store does not wait for the service.
    let (config, other) = (home.0.path().join("memctl.toml"), home.0.path().join("other.db"));
    std::fs::write(&config, format!("store = 'sqlite:{}'\n", other.display())).unwrap();
    run(home.memctl(&["daemon", "--check", "--listen", "127.0.0.1:0", "--config"]).arg(&config));
    home.order("go");
    assert!(training.wait().unwrap().success());
    assert_eq!(home.events("streams"), EVENTS, "nothing was lost");
}

#[test]
fn a_folder_with_a_long_path_has_one_too() {
    let home = Home::new();
    let long = home.0.path().join("x".repeat(100)).join("y".repeat(60));
    let at = |words: &[&str]| {
        let mut command = home.memctl(words);
        command.arg("--data-dir").arg(&long);
        command
    };
    run(at(&["import", "-q", "--job", "a"]).arg(folder("cnn_rank0_cache")));
    assert_eq!(run_json(&mut at(&["jobs", "-o", "json"]))["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(run_json(&mut at(&["daemon", "status", "-o", "json"]))["running"], true);
    run(&mut at(&["daemon", "stop"]));
}

#[test]
fn runs_of_one_name_at_once_are_two_and_each_shows_its_own_page() {
    let home = Home::new();
    let first = home.train("gpt2", &[("FAKE_WAIT_FOR", "go")]);
    wait_for("half of the first", || home.has("half0"));
    let second = home.train("gpt2", &[]).wait_with_output().unwrap();
    home.order("go");
    let first = first.wait_with_output().unwrap();
    for (ran, id) in [(&first, "gpt2#1"), (&second, "gpt2#2")] {
        assert!(ran.status.success() && stderr(ran).contains(&format!("\n{id}  finished")), "{}", stderr(ran));
    }
    // Both runs have rank 0 of the same job, and one process each.
    for run in ["gpt2#1", "gpt2#2"] {
        assert_eq!(home.events(run), EVENTS, "{run}");
    }
}
