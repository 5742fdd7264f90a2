//! All nine recordings get exactly the right findings, through import and a real daemon on both databases: kind, ranks,
//! site.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::recordings::{NAMES, folder};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

/// The expected findings at warning or above: kind, ranks, function of the site.
fn truth(name: &str) -> Option<(&'static str, &'static [u64], Option<&'static str>)> {
    const ALL: &[u64] = &[0, 1, 2, 3];
    match name {
        "gpt_val_graph_leak" => Some(("eval_graph", ALL, Some("validate_keeping_graph"))),
        "lstm_hidden_chain" => Some(("hidden_chain", ALL, Some("step"))),
        "cnn_rank0_cache" => Some(("leak", &[0], Some("remember_features"))),
        _ => None,
    }
}

const LEAKS: [&str; 7] =
    ["leak", "eval_graph", "graph_kept", "hidden_chain", "outside_allocator", "host_growth", "fragmentation_growth"];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn check(url: &str, name: &str) {
    let report = run_json(memctl().args(["query", "-o", "json", "--daemon", url, "--job", name]));
    let findings = report["findings"].as_array().expect("findings");
    let is_leak = |finding: &&Value| LEAKS.contains(&text(finding, "kind"));
    let bad: Vec<&Value> =
        findings.iter().filter(is_leak).filter(|finding| text(finding, "severity") != "info").collect();
    match truth(name) {
        None => assert!(bad.is_empty(), "{name}: no leak here, but {bad:#?}"),
        Some((kind, ranks, site)) => {
            assert_eq!(bad.len(), 1, "{name}: one thing is wrong, and reported once: {bad:#?}");
            let finding = bad[0];
            assert_eq!(text(finding, "kind"), kind, "{name}");
            assert_eq!(finding["ranks"], Value::from(ranks), "{name}");
            assert_eq!(finding["all_ranks"], Value::from(ranks.len() == 4), "{name}");
            assert_eq!(finding["site"]["function"].as_str(), site, "{name}");
            assert!(finding["site"]["stack"].as_array().is_some_and(|stack| !stack.is_empty()), "{name}");
            assert!(finding["confidence"].as_f64().is_some_and(|sure| (0.9..=1.0).contains(&sure)), "{name}");
        }
    }
    let others: Vec<&str> = findings.iter().filter(|finding| !is_leak(finding)).map(|it| text(it, "kind")).collect();
    let expected: &[&str] = match name {
        "gpt_varlen_fragmentation" => &["fragmentation"],
        "oom_by_fragmentation" => &["oom", "fragmentation"],
        _ => &[],
    };
    assert_eq!(others, expected, "{name}: {findings:#?}");
    if name == "oom_by_fragmentation" {
        check_oom(findings.iter().find(|finding| text(finding, "kind") == "oom").expect("found above"));
    }
}

/// Asserts on every rank: a request of 1 GiB, 1.2 GiB free in holes of 4 MiB, a limit of 3 GiB.
fn check_oom(finding: &Value) {
    assert_eq!(text(finding, "severity"), "critical");
    assert_eq!(finding["ranks"], Value::from([0, 1, 2, 3].as_slice()));
    assert_eq!(text(&finding["evidence"], "cause"), "fragmentation", "{finding:#}");
    assert!(text(finding, "title").contains("1.00 GiB"), "{finding:#}");
    let bytes = |key: &str| finding["evidence"][key].as_u64().unwrap_or_default();
    assert_eq!(bytes("asked_bytes"), 1 << 30, "{finding:#}");
    assert!((1_200 << 20..1_300 << 20).contains(&bytes("free_in_cache_bytes")), "{finding:#}");
    assert!(bytes("largest_usable_bytes") < 32 << 20, "{finding:#}");
}

fn check_store(url: &str) {
    for name in NAMES {
        run(memctl().args(["import", "-q", "--daemon", url, "--job", name]).arg(folder(name)));
        check(url, name);
    }
    // A narrower selection is judged by itself: within the first two epochs there is no certain result.
    let narrow = ["query", "-o", "json", "--daemon", url, "--job", "cnn_rank0_cache", "--epoch", "0..1"];
    let report = run_json(memctl().args(narrow));
    assert!(report["findings"].as_array().unwrap().iter().all(|finding| text(finding, "severity") == "info"));
    let other_rank = ["query", "-o", "json", "--daemon", url, "--job", "cnn_rank0_cache", "--rank", "2"];
    assert_eq!(run_json(memctl().args(other_rank))["findings"], Value::Array(Vec::new()));
}

#[test]
fn every_recording_gets_its_truth_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    check_store(&daemon.url);
    let before = run(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", "lstm_hidden_chain"]));
    daemon.terminate();
    // The result comes from the store: a restarted daemon reports the same.
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let after = run(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", "lstm_hidden_chain"]));
    assert_eq!(before, after);
    daemon.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recording_gets_its_truth_on_postgres() {
    let database = Database::create().await;
    let url = database.url.clone();
    tokio::task::spawn_blocking(move || {
        let daemon = DaemonProcess::store(&url, free_port());
        check_store(&daemon.url);
        daemon.terminate();
    })
    .await
    .unwrap();
    database.remove().await;
}
