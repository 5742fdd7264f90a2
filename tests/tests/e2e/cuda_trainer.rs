//! The agent's example `cuda_trainer`, a cudarc program, against a real daemon: the stored events are its allocations.
//!
//! It runs only if `MEMCTL_FAKE_GPU` names the `run` of a fake GPU (`tests/fakegpu/setup none` prints it): genuine
//! cudarc, genuine memory calls, no kernels. Without it the tests report that they were skipped, and pass.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use memctl_model::{Action, Event};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::{memctl, run_json, stderr, stdout, stored};
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};

const SOURCE: &str = include_str!("../../../agent/examples/cuda_trainer.rs");
/// As in the example.
const EPOCHS: usize = 4;
const STEPS: usize = 64;
const BATCH_BYTES: u64 = 4096 * 4;
const KEPT_BYTES: u64 = 1 << 20;

/// The fake GPU's `run`, if there is one.
fn fake_gpu() -> Option<PathBuf> {
    let found = std::env::var_os("MEMCTL_FAKE_GPU").map(PathBuf::from);
    if found.is_none() {
        eprintln!("SKIPPED: MEMCTL_FAKE_GPU is not set; MEMCTL_FAKE_GPU=$(tests/fakegpu/setup none) runs this test");
    }
    found
}

/// The built example.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("examples/cuda_trainer");
    assert!(path.exists(), "{} is not there: run `cargo build --workspace --all-targets` first", path.display());
    path
}

/// A daemon of its own for each test.
struct TestDaemon {
    daemon: DaemonProcess,
    _folder: tempfile::TempDir,
}

impl TestDaemon {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { daemon: DaemonProcess::sqlite(folder.path(), free_port()), _folder: folder }
    }

    fn train(&self, fake_gpu: &PathBuf, job: &str, flags: &[&str], memory_mib: &str) -> Output {
        let mut command = Command::new(fake_gpu);
        command.arg(example()).args(["--without-kernels", "--job", job]).args(flags);
        command.env("MEMCTL_DAEMON", &self.daemon.url).env("FAKE_GPU_MIB", memory_mib).env_remove("FAKE_GPU_STATE");
        command.output().expect("the example starts")
    }

    fn json(&self, verb: &str, job: &str, more: &[&str]) -> Value {
        run_json(memctl().args([verb, "-q", "--daemon", &self.daemon.url, "--job", job, "-o", "json"]).args(more))
    }

    fn events(&self, job: &str) -> Vec<Event> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::from_shared(self.daemon.url.clone()).unwrap();
            let channel: Channel = endpoint.connect_timeout(Duration::from_secs(30)).connect().await.unwrap();
            let mut stored = stored::events(channel, job).await;
            assert_eq!(stored.len(), 1, "one rank, one device");
            stored.remove(0).events
        })
    }
}

/// The program's actions and sizes in order, by its source.
fn expected(leak: bool) -> Vec<(Action, u64)> {
    let mut all = vec![(Action::Alloc, 8)];
    let free = |size| [(Action::FreeRequested, size), (Action::FreeCompleted, size)];
    for _ in 0..EPOCHS {
        for _ in 0..STEPS {
            all.extend([(Action::Alloc, BATCH_BYTES), (Action::Alloc, BATCH_BYTES), (Action::Alloc, 12)]);
            all.extend([12, BATCH_BYTES, BATCH_BYTES].into_iter().flat_map(free));
        }
        if leak {
            all.push((Action::Alloc, KEPT_BYTES));
        }
    }
    if leak {
        all.extend([KEPT_BYTES; EPOCHS].into_iter().flat_map(free));
    }
    all.extend(free(8));
    all
}

fn shape(events: &[Event]) -> Vec<(Action, u64)> {
    events.iter().map(|event| (event.action, event.size)).collect()
}

/// Every block is freed at the address at which it was allocated; no address is allocated twice at a time.
fn assert_addresses_pair(events: &[Event]) {
    let mut live = std::collections::BTreeMap::new();
    for event in events {
        match event.action {
            Action::Alloc => {
                assert!(event.addr != 0 && event.stack.is_some(), "{event:?}");
                assert_eq!(live.insert(event.addr, event.size), None, "{event:?} lies where another lives");
            }
            Action::FreeCompleted => assert_eq!(live.remove(&event.addr), Some(event.size), "{event:?}"),
            _ => {}
        }
    }
    assert!(live.is_empty(), "all is given back in the end: {live:?}");
}

/// Number of the first line of the example that holds `text`.
fn line(text: &str) -> u64 {
    1 + SOURCE.lines().position(|line| line.contains(text)).expect("the example's source") as u64
}

#[test]
fn what_a_cudarc_program_allocates_is_stored_event_for_event() {
    let Some(fake_gpu) = fake_gpu() else { return };
    let asked = TestDaemon::new();
    for (job, flags) in [("leaking", &["--leak"][..]), ("sound", &[])] {
        let output = asked.train(&fake_gpu, job, flags, "1024");
        assert!(output.status.success(), "{job}: {}", stderr(&output));
        let events = asked.events(job);
        let expected = expected(!flags.is_empty());
        assert_eq!(shape(&events), expected, "{job}");
        assert_addresses_pair(&events);
        let produced = format!("{0} events, {0} stored, 0 dropped", expected.len());
        assert!(stdout(&output).contains(&produced), "{job}: {}", stdout(&output));
    }
}

#[test]
fn growth_and_sites_name_file_and_line_of_the_call() {
    let Some(fake_gpu) = fake_gpu() else { return };
    let asked = TestDaemon::new();
    for (job, flags, kept) in [("leaking", &["--leak"][..], KEPT_BYTES), ("sound", &[], 0)] {
        assert!(asked.train(&fake_gpu, job, flags, "1024").status.success());
        let report = asked.json("query", job, &[]);
        let rank = &report["ranks"][0];
        assert_eq!(rank["growth_bytes_per_epoch"].as_u64(), Some(kept), "{job}");
        assert_eq!((rank["epochs"].as_u64(), rank["steps"].as_u64()), (Some(4), Some(256)), "{job}");
        assert_eq!((&rank["gpu_name"], &rank["framework"]), (&"Fake GPU".into(), &"cudarc".into()));
        assert!(rank["gpu_uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-") && uuid.len() == 40));
        for (epoch, end) in rank["epoch_ends"].as_array().unwrap().iter().enumerate() {
            // Two floats of the model take a block of 512 bytes each time the size is rounded up.
            assert_eq!(end["allocated_bytes"].as_u64(), Some(512 + kept * (epoch as u64 + 1)), "{job} epoch {epoch}");
            assert_eq!(end["exact"], true);
        }
        let growth = report["growth"].as_array().unwrap();
        assert_eq!(growth.len(), usize::from(kept > 0), "{job}: {growth:?}");
        let site = |function: &str, text| serde_json::json!({"function": function, "file": "agent/examples/cuda_trainer.rs", "line": line(text)});
        if let Some(found) = growth.first() {
            assert_eq!(found["site"], site("alloc_zeros", "history.push("));
        }
        let sites = asked.json("sites", job, &["--peak"]);
        let found: Vec<&Value> = sites["ranks"][0]["sites"].as_array().unwrap().iter().map(|it| &it["site"]).collect();
        assert!(found.contains(&&site("clone_htod", "let line = stream.clone_htod(")), "{job}: {found:?}");
    }
}

#[test]
fn an_allocation_that_fails_is_recorded_and_passed_on() {
    let Some(fake_gpu) = fake_gpu() else { return };
    let asked = TestDaemon::new();
    // The device has room for two of the four kept buffers.
    let output = asked.train(&fake_gpu, "short", &["--leak"], "3");
    assert!(!output.status.success(), "memory was to run out: {}", stdout(&output));
    assert!(stderr(&output).contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", stderr(&output));
    let events = asked.events("short");
    let failed: Vec<&Event> = events.iter().filter(|event| event.action == Action::Oom).collect();
    let [failed] = failed[..] else { panic!("one request failed: {failed:?}") };
    assert_eq!(failed.size, KEPT_BYTES);
    assert!(failed.addr < KEPT_BYTES && failed.stack.is_some(), "free bytes stand in its address: {failed:?}");
    let report = asked.json("query", "short", &[]);
    let rank = &report["ranks"][0];
    assert_eq!(rank["state"], "failed", "{rank}");
    assert!(rank["failure"].as_str().is_some_and(|text| text.contains("OUT_OF_MEMORY")), "{rank}");
}
