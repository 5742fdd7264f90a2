//! The agent against a daemon in the same process: drops and their repair, an absent daemon, the spool, a deadline.

use std::sync::Arc;
use std::time::Duration;

use memctl_agent::Backoff;
use memctl_agent::{Agent, AgentConfig, Daemon, SpoolConfig};
use memctl_answers::Completeness;
use memctl_answers::report::Report;
use memctl_answers::wire::from_wire;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::SqliteStore;
use memctl_model::{
    BlockState, BlockUse, DeviceIndex, DeviceInfo, Frame, Keyframe, KeyframeReason, SessionId, SessionInfo, StackId,
};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::source::Producer;
use memctl_tests::stored;
use tonic::transport::Endpoint;

const PATIENCE: Duration = Duration::from_secs(30);

fn session(job: &str) -> SessionInfo {
    SessionInfo {
        world_size: Some(1),
        host: Some("here".into()),
        pid: Some(1),
        devices: vec![DeviceInfo::default()],
        ..SessionInfo::live(SessionId([5; 16]), job, 1)
    }
}

fn config(job: &str, daemon: Daemon) -> AgentConfig {
    AgentConfig {
        linger: Some(Duration::from_millis(5)),
        backoff: Backoff { first: Duration::from_millis(2), most: Duration::from_millis(20) },
        ..AgentConfig::new(session(job), daemon)
    }
}

async fn embedded() -> Embedded {
    Embedded::start(Arc::new(SqliteStore::in_memory().await.unwrap())).await.unwrap()
}

/// Runs blocking work outside the runtime that hosts the daemon.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drop_is_counted_and_a_snapshot_makes_everything_exact_again() {
    let daemon = embedded().await;
    let config = AgentConfig { ring_events: 64, ..config("dropping", Daemon::Connected(daemon.channel())) };
    let outcome = blocking(move || {
        let agent = Agent::start(config).unwrap();
        let kept = agent.stack(&[Frame { function: "keep".into(), file: "train.py".into(), line: 3 }]);
        let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
        agent.epoch_begin(0);
        // The events come faster than a ring of 64 can be emptied, so some are dropped under any thread schedule.
        let mut addr = 1 << 30;
        while !recorder.snapshot_wanted() {
            for _ in 0..10_000 {
                recorder.alloc(addr, 512, 0, kept);
                addr += 512;
            }
        }
        // The truth: one block of 1 MiB is live.
        let block = BlockState {
            addr: 1 << 20,
            size: 1 << 20,
            requested: 1 << 20,
            usage: BlockUse::Allocated,
            stack: kept,
            ..BlockState::default()
        };
        let keyframe = Keyframe {
            device: DeviceIndex(0),
            at_event: 0,
            time_ns: 1_800_000_000_000_000_000,
            reason: KeyframeReason::AfterDrop,
            segments: Vec::new(),
            loose: vec![block],
        };
        assert!(recorder.snapshot(keyframe));
        assert!(!recorder.snapshot_wanted());
        agent.epoch_end(0);
        drop(recorder);
        agent.stop(None, PATIENCE)
    })
    .await;
    assert!(outcome.delivered, "{outcome:?}");
    assert!(outcome.end.dropped.ring_full > 0, "events were dropped");
    let counts = outcome.counts;
    assert_eq!(counts.produced, counts.stored + counts.dropped, "{counts:?}");
    assert_eq!(outcome.end.produced, counts.produced);
    assert_eq!(outcome.end.dropped.total(), counts.dropped);
    let report = stored::report(daemon.channel(), "dropping").await;
    let completeness = report.completeness;
    assert_eq!((completeness.exact, completeness.events_dropped), (false, counts.dropped));
    assert_eq!(completeness.events_stored, counts.stored);
    let end = &report.ranks[0].epoch_ends[0];
    assert!(end.exact, "behind the snapshot figures are exact again");
    assert_eq!(end.allocated_bytes, Some(1 << 20));
    daemon.stop().await.unwrap();
}

#[test]
fn a_daemon_that_comes_late_gets_everything() {
    let (folder, spool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let config = AgentConfig {
        memory_bytes_max: 16 << 10,
        spool: Some(SpoolConfig { folder: spool.path().to_owned(), bytes_max: 64 << 20 }),
        ..config("late", Daemon::Address(url.clone().into()))
    };
    let agent = Agent::start(config).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    for event in Producer::new(1).take(300_000) {
        recorder.event_waiting(&event).unwrap();
    }
    assert_eq!(agent.counts().stored, 0, "there is no daemon to store anything");
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    drop(recorder);
    let outcome = agent.stop(None, PATIENCE);
    assert!(outcome.delivered, "{outcome:?}");
    assert_eq!((outcome.counts.stored, outcome.counts.dropped), (300_000, 0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let stored = stored::events(channel, "late").await;
        let produced: Vec<_> = Producer::new(1).take(300_000).collect();
        stored::assert_same(&stored[0].events, &produced);
    });
    // The daemon would wait for its open connection.
    drop(runtime);
    assert_eq!(daemon.terminate(), 0);
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0, "a delivered spool leaves nothing behind");
}

#[test]
fn what_an_agent_leaves_in_its_spool_the_next_one_delivers() {
    let (folder, spool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let spooled = |job: &str, id: u8| AgentConfig {
        session: SessionInfo { id: SessionId([id; 16]), ..session(job) },
        spool: Some(SpoolConfig { folder: spool.path().to_owned(), bytes_max: 64 << 20 }),
        ..config(job, Daemon::Address(url.clone().into()))
    };
    let first = Agent::start(spooled("first", 1)).unwrap();
    let mut recorder = first.recorder(DeviceIndex(0)).unwrap();
    for event in Producer::new(9).take(5_000) {
        recorder.event_waiting(&event).unwrap();
    }
    drop(recorder);
    let outcome = first.stop(None, Duration::from_millis(50));
    assert!(!outcome.delivered);
    assert_eq!((outcome.counts.stored, outcome.counts.dropped, outcome.counts.in_flight), (0, 0, 5_000), "{outcome:?}");
    let daemon = DaemonProcess::sqlite(folder.path(), port);
    let second = Agent::start(spooled("second", 2)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(url.clone()).unwrap().connect().await.unwrap();
        let delivered = async {
            loop {
                let mut client = memctl_proto::v1::query_client::QueryClient::new(channel.clone());
                let request = memctl_proto::v1::ReportRequest { selection: stored::job("first") };
                if let Ok(report) = client.get_report(request).await
                    && let Completeness { exact: true, events_stored: 5_000, .. } =
                        from_wire::<Report>(report.get_ref()).unwrap().completeness
                {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, delivered).await.expect("the orphaned spool is delivered");
    });
    drop(runtime);
    assert!(second.stop(None, PATIENCE).delivered);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn without_daemon_and_spool_a_deadline_ends_it_and_everything_is_counted() {
    let unreachable = Daemon::Address(format!("http://127.0.0.1:{}", free_port()).into());
    let agent =
        Agent::start(AgentConfig { ring_events: 1 << 16, memory_bytes_max: 4 << 10, ..config("nobody", unreachable) })
            .unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    // More events than outbox and ring hold: the newest are dropped, and the producer never waits.
    let got_in = Producer::new(4).take(500_000).filter(|event| recorder.event(event)).count() as u64;
    drop(recorder);
    let outcome = agent.stop(None, Duration::from_millis(20));
    let counts = outcome.counts;
    assert!(!outcome.delivered);
    assert_eq!((counts.produced, counts.stored, counts.in_flight), (500_000, 0, 0), "{outcome:?}");
    assert_eq!(counts.dropped, 500_000);
    assert!(got_in < 500_000, "the ring was full");
    assert_eq!(outcome.end.produced, 500_000);
}

#[test]
fn a_session_that_no_daemon_would_take_is_told_at_the_start() {
    let bad = SessionInfo { job: "no such name!".into(), ..session("x") };
    let config = AgentConfig { session: bad, ..config("x", Daemon::Address("http://127.0.0.1:1".into())) };
    let Err(error) = Agent::start(config) else { panic!("it started") };
    assert!(error.to_string().contains("session.job"), "{error}");
}

#[test]
fn a_refused_session_does_not_hold_the_trainer_up() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let record = |events: usize| {
        let agent = Agent::start(config("again", Daemon::Address(daemon.url.clone().into()))).unwrap();
        let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
        for event in Producer::new(6).take(events) {
            recorder.event_waiting(&event).unwrap();
        }
        drop(recorder);
        agent.stop(None, PATIENCE)
    };
    assert!(record(10).delivered);
    // The same session again, from another process without the state of the first, and with many more items. Either the
    // agent detects that the items are not its own, or the daemon reports that the session has ended.
    let outcome = record(600_000);
    assert!(!outcome.delivered);
    assert!(outcome.refused.is_some(), "{outcome:?}");
    let report = memctl_tests::run_json(memctl_tests::memctl().args([
        "query",
        "-o",
        "json",
        "--job",
        "again",
        "--daemon",
        &daemon.url,
    ]));
    assert_eq!((&report["job"]["events"], &report["completeness"]["exact"]), (&10.into(), &true.into()));
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_mark_behind_drops_does_not_pass_for_exact() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let small = AgentConfig { ring_events: 16, ..config("marked", Daemon::Address(daemon.url.clone().into())) };
    let agent = Agent::start(small).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    agent.epoch_begin(0);
    // Until the last event before the mark is a dropped one, so that no later record can report the gap.
    let mut addr = 1 << 30;
    while recorder.alloc(addr, 512, 0, StackId::NONE) {
        addr += 512;
    }
    agent.epoch_end(0);
    drop(recorder);
    let outcome = agent.stop(None, PATIENCE);
    assert!(outcome.delivered && outcome.counts.dropped > 0, "{outcome:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let channel = Endpoint::from_shared(daemon.url.clone()).unwrap().connect().await.unwrap();
        stored::report(channel, "marked").await
    });
    drop(runtime);
    assert!(!report.ranks[0].epoch_ends[0].exact, "the end of epoch 0 misses an event");
    assert!(!report.completeness.exact);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_stop_ends_a_worker_that_waits_for_room() {
    let unreachable = Daemon::Address(format!("http://127.0.0.1:{}", free_port()).into());
    let agent = Agent::start(AgentConfig { memory_bytes_max: 1 << 10, ..config("blocked", unreachable) }).unwrap();
    let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
    // While the ring is emptied, the worker is not blocked; a ring that stays full shows that it is.
    let mut refused_in_a_row = 0;
    for event in Producer::new(4) {
        refused_in_a_row = if recorder.event(&event) { 0 } else { refused_in_a_row + 1 };
        if refused_in_a_row == 2_000_000 {
            break;
        }
    }
    drop(recorder);
    let outcome = agent.stop(None, Duration::from_millis(10));
    assert!(!outcome.delivered);
    assert_eq!(outcome.counts.produced, outcome.counts.dropped, "{outcome:?}");
}

#[test]
fn the_example_trainer_is_recorded_and_its_leak_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let trainer = memctl_tests::memctl_path().with_file_name("examples").join("trainer");
    assert!(trainer.exists(), "{} is not there: cargo build -p memctl-agent --examples", trainer.display());
    memctl_tests::run(std::process::Command::new(trainer).arg(&daemon.url));
    let report = memctl_tests::run_json(memctl_tests::memctl().args([
        "query",
        "-o",
        "json",
        "--job",
        "rust-trainer",
        "--daemon",
        &daemon.url,
    ]));
    assert_eq!(report["job"]["state"], "finished");
    let rank = &report["ranks"][0];
    assert_eq!((&rank["epochs"], &rank["steps"]), (&4.into(), &100.into()), "{rank}");
    assert_eq!(rank["growth_bytes_per_epoch"], 1 << 20);
    assert_eq!(report["growth"][0]["site"]["function"], "Log::remember");
    assert_eq!(daemon.terminate(), 0);
}
