//! A small job in the daemon's words, for tests: four ranks, rank 0 leaks 3 MiB an epoch; and a daemon that tells of it
//! (and of the jobs in [`scenarios`]).

pub mod explained;
pub mod scenarios;

use memctl_model::{
    Action, AllocatorSettings, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, Mark, MarkKind, PoolId, StackId,
};
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::v1;
use memctl_proto::v1::query_server::{Query, QueryServer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// 2026-11-20T09:52:00Z.
pub const START_NS: u64 = 1_795_168_320_000_000_000;
pub const MIB: u64 = 1 << 20;
const EPOCHS: u32 = 5;
const EPOCH_NS: u64 = 2_000_000_000;

pub fn job() -> v1::Job {
    v1::Job {
        id: "cnn_rank0_cache".into(),
        attempt: 0,
        state: v1::JobState::Finished as i32,
        started_ns: START_NS,
        ended_ns: Some(START_NS + u64::from(EPOCHS) * EPOCH_NS),
        world_size: Some(4),
        ranks: 4,
        events: 46_000,
        stored_bytes: 29_000,
        labels: vec![v1::Label { key: "team".into(), value: "vision".into() }],
        attempts: 1,
        source: v1::SourceKind::Import as i32,
        processes: 4,
        earlier_sessions: 0,
        verdict: None,
    }
}

pub fn exact() -> v1::Completeness {
    v1::Completeness { exact: true, events_stored: 46_000, ..Default::default() }
}

fn live_bytes(rank: u32, epoch: u32) -> u64 {
    (80 + if rank == 0 { 3 * u64::from(epoch) } else { 0 }) * MIB
}

pub fn frame(function: &str, file: &str, line: u32) -> v1::Frame {
    v1::Frame { function: function.into(), file: file.into(), line }
}

/// Innermost first.
pub fn leak_stack() -> Vec<v1::Frame> {
    vec![
        frame("clone", "/usr/lib/python3.12/site-packages/torch/_tensor.py", 90),
        frame("remember_features", "/home/me/scenarios.py", 57),
        frame("step", "/home/me/scenarios.py", 80),
        frame("main", "/home/me/train.py", 12),
    ]
}

pub fn report() -> v1::Report {
    let growth = v1::SiteGrowth {
        site: Some(leak_stack()[1].clone()),
        stack: leak_stack(),
        ranks: vec![v1::RankGrowth {
            rank: 0,
            bytes_per_epoch: 3_145_728.0,
            live_bytes: 15 * MIB,
            live_blocks: 5,
            first_epoch: 0,
            series_bytes: (1..=5).map(|epoch| epoch * 3 * MIB).collect(),
            process: "rank 0".into(),
            device: 0,
            explained_by: scenarios::rank0_leak().id,
        }],
    };
    v1::Report {
        job: Some(job()),
        completeness: Some(exact()),
        ranks: (0..4).map(rank_report).collect(),
        growth: vec![growth],
        findings: vec![scenarios::rank0_leak()],
        processes: (0..4).map(process_report).collect(),
        judged: Some(judged(u64::from(EPOCHS))),
        not_judged: unmeasured(),
        boundaries: Some(v1::Boundaries { epochs: "given".into(), steps: "given".into(), ..Default::default() }),
        spread: vec![v1::Spread { figure: "allocated_bytes".into(), median: 80.0 * 1_048_576.0, ..Default::default() }],
        growth_through: None,
    }
}

fn process_report(rank: u32) -> v1::ProcessReport {
    v1::ProcessReport {
        process: format!("rank {rank}"),
        rank,
        host: Some("node-1".into()),
        pid: Some(4711 + rank),
        devices: vec![rank],
        events: 11_500,
        stored_bytes: 7_250,
        state: v1::JobState::Finished as i32,
        completeness: Some(exact()),
        started_ns: START_NS,
        ended_ns: Some(START_NS + u64::from(EPOCHS) * EPOCH_NS),
        framework: Some("torch 2.11.0".into()),
        ..Default::default()
    }
}

/// What was looked at in a job of four ranks.
pub fn judged(epoch_ends: u64) -> v1::Judged {
    let kind = |kind: &str| v1::JudgedKind { kind: kind.into(), boundaries: vec![v1::Boundary::EpochEnd as i32] };
    v1::Judged {
        processes: 4,
        ranks: (0..4).collect(),
        epoch_ends,
        steps: 40,
        windows: 0,
        kinds: ["leak", "rank_skew"].map(kind).into(),
    }
}

/// A gap, as the daemon tells it.
pub fn gap(kind: &str, gap: &str, reason: &str, remedy: &str, decides: bool) -> v1::NotJudged {
    v1::NotJudged { kind: kind.into(), gap: gap.into(), reason: reason.into(), remedy: remedy.into(), decides }
}

/// What no recording holds.
pub fn unmeasured() -> Vec<v1::NotJudged> {
    let of = |kind| gap(kind, "whole", "not measured", "run it under memctl run, which measures it", false);
    vec![of("outside_allocator"), of("host_growth")]
}

fn rank_report(rank: u32) -> v1::RankReport {
    v1::RankReport {
        rank,
        process: format!("rank {rank}"),
        host: Some("node-1".into()),
        pid: Some(4711 + rank),
        device: rank,
        gpu_uuid: Some(format!("GPU-0000{rank}")),
        framework: Some("torch 2.11.0".into()),
        epochs: u64::from(EPOCHS),
        steps: 40,
        events: 11_500,
        allocated_bytes: Some(live_bytes(rank, EPOCHS - 1)),
        reserved_bytes: Some(210 * MIB),
        peak_allocated_bytes: Some(180 * MIB),
        peak_reserved_bytes: Some(210 * MIB),
        fragmentation_ratio: Some(0.5625),
        growth_bytes_per_epoch: Some(if rank == 0 { 3_145_728.0 } else { 0.0 }),
        epoch_ends: (0..EPOCHS).map(|epoch| epoch_end(rank, epoch)).collect(),
        completeness: Some(exact()),
        state: v1::JobState::Finished as i32,
        stored_bytes: 7_250,
        stands_out: if rank == 0 {
            vec!["allocated_bytes".into(), "growth_bytes_per_epoch".into()]
        } else {
            Vec::new()
        },
        findings: if rank == 0 { vec![scenarios::rank0_leak().id] } else { Vec::new() },
        ..Default::default()
    }
}

fn epoch_end(rank: u32, epoch: u32) -> v1::EpochEnd {
    let peaks = v1::Peaks { allocated_bytes: 180 * MIB, reserved_bytes: 210 * MIB };
    v1::EpochEnd {
        epoch,
        step: u64::from(epoch) * 8 + 7,
        time_ns: START_NS + u64::from(epoch + 1) * EPOCH_NS,
        counters: Some(v1::Counters {
            allocated_bytes: live_bytes(rank, epoch),
            active_bytes: live_bytes(rank, epoch),
            reserved_bytes: 210 * MIB,
            requested_bytes: live_bytes(rank, epoch) - 1000,
            inactive_split_bytes: 60 * MIB,
            largest_free_bytes: 40 * MIB,
            allocated_blocks: 100,
            segments: 9,
        }),
        peaks: Some(peaks),
        peaks_within: Some(peaks),
        exact: true,
    }
}

pub fn timeline(ranks: &[u32], points: u32) -> v1::Timeline {
    let of = |&rank: &u32| v1::RankTimeline {
        rank,
        process: format!("rank {rank}"),
        device: rank,
        points: (0..u64::from(points)).map(|at| point(rank, at, u64::from(points))).collect(),
        marks: (0..EPOCHS)
            .map(|epoch| v1::TimelineMark {
                time_ns: START_NS + u64::from(epoch + 1) * EPOCH_NS,
                kind: v1::MarkKind::EpochEnd as i32,
                value: u64::from(epoch),
                name: String::new(),
            })
            .collect(),
    };
    v1::Timeline { job: Some(job()), completeness: Some(exact()), ranks: ranks.iter().map(of).collect() }
}

fn point(rank: u32, at: u64, points: u64) -> v1::TimelinePoint {
    let span = u64::from(EPOCHS) * EPOCH_NS / points;
    let (first_ns, last_ns) = (START_NS + at * span, START_NS + (at + 1) * span - 1);
    let epoch = ((first_ns - START_NS) / EPOCH_NS) as u32;
    let floor = live_bytes(rank, epoch * 4);
    let within = (first_ns - START_NS) % EPOCH_NS / 250_000_000 % 2;
    v1::TimelinePoint {
        first_ns,
        last_ns,
        epoch,
        step: at,
        allocated_bytes: floor,
        reserved_bytes: 210 * MIB,
        peak_allocated_bytes: floor + (20 + within * 50) * MIB,
        peak_reserved_bytes: 210 * MIB,
        min_allocated_bytes: floor,
    }
}

pub fn sites(ranks: &[u32]) -> v1::Sites {
    let stack = |stack: Vec<v1::Frame>, bytes: u64, blocks: u64, epochs: std::ops::Range<u32>| v1::SiteStack {
        stack,
        bytes,
        blocks,
        births: epochs.map(|epoch| v1::BirthBytes { epoch, bytes: bytes / 5, blocks: 1 }).collect(),
    };
    let of = |&rank: &u32| {
        let model = vec![frame("build_model", "/home/me/scenarios.py", 20), frame("main", "/home/me/train.py", 12)];
        let mut sites = vec![stack(model, 60 * MIB, 60, 0..1), stack(Vec::new(), 5 * MIB, 3, 0..0)];
        if rank == 0 {
            sites.push(stack(leak_stack(), 15 * MIB, 5, 0..5));
        }
        v1::RankSites {
            rank,
            process: format!("rank {rank}"),
            device: rank,
            time_ns: START_NS,
            epoch: 4,
            step: 39,
            counters: Some(v1::Counters {
                allocated_bytes: live_bytes(rank, 0),
                reserved_bytes: 210 * MIB,
                ..Default::default()
            }),
            sites,
            exact: true,
        }
    };
    v1::Sites { job: Some(job()), completeness: Some(exact()), ranks: ranks.iter().map(of).collect() }
}

/// Where the exported rank's one segment begins.
pub const SEGMENT: u64 = 0x7f00_0000_0000;

/// What a rank exports: a segment, two blocks of which one is freed, an out-of-memory event, marks around them.
pub fn export_parts(rank: u32) -> Vec<v1::export_part::Body> {
    use v1::export_part::Body;
    let mut dictionary = memctl_proto::convert::StackSender::default();
    let frames: Vec<Frame> = leak_stack()
        .into_iter()
        .map(|f| Frame { function: f.function.into(), file: f.file.into(), line: f.line })
        .collect();
    let stack = dictionary.add(&frames);
    let start = Keyframe {
        device: DeviceIndex(1),
        at_event: 0,
        time_ns: START_NS,
        reason: KeyframeReason::Start,
        segments: Vec::new(),
        loose: Vec::new(),
    };
    let marks =
        [(0, MarkKind::EpochBegin(0)), (4_500, MarkKind::EpochEnd(0)), (5_000, MarkKind::Note("empty_cache".into()))];
    let marks: Vec<Mark> = marks.into_iter().map(|(at, kind)| Mark { time_ns: START_NS + at, kind }).collect();
    let settings = AllocatorSettings::default();
    let session =
        v1::SessionInfo { id: vec![rank as u8; 16], settings: Some((&settings).into()), ..Default::default() };
    vec![
        Body::Start(v1::RankStart { rank, device: 1, session: Some(session), process: format!("rank {rank}") }),
        Body::Stacks(dictionary.take().expect("one stack")),
        Body::Keyframe((&start).into()),
        Body::Chunk(chunk(&events(stack)).into()),
        Body::Marks(memctl_proto::convert::marks::to_wire(&marks, 1)),
    ]
}

fn events(stack: StackId) -> Vec<Event> {
    let event = |at: u64, action, addr, size, stack| Event {
        time_ns: START_NS + at,
        addr,
        size,
        stream: 0,
        pool: PoolId::DEFAULT,
        stack,
        action,
    };
    vec![
        event(1_000, Action::SegmentAlloc, SEGMENT, 20 * MIB, stack),
        event(1_000, Action::Alloc, SEGMENT, 3 * MIB, stack),
        event(2_000, Action::Alloc, SEGMENT + 3 * MIB, 2 * MIB - 100, stack),
        event(3_000, Action::FreeRequested, SEGMENT, 3 * MIB, StackId::NONE),
        event(3_000, Action::FreeCompleted, SEGMENT, 3 * MIB, StackId::NONE),
        event(4_000, Action::Oom, 77 * MIB, 500 * MIB, stack),
        event(5_000, Action::Alloc, SEGMENT, MIB + MIB / 2, stack),
    ]
}

fn chunk(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(1).expect("an encoder");
    for event in events {
        encoder.push(event).expect("room for the event");
    }
    encoder.finish(&ChunkMeta { device: DeviceIndex(1), ..Default::default() }).expect("a chunk")
}

/// A daemon that knows this job and those of [`scenarios`].
pub struct FakeDaemon;

impl FakeDaemon {
    /// Serves on a port of its own until the test ends; gives its address.
    pub async fn start() -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = tonic::transport::Server::builder()
            .add_service(QueryServer::new(Self))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        url
    }
}

/// The report of the job and the ranks that are asked for.
fn known(selection: Option<v1::Selection>) -> Result<(v1::Report, Vec<u32>), Status> {
    let selection = selection.unwrap_or_default();
    let name = selection.job.as_str();
    let report = scenarios::of_name(name).ok_or_else(|| Status::not_found(format!("there is no job {name}")))?;
    let ranks = (0..4).filter(|rank| selection.ranks.is_empty() || selection.ranks.contains(rank)).collect();
    Ok((report, ranks))
}

#[tonic::async_trait]
impl Query for FakeDaemon {
    async fn list_jobs(&self, _: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsResponse>, Status> {
        Ok(Response::new(v1::ListJobsResponse { jobs: vec![job()] }))
    }

    async fn get_report(&self, request: Request<v1::ReportRequest>) -> Result<Response<v1::Report>, Status> {
        let (mut report, ranks) = known(request.into_inner().selection)?;
        report.ranks.retain(|rank| ranks.contains(&rank.rank));
        report.processes.retain(|process| ranks.contains(&process.rank));
        Ok(Response::new(report))
    }

    async fn get_timeline(&self, request: Request<v1::TimelineRequest>) -> Result<Response<v1::Timeline>, Status> {
        let v1::TimelineRequest { selection, points } = request.into_inner();
        Ok(Response::new(timeline(&known(selection)?.1, points)))
    }

    async fn get_sites(&self, request: Request<v1::SitesRequest>) -> Result<Response<v1::Sites>, Status> {
        let selection = request.into_inner().selection;
        let name = selection.as_ref().map(|selection| selection.job.clone()).unwrap_or_default();
        Ok(Response::new(scenarios::sites_of(&name, &known(selection)?.1)))
    }

    type ExportStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::ExportPart, Status>>>;

    async fn export(&self, request: Request<v1::ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let v1::ExportRequest { selection, without_events } = request.into_inner();
        let parts = known(selection)?.1.into_iter().flat_map(export_parts);
        let parts = parts.filter(|part| !without_events || !matches!(part, v1::export_part::Body::Chunk(_)));
        let parts: Vec<_> = parts.map(|body| Ok(v1::ExportPart { body: Some(body) })).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }

    async fn get_fragmentation(
        &self,
        request: Request<v1::FragmentationRequest>,
    ) -> Result<Response<v1::Fragmentation>, Status> {
        let selection = request.into_inner().selection;
        let name = selection.as_ref().map(|selection| selection.job.clone()).unwrap_or_default();
        Ok(Response::new(explained::fragmentation(&name, &known(selection)?.1)))
    }

    async fn get_oom(&self, request: Request<v1::OomRequest>) -> Result<Response<v1::Oom>, Status> {
        let selection = request.into_inner().selection;
        let name = selection.as_ref().map(|selection| selection.job.clone()).unwrap_or_default();
        Ok(Response::new(explained::oom(&name, &known(selection)?.1)))
    }

    async fn get_ledger(&self, request: Request<v1::LedgerRequest>) -> Result<Response<v1::Ledger>, Status> {
        let v1::LedgerRequest { selection, blocks, moment: _ } = request.into_inner();
        let name = selection.as_ref().map(|selection| selection.job.clone()).unwrap_or_default();
        let ranks = known(selection)?.1;
        if name == "no_stacks" {
            return Err(Status::unimplemented("a daemon of before ledgers"));
        }
        let ranks = ranks.into_iter().filter(|_| name != "nothing_recorded");
        let ranks = ranks.map(|rank| explained::ledger(rank, blocks)).collect();
        Ok(Response::new(v1::Ledger { job: Some(job()), completeness: Some(exact()), ranks, not_judged: Vec::new() }))
    }

    async fn get_status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::Status>, Status> {
        Ok(Response::new(v1::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            store: "memory".into(),
            ..Default::default()
        }))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        known(Some(v1::Selection { job: request.into_inner().job, ..Default::default() }))?;
        Ok(Response::new(v1::DeleteJobResponse { sessions: 4, stored_bytes: 29_000 }))
    }
}
