//! A real daemon's store is backed up, restored elsewhere, checked, and read from a read-only place, by the command
//! line, while four ranks stream.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memctl_agent::{Agent, AgentConfig, Daemon, SpoolConfig};
use memctl_model::{DeviceIndex, DeviceInfo, SessionId, SessionInfo};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::source::Producer;
use memctl_tests::{http, memctl, recordings, run, run_json, stderr, stdout};
use sqlx::{Connection as _, SqliteConnection};

fn session(rank: u32) -> SessionInfo {
    SessionInfo {
        rank,
        world_size: Some(4),
        devices: vec![DeviceInfo::default()],
        ..SessionInfo::live(SessionId([rank as u8 + 1; 16]), "streaming", 1)
    }
}

/// Pause between two epochs of a stream, and after this many epochs: on a slow machine, what the commands have to read
/// must not grow faster than they read.
const PAUSE: Duration = Duration::from_millis(5);
const LONG_PAUSE: Duration = Duration::from_millis(100);
const FAST_EPOCHS: u64 = 40;

/// Streams until stopped; returns how many events were pushed and how it ended.
fn stream(rank: u32, agent: Agent, stop: &AtomicBool) -> (memctl_agent::Outcome, u64) {
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("the recorder");
    let mut events = Producer::new(u64::from(rank) + 7);
    let mut pushed = 0;
    // Relaxed: it only has to become visible at some time.
    while !stop.load(Ordering::Relaxed) {
        for event in events.by_ref().take(500) {
            recorder.event_waiting(&event).expect("the agent runs");
            pushed += 1;
        }
        let epoch = pushed / 500;
        agent.epoch_end(epoch as u32);
        std::thread::park_timeout(if epoch < FAST_EPOCHS { PAUSE } else { LONG_PAUSE });
    }
    drop(recorder);
    (agent.stop(None, Duration::from_secs(120)), pushed)
}

fn import(name: &str, url: &str) {
    run(memctl().arg("import").arg(recordings::folder(name)).args(["--job", name, "--daemon", url]));
}

/// Events of a job, by `memctl jobs`.
fn events(job: &str, place: &[&str]) -> u64 {
    let jobs = run_json(memctl().args(["jobs", "-o", "json"]).args(place));
    let row = jobs["jobs"].as_array().unwrap().iter().find(|row| row["id"] == job).unwrap_or_else(|| panic!("{jobs}"));
    row["events"].as_u64().unwrap()
}

/// A report without the fields that depend on when and where it was requested.
fn findings(job: &str, place: &[&str]) -> serde_json::Value {
    run_json(memctl().args(["leaks", "--job", job, "-o", "json"]).args(place))["findings"].clone()
}

#[test]
fn a_backup_under_load_is_whole_and_the_stream_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let daemon = DaemonProcess::sqlite(Path::new(&place("live")), free_port());
    let url = daemon.url.clone();
    import("gpt_val_graph_leak", &url);
    let stop = Arc::new(AtomicBool::new(false));
    let streams: Vec<_> = (0..4)
        .map(|rank| {
            let agent = Agent::start(AgentConfig {
                linger: Some(Duration::from_millis(5)),
                ..AgentConfig::new(session(rank), Daemon::Address(url.as_str().into()))
            });
            let (agent, stop) = (agent.expect("the agent starts"), stop.clone());
            let breaker = agent.breaker();
            (breaker, std::thread::spawn(move || stream(rank, agent, &stop)))
        })
        .collect();
    let acknowledged = || streams.iter().map(|(breaker, _)| breaker.acknowledged()).min().unwrap();
    let wait_for = |items: u64| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while acknowledged() < items {
            assert!(Instant::now() < deadline, "no acknowledgement came");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };
    wait_for(5);
    run(memctl().args(["backup", &place("backup.db"), "--data-dir", &place("live")]));
    // The check also works while the daemon runs.
    let checked = run_json(memctl().args(["check", "--deep", "-o", "json", "--data-dir", &place("live")]));
    assert_eq!(checked["problems_found"], 0, "{checked}");
    wait_for(acknowledged() + 5);
    // Relaxed: see above.
    stop.store(true, Ordering::Relaxed);
    let mut pushed = 0;
    for (_, thread) in streams {
        let (outcome, events) = thread.join().unwrap();
        assert!(outcome.delivered, "{outcome:?}");
        assert_eq!((outcome.end.produced, outcome.counts.dropped), (events, 0));
        pushed += events;
    }
    assert_eq!(events("streaming", &["--daemon", &url]), pushed, "the stream lost nothing");

    let restored = run(memctl().args(["restore", &place("backup.db"), "--data-dir", &place("restored")]));
    assert_eq!(restored, "");
    let checked = run_json(memctl().args(["check", "--deep", "-o", "json", "--data-dir", &place("restored")]));
    assert_eq!((&checked["problems_found"], &checked["jobs"]), (&0.into(), &2.into()), "{checked}");
    assert!(checked["items_read"].as_u64().unwrap() > 20 && checked["items_without_checksum"] == 0, "{checked}");
    let then = events("streaming", &["--data-dir", &place("restored")]);
    assert!(then > 0 && then < pushed, "in the midst of the stream: {then} of {pushed}");
    let known = findings("gpt_val_graph_leak", &["--daemon", &url]);
    assert!(!known.as_array().unwrap().is_empty());
    assert_eq!(findings("gpt_val_graph_leak", &["--data-dir", &place("restored")]), known);

    // A second restore into the same place and a second backup to the same file are refused.
    for words in [
        ["restore", &place("backup.db"), "--data-dir", &place("restored")],
        ["backup", &place("backup.db"), "--data-dir", &place("live")],
    ] {
        let refused = memctl().args(words).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_copy_is_asked_without_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("copy").to_string_lossy().into_owned();
    run(memctl().arg("import").arg(recordings::folder("gpt_clean")).args(["--job", "clean", "--data-dir", &data]));
    std::fs::remove_file(Path::new(&data).join("memctl.db.lock")).unwrap();
    let file = Path::new(&data).join("memctl.db");
    let before = std::fs::read(&file).unwrap();
    let flags = ["--read-only", "--retain-age", "1s", "--http-listen", "127.0.0.1:0"];
    let daemon = DaemonProcess::sqlite_with(Path::new(&data), free_port(), &flags);
    let asked = run(memctl().args(["query", "--job", "clean", "--daemon", &daemon.url]));
    assert!(asked.contains("clean"), "{asked}");
    let refused = memctl().args(["delete", "--job", "clean", "--yes", "--daemon", &daemon.url]).output().unwrap();
    assert!(
        stderr(&refused).contains("refuses: ") && stderr(&refused).contains("it was opened read-only"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(refused.status.code(), Some(6), "it did answer: {}", stderr(&refused));
    // A recording is refused for good, which is no fault of the store.
    let config = AgentConfig::new(session(0), Daemon::Address(daemon.url.as_str().into()));
    let agent = Agent::start(config).unwrap();
    let stopped = agent.stop(None, Duration::from_secs(60));
    assert!(stopped.refused.as_deref().is_some_and(|why| why.contains("this daemon is read-only")), "{stopped:?}");
    let ready = http::get(&format!("{}/readyz", daemon.http[0]));
    assert_eq!(ready.as_ref().map(|(status, _)| *status), Some(200), "{ready:?}");
    assert_eq!(daemon.terminate(), 0);
    assert!(std::fs::read(&file).unwrap() == before, "the file was changed");
    let names: Vec<_> = Path::new(&data).read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["memctl.db"], "no file was made");
}

#[test]
fn a_folder_of_another_user_is_asked() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("theirs");
    run(memctl()
        .arg("import")
        .arg(recordings::folder("gpt_clean"))
        .args(["--job", "clean"])
        .arg("--data-dir")
        .arg(&data));
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    open(folder.path(), 0o755);
    open(&data.join("memctl.db"), 0o444);
    open(&data.join("memctl.db.lock"), 0o444);
    open(&data, 0o555);
    let mut ask = memctl();
    ask.args(["query", "--job", "clean"]).arg("--data-dir").arg(&data).env("HOME", "/nonexistent");
    // Root may write everywhere, so another user runs it.
    if std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0) {
        let program = folder.path().join("memctl");
        std::fs::copy(memctl_tests::memctl_path(), &program).unwrap();
        ask = std::process::Command::new(program);
        ask.args(["query", "--job", "clean"]).arg("--data-dir").arg(&data);
        ask.env_clear().env("NO_COLOR", "1").uid(65_534).gid(65_534);
    }
    let asked = ask.output().unwrap();
    assert!(asked.status.success() && stdout(&asked).contains("clean"), "{}", stderr(&asked));
    open(&data, 0o755);
}

/// An answer that had to leave something out is not called exact.
#[tokio::test]
async fn an_answer_without_damaged_items_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_string_lossy().into_owned();
    let ask = |format: &str| {
        let mut sites = memctl();
        sites.args(["sites", "--job", "cache", "-o", format, "--data-dir", &data]);
        sites
    };
    run(memctl().arg("import").arg(recordings::folder("cnn_rank0_cache")).args([
        "--job",
        "cache",
        "--data-dir",
        &data,
    ]));
    let mut connection =
        SqliteConnection::connect(&format!("sqlite://{}", folder.path().join("memctl.db").display())).await.unwrap();
    let flip = "UPDATE payload SET bytes = CAST(substr(bytes, 1, 9) || x'55aa' || substr(bytes, 12) AS BLOB) \
                WHERE (session_id, seq) IN (SELECT session_id, seq FROM item WHERE kind = 3)";
    let flipped = sqlx::query(flip).execute(&mut connection).await.unwrap().rows_affected();
    connection.close().await.unwrap();
    assert!(flipped > 0, "items of stacks");
    for _ in 0..2 {
        let damaged = run_json(&mut ask("json"))["completeness"].clone();
        assert_eq!((damaged["exact"].as_bool(), damaged["items_damaged"].as_u64()), (Some(false), Some(flipped)));
    }
    let page = run(&mut ask("table"));
    assert!(page.contains("damaged and"), "{page}");
}

/// Overwrites the root page of a table.
async fn damage_page(file: &Path, table: &str) {
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    let page: i64 = sqlx::query_scalar("SELECT rootpage FROM sqlite_master WHERE name = ?")
        .bind(table)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let bytes: i64 = sqlx::query_scalar("PRAGMA page_size").fetch_one(&mut connection).await.unwrap();
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let mut whole = std::fs::read(file).unwrap();
    let at = ((page - 1) * bytes) as usize;
    whole[at..at + 400].fill(0xA5);
    std::fs::write(file, whole).unwrap();
}

/// A store that takes no write is not ready as long as agents try, and the agent learns the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_damaged_page_is_not_ready_and_the_agent_learns_why() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    run(memctl().arg("import").arg(recordings::folder("gpt_clean")).args(["--job", "clean", "--data-dir"]).arg(&data));
    damage_page(&data.join("memctl.db"), "payload").await;
    let (daemon, port) = super::page::served(&data, &[]);
    let ready = || super::page::get(&port, "/readyz").status == 200;
    let config = AgentConfig {
        linger: Some(Duration::from_millis(5)),
        spool: Some(SpoolConfig { folder: folder.path().join("spool"), bytes_max: 1 << 20 }),
        ..AgentConfig::new(session(0), Daemon::Address(daemon.url.as_str().into()))
    };
    let agent = Agent::start(config).expect("the agent starts");
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("the recorder");
    Producer::new(3).take(100).for_each(|event| recorder.event_waiting(&event).expect("the agent runs"));
    agent.epoch_end(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while ready() {
        assert!(Instant::now() < deadline, "the failed write is not known");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The agent tries again and again; each attempt begins with a transaction without items.
    for _ in 0..20 {
        assert!(!ready(), "the store takes no write");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(recorder);
    let outcome = agent.stop(None, Duration::from_secs(1));
    assert!(!outcome.delivered && outcome.counts.dropped == 0, "it is in the spool: {outcome:?}");
    assert!(outcome.not_accepted.as_ref().is_some_and(|why| why.contains("damaged")), "{outcome:?}");
    let doctor = memctl().args(["doctor", "--daemon", &daemon.url]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(3), "{}", stdout(&doctor));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_check_ends_with_1_when_something_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_string_lossy().into_owned();
    run(memctl().arg("import").arg(recordings::folder("gpt_clean")).args(["--job", "clean", "--data-dir", &data]));
    let page = run(memctl().args(["check", "--data-dir", &data]));
    assert!(page.contains("found     no problem"), "{page}");
    let compacted = memctl().args(["check", "--deep", "--compact", "--data-dir", &data]).output().unwrap();
    assert!(compacted.status.success() && stderr(&compacted).contains("compacted from"), "{}", stderr(&compacted));
    // Flips a bit of an item, after the magic number of its zstd data.
    let file = Path::new(&data).join("memctl.db");
    let whole = std::fs::read(&file).unwrap();
    let packed: Vec<usize> =
        (0..whole.len() - 4).filter(|&at| whole[at..].starts_with(&[0x28, 0xb5, 0x2f, 0xfd])).collect();
    assert!(packed.len() > 3, "items lie in the file");
    let mut found = 0;
    for at in [packed[packed.len() / 3], packed[packed.len() / 2], packed[packed.len() - 1]] {
        let mut bytes = whole.clone();
        bytes[at + 8] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
        let checked = memctl().args(["check", "--deep", "--data-dir", &data]).output().unwrap();
        found += usize::from(checked.status.code() == Some(1) && stdout(&checked).contains("problem   item "));
    }
    assert!(found >= 2, "{found} of 3 flipped bits were found: one may lie where nothing is stored any more");
    let named = memctl().args(["check", "--daemon", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(named.status.code(), Some(2), "{}", stderr(&named));
}
