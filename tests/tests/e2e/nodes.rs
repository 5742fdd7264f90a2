//! Launches on several nodes without a named daemon. Each node is a UTS namespace with a host's name and a home of its
//! own; the nodes share a folder. Trainers are those of [`crate::run`], and the launcher's variables are Slurm's.
//!
//! The daemon of a launch is reached over TLS from every node but its own, as between machines.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memctl_tests::{memctl, run, run_json, stderr};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Events of a trainer of [`crate::run`].
const EVENTS: u64 = 20_000;
const HOUR: &str = "1h";

struct Cluster(tempfile::TempDir);

impl Cluster {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn job_folder(&self) -> PathBuf {
        self.path().join("shared/jobs/slurm_hpc_77.0")
    }

    /// A command on a node.
    fn memctl(&self, node: &str, words: &[&str]) -> Command {
        let home = self.path().join(node);
        std::fs::create_dir_all(home.join("tmp")).unwrap();
        let program = memctl();
        let mut command = Command::new("unshare");
        command.args(["--uts", "--", "sh", "-c", "hostname \"$1\" && shift && exec \"$@\"", "node", node]);
        command.arg(program.get_program()).args(words);
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env_remove("MEMCTL_SERVICE").env("MEMCTL_SERVICE_IDLE", HOUR);
        command.env("HOME", &home).env("XDG_DATA_HOME", home.join("share")).env("TMPDIR", home.join("tmp"));
        command.env("MEMCTL_SHARED_DIR", self.path().join("shared"));
        command
    }

    /// `memctl run` of one rank of a step of two nodes. Its trainer records half and waits for the file `go`.
    fn train(&self, node: &str, rank: u32) -> Child {
        self.train_with(node, rank, &[])
    }

    fn train_with(&self, node: &str, rank: u32, orders_too: &[(&str, &str)]) -> Child {
        let this = std::env::current_exe().unwrap();
        let mut launcher = self.memctl(node, &["run", "--"]);
        launcher.arg(this).args(["--ignored", "--exact", "--nocapture", "run::fake_trainer"]);
        let rank = rank.to_string();
        let slurm = [
            ("SLURM_CLUSTER_NAME", "hpc"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_NAME", "fit"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_PROCID", &rank),
        ];
        let orders =
            [("FAKE_RANK", &*rank), ("FAKE_HOST", node), ("FAKE_GROUP", "slurm/hpc/77.0"), ("FAKE_WAIT_FOR", "go")];
        launcher.env("FAKE_FOLDER", self.path()).envs(slurm).envs(orders).envs(orders_too.iter().copied());
        launcher.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts a rank and waits until the daemon has the first half of what it records.
    fn trained_half(&self, node: &str, rank: u32, stored: u64) -> Child {
        self.has_half(self.train(node, rank), rank, stored)
    }

    fn has_half(&self, launcher: Child, rank: u32, stored: u64) -> Child {
        let half = self.path().join(format!("half{rank}"));
        wait_for("half a training", || half.exists() && self.events("login") == Some(stored));
        launcher
    }

    fn order(&self, name: &str) {
        std::fs::write(self.path().join(name), "").unwrap();
    }

    fn query(&self, node: &str) -> Option<Value> {
        let asked = self.memctl(node, &["query", "fit-77", "-q", "-o", "json"]).output().unwrap();
        asked.status.success().then(|| serde_json::from_slice(&asked.stdout).unwrap())
    }

    fn events(&self, node: &str) -> Option<u64> {
        self.query(node)?["job"]["events"].as_u64()
    }

    /// Processes that are the daemon of the job.
    fn daemons(&self) -> Vec<i32> {
        self.services(&self.job_folder())
    }

    /// Services of data folders below a folder.
    fn services(&self, folder: &Path) -> Vec<i32> {
        let wanted = folder.display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_daemon = |pid: &i32| {
            let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split('\0').any(|word| word == "service") && words.split('\0').any(|word| word.starts_with(&wanted))
        };
        processes.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).filter(is_daemon).collect()
    }

    /// Asserts the state after a launch: no daemon is left, the files of the claim (`host`) and of the address
    /// (`daemon.json`) are removed, and no node has a store of its own.
    fn is_over(&self) {
        wait_for("the end of the daemon", || self.daemons().is_empty());
        for file in ["host", "daemon.json"] {
            assert!(!self.job_folder().join(file).exists(), "{file} is removed");
        }
        for node in ["login", "node1", "node2"] {
            let stores = self.path().join(node).join("share/memctl/memctl.db");
            assert!(!stores.exists(), "{node} has no store of its own");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Trainers of a test that failed wait for it.
        self.order("go");
        for pid in self.services(self.path()) {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        let end = Instant::now() + PATIENCE;
        while !self.services(self.path()).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success(), "it runs");
}

/// Waits for a launcher; returns what it printed.
fn printed(launcher: Child) -> String {
    let output = launcher.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

#[test]
#[ignore = "only root may give a namespace a host's name"]
fn two_nodes_are_one_run_and_its_daemon_is_on_the_node_that_came_first() {
    let cluster = Cluster::new();
    let first = cluster.trained_half("node2", 1, EVENTS / 2);
    let second = cluster.trained_half("node1", 0, EVENTS);
    assert_eq!(cluster.daemons().len(), 1);
    let host = std::fs::read_to_string(cluster.job_folder().join("host")).unwrap();
    assert!(host.starts_with("node2 "), "{host}");
    let by_name = run_json(&mut cluster.memctl("login", &["ranks", "fit-77", "-q", "-o", "json"]));
    assert_eq!(by_name["job"]["name"], "fit-77", "{by_name}");
    let jobs = cluster.memctl("login", &["jobs"]).output().unwrap();
    assert!(stderr(&jobs).contains("memctl query fit-77"), "{}", stderr(&jobs));
    cluster.order("go");
    let (second, first) = (printed(second), printed(first));
    assert!(first.contains("finished") && first.contains("2 ranks"), "one launcher prints the page: {first}");
    assert_eq!(second, "", "and one does not");
    cluster.is_over();
    let report = cluster.query("login").expect("the store stays");
    let hosts: Vec<&str> =
        report["ranks"].as_array().unwrap().iter().filter_map(|rank| rank["host"].as_str()).collect();
    assert_eq!(hosts, ["node1", "node2"]);
    assert_eq!((report["job"]["events"].as_u64(), report["job"]["run"].as_u64()), (Some(2 * EVENTS), Some(1)));
    assert_eq!(report["completeness"]["exact"], true, "{report}");
}

#[test]
#[ignore = "only root may give a namespace a host's name"]
fn the_daemons_node_waits_for_the_others_and_a_late_launch_opens_the_store_again() {
    let cluster = Cluster::new();
    let mut first = cluster.trained_half("node1", 0, EVENTS / 2);
    let second = cluster.trained_half("node2", 1, EVENTS);
    // Rank 0 ends, and rank 1 waits.
    let pid: i32 = std::fs::read_to_string(cluster.path().join("half0")).unwrap().parse().unwrap();
    kill(pid);
    wait_for("the end of rank 0", || {
        let report = cluster.query("login").unwrap_or_default();
        report["ranks"][0]["failure"].as_str().is_some_and(|words| words.contains("SIGKILL"))
    });
    assert!(first.try_wait().unwrap().is_none(), "the daemon's node waits");
    cluster.order("go");
    printed(second);
    let output = first.wait_with_output().unwrap();
    assert!(stderr(&output).contains("Rank 0 ended by SIGKILL"), "{}", stderr(&output));
    cluster.is_over();
    let late = printed(cluster.train("node2", 1));
    assert!(late.contains("finished"), "{late}");
    cluster.is_over();
    assert!(cluster.events("login").unwrap() >= EVENTS);
}

#[test]
#[ignore = "only root may give a namespace a host's name"]
fn a_daemon_that_is_killed_comes_back_on_its_port_and_nothing_is_lost() {
    let cluster = Cluster::new();
    let first = cluster.trained_half("node1", 0, EVENTS / 2);
    let second = cluster.trained_half("node2", 1, EVENTS);
    let address = || std::fs::read_to_string(cluster.job_folder().join("daemon.json")).unwrap();
    let former = address();
    let [daemon] = cluster.daemons()[..] else { panic!("one daemon") };
    kill(daemon);
    wait_for("another one", || cluster.daemons().iter().any(|pid| *pid != daemon));
    wait_for("its answer", || cluster.events("login") == Some(EVENTS));
    assert_eq!(address(), former);
    cluster.order("go");
    for launcher in [second, first] {
        printed(launcher);
    }
    cluster.is_over();
    assert_eq!(cluster.events("login"), Some(2 * EVENTS));
}

#[test]
#[ignore = "only root may give a namespace a host's name"]
fn a_launcher_that_is_killed_costs_the_other_node_nothing() {
    let cluster = Cluster::new();
    // A trainer without its launcher must not wait for room.
    let mut first = cluster.has_half(cluster.train_with("node1", 0, &[("FAKE_DROP", "late")]), 0, EVENTS / 2);
    let second = cluster.trained_half("node2", 1, EVENTS);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(cluster.daemons().len(), 1, "the daemon continues");
    cluster.order("go");
    printed(second);
    let report = cluster.query("login").unwrap();
    let events = |rank: usize| report["ranks"][rank]["events"].as_u64().unwrap();
    assert_eq!(events(1), EVENTS, "{report}");
    assert!(events(0) >= EVENTS / 2, "{report}");
    run(&mut cluster
        .memctl("node1", &["daemon", "stop", "-q", "--data-dir", &cluster.job_folder().display().to_string()]));
    cluster.is_over();
}
