//! An alert whose run has ended, and a later run of the same job without its finding: a real daemon and real agents.

use std::path::Path;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon};
use memctl_model::{SessionId, SessionInfo};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::jobs::{Training, session, train};
use memctl_tests::streaming::until;
use memctl_tests::{memctl, run_json};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The alert is pending for several rounds of the judge. It fires between two of them, because nothing is sent meanwhile.
const RULES: &str = "default_rules = false\n[[rule]]\nname = \"MemoryLeak\"\nkinds = [\"leak\"]\nfor = \"3s\"\n";

fn daemon(folder: &Path) -> DaemonProcess {
    let rules = folder.join("rules.toml");
    std::fs::write(&rules, RULES).unwrap();
    DaemonProcess::sqlite_with(&folder.join("store"), free_port(), &["--alert-rules", rules.to_str().unwrap()])
}

/// The state of the only alert, and the run in which its finding was last seen.
fn alert(daemon: &DaemonProcess) -> Option<(String, u64)> {
    let alerts = run_json(memctl().args(["alerts", "-o", "json", "--daemon", &daemon.url]));
    let alert = &alerts["alerts"][0];
    Some((alert["state"].as_str()?.to_owned(), alert["run"].as_u64()?))
}

/// A run that has trained and goes on.
fn trained(daemon: &DaemonProcess, run: u8, training: Training) -> Agent {
    let info = SessionInfo { id: SessionId([run; 16]), ..session("vit", 0) };
    let agent = Agent::start(AgentConfig::new(info, Daemon::Address(daemon.url.clone().into()))).unwrap();
    train(&agent, training);
    agent
}

#[test]
fn a_later_run_that_goes_on_resolves_an_alert_once_it_is_past_its_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = daemon(folder.path());
    let state = |state: &str| alert(&daemon) == Some((state.to_owned(), 1));
    let first = trained(&daemon, 1, Training { kept_a_step: MIB, ..Training::default() });
    until("the leak fires", || state("firing"));
    assert!(first.stop(None, PATIENCE).delivered);
    // One epoch more than the first run had when its alert fired.
    let second = trained(&daemon, 2, Training { epochs: 9, ..Training::default() });
    until("the later run resolves it", || state("resolved"));
    let jobs = run_json(memctl().args(["jobs", "-o", "json", "--daemon", &daemon.url]));
    let newest = &jobs["jobs"][0];
    assert_eq!((&newest["id"], &newest["state"]), (&"vit#2".into(), &"running".into()), "{newest:#}");
    assert!(second.stop(None, PATIENCE).delivered);
    assert_eq!(daemon.terminate(), 0);
}
