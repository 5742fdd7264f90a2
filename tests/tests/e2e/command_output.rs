//! What commands report about a job: the right process, the step with the highest memory, names similar to the one
//! typed, one figure for one quantity; each with real agents, a real daemon and the command line.

use memctl_model::{Launch, SessionInfo};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::jobs::{self, Training, record, session};
use memctl_tests::{memctl, run, run_json, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn ask(daemon: &DaemonProcess, words: &[&str]) -> String {
    run(memctl().args(words).args(["--daemon", &daemon.url]))
}

fn data(daemon: &DaemonProcess, words: &[&str]) -> Value {
    run_json(memctl().args(words).args(["-o", "json", "--daemon", &daemon.url]))
}

fn daemon(store: &tempfile::TempDir) -> DaemonProcess {
    DaemonProcess::sqlite(store.path(), free_port())
}

fn leaking() -> Training {
    Training { kept_a_step: MIB, ..Training::default() }
}

/// The commands that a page proposes.
fn proposed(page: &str) -> Vec<String> {
    let lines = page.lines().filter_map(|line| line.trim_start().strip_prefix("memctl "));
    lines.map(|line| line.split("  ").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn commands_that_are_proposed_are_about_the_process_that_is_meant() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    // A trainer and two workers, all of rank 0; the second worker leaks.
    for (pid, training) in [(10, Training::default()), (11, Training::default()), (12, leaking())] {
        let mut info = session("job", 0);
        info.id.0[15] = pid as u8;
        let parent_pid = Some(if pid == 10 { 1 } else { 10 });
        let started_ns = info.started_ns + u64::from(pid);
        let info = SessionInfo {
            pid: Some(pid),
            parent_pid,
            launch: Launch { launcher: Some(7), ..Launch::default() },
            started_ns,
            ..info
        };
        record(&daemon.url, info, |agent| jobs::train(agent, training));
    }
    let query = ask(&daemon, &["query", "--job", "job"]);
    assert!(query.contains("on worker-2 (not on trainer, worker-1)"), "{query}");
    for page in [query, ask(&daemon, &["sites", "--job", "job"])] {
        let commands = proposed(&page);
        let about: Vec<&String> = commands.iter().filter(|command| command.starts_with("sites ")).collect();
        assert!(!about.is_empty() && about.iter().all(|command| command.contains("--process worker-2")), "{page}");
        assert!(commands.iter().all(|command| !command.contains("--rank 0")), "{page}");
    }
    // The proposed command, run unchanged, selects only that process.
    let sites = data(&daemon, &["sites", "--job", "job", "--process", "worker-2"]);
    let processes: Vec<&Value> = sites["ranks"].as_array().unwrap().iter().map(|rank| &rank["process"]).collect();
    assert_eq!(processes, [&Value::from("worker-2")]);
    let note = data(&daemon, &["diagnose", "--job", "job"]);
    let by = note["usage"]["by"].as_array().unwrap();
    assert!(by.iter().any(|share| share["site"]["function"] == "keep"), "the note is about the worker: {note:#}");
    for (verb, column) in [("query", "process"), ("ranks", "process"), ("sites", "process"), ("timeline", "process")] {
        let csv = ask(&daemon, &[verb, "--job", "job", "-o", "csv"]);
        assert!(csv.lines().next().unwrap_or_default().split(',').any(|name| name == column), "{verb}: {csv}");
        assert!(csv.contains("worker-2"), "{verb}: {csv}");
    }
    assert!(ask(&daemon, &["leaks", "--job", "job", "-o", "csv"]).contains(",worker-2,"));
    daemon.terminate();
}

#[test]
fn the_step_that_was_highest_is_told_and_not_its_epochs_last() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    let training = Training { high_step: Some(19), ..Training::default() };
    record(&daemon.url, session("job", 0), |agent| jobs::train(agent, training));
    let peak = &data(&daemon, &["sites", "--job", "job", "--peak"])["ranks"][0];
    assert_eq!((&peak["epoch"], &peak["step"]), (&Value::from(2), &Value::from(19)), "{peak:#}");
    assert_eq!(peak["allocated_bytes"], Value::from(128 * MIB));
    let course = data(&daemon, &["timeline", "--job", "job", "--points", "10000"]);
    let points = course["ranks"][0]["points"].as_array().unwrap();
    let highest = points.iter().find(|point| point["peak_allocated_bytes"] == 128 * MIB).expect("the peak is drawn");
    assert_eq!((&highest["epoch"], &highest["step"]), (&Value::from(2), &Value::from(19)), "{highest:#}");
    daemon.terminate();
}

#[test]
fn folded_stacks_keep_their_lines_and_equal_ones_are_one() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    for rank in 0..2 {
        let info = SessionInfo { world_size: Some(2), ..session("job", rank) };
        let training = Training { kept_alike: 3 * MIB, ..leaking() };
        record(&daemon.url, info, |agent| jobs::train(agent, training));
    }
    let one = ask(&daemon, &["sites", "--job", "job", "--rank", "1", "--end", "--folded"]);
    let lines: Vec<&str> = one.lines().collect();
    let kept = format!("main (train.py:1);keep (train.py:17) {}", 64 * MIB + 3 * MIB);
    assert!(lines.contains(&kept.as_str()) && lines.len() == 2, "{kept}: {one}");
    let exported = ask(&daemon, &["export", "--job", "job", "--format", "folded"]);
    assert!(exported.contains("rank 0;main (train.py:1);keep (train.py:17) "), "{exported}");
    daemon.terminate();
}

#[test]
fn a_name_that_was_mistyped_is_guessed() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    record(&daemon.url, session("vit-17", 0), |agent| jobs::train(agent, Training::default()));
    for verb in ["query", "timeline", "sites", "assert no-leak"] {
        let words: Vec<&str> = verb.split(' ').collect();
        let output = memctl().args(words).args(["--job", "vti-17", "--daemon", &daemon.url]).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{verb}");
        let said = stderr(&output);
        assert!(said.contains("no job \"vti-17\" here, did you mean \"vit-17\"?; `memctl jobs`"), "{said}");
    }
    daemon.terminate();
}

#[test]
fn jobs_are_filtered_by_state_and_label_and_show_their_worst_finding() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    let with = |job: &str, value: &str| {
        let labels = vec![("team".into(), value.into()), ("model".into(), "vit".into())];
        SessionInfo { labels, ..session(job, 0) }
    };
    record(&daemon.url, with("leaks", "vision"), |agent| jobs::train(agent, leaking()));
    record(&daemon.url, with("well", "language"), |agent| jobs::train(agent, Training::default()));
    let names = |filters: &[&str]| -> Vec<String> {
        let answer = data(&daemon, &[&["jobs"], filters].concat());
        let jobs = answer["jobs"].as_array().expect("jobs").clone();
        jobs.iter().map(|job| job["id"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["well", "leaks"]);
    assert_eq!(names(&["--label", "team=vision"]), ["leaks"]);
    assert_eq!(names(&["--label", "team=vision", "--label", "model=vit"]), ["leaks"]);
    assert_eq!(names(&["--label", "team=vision", "--label", "model=gpt"]), Vec::<String>::new());
    assert_eq!(names(&["--state", "finished"]), ["well", "leaks"]);
    assert_eq!(names(&["--state", "failed", "--state", "running"]), Vec::<String>::new());
    assert_eq!(ask(&daemon, &["jobs", "--state", "failed"]), "No job matches.\n");
    let page = ask(&daemon, &["jobs"]);
    let row = |job: &str| page.lines().find(|line| line.contains(&format!(" {job} "))).unwrap_or_default().to_owned();
    assert!(row("leaks").contains(" growing "), "{page}");
    assert!(row("well").contains(" steady "), "{page}");
    daemon.terminate();
}

#[test]
fn what_is_suspected_is_inconclusive_unless_it_is_allowed() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    // This job keeps memory only in its last steps, so it may still be a cache that fills.
    let late = Training { kept_a_step: MIB, keeps: (52, u64::MAX), ..Training::default() };
    record(&daemon.url, session("late", 0), |agent| jobs::train(agent, late));
    let findings = data(&daemon, &["query", "--job", "late"])["findings"].clone();
    assert!(findings.as_array().is_some_and(|all| all.iter().any(|it| it["kind"] == "leak")), "{findings:#}");
    assert!(findings.as_array().is_some_and(|all| all.iter().all(|it| it["severity"] == "info")), "{findings:#}");
    let assert = |flags: &[&str]| {
        let words = [&["assert", "--job", "late", "no-leak", "--daemon", &daemon.url], flags].concat();
        let output = memctl().args(words).output().unwrap();
        (output.status.code(), stdout(&output))
    };
    let (code, page) = assert(&[]);
    assert_eq!(code, Some(1));
    assert!(page.contains("inconclusive") && page.contains("It is a leak unless what holds it is bounded"), "{page}");
    let (code, page) = assert(&["--allow-suspected"]);
    assert_eq!(code, Some(0), "{page}");
    assert!(page.contains("holds "), "{page}");
    // A confirmed leak is not a suspicion.
    record(&daemon.url, session("leaks", 0), |agent| jobs::train(agent, leaking()));
    let words = ["assert", "--job", "leaks", "no-leak", "--allow-suspected", "--daemon", &daemon.url];
    assert_eq!(memctl().args(words).output().unwrap().status.code(), Some(1));
    daemon.terminate();
}

#[test]
fn of_64_ranks_the_one_that_leaks_comes_first_and_is_not_cut() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    for rank in 0..64 {
        let training = if rank == 37 { leaking() } else { Training::default() };
        let info = SessionInfo { world_size: Some(64), ..session("job", rank) };
        record(&daemon.url, info, |agent| jobs::train(agent, training));
    }
    let page = ask(&daemon, &["ranks", "--job", "job"]);
    let mut rows = page.lines().skip_while(|line| !line.trim_start().starts_with("RANK"));
    assert_eq!(rows.nth(1).and_then(|row| row.split_whitespace().next()), Some("37"), "{page}");
    assert!(page.contains("on rank 37") && page.contains("keep (train.py:17)"), "{page}");
    let query = ask(&daemon, &["query", "--job", "job"]);
    assert!(query.contains("on rank 37 (not on 0-36, 38-63)"), "lists are sorted and folded: {query}");
    assert!(query.lines().any(|line| line.split_whitespace().next() == Some("37")), "it has its row: {query}");
    daemon.terminate();
}

#[test]
fn the_alert_and_the_page_of_an_ended_job_say_the_same_and_have_no_horizon() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    record(&daemon.url, session("job", 0), |agent| jobs::train(agent, leaking()));
    let report = data(&daemon, &["query", "--job", "job"]);
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "leak", "{report:#}");
    assert!(finding["epochs_to_oom"].is_null() && finding["time_to_oom_seconds"].is_null(), "{finding:#}");
    let alert = loop {
        let alerts = data(&daemon, &["alerts"]);
        let of_leak = |alert: &&Value| alert["kind"] == "leak" && alert["state"] == "firing";
        if let Some(alert) = alerts["alerts"].as_array().expect("alerts").iter().find(of_leak) {
            break alert.clone();
        }
        std::thread::yield_now();
    };
    assert_eq!(alert["finding"], finding["id"]);
    assert_eq!(alert["title"], finding["title"], "one sentence, with one figure");
    let page = ask(&daemon, &["query", "--job", "job"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let listed = ask(&daemon, &["alerts"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let title = finding["title"].as_str().expect("a title");
    assert!(page.contains(title) && !page.contains("out of memory in"), "{title}: {page}");
    let start: String = title.chars().take(30).collect();
    assert!(listed.contains(&start), "{start}: {listed}");
    daemon.terminate();
}

#[test]
fn advice_is_whole_on_a_narrow_screen() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    record(&daemon.url, session("job", 0), |agent| jobs::train(agent, leaking()));
    let finding = data(&daemon, &["query", "--job", "job"])["findings"][0].clone();
    let advice = finding["advice"].as_str().expect("advice");
    let first = advice.split(". ").next().unwrap_or(advice).trim_end_matches('.');
    assert!(first.len() > 60, "long enough to be cut: {first}");
    let page = run(memctl().env("COLUMNS", "80").args(["query", "--job", "job", "--daemon", &daemon.url]));
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(first), "{page}");
    daemon.terminate();
}

/// Completions for a shell; fish's protocol is the simplest.
fn completed(daemon: &DaemonProcess, words: &[&str]) -> Vec<String> {
    let asked = ["--", "memctl", "--daemon", &daemon.url].into_iter().chain(words.iter().copied());
    let said = run(memctl().env("COMPLETE", "fish").args(asked));
    said.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_shell_completes_the_names_of_jobs() {
    let store = tempfile::tempdir().unwrap();
    let daemon = daemon(&store);
    for job in ["alpha", "alps", "beta"] {
        record(&daemon.url, session(job, 0), |agent| jobs::train(agent, Training::default()));
    }
    assert_eq!(completed(&daemon, &["timel"]), ["timeline"]);
    for verb in ["query", "delete", "export"] {
        let mut names = completed(&daemon, &[verb, "--job", "al"]);
        names.sort();
        assert_eq!(names, ["alpha", "alps"], "{verb}");
    }
    // The name of a new job cannot be completed, and without a response there are no completions.
    assert_eq!(completed(&daemon, &["import", "--job", "al"]), [""; 0]);
    daemon.terminate();
    let stopped = DaemonProcess::sqlite(store.path(), free_port());
    let url = stopped.url.clone();
    stopped.terminate();
    let said = run(memctl().env("COMPLETE", "fish").args(["--", "memctl", "--daemon", &url, "query", "--job", "al"]));
    assert_eq!(said, "");
}
