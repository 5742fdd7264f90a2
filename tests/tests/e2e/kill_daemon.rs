//! kill -9 of the daemon in the middle of four streams, many times: all acknowledged data is stored exactly once, and
//! `produced = stored + dropped + in flight`.
//!
//! `MEMCTL_KILLS=200 cargo test -p memctl-tests --release --test e2e kill_daemon::` runs the long form.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memctl_agent::Backoff;
use memctl_agent::{Agent, AgentConfig, Daemon, Outcome};
use memctl_model::{DeviceIndex, DeviceInfo, Event, SessionId, SessionInfo};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::source::Producer;
use memctl_tests::streaming::AHEAD;
use memctl_tests::{recordings, stored};
use tonic::transport::Endpoint;

const RANKS: u32 = 4;

fn kills() -> u32 {
    std::env::var("MEMCTL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn session(rank: u32) -> SessionInfo {
    SessionInfo {
        rank,
        world_size: Some(RANKS),
        devices: vec![DeviceInfo::default()],
        ..SessionInfo::live(SessionId([rank as u8 + 1; 16]), "killed", 1)
    }
}

fn start(rank: u32, url: &str) -> Agent {
    Agent::start(AgentConfig {
        linger: Some(Duration::from_millis(5)),
        memory_bytes_max: 64 << 20,
        // The agent reconnects at once, because the daemon is down for milliseconds only.
        backoff: Backoff { first: Duration::from_millis(5), most: Duration::from_millis(40) },
        ..AgentConfig::new(session(rank), Daemon::Address(url.into()))
    })
    .expect("the agent starts")
}

/// Streams until stopped; returns the outcome and how many events were pushed.
fn stream(rank: u32, agent: Agent, stop: &AtomicBool) -> (Outcome, u64) {
    let mut recorder = agent.recorder(DeviceIndex(0)).expect("the recorder");
    let mut events = Producer::new(u64::from(rank) + 7);
    let (breaker, mut pushed) = (agent.breaker(), 0);
    while !stop.load(Ordering::Relaxed) {
        for event in events.by_ref().take(500) {
            recorder.event_waiting(&event).expect("the agent runs");
            pushed += 1;
        }
        let epoch = (pushed / 500) as u32;
        agent.epoch_begin(epoch);
        agent.epoch_end(epoch);
        std::thread::yield_now();
        // Paced to some 100,000 events a second and to what the daemon stores, so that items are always in flight, the
        // test stays small and the rest is delivered in time.
        std::thread::park_timeout(Duration::from_millis(5));
        while pushed > breaker.stored_events() + AHEAD && !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
    drop(recorder);
    (agent.stop(None, Duration::from_secs(120)), pushed)
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_stored_twice() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut daemon = DaemonProcess::sqlite(folder.path(), port);
    let url = daemon.url.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let streams: Vec<_> = (0..RANKS)
        .map(|rank| {
            let (agent, stop) = (start(rank, &url), stop.clone());
            let breaker = agent.breaker();
            (breaker, std::thread::spawn(move || stream(rank, agent, &stop)))
        })
        .collect();
    for kill in 0..kills() {
        // Each round ends during active streams: all streams have received acknowledgements since the start of this
        // daemon.
        let before: Vec<u64> = streams.iter().map(|(breaker, _)| breaker.acknowledged()).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        while streams.iter().zip(&before).any(|((breaker, _), before)| breaker.acknowledged() <= *before) {
            assert!(Instant::now() < deadline, "round {kill}: no acknowledgement came");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        // A different moment of the commit cycle in every round.
        std::thread::park_timeout(Duration::from_millis(u64::from(kill * 7 % 40)));
        daemon.kill();
        daemon = DaemonProcess::sqlite(folder.path(), port);
    }
    stop.store(true, Ordering::Relaxed);
    let outcomes: Vec<(Outcome, u64)> = streams.into_iter().map(|(_, thread)| thread.join().unwrap()).collect();
    for (rank, (outcome, pushed)) in outcomes.iter().enumerate() {
        assert!(outcome.delivered, "rank {rank}: {outcome:?}");
        assert_eq!(outcome.end.produced, *pushed, "rank {rank}");
        assert_eq!(outcome.counts.produced, outcome.counts.stored + outcome.counts.dropped + outcome.counts.in_flight);
        assert_eq!(
            (outcome.counts.in_flight, outcome.counts.dropped),
            (0, 0),
            "rank {rank}: a source that waits drops nothing"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(compare(&url, &outcomes));
}

async fn compare(url: &str, outcomes: &[(Outcome, u64)]) {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
    let report = stored::report(channel.clone(), "killed").await;
    let completeness = report.completeness;
    assert_eq!((completeness.exact, completeness.gaps), (true, 0), "{completeness:?}");
    let ranks = stored::events(channel, "killed").await;
    assert_eq!(ranks.len(), RANKS as usize);
    for stored in ranks {
        let (_, pushed) = &outcomes[stored.rank as usize];
        let mut next = 0;
        for (first, events) in &stored.chunks {
            assert_eq!(*first, next, "rank {}: a chunk is missing or there twice", stored.rank);
            next += events;
        }
        assert_eq!(next, *pushed, "rank {}: produced = stored", stored.rank);
        let produced: Vec<Event> = Producer::new(u64::from(stored.rank) + 7).take(*pushed as usize).collect();
        stored::assert_same(&stored.events, &produced);
    }
}

/// `memctl import` itself, while its daemon dies repeatedly: the import continues by itself, and every counter is
/// exact.
#[test]
fn an_import_survives_the_deaths_of_its_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut daemon = Some(DaemonProcess::sqlite(folder.path(), port));
    let url = format!("http://127.0.0.1:{port}");
    let names = ["gpt_clean", "gpt_val_graph_leak", "gpt_varlen_fragmentation"];
    let mut killed_in_mid_import = 0;
    for name in names {
        killed_in_mid_import += import_under_fire(name, &url, port, folder.path(), &mut daemon);
    }
    assert!(killed_in_mid_import > 0, "no kill hit an import");
    for name in names {
        let report = memctl_tests::run_json(
            memctl_tests::memctl().args(["query", "-o", "json", "--daemon", &url, "--job", name]),
        );
        assert_eq!(report["completeness"]["exact"], true, "{name}: {}", report["completeness"]);
        for rank in 0..4 {
            let (found, truth) = (&report["ranks"][rank], recordings::truth(name, rank));
            assert_eq!(found["events"], truth["events"], "{name} rank {rank}");
            for (end, epoch) in found["epoch_ends"].as_array().unwrap().iter().zip(truth["epochs"].as_array().unwrap())
            {
                assert_eq!(end["allocated_bytes"], epoch["allocated"], "{name} rank {rank}");
                assert_eq!(end["reserved_bytes"], epoch["reserved"], "{name} rank {rank}");
            }
        }
    }
}

/// Imports a recording while its daemon is killed and started again; returns the number of kills that hit.
fn import_under_fire(name: &str, url: &str, port: u16, folder: &Path, daemon: &mut Option<DaemonProcess>) -> u32 {
    let import = || {
        memctl_tests::memctl()
            .args(["import", "-q", "-o", "json", "--daemon", url, "--job", name])
            .arg(recordings::folder(name))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut importing = import();
    let mut kills = 0;
    for wait_ms in [120, 60, 200, 90, 150, 40] {
        std::thread::park_timeout(Duration::from_millis(wait_ms));
        let running = importing.try_wait().unwrap().is_none();
        daemon.take().expect("a daemon").kill();
        kills += u32::from(running);
        *daemon = Some(DaemonProcess::sqlite(folder, port));
        if !running {
            break;
        }
    }
    let status = importing.wait().unwrap();
    // Its first or last request may have failed because the daemon was dead (3). Then it imported nothing, or
    // everything.
    assert!(status.success() || status.code() == Some(3), "{name}: {status}");
    if !status.success() {
        let again = import().wait().unwrap();
        assert!(again.success() || again.code() == Some(5), "{name}: {again} (5: it is there already)");
    }
    kills
}
