//! Runs of one name stay separate: launched one after the other or at once, imported, restarted, deleted.

use std::process::{Command, Output};

use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run_json, stderr, stdout};

fn output(command: &mut Command) -> Output {
    command.output().expect("memctl starts")
}

/// Trainers of [`crate::run`], in a separate data folder.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn memctl(&self, words: &[&str]) -> Command {
        let mut command = memctl();
        let (verb, rest) = words.split_first().unwrap();
        command.arg(verb).arg("--data-dir").arg(self.0.path().join("data")).args(rest);
        command
    }

    fn train(&self, words: &[&str], orders: &[(&str, &str)]) -> Command {
        let mut command = self.memctl(&[&["run", "--job", "gpt2"], words, &["--"]].concat());
        command.arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "run::fake_trainer"]);
        command.env("FAKE_FOLDER", self.0.path()).envs(orders.iter().copied());
        command
    }

    /// Every run: its name, its attempt, its events.
    fn runs(&self) -> Vec<(String, u64, u64)> {
        let jobs = run_json(&mut self.memctl(&["jobs", "-o", "json"]));
        let row = |job: &serde_json::Value| {
            (job["id"].as_str().unwrap().to_owned(), job["attempt"].as_u64().unwrap(), job["events"].as_u64().unwrap())
        };
        jobs["jobs"].as_array().unwrap().iter().map(row).collect()
    }
}

/// Events of a trainer of [`crate::run`].
const EVENTS: u64 = 20_000;

#[test]
fn the_same_name_three_times_is_three_runs() {
    let place = Place::new();
    for _ in 0..3 {
        let ran = output(&mut place.train(&[], &[]));
        assert!(ran.status.success(), "{}", stderr(&ran));
    }
    let expected = |run: u32| (format!("gpt2#{run}"), 0, EVENTS);
    assert_eq!(place.runs(), [expected(3), expected(2), expected(1)]);
    for (asked, id) in [("gpt2", "gpt2#3"), ("gpt2#1", "gpt2#1"), ("gpt2#2", "gpt2#2"), ("latest", "gpt2#3")] {
        let report = run_json(&mut place.memctl(&["query", asked, "-o", "json"]));
        let job = &report["job"];
        assert_eq!((job["id"].as_str(), job["name"].as_str()), (Some(id), Some("gpt2")), "{asked}");
        assert_eq!((job["events"].as_u64(), job["earlier_sessions"].as_u64()), (Some(EVENTS), Some(0)), "{asked}");
    }
    let missing = output(&mut place.memctl(&["query", "gpt2#9"]));
    assert_eq!(missing.status.code(), Some(4), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("gpt2#9") && stderr(&missing).contains("gpt2#3"), "{}", stderr(&missing));
    let page = output(&mut place.memctl(&["jobs"]));
    assert!(stdout(&page).trim_start().starts_with("AGE"), "{}", stdout(&page));
    // Deleting the job's name deletes the newest run, and the previous one becomes the newest. A named run is deleted
    // alone.
    let gone = output(&mut place.memctl(&["delete", "gpt2", "--yes"]));
    assert!(stderr(&gone).contains("deleted gpt2#3"), "{}", stderr(&gone));
    output(&mut place.memctl(&["delete", "gpt2#1", "--yes"]));
    assert_eq!(place.runs(), [expected(2)]);
    let gone = output(&mut place.memctl(&["delete", "gpt2", "--all-runs", "--yes"]));
    assert!(gone.status.success() && place.runs().is_empty(), "{}", stderr(&gone));
}

#[test]
fn a_restart_is_an_attempt_of_its_run() {
    let place = Place::new();
    // Like torchrun: the same launcher, the same ranks, a higher restart count.
    let this = std::env::current_exe().unwrap();
    let trainer = format!("{} --ignored --exact --nocapture run::fake_trainer", this.display());
    let script = format!("{trainer}; FAKE_ATTEMPT=1 {trainer}");
    let mut command = place.memctl(&["run", "--job", "gpt2", "--", "sh", "-c", &script]);
    let ran = output(command.env("FAKE_FOLDER", place.0.path()));
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(place.runs(), [("gpt2".to_owned(), 1, EVENTS), ("gpt2".to_owned(), 0, EVENTS)]);
    let report = run_json(&mut place.memctl(&["query", "gpt2", "-o", "json"]));
    assert_eq!((report["job"]["attempt"].as_u64(), report["job"]["attempts"].as_u64()), (Some(1), Some(2)));
    // The user gives the attempt's number: it continues the run.
    let ran = output(&mut place.train(&["--attempt", "2"], &[]));
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(place.runs().first().unwrap(), &("gpt2".to_owned(), 2, EVENTS));
}

#[test]
fn an_import_adds_a_run_or_replaces_the_newest() {
    let place = Place::new();
    let recording = folder("gpt_clean").join("rank0.pickle.zst").display().to_string();
    let other = folder("cnn_rank0_cache").display().to_string();
    let import = |words: &[&str]| {
        let done = output(&mut place.memctl(&[&["import", "--job", "snap"], words].concat()));
        assert!(done.status.success(), "{}", stderr(&done));
    };
    import(&[&recording]);
    import(&[&recording]);
    let ids = || place.runs().into_iter().map(|(id, attempt, _)| (id, attempt)).collect::<Vec<_>>();
    assert_eq!(ids(), [("snap#2".to_owned(), 0), ("snap#1".to_owned(), 0)], "the same files twice are two runs");
    import(&[&other, "--replace"]);
    let ranks = |job: &str| run_json(&mut place.memctl(&["query", job, "-o", "json"]))["job"]["ranks"].as_u64();
    assert_eq!((ids().len(), ranks("snap"), ranks("snap#1")), (2, Some(4), Some(1)));
    import(&[&recording, "--attempt", "1"]);
    assert_eq!(ids()[0], ("snap#2".to_owned(), 1));
    let again = output(&mut place.memctl(&["import", "--job", "snap", &recording, "--attempt", "1"]));
    assert!(!again.status.success() && stderr(&again).contains("snap#2 has an attempt 1"), "{}", stderr(&again));
    let wrong = output(&mut place.memctl(&["import", "--job", "snap#1", &recording]));
    assert!(!wrong.status.success() && stderr(&wrong).contains("name the job: snap"), "{}", stderr(&wrong));
}

#[test]
fn a_failed_import_of_an_attempt_does_not_change_its_run() {
    let place = Place::new();
    let good = folder("cnn_rank0_cache");
    let imported = output(&mut place.memctl(&["import", "--job", "snap", &good.display().to_string()]));
    assert!(imported.status.success(), "{}", stderr(&imported));
    let before = place.runs();
    // The first rank is stored before the second is found to be truncated.
    let first = good.join("rank0.pickle.zst").display().to_string();
    let whole = std::fs::read(good.join("rank1.pickle.zst")).unwrap();
    let cut = place.0.path().join("rank1.pickle.zst");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let failed =
        output(&mut place.memctl(&["import", "--job", "snap", "--attempt", "1", &first, &cut.display().to_string()]));
    assert_eq!(failed.status.code(), Some(5), "{}", stderr(&failed));
    assert_eq!(place.runs(), before, "the attempt before it is as it was");
    let all = output(&mut place.memctl(&["delete", "snap#1", "--all-runs", "--yes"]));
    assert_eq!((all.status.code(), place.runs()), (Some(2), before), "{}", stderr(&all));
}
