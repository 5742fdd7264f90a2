//! A daemon limited to 1 GiB under all attacks at the same time, while recorded jobs of four ranks stream through it.
//!
//! Guarantees checked: every attack happened, the daemon lives, its memory stays bounded, and every recorded counter is
//! exact. `MEMCTL_SIEGE=3600 cargo test -p memctl-tests --release --test e2e siege::` holds it for an hour.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memctl_tests::attack::{ATTACKS, attack};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::{memctl, memctl_path, recordings, run, run_json};

const MEMORY_BYTES: u64 = 1 << 30;
/// The recordings of the honest jobs.
const NAMES: [&str; 2] = ["gpt_clean", "lstm_hidden_chain"];

fn length() -> Duration {
    let text = std::env::var("MEMCTL_SIEGE").ok();
    Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(10))
}

/// Imports a recording, and compares the stored counters with those that the training loop read, and deletes the job.
fn honest(url: &str, name: &str) {
    let flags = ["--daemon", url, "--job", name];
    run(memctl().args(["import", "-q"]).args(flags).arg(recordings::folder(name)));
    let report = run_json(memctl().args(["query", "-o", "json"]).args(flags));
    assert_eq!(report["completeness"]["exact"], true, "{name}: {}", report["completeness"]);
    for rank in 0..4 {
        let (found, truth) = (&report["ranks"][rank], recordings::truth(name, rank));
        assert_eq!(found["events"], truth["events"], "{name} rank {rank}");
        for (end, epoch) in found["epoch_ends"].as_array().unwrap().iter().zip(truth["epochs"].as_array().unwrap()) {
            assert_eq!(end["allocated_bytes"], epoch["allocated"], "{name} rank {rank}");
            assert_eq!(end["reserved_bytes"], epoch["reserved"], "{name} rank {rank}");
        }
    }
    run(memctl().args(["delete", "--yes"]).args(flags));
}

#[test]
fn recorded_jobs_stream_exactly_through_a_besieged_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (port, http) = (free_port(), free_port());
    let mut command = Command::new("prlimit");
    // The limit of its data segment: any allocation beyond the limit ends the daemon.
    command.arg(format!("--data={MEMORY_BYTES}")).arg(memctl_path()).arg("daemon").arg("--data-dir").arg(folder.path());
    command.arg(format!("--http-listen=127.0.0.1:{http}")).args(["--retain-bytes", "2GB"]).env("MEMCTL_LOG", "error");
    let daemon = DaemonProcess::start(&mut command, port);
    let (stop, counts) = (Arc::new(AtomicBool::new(false)), ATTACKS.map(|_| Arc::new(AtomicU64::new(0))));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (index, (kind, count)) in ATTACKS.into_iter().zip(counts.clone()).enumerate() {
        let stop = stop.clone();
        runtime.spawn(async move { attack(kind, port, (index as u64) << 32, &stop, &count).await });
    }
    let (began, mut jobs) = (Instant::now(), 0);
    while jobs < NAMES.len()
        || began.elapsed() < length()
        || counts.iter().any(|count| count.load(Ordering::Relaxed) == 0)
    {
        honest(&daemon.url, NAMES[jobs % NAMES.len()]);
        jobs += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let done: Vec<String> = ATTACKS
        .iter()
        .zip(&counts)
        .map(|(kind, count)| format!("{kind:?} {}", count.load(Ordering::Relaxed)))
        .collect();
    println!("{jobs} jobs; {}; peak {} MiB", done.join(", "), daemon.peak_bytes() >> 20);
    assert!(daemon.peak_bytes() < MEMORY_BYTES);
    runtime.shutdown_timeout(Duration::from_secs(10));
    assert_eq!(daemon.terminate(), 0);
}
