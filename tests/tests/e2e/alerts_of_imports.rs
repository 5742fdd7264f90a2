//! Alerts about jobs that were imported: raised if the rules allow it, even if the recording ended long ago.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::until;
use memctl_tests::{memctl, recordings, run, run_json};

#[tokio::test(flavor = "multi_thread")]
async fn a_leak_in_a_recording_raises_an_alert_where_imports_do() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, "imported = true\n").unwrap();
    let flags = ["--alert-rules", rules.to_str().unwrap()];
    let daemon = DaemonProcess::sqlite_with(&folder.path().join("data"), free_port(), &flags);
    let at = ["--daemon", daemon.url.as_str()];
    for name in ["gpt_val_graph_leak", "gpt_clean"] {
        run(memctl().args(["import", "-q", "--job", name]).arg(recordings::folder(name)).args(at));
    }
    let alerts = || {
        let answer = run_json(memctl().args(["alerts", "-o", "json"]).args(at));
        let all = answer["alerts"].as_array().unwrap().clone();
        all.into_iter().filter(|alert| alert["state"] == "firing").collect::<Vec<_>>()
    };
    until("an alert fires", || tokio::task::block_in_place(|| !alerts().is_empty())).await;
    let alerts = alerts();
    assert!(alerts.iter().any(|alert| alert["job"] == "gpt_val_graph_leak"), "{alerts:?}");
    assert!(alerts.iter().all(|alert| alert["job"] != "gpt_clean"), "{alerts:?}");
    assert_eq!(daemon.terminate(), 0);
}
