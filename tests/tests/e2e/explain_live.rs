//! Explanations of memory for jobs under an agent: a failed request after a flush, a neighbour, churn, a death outside
//! the allocator, and a ledger that sums to the device's figure.

use std::sync::Arc;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon, Recorder};
use memctl_answers::finding::Evidence;
use memctl_answers::ledger::Ledger;
use memctl_answers::oom::Oom;
use memctl_answers::report::Report;
use memctl_answers::wire::from_wire;
use memctl_daemon::event_analysis::findings;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::{SqliteStore, Store};
use memctl_model::{
    DeviceIndex, DeviceInfo, EvidenceValue, Finding, FindingKind, Frame, Sample, SessionId, SessionInfo, Severity,
    StackId,
};
use memctl_proto::v1::query_client::QueryClient;
use memctl_proto::v1::{LedgerRequest, OomRequest, ReportRequest, Selection, ledger_request::Moment};

const PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
const STEPS: u64 = 30;

fn session(job: &str, rank: u32) -> SessionInfo {
    SessionInfo {
        rank,
        world_size: Some(2),
        host: Some("here".into()),
        pid: Some(1),
        devices: vec![DeviceInfo { total_bytes: Some(1024 * MIB), ..DeviceInfo::default() }],
        ..SessionInfo::live(SessionId([rank as u8 + 1; 16]), job, 1)
    }
}

fn selection(job: &str) -> Selection {
    Selection { job: job.into(), ..Selection::default() }
}

/// A daemon in this process on a store that the test can read directly.
async fn embedded() -> (Arc<dyn Store>, Embedded) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
    let daemon = Embedded::start(store.clone()).await.unwrap();
    (store, daemon)
}

/// Runs a rank to its end beside the runtime that hosts the daemon.
async fn run(daemon: &Embedded, job: &str, rank: u32, failure: Option<&str>, work: fn(&Agent, &mut Recorder, StackId)) {
    let config = AgentConfig::new(session(job, rank), Daemon::Connected(daemon.channel()));
    let failure = failure.map(str::to_owned);
    let outcome = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        let stack = agent.stack(&[Frame { function: "forward".into(), file: "/home/me/model.py".into(), line: 12 }]);
        let mut recorder = agent.recorder(DeviceIndex(0)).unwrap();
        work(&agent, &mut recorder, stack);
        agent.stop(failure, PATIENCE)
    });
    let outcome = outcome.await.unwrap();
    assert!(outcome.delivered && outcome.notes_dropped == 0, "nothing was lost on the way");
}

fn of_kind(found: &[Finding], kind: FindingKind) -> &Finding {
    found.iter().find(|finding| finding.kind == kind).unwrap_or_else(|| panic!("no {kind:?} in {found:#?}"))
}

/// 400 MiB live, 200 MiB cached; 324 MiB of the device belong to another process. A request of 600 MiB does not fit.
fn crowded(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    agent.epoch_begin(0);
    agent.step_begin(0);
    recorder.segment_alloc(1 << 40, 400 * MIB, 0);
    recorder.alloc(1 << 40, 400 * MIB, 0, stack);
    recorder.segment_alloc(2 << 40, 200 * MIB, 0);
    let sample = Sample {
        device_used_bytes: Some(924 * MIB),
        device_total_bytes: Some(1024 * MIB),
        process_used_bytes: Some(600 * MIB),
        foreign_used_bytes: Some(324 * MIB),
        reserved_bytes: Some(600 * MIB),
        time_ns: memctl_agent::now_ns(),
        ..Sample::default()
    };
    agent.sample(sample);
    agent.step_end(0);
    agent.step_begin(1);
    // The allocator does this before it gives up.
    recorder.segment_free(2 << 40, 200 * MIB, 0);
    recorder.out_of_memory(600 * MIB, 300 * MIB, stack);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_is_seen_as_it_was_before_the_flush_and_a_neighbour_is_named() {
    let (store, daemon) = embedded().await;
    run(&daemon, "crowded", 0, Some("out of memory"), crowded).await;
    let request = OomRequest { selection: Some(selection("crowded")), ..Default::default() };
    let answer = QueryClient::new(daemon.channel()).get_oom(request).await.unwrap();
    let answer: Oom = from_wire(answer.get_ref()).unwrap();
    let [report] = answer.failures.as_slice() else { panic!("one report: {answer:#?}") };
    assert_eq!(
        (report.reserved_bytes, report.flushed_bytes, report.free_in_cache_bytes),
        (600 * MIB, 200 * MIB, 200 * MIB)
    );
    assert_eq!((report.others_bytes, report.outside_bytes), (Some(324 * MIB), Some(0)));
    assert_eq!((report.epoch, report.step, report.limit_below_bytes), (Some(0), Some(1), None));
    assert_eq!((report.sites[0].live_bytes, report.sites[0].before_bytes), (400 * MIB, Some(400 * MIB)));
    let found = findings(&store, &selection("crowded")).await.unwrap();
    let oom = of_kind(&found, FindingKind::Oom);
    assert_eq!(
        oom.title,
        "Out of memory on rank 0 in epoch 0, step 1: 600 MiB requested in forward (model.py:12), while other processes hold 324 MiB of its device"
    );
    assert_eq!(oom.severity, Severity::Critical);
    assert_eq!(found.len(), 1, "the session's own word for it is no second finding: {found:#?}");

    let request =
        LedgerRequest { selection: Some(selection("crowded")), moment: Some(Moment::Peak(true)), blocks: false };
    let ledger = QueryClient::new(daemon.channel()).get_ledger(request).await.unwrap();
    let rank = &from_wire::<Ledger>(ledger.get_ref()).unwrap().ranks[0].rank;
    assert_eq!(rank.others_bytes, Some(324 * MIB));
    let parts = rank.allocated_bytes + rank.cached_bytes + rank.context_bytes.unwrap() + rank.others_bytes.unwrap();
    assert_eq!(parts as i64 + rank.unexplained_bytes.unwrap(), rank.device_used_bytes.unwrap() as i64);
    // The recording ends at a keyframe, after which no event has a time.
    let request =
        LedgerRequest { selection: Some(selection("crowded")), moment: Some(Moment::End(true)), blocks: false };
    let ledger = QueryClient::new(daemon.channel()).get_ledger(request).await.unwrap();
    let end = &from_wire::<Ledger>(ledger.get_ref()).unwrap().ranks[0].rank;
    assert!(end.at >= rank.at, "{} is before {}", end.at, rank.at);
    assert_eq!((end.epoch, end.step), (0, 1));
    daemon.stop().await.unwrap();
}

/// Every step takes a segment from the driver and releases it.
fn churning(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    agent.epoch_begin(0);
    for step in 0..STEPS {
        agent.step_begin(step);
        recorder.segment_alloc(1 << 40, 100 * MIB, 0);
        recorder.alloc(1 << 40, 100 * MIB, 0, stack);
        recorder.free(1 << 40, 100 * MIB, 0);
        recorder.segment_free(1 << 40, 100 * MIB, 0);
        // Marks and events have times, so the next step must begin at a later time.
        let now = memctl_agent::now_ns();
        while memctl_agent::now_ns() < now + 2_000 {
            std::hint::spin_loop();
        }
        agent.step_end(step);
    }
    agent.epoch_end(0);
}

/// A cache that is filled once.
fn calm(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    agent.epoch_begin(0);
    recorder.segment_alloc(1 << 40, 100 * MIB, 0);
    for step in 0..STEPS {
        agent.step_begin(step);
        recorder.alloc(1 << 40, 100 * MIB, 0, stack);
        recorder.free(1 << 40, 100 * MIB, 0);
        agent.step_end(step);
    }
    agent.epoch_end(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_taken_again_and_again_is_churn_and_a_filled_cache_is_not() {
    let (store, daemon) = embedded().await;
    run(&daemon, "churning", 0, None, churning).await;
    run(&daemon, "churning", 1, None, calm).await;
    let found = findings(&store, &selection("churning")).await.unwrap();
    let churn = of_kind(&found, FindingKind::Churn);
    assert_eq!(churn.ranks, [0]);
    assert_eq!(churn.title, "Rank 0 releases device memory and requests it again in 20 of 20 steps (100 MiB per step)");
    assert_eq!(churn.severity, Severity::Warning);
    assert!(churn.evidence.contains(&("takes".to_owned(), EvidenceValue::Count(20))), "{:?}", churn.evidence);
    assert_eq!(found.len(), 1, "{found:#?}");
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_without_a_failed_request_says_what_is_known() {
    let (store, daemon) = embedded().await;
    run(&daemon, "dying", 0, None, calm).await;
    run(&daemon, "dying", 1, Some("RuntimeError: NCCL error: CUDA out of memory"), calm).await;
    let found = findings(&store, &selection("dying")).await.unwrap();
    let [death] = found.as_slice() else { panic!("one finding: {found:#?}") };
    assert_eq!((death.kind, death.severity, death.ranks.as_slice()), (FindingKind::Oom, Severity::Critical, &[1][..]));
    assert_eq!(
        death.title,
        "Rank 1 ended because memory ran out outside PyTorch's allocator: RuntimeError: NCCL error: CUDA out of memory"
    );
    assert!(death.explanation.contains("reserved 100 MiB"), "{}", death.explanation);
    daemon.stop().await.unwrap();
}

async fn reported(daemon: &Embedded, job: &str) -> Report {
    let request = ReportRequest { selection: Some(selection(job)) };
    let response = QueryClient::new(daemon.channel()).get_report(request).await.unwrap();
    from_wire(response.get_ref()).unwrap()
}

fn wait_a_little() {
    // Marks and events have times, so the following ones must occur at a later time.
    let now = memctl_agent::now_ns();
    while memctl_agent::now_ns() < now + 2_000 {
        std::hint::spin_loop();
    }
}

/// Every epoch keeps 80 MiB beside a hole of 10 MiB, until 100 MiB do not fit any more.
fn leaking(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    let kept = agent.stack(&[Frame { function: "keep".into(), file: "/home/me/train.py".into(), line: 7 }]);
    let mut step = 0;
    recorder.segment_alloc(1 << 50, 20 * MIB, 0);
    for epoch in 0..10_u32 {
        agent.epoch_begin(epoch);
        for _ in 0..3 {
            agent.step_begin(step);
            wait_a_little();
            recorder.alloc(1 << 50, 20 * MIB, 0, stack);
            recorder.free(1 << 50, 20 * MIB, 0);
            wait_a_little();
            agent.step_end(step);
            step += 1;
        }
        let place = (1 << 40) + u64::from(epoch) * (1 << 30);
        recorder.segment_alloc(place, 90 * MIB, 0);
        recorder.alloc(place, 80 * MIB, 0, kept);
        wait_a_little();
        agent.epoch_end(epoch);
    }
    agent.epoch_begin(10);
    agent.step_begin(step);
    wait_a_little();
    recorder.segment_free(1 << 50, 20 * MIB, 0);
    recorder.out_of_memory(100 * MIB, 24 * MIB, stack);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leak_until_out_of_memory_is_one_finding_and_the_others_deaths_are_part_of_it() {
    let (_, daemon) = embedded().await;
    run(&daemon, "filled", 0, Some("out of memory: CUDA out of memory. Tried to allocate 100.00 MiB"), leaking).await;
    run(&daemon, "filled", 1, Some("killed by signal 15 (SIGTERM)"), calm).await;
    let report = reported(&daemon, "filled").await;
    let [found] = report.findings.as_slice() else { panic!("one cause: {:#?}", report.findings) };
    assert_eq!((found.kind.as_str(), found.severity, &found.ranks), ("leak", Severity::Critical, &vec![0]));
    assert!(found.title.contains("keep (train.py:7)") && !found.title.contains("; out of memory"), "{}", found.title);
    assert!(
        found.title.contains("rank 0 ran out of memory in epoch 10, step 30, when 100 MiB were requested"),
        "{}",
        found.title
    );
    assert!(found.explanation.ends_with("rank 1 was stopped after it."), "{}", found.explanation);
    assert_eq!(found.evidence.get("oom_stranded_bytes"), Some(&Evidence::Count(100 * MIB)));
    let request = OomRequest { selection: Some(selection("filled")), ..Default::default() };
    let answer = QueryClient::new(daemon.channel()).get_oom(request).await.unwrap();
    let answer: Oom = from_wire(answer.get_ref()).unwrap();
    assert_eq!((answer.failures[0].cause.as_str(), answer.findings.len()), ("leak", 1), "{answer:#?}");
    daemon.stop().await.unwrap();
}

/// Dies in the middle of step 66.
fn dying_in_step_66(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    agent.epoch_begin(0);
    for step in 0..67 {
        agent.step_begin(step);
        wait_a_little();
        recorder.alloc(1 << 40, MIB, 0, stack);
        recorder.free(1 << 40, MIB, 0);
        wait_a_little();
        if step < 66 {
            agent.step_end(step);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rank_is_one_finding_with_its_step_and_the_others_follow() {
    let (_, daemon) = embedded().await;
    run(&daemon, "killed", 3, Some("killed by signal 9 (SIGKILL)"), dying_in_step_66).await;
    for rank in [1, 0, 2] {
        run(&daemon, "killed", rank, Some("killed by signal 15 (SIGTERM)"), dying_in_step_66).await;
    }
    let report = reported(&daemon, "killed").await;
    let [found] = report.findings.as_slice() else { panic!("one incident: {:#?}", report.findings) };
    assert_eq!(found.title, "Rank 3 died first, by SIGKILL, at step 66 (epoch 0); the others were stopped after it");
    assert_eq!((found.kind.as_str(), &found.ranks), ("rank_lost", &vec![3]));
    daemon.stop().await.unwrap();
}

/// The device is measured before the allocator reserves its final memory, and the process ends before the next
/// measurement.
fn outgrown(agent: &Agent, recorder: &mut Recorder, stack: StackId) {
    agent.epoch_begin(0);
    let sample = Sample {
        device_used_bytes: Some(54 * MIB),
        device_total_bytes: Some(2_048 * MIB),
        process_used_bytes: Some(22 * MIB),
        time_ns: memctl_agent::now_ns(),
        ..Sample::default()
    };
    agent.sample(sample);
    for step in 0..STEPS {
        agent.step_begin(step);
        recorder.segment_alloc((1 << 40) + step * 512 * MIB, 400 * MIB, 0);
        recorder.alloc((1 << 40) + step * 512 * MIB, 400 * MIB, 0, stack);
        agent.step_end(step);
    }
    recorder.out_of_memory(600 * MIB, 300 * MIB, stack);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_measurement_from_before_the_growth_is_not_told_as_of_now() {
    let (_, daemon) = embedded().await;
    run(&daemon, "outgrown", 0, Some("out of memory"), outgrown).await;
    let report = reported(&daemon, "outgrown").await;
    let rank = &report.ranks[0];
    assert!(rank.reserved_bytes.unwrap() > 54 * MIB, "{:?}", rank.reserved_bytes);
    assert_eq!(rank.device_used_bytes, None, "54 MiB were in use before the process held more");
    let sample = rank.sample.clone().unwrap();
    assert_eq!((sample.device_used_bytes, sample.process_used_bytes), (None, None));
    assert_eq!(sample.device_total_bytes, Some(2_048 * MIB), "what did not change is still so");
    assert_eq!(rank.highest.as_ref().unwrap().device_used_bytes, Some(54 * MIB), "what was measured is not lost");
    daemon.stop().await.unwrap();
}
