//! All nine recordings through real binaries and sockets, on both databases: every epoch-end counter of every rank
//! equals the value that the training loop read, byte for byte.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::recordings::{NAMES, folder, truth};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

fn import_all(url: &str) {
    for name in NAMES {
        run(memctl().args(["import", "-q", "--daemon", url, "--job", name]).arg(folder(name)));
    }
}

fn report(url: &str, name: &str) -> Value {
    run_json(memctl().args(["query", "-o", "json", "--daemon", url, "--job", name]))
}

fn check(url: &str, name: &str) {
    let report = report(url, name);
    assert_eq!(report["schema"], 2);
    assert_eq!(report["job"]["state"], "finished");
    assert_eq!(report["completeness"]["exact"], true, "{name}: {}", report["completeness"]);
    let ranks = report["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 4);
    for (rank, found) in ranks.iter().enumerate() {
        let truth = truth(name, rank);
        assert_eq!(found["rank"], rank);
        assert_eq!(found["events"], truth["events"], "{name} rank {rank}");
        let epochs = truth["epochs"].as_array().expect("epochs");
        let ends = found["epoch_ends"].as_array().expect("epoch ends");
        assert_eq!(ends.len(), epochs.len(), "{name} rank {rank}");
        for (end, epoch) in ends.iter().zip(epochs) {
            let pairs = [
                ("epoch", "epoch"),
                ("allocated_bytes", "allocated"),
                ("reserved_bytes", "reserved"),
                ("peak_allocated_bytes", "peak_allocated"),
                ("peak_reserved_bytes", "peak_reserved"),
            ];
            for (ours, theirs) in pairs {
                assert_eq!(end[ours], epoch[theirs], "{name} rank {rank} epoch {}: {ours}", epoch["epoch"]);
            }
        }
        let ooms = epochs.last().map_or(0, |epoch| epoch["ooms"].as_u64().expect("a count"));
        assert_eq!(found["ooms"], ooms, "{name} rank {rank}");
    }
}

fn check_growth(url: &str) {
    let report = report(url, "cnn_rank0_cache");
    let growth: Vec<f64> = report["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rank| rank["growth_bytes_per_epoch"].as_f64().unwrap())
        .collect();
    assert_eq!(growth, [3_145_728.0, 0.0, 0.0, 0.0], "3 MiB an epoch on rank 0, nothing on the others");
    let site = &report["growth"][0];
    assert_eq!(site["site"]["function"], "remember_features", "{site}");
    let sites = run(memctl().args(["sites", "--daemon", url, "--job", "gpt_val_graph_leak"]));
    assert!(sites.contains("validate_keeping_graph"), "{sites}");
}

fn check_store(url: &str) {
    import_all(url);
    for name in NAMES {
        check(url, name);
    }
    check_growth(url);
}

#[test]
fn every_counter_is_exact_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    check_store(&daemon.url);
    assert_eq!(daemon.terminate(), 0, "it drains on SIGTERM");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_counter_is_exact_on_postgres() {
    let database = Database::create().await;
    let url = database.url.clone();
    tokio::task::spawn_blocking(move || {
        let daemon = DaemonProcess::store(&url, free_port());
        check_store(&daemon.url);
        assert_eq!(daemon.terminate(), 0, "it drains on SIGTERM");
    })
    .await
    .unwrap();
    database.remove().await;
}

/// A file of one rank does not state the number of ranks, so no rank counts as missing.
#[test]
fn a_file_of_one_rank_is_a_whole_import() {
    let store = tempfile::tempdir().unwrap();
    let file = folder("gpt_clean").join("rank2.pickle.zst");
    run(memctl().args(["import", "-q", "--job", "one", "--data-dir"]).arg(store.path()).arg(file));
    let report = run_json(memctl().args(["query", "-o", "json", "--job", "one", "--data-dir"]).arg(store.path()));
    assert_eq!(report["job"]["state"], "finished", "{}", report["job"]);
    assert_eq!(report["job"]["world_size"], Value::Null);
    assert_eq!(report["completeness"]["exact"], true, "{}", report["completeness"]);
    assert_eq!(report["ranks"][0]["rank"], 2);
}
