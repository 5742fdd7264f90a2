//! What a daemon that was started again shows of jobs from before, and what is left of a job that retention removed.

use std::path::Path;

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::get;
use memctl_tests::jobs::{Training, record, session, train};
use memctl_tests::streaming::until;
use memctl_tests::{memctl, run_json};
use sqlx::{Connection as _, SqliteConnection};

fn daemon(store: &Path, flags: &[&str]) -> (DaemonProcess, String) {
    let http = format!("127.0.0.1:{}", free_port());
    (DaemonProcess::sqlite_with(store, free_port(), &[flags, &["--http-listen", &http]].concat()), http)
}

fn scrape(http: &str) -> String {
    get(&format!("http://{http}/metrics")).map(|(_, text)| text).unwrap_or_default()
}

#[test]
fn a_job_that_ended_shortly_before_a_restart_has_its_series_again() {
    let store = tempfile::tempdir().unwrap();
    let (first, _) = daemon(store.path(), &[]);
    record(&first.url, session("vit", 0), |agent| train(agent, Training::default()));
    assert_eq!(first.terminate(), 0);
    let (second, http) = daemon(store.path(), &[]);
    let is_shown = |text: &str| {
        text.lines().any(|line| line.starts_with("memctl_job_info{job=\"vit\",") && line.contains("state=\"finished\""))
    };
    until("the job has its series", || is_shown(&scrape(&http)));
    assert!(
        scrape(&http).contains("memctl_job_epochs_total{job=\"vit\",tenant=\"default\",run=\"1\",attempt=\"0\"} 8")
    );
    assert_eq!(second.terminate(), 0);
}

#[test]
fn what_retention_removed_does_not_count_as_stored() {
    let store = tempfile::tempdir().unwrap();
    let (first, _) = daemon(store.path(), &[]);
    record(&first.url, session("vit", 0), |agent| train(agent, Training::default()));
    let report = |daemon: &DaemonProcess| {
        run_json(memctl().args(["query", "--job", "vit", "-o", "json", "--daemon", &daemon.url]))
    };
    let before = report(&first);
    let (events, bytes) = (before["job"]["events"].as_u64().unwrap(), before["job"]["stored_bytes"].as_u64().unwrap());
    assert_eq!(first.terminate(), 0);
    let limit = format!("{}B", bytes / 2);
    let (second, http) = daemon(store.path(), &["--retain-bytes-per-job", &limit]);
    let expired = |report: &serde_json::Value| report["completeness"]["events_expired"].as_u64().unwrap();
    until("retention removes events", || expired(&report(&second)) > 0);
    let after = report(&second);
    let stored = after["completeness"]["events_stored"].as_u64().unwrap();
    assert_eq!(stored, events - expired(&after), "{after:#}");
    assert_eq!(after["job"]["events"], stored);
    let jobs = run_json(memctl().args(["jobs", "-o", "json", "--daemon", &second.url]));
    assert_eq!(jobs["jobs"][0]["events"], stored, "{jobs:#}");
    let doctor = run_json(memctl().args(["doctor", "-o", "json", "--daemon", &second.url])).to_string();
    assert!(doctor.contains(&format!("{} in", memctl_answers::format::text::plural(stored, "event"))), "{doctor}");
    // A counter of Prometheus never falls, so it has the events that were received.
    let received =
        format!("memctl_job_events_total{{job=\"vit\",tenant=\"default\",run=\"1\",attempt=\"0\"}} {events}");
    until("the job has its series", || scrape(&http).contains(&received));
    assert_eq!(second.terminate(), 0);
}

#[test]
fn the_alerts_of_a_job_that_retention_removes_resolve_and_the_audit_log_names_it() {
    let store = tempfile::tempdir().unwrap();
    let (first, _) = daemon(store.path(), &[]);
    let states = |daemon: &DaemonProcess| {
        let alerts = run_json(memctl().args(["alerts", "-o", "json", "--daemon", &daemon.url]));
        let alerts = alerts["alerts"].as_array().unwrap().clone();
        alerts.iter().map(|alert| alert["state"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    record(&first.url, session("vit", 0), |agent| {
        train(agent, Training { kept_a_step: 1 << 20, ..Training::default() });
    });
    until("the leak fires", || states(&first).iter().any(|state| state == "firing"));
    assert_eq!(first.terminate(), 0);
    let (second, http) = daemon(store.path(), &["--retain-bytes", "1B"]);
    until("its alerts resolve", || states(&second).iter().all(|state| state == "resolved"));
    let audit = run_json(memctl().args(["audit", "-o", "json", "--daemon", &second.url]));
    let entries = audit["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["action"] == "Retention").expect("an entry");
    assert_eq!((&entry["subject"], &entry["tenant"]), (&"vit#1".into(), &"default".into()), "{entry:#}");
    until("its series end", || !scrape(&http).contains("job=\"vit\""));
    assert_eq!(second.terminate(), 0);
}

/// A process that sent nothing for minutes may have outlived the former daemon. Until it had time to reach this one, the
/// job is neither lost nor in order.
#[tokio::test]
async fn a_silent_job_is_open_until_its_processes_had_time_to_come_back() {
    let store = tempfile::tempdir().unwrap();
    let (first, _) = daemon(store.path(), &[]);
    record(&first.url, session("vit", 0), |agent| train(agent, Training::default()));
    assert_eq!(first.terminate(), 0);
    let url = format!("sqlite:{}", store.path().join("memctl.db").display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let silent = "UPDATE session SET last_word = NULL, heard_ns = heard_ns - 120000000000";
    assert_eq!(sqlx::query(silent).execute(&mut connection).await.unwrap().rows_affected(), 1);
    connection.close().await.unwrap();
    let (second, _) = daemon(store.path(), &[]);
    let report = run_json(memctl().args(["query", "vit", "-o", "json", "--daemon", &second.url]));
    assert_eq!(report["job"]["state"], "lost", "{report:#}");
    assert_eq!(report["verdict"]["kind"], "not_enough_data", "{:#}", report["verdict"]);
    let sentence = report["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("the daemon has just started"), "{sentence}");
    assert_eq!(second.terminate(), 0);
}
