//! `memctl need` through real binaries: on the bundled recordings every size has the outcome that `memctl what-if`
//! finds for its limit, and a live job has its measurements, its host and its line.

use memctl_agent::{Agent, now_ns};
use memctl_model::Sample;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::jobs::{self, Training, record, session};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Bytes that are assumed outside the allocator of an import.
const OUTSIDE: u64 = 1 << 30;

/// The outcome under a limit, by an independent question about all ranks, and the most retries.
fn by_what_if(url: &str, job: &str, limit: u64) -> (&'static str, u64) {
    let line = ["what-if", "-o", "json", "--daemon", url, "--job", job, "--rank", "0-3", "--limit"];
    let answer = run_json(memctl().args(line).arg(format!("{limit}B")).args(["--set", "max_split_size_mb:9999"]));
    let ranks = answer["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4, "{job}");
    let own: Vec<&Value> = ranks
        .iter()
        .map(|rank| {
            let settings = rank["settings"].as_array().unwrap();
            let conf = &rank["recorded"]["allocator_conf"];
            settings.iter().find(|it| it["allocator_conf"] == *conf && it["limit_bytes"] == limit).unwrap()
        })
        .collect();
    let retries = own.iter().map(|it| it["retries"].as_u64().unwrap()).max().unwrap();
    match own.iter().any(|it| !it["out_of_memory"].is_null()) {
        true => ("fails", 0),
        false if retries > 0 => ("fits_after_retries", retries),
        false => ("fits", 0),
    }
}

#[test]
fn sizes_have_the_outcome_of_their_limit() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let mut seen = std::collections::BTreeSet::new();
    for job in ["cnn_rank0_cache", "cnn_cache_saturates", "gpt_varlen_fragmentation", "oom_by_fragmentation"] {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", job]).arg(folder(job)));
        let peaks = run_json(memctl().args(["query", "-o", "json", "--daemon", &daemon.url, "--job", job]));
        let highest = |figure: &str| {
            peaks["ranks"].as_array().unwrap().iter().map(|rank| rank[figure].as_u64().unwrap()).max().unwrap()
        };
        let (allocated, reserved) = (highest("peak_allocated_bytes"), highest("peak_reserved_bytes"));
        let between = |part: u64| allocated + (reserved - allocated) * part / 4;
        let limits =
            [allocated / 2, allocated - MIB, between(0), between(1), between(2), between(3), reserved, 4 * reserved];
        let sizes: Vec<String> = limits.iter().map(|limit| format!("--size={}B", limit + OUTSIDE)).collect();
        let need = run_json(memctl().args(["need", "-o", "json", "--daemon", &daemon.url, "--job", job]).args(sizes));
        for device in need["devices"].as_array().unwrap() {
            assert_eq!((&device["outside_bytes"], &device["assumed_outside_bytes"]), (&Value::Null, &OUTSIDE.into()));
        }
        let asked: Vec<&Value> = need["sizes"].as_array().unwrap().iter().filter(|it| it["asked"] == true).collect();
        let has_failed = need["devices"].as_array().unwrap().iter().any(|device| device["ooms"] != 0);
        for size in asked {
            let usable = size["usable_bytes"].as_u64().unwrap();
            let expected = match by_what_if(&daemon.url, job, usable - OUTSIDE) {
                ("fails", _) => ("fails", 0),
                // What follows a failed request is not recorded.
                _ if has_failed => ("unknown", 0),
                // A replay begins without the memory that was cached then, so it may reserve a little more.
                _ if usable - OUTSIDE >= reserved => ("fits", 0),
                served => served,
            };
            let outcome = size["outcome"].as_str().unwrap();
            assert_eq!((outcome, size["retries"].as_u64().unwrap_or(0)), expected, "{job} on {usable}: {size}");
            assert_eq!(size["failure"]["event"].is_u64(), outcome == "fails", "{size}");
            assert_eq!(size["reason"].is_null(), outcome != "unknown", "{size}");
            seen.insert(outcome.to_owned());
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["fails", "fits", "fits_after_retries", "unknown"]);
    // A usual size has a name, a page stays within its columns, and one line is one line.
    let ask = |flags: &[&str]| {
        let line = ["need", "--daemon", &daemon.url, "--job", "cnn_rank0_cache"];
        run(memctl().args(line).args(flags).env("COLUMNS", "80").env("LC_ALL", "C.UTF-8"))
    };
    let page = ask(&[]);
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("A device of 10 GB (9.50 GiB usable) would have been enough."), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    let line = ask(&["--line"]);
    assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
    assert!(line.starts_with("job=cnn_rank0_cache run=1 attempt=0 state=finished slurm_job=- exact=true "), "{line}");
    let many: Vec<String> = (1..=17).map(|gib| format!("--size={gib}GiB")).collect();
    let refused = memctl().args(["need", "--daemon", &daemon.url]).args(many).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "more sizes than are replayed at once");
}

/// A session with the labels of a scheduler.
fn scheduled(job: &str) -> memctl_model::SessionInfo {
    let labels = [("slurm.job", "905"), ("slurm.mem_per_node", "8192"), ("slurm.gpus_on_node", "2")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    memctl_model::SessionInfo { labels, ..session(job, 0) }
}

fn measured(agent: &Agent) {
    jobs::train(agent, Training { epochs: 2, ..Training::default() });
    agent.sample(Sample {
        time_ns: now_ns(),
        process_used_bytes: Some(600 * MIB),
        host_rss_bytes: Some(900 * MIB),
        children_rss_bytes: Some(100 * MIB),
        ..Sample::default()
    });
}

#[test]
fn a_live_job_is_compared_with_what_was_asked() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    record(&daemon.url, scheduled("j"), measured);
    let ask = ["need", "-o", "json", "--daemon", &daemon.url, "--size", "600MiB", "--size", "599MiB"];
    let need = run_json(memctl().args(ask));
    let device = &need["devices"][0];
    let figure = |name: &str| device[name].as_u64().unwrap() / MIB;
    assert_eq!((figure("peak_reserved_bytes"), figure("outside_bytes"), figure("needed_bytes")), (96, 504, 600));
    assert_eq!(figure("unused_bytes"), 80 * 1024 - 600);
    assert_eq!(device["assumed_outside_bytes"], Value::Null);
    let outcomes: Vec<_> = need["sizes"].as_array().unwrap()[..2].iter().map(|size| &size["outcome"]).collect();
    assert_eq!(outcomes, ["fails", "fits"], "{need}");
    assert_eq!(need["sizes"][0]["failure"]["rank"], 0, "{need}");
    let host = &need["hosts"][0];
    assert_eq!((&host["host"], &host["devices"], &host["devices_asked"]), (&"here".into(), &1.into(), &2.into()));
    assert_eq!((&host["highest_bytes"], &host["asked_bytes"]), (&(1000 * MIB).into(), &(8192 * MIB).into()));
    let answer = need["answer"].as_str().unwrap();
    assert!(answer.starts_with("Rank 0 needs 600 MiB of 80.0 GiB (96.0 MiB reserved by its allocator"), "{answer}");
    let line = run(memctl().args(["need", "slurm:905", "--line", "--daemon", &daemon.url]));
    for pair in ["slurm_job=905", "fits=10GB", "host_asked_bytes=8589934592", "devices_asked=2"] {
        assert!(line.split(' ').any(|part| part.trim() == pair), "{pair} in {line}");
    }
}
