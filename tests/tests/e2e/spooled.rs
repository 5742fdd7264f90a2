//! `memctl spool`: sessions that no daemon accepted are listed, delivered elsewhere, and discarded.

use memctl_tests::daemon::free_port;
use memctl_tests::{memctl, run, run_json, stderr, stdout};

/// Events of a trainer of [`crate::run`].
const EVENTS: u64 = 20_000;

struct Place {
    folder: tempfile::TempDir,
    /// An address without a daemon.
    nowhere: String,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), nowhere: format!("http://127.0.0.1:{}", free_port()) }
    }

    fn memctl(&self, words: &[&str]) -> std::process::Command {
        let mut command = memctl();
        command.args(words).env("XDG_DATA_HOME", self.folder.path());
        command
    }

    /// A run whose daemon is down.
    fn train(&self, job: &str) {
        let mut command =
            self.memctl(&["run", "-q", "--patience", "0s", "--daemon", &self.nowhere, "--job", job, "--"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "run::fake_trainer"]);
        command.env("FAKE_FOLDER", self.folder.path());
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{}", stderr(&ran));
    }

    fn waiting(&self) -> Vec<serde_json::Value> {
        run_json(&mut self.memctl(&["spool", "-o", "json"]))["sessions"].as_array().unwrap().clone()
    }
}

#[test]
fn what_waits_is_listed_delivered_elsewhere_and_discarded() {
    let place = Place::new();
    assert_eq!(place.waiting().len(), 0);
    assert!(run(&mut place.memctl(&["spool"])).starts_with("Nothing waits"));
    place.train("first");
    place.train("second");
    let waiting = place.waiting();
    let jobs: Vec<&str> = waiting.iter().map(|row| row["job"].as_str().unwrap()).collect();
    assert_eq!(jobs, ["first", "second"]);
    for row in &waiting {
        assert!(row["bytes"].as_u64() > Some(1_000) && row["recording"] == false, "{row}");
        assert!(row["destination"].as_str().unwrap().starts_with("127.0.0.1"), "{row}");
    }
    assert!(run(&mut place.memctl(&["spool"])).contains("second"));
    // The session is delivered to the store of this folder, although it was recorded for a daemon.
    let delivered = place.memctl(&["spool", "deliver", "first"]).output().unwrap();
    assert!(delivered.status.success() && stderr(&delivered).contains("1 session delivered"), "{}", stderr(&delivered));
    let report = run_json(&mut place.memctl(&["query", "first", "-o", "json"]));
    assert_eq!((report["job"]["events"].as_u64(), &report["completeness"]["exact"]), (Some(EVENTS), &true.into()));
    // Without a daemon the session stays.
    let elsewhere = place.memctl(&["spool", "deliver", "--daemon", &place.nowhere]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(3), "{}", stderr(&elsewhere));
    assert_eq!(place.waiting().len(), 1);

    let unnamed = place.memctl(&["spool", "discard", "third", "--yes"]).output().unwrap();
    assert_eq!(unnamed.status.code(), Some(5), "{}", stderr(&unnamed));
    let unasked = place.memctl(&["spool", "discard", "second"]).stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(unasked.status.code(), Some(2), "{}", stdout(&unasked));
    let id = place.waiting()[0]["session"].as_str().unwrap()[..8].to_owned();
    let gone = place.memctl(&["spool", "discard", &id, "--yes"]).output().unwrap();
    assert!(gone.status.success() && stderr(&gone).contains("discarded 1 session"), "{}", stderr(&gone));
    assert_eq!(place.waiting().len(), 0);
}

/// A question stores what waits on this disk for the daemon that it asks. It says so: the identity of the question may
/// differ from that of the training.
#[test]
fn a_question_names_the_jobs_that_it_stored_from_this_disk() {
    let place = Place::new();
    place.train("late");
    let port = place.nowhere.rsplit(':').next().unwrap().parse().unwrap();
    let _daemon = memctl_tests::daemon::DaemonProcess::sqlite(&place.folder.path().join("store"), port);
    let ask = || place.memctl(&["query", "--job", "late", "--daemon", &place.nowhere]).output().unwrap();
    let (first, second) = (ask(), ask());
    let line = "memctl: stored job late (1 session): it waited on this disk, because no daemon had accepted it";
    assert!(first.status.success() && stderr(&first).contains(line), "{}", stderr(&first));
    assert!(second.status.success() && !stderr(&second).contains("stored job"), "{}", stderr(&second));
}
