//! A job is a set of processes: several of one rank, several devices of one, and a rank on another's device, each
//! recorded by a real agent, judged and queried through a real daemon.

use std::sync::Arc;
use std::time::Duration;

use memctl_agent::{Agent, AgentConfig, Daemon, Recorder};
use memctl_answers::frag::Fragmentation;
use memctl_answers::ledger::Ledger;
use memctl_answers::report::Report;
use memctl_answers::sites::Sites;
use memctl_answers::timeline::Timeline;
use memctl_answers::wire::from_wire;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::{SqliteStore, Store};
use memctl_model::limits::TIMELINE_POINTS_MAX;
use memctl_model::{DeviceIndex, DeviceInfo, Frame, JobState, Launch, Sample, SessionId, SessionInfo, StackId};
use memctl_proto::v1;
use memctl_proto::v1::query_client::QueryClient;
use tonic::Code;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
const EPOCHS: u32 = 8;
const STEPS: u64 = 10;
const START_NS: u64 = 1_790_000_000_000_000_000;

/// One process: its rank, pid and parent, and how many devices it sees. Devices of equal indexes are the same.
fn session(rank: u32, pid: u32, parent_pid: u32, devices: u8) -> SessionInfo {
    let device = |index: u8| DeviceInfo {
        index: DeviceIndex(index),
        uuid: Some(format!("GPU-{index}")),
        total_bytes: Some(80 << 30),
        ..DeviceInfo::default()
    };
    SessionInfo {
        rank,
        host: Some("here".into()),
        pid: Some(pid),
        parent_pid: Some(parent_pid),
        launch: Launch { launcher: Some(7), ..Launch::default() },
        devices: (0..devices).map(device).collect(),
        ..SessionInfo::live(SessionId([pid as u8; 16]), "job", START_NS + u64::from(pid))
    }
}

async fn embedded() -> Embedded {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
    Embedded::start(store).await.unwrap()
}

/// The bytes that a process keeps on a device: some once, and some more every step.
#[derive(Clone, Copy)]
struct Keeps {
    device: u8,
    once: u64,
    a_step: u64,
    line: u32,
}

/// Records a process to its end.
async fn record(daemon: &Embedded, session: SessionInfo, keeps: Vec<Keeps>, foreign_bytes: Option<u64>) {
    let config = AgentConfig::new(session, Daemon::Connected(daemon.channel()));
    let outcome = tokio::task::spawn_blocking(move || {
        let agent = Agent::start(config).unwrap();
        train(&agent, &keeps, foreign_bytes);
        agent.stop(None, PATIENCE)
    });
    let outcome = outcome.await.unwrap();
    assert!(outcome.delivered && outcome.notes_dropped == 0, "nothing was lost on the way");
}

fn train(agent: &Agent, keeps: &[Keeps], foreign_bytes: Option<u64>) {
    let mut devices: Vec<(Keeps, Recorder, StackId)> = keeps
        .iter()
        .map(|&keeps| {
            let frame = Frame { function: "keep".into(), file: "/home/me/train.py".into(), line: keeps.line };
            (keeps, agent.recorder(DeviceIndex(keeps.device)).unwrap(), agent.stack(&[frame]))
        })
        .collect();
    for (keeps, recorder, stack) in &mut devices {
        recorder.segment_alloc(1 << 40, keeps.once + u64::from(EPOCHS) * STEPS * keeps.a_step, 0);
        recorder.alloc(1 << 40, keeps.once, 0, *stack);
    }
    let mut step = 0;
    for epoch in 0..EPOCHS {
        agent.epoch_begin(epoch);
        for _ in 0..STEPS {
            agent.step_begin(step);
            for (keeps, recorder, stack) in devices.iter_mut().filter(|(keeps, ..)| keeps.a_step > 0) {
                recorder.alloc((1 << 40) + keeps.once + step * keeps.a_step, keeps.a_step, 0, *stack);
            }
            if let Some(foreign) = foreign_bytes {
                agent.sample(Sample {
                    time_ns: memctl_agent::now_ns(),
                    foreign_used_bytes: Some(foreign),
                    process_used_bytes: Some(1 << 30),
                    device_total_bytes: Some(80 << 30),
                    ..Sample::default()
                });
            }
            agent.step_end(step);
            step += 1;
        }
        agent.epoch_end(epoch);
    }
}

fn steady(device: u8, line: u32) -> Keeps {
    Keeps { device, once: 64 * MIB, a_step: 0, line }
}

fn leaking(device: u8) -> Keeps {
    Keeps { device, once: 64 * MIB, a_step: MIB, line: 17 }
}

fn job() -> v1::Selection {
    v1::Selection { job: "job".into(), ..v1::Selection::default() }
}

async fn report(channel: Channel, selection: v1::Selection) -> Result<Report, tonic::Status> {
    let request = v1::ReportRequest { selection: Some(selection) };
    Ok(from_wire(QueryClient::new(channel).get_report(request).await?.get_ref()).unwrap())
}

fn names(report: &Report) -> Vec<&str> {
    report.processes.iter().map(|process| process.process.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trainer_and_its_workers_are_all_there_and_the_leaking_one_is_named() {
    let daemon = embedded().await;
    record(&daemon, session(0, 10, 1, 1), vec![steady(0, 5)], None).await;
    record(&daemon, session(0, 11, 10, 1), vec![leaking(0)], None).await;
    record(&daemon, session(0, 12, 10, 1), vec![steady(0, 9)], None).await;
    let all = report(daemon.channel(), job()).await.unwrap();
    assert_eq!(names(&all), ["trainer", "worker-1", "worker-2"]);
    let events: u64 = all.processes.iter().map(|process| process.events).sum();
    let (summary, completeness) = (all.job.clone(), all.completeness);
    assert_eq!((completeness.exact, completeness.events_stored, summary.events), (true, events, events));
    assert_eq!((summary.processes, summary.ranks, summary.state), (3, 1, JobState::Finished));
    let [finding] = all.findings.as_slice() else { panic!("one finding: {:#?}", all.findings) };
    assert_eq!((finding.kind.as_str(), finding.processes.as_slice()), ("leak", ["worker-1".to_owned()].as_slice()));
    assert!(
        finding.title.contains("on worker-1 (not on trainer, worker-2), allocated in keep (train.py:17)"),
        "{}",
        finding.title
    );

    let of = |name: &str| v1::Selection { processes: vec![name.to_owned()], ..job() };
    let one = report(daemon.channel(), of("worker-1")).await.unwrap();
    assert_eq!((names(&one), one.findings.len()), (vec!["worker-1"], 1));
    assert_eq!(one.completeness.events_stored, one.processes[0].events);
    let other = report(daemon.channel(), of("worker-2")).await.unwrap();
    assert_eq!((names(&other), other.findings.len()), (vec!["worker-2"], 0));
    assert_eq!(names(&report(daemon.channel(), of("worker")).await.unwrap()), ["worker-1", "worker-2"]);
    let unknown = report(daemon.channel(), of("worker-3")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::OutOfRange);
    assert!(unknown.message().contains("it has trainer, worker-1, worker-2"), "{unknown}");
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_with_two_devices_is_judged_device_by_device_and_every_question_is_answered() {
    let daemon = embedded().await;
    record(&daemon, session(0, 10, 1, 2), vec![steady(0, 5), leaking(1)], None).await;
    let all = report(daemon.channel(), job()).await.unwrap();
    assert_eq!((names(&all), all.processes[0].devices.as_slice()), (vec!["rank 0"], [0, 1].as_slice()));
    let [finding] = all.findings.as_slice() else { panic!("one finding: {:#?}", all.findings) };
    assert!(finding.title.contains("on device 1 of rank 0, allocated in keep (train.py:17)"), "{}", finding.title);
    assert_eq!(all.completeness.events_stored, all.processes[0].events);

    let mut client = QueryClient::new(daemon.channel());
    let selection = Some(job());
    let timeline = client.get_timeline(v1::TimelineRequest { selection: selection.clone(), points: 10 }).await.unwrap();
    let devices: Vec<u32> =
        from_wire::<Timeline>(timeline.get_ref()).unwrap().ranks.iter().map(|rank| rank.device).collect();
    assert_eq!(devices, [0, 1]);
    let too_many = v1::TimelineRequest { selection: selection.clone(), points: TIMELINE_POINTS_MAX + 1 };
    assert_eq!(client.get_timeline(too_many).await.unwrap_err().code(), Code::InvalidArgument);
    let sites = client.get_sites(v1::SitesRequest { selection: selection.clone(), moment: None }).await.unwrap();
    let live: Vec<u64> =
        from_wire::<Sites>(sites.get_ref()).unwrap().ranks.iter().map(|rank| rank.sites[0].live_bytes).collect();
    assert_eq!(live, [64 * MIB, (64 + u64::from(EPOCHS) * STEPS) * MIB]);
    let fragmentation = v1::FragmentationRequest { selection: selection.clone(), ..Default::default() };
    let fragmentation = client.get_fragmentation(fragmentation).await.unwrap();
    assert_eq!(from_wire::<Fragmentation>(fragmentation.get_ref()).unwrap().ranks.len(), 2);
    client.get_oom(v1::OomRequest { selection: selection.clone(), ..Default::default() }).await.unwrap();
    let ledger = client.get_ledger(v1::LedgerRequest { selection, ..v1::LedgerRequest::default() }).await.unwrap();
    assert_eq!(from_wire::<Ledger>(ledger.get_ref()).unwrap().ranks.len(), 2);

    let second = report(daemon.channel(), v1::Selection { devices: vec![1], ..job() }).await.unwrap();
    assert_eq!(second.ranks.iter().map(|rank| rank.device).collect::<Vec<u32>>(), [1]);
    assert_eq!(second.findings.iter().map(|found| &found.id).collect::<Vec<_>>(), [&finding.id]);
    let first = report(daemon.channel(), v1::Selection { devices: vec![0], ..job() }).await.unwrap();
    assert!(first.findings.is_empty(), "device 1's: {:#?}", first.findings);
    let unknown = report(daemon.channel(), v1::Selection { devices: vec![5], ..job() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::OutOfRange);
    daemon.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_on_another_ranks_device_is_named_with_its_line_and_no_stranger_is_blamed() {
    let daemon = embedded().await;
    let big = |device, line| Keeps { device, once: 900 * MIB, a_step: 0, line };
    record(&daemon, session(0, 10, 1, 2), vec![big(0, 5)], Some(600 * MIB)).await;
    let small = Keeps { device: 0, once: 16 * MIB, a_step: 0, line: 24 };
    record(&daemon, session(1, 11, 1, 2), vec![big(1, 5), small], None).await;
    let all = report(daemon.channel(), job()).await.unwrap();
    let kinds: Vec<&str> = all.findings.iter().map(|finding| finding.kind.as_str()).collect();
    assert_eq!(kinds, ["wrong_device"], "{:#?}", all.findings);
    let wrong = &all.findings[0];
    assert_eq!(wrong.title, "Rank 1 allocates on device 0 (train.py:24), which belongs to rank 0");
    assert_eq!(
        (wrong.ranks.as_slice(), wrong.processes.as_slice()),
        ([1].as_slice(), ["rank 1".to_owned()].as_slice())
    );
    assert!(wrong.advice.contains("torch.cuda.set_device(local_rank)"), "{}", wrong.advice);
    daemon.stop().await.unwrap();
}
