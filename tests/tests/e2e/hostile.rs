//! Hostile clients of a real daemon: their messages are refused, the daemon's memory stays bounded, and honest jobs
//! continue.

use memctl_answers::alerts::Answers;
use memctl_answers::wire::from_wire;
use memctl_model::limits::{DEVICES_MAX, ITEM_UNPACKED_BYTES_MAX, SESSION_STACKS_MAX, STACK_FRAMES_MAX};
use memctl_model::{
    Boundary, Counters, DeviceIndex, DeviceInfo, Frame, Peaks, SessionInfo, SiteRow, SiteTable, StackId,
};
use memctl_proto::StackSender;
use memctl_proto::item::Packed;
use memctl_proto::v1::alerts_client::AlertsClient;
use memctl_proto::v1::{
    AgentMessage, DaemonMessage, ItemKind, Label, RefusedReason, StackBatch, TestReceiversRequest, agent_message,
};
use memctl_tests::bytes_codec::BytesCodec;
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::http::until;
use memctl_tests::jobs;
use memctl_tests::raw::{Stream, hello, session};
use memctl_tests::stored;
use prost::Message as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

/// Streams that attack at the same time.
const ATTACKERS: u8 = 8;
/// Sessions of a million stacks: in an unoptimised build each costs the judge ten seconds, because it names every site.
const DEEP_SESSIONS: u8 = 2;
/// The daemon's memory stays below this, for any input.
const PEAK_BYTES: u64 = 768 << 20;

async fn channel(daemon: &DaemonProcess) -> Channel {
    Endpoint::from_shared(daemon.url.clone()).unwrap().connect().await.unwrap()
}

fn attacker(id: u8) -> SessionInfo {
    SessionInfo { rank: u32::from(id), ..session(id) }
}

/// A payload of a few hundred bytes that decompresses to `plain`.
fn packed(kind: ItemKind, plain: &[u8]) -> Packed {
    let payload = zstd::bulk::compress(plain, 19).unwrap();
    assert!(payload.len() < 10_000, "{} bytes", payload.len());
    Packed { kind, payload: payload.into(), unpacked_bytes: plain.len() as u32 }
}

/// Records and queries an honest job of one rank.
async fn honest(daemon: &DaemonProcess, name: &'static str) {
    let url = daemon.url.clone();
    let recorded = move || {
        jobs::record(&url, jobs::session(name, 0), |agent| {
            jobs::train(agent, jobs::Training { epochs: 3, ..jobs::Training::default() })
        })
    };
    tokio::task::spawn_blocking(recorded).await.unwrap();
    let report = stored::report(channel(daemon).await, name).await;
    assert!(report.completeness.exact);
    assert!(report.job.events > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_unfold_to_gigabytes_cost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let empty = [0x0a, 0].repeat(ITEM_UNPACKED_BYTES_MAX / 2);
    // Field 4 of a batch of stacks: 58 million numbers of one byte each.
    let mut numbers = vec![0x22, 0x80, 0x80, 0x80, 0x1c];
    numbers.resize(numbers.len() + (0x1c << 21), 0);
    let bombs =
        [packed(ItemKind::SiteTables, &empty), packed(ItemKind::Samples, &empty), packed(ItemKind::Stacks, &numbers)];
    let mut streams = Vec::new();
    for id in 1..=ATTACKERS {
        let (stream, _) = Stream::welcome(channel(&daemon).await, &attacker(id)).await;
        stream.send(bombs[usize::from(id) % bombs.len()].clone().numbered(1)).await;
        streams.push(stream);
    }
    for mut stream in streams {
        let (reason, words) = stream.until_refused().await;
        assert_eq!(reason, RefusedReason::Invalid);
        assert!(words.contains("bytes of an item in memory") && words.contains("over the limit"), "{words}");
    }
    assert!(daemon.peak_bytes() < PEAK_BYTES, "{} MiB", daemon.peak_bytes() >> 20);
    honest(&daemon, "honest").await;
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_millions_of_labels_is_refused_before_it_is_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    // A message of seven megabytes that decodes to two hundred.
    let mut large = hello(&attacker(1));
    large.session.as_mut().unwrap().labels = vec![Label::default(); 7 << 19];
    // The message is made once, because an unoptimised build takes seconds for it.
    let bytes = AgentMessage { body: Some(agent_message::Body::Hello(large)) }.encode_to_vec();
    let mut answers = Vec::new();
    for _ in 0..ATTACKERS {
        let said = tokio_stream::once(bytes.clone());
        let mut client = tonic::client::Grpc::new(channel(&daemon).await);
        answers.push(tokio::spawn(async move {
            client.ready().await.unwrap();
            let path = "/memctl.v1.Ingest/Push".parse().unwrap();
            match client.streaming(Request::new(said), path, BytesCodec).await {
                Ok(stream) => stream.into_inner().message().await,
                Err(status) => Err(status),
            }
        }));
    }
    let mut too_large = 0;
    for answer in answers {
        let answer = answer.await.unwrap();
        let said = match &answer {
            Ok(Some(bytes)) => format!("{:?}", DaemonMessage::decode(&bytes[..])),
            other => format!("{other:?}"),
        };
        // On a busy machine seven megabytes do not always arrive in the time that a hello has.
        let is_too_large = said.contains("too many devices or labels");
        assert!(is_too_large || said.contains("no hello came in time"), "{said}");
        too_large += u32::from(is_too_large);
    }
    assert!(too_large > 0, "no hello arrived in time");
    assert!(daemon.peak_bytes() < PEAK_BYTES, "{} MiB", daemon.peak_bytes() >> 20);
    honest(&daemon, "honest").await;
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stacks_that_share_their_frames_are_kept_once() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let mut sender = StackSender::default();
    let deep: Vec<Frame> =
        (0..STACK_FRAMES_MAX as u32).map(|line| Frame { function: "f".into(), file: "a.py".into(), line }).collect();
    sender.add(&deep);
    let mut batch = sender.take().unwrap();
    batch.stack_shared.resize(SESSION_STACKS_MAX, STACK_FRAMES_MAX as u32);
    batch.stack_new.resize(SESSION_STACKS_MAX, 0);
    let item = Packed::stacks(&batch);
    assert!(item.payload.len() < 10_000, "{} bytes", item.payload.len());
    // A million stacks per session, each of 512 frames. Fully expanded, the judge would keep gigabytes.
    for id in 1..=DEEP_SESSIONS {
        let (mut stream, _) = Stream::welcome(channel(&daemon).await, &attacker(id)).await;
        stream.send(item.clone().numbered(1)).await;
        stream.until_durable(1).await;
    }
    // The job is queried, so that the judge has read all of it.
    let report = stored::report(channel(&daemon).await, "wire").await;
    assert_eq!(report.ranks.len(), usize::from(DEEP_SESSIONS));
    assert!(daemon.peak_bytes() < PEAK_BYTES, "{} MiB", daemon.peak_bytes() >> 20);
    honest(&daemon, "honest").await;
    assert_eq!(daemon.terminate(), 0);
}

/// Unused names take memory as well, and only two bytes each on the wire.
#[tokio::test(flavor = "multi_thread")]
async fn unused_names_are_kept_within_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let (mut stream, _) = Stream::welcome(channel(&daemon).await, &attacker(1)).await;
    let mut batch = StackBatch { first_stack: 1, strings: vec![String::new(); 1 << 20], ..StackBatch::default() };
    for seq in 1..=24 {
        let item = Packed::stacks(&batch);
        assert!(item.payload.len() < 10_000, "{} bytes", item.payload.len());
        stream.send(item.numbered(seq)).await;
        batch.first_string += 1 << 20;
        stream.until_durable(seq).await;
    }
    assert_eq!(stored::report(channel(&daemon).await, "wire").await.ranks.len(), 1);
    assert!(daemon.peak_bytes() < PEAK_BYTES, "{} MiB", daemon.peak_bytes() >> 20);
    honest(&daemon, "honest").await;
    assert_eq!(daemon.terminate(), 0);
}

/// A table of every device, with a row for every stack.
fn tables_of_all_devices(stacks: u32, step: u64) -> Vec<SiteTable> {
    let row = |stack| SiteRow { stack: StackId(stack), birth_epoch: 0, birth_phase: None, blocks: 1, bytes: 512 };
    let table = |device: usize| SiteTable {
        device: DeviceIndex(device as u8),
        boundary: Boundary::StepEnd,
        epoch: 0,
        step,
        time_ns: step,
        at_event: step,
        exact: true,
        counters: Counters::default(),
        peaks: Peaks::default(),
        peaks_within: Peaks::default(),
        found: false,
        rows: (1..=stacks).map(row).collect(),
        private_pools: Vec::new(),
    };
    (0..DEVICES_MAX).map(table).collect()
}

/// The judge stores a site for every row of a table, and a thousand rows take only a few bytes on the wire.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_too_large_to_be_judged_is_told_of_and_the_others_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("memctl.toml");
    std::fs::write(&config, "judge_memory = \"64MiB\"\n").unwrap();
    let daemon = DaemonProcess::sqlite_with(folder.path(), free_port(), &["--config", config.to_str().unwrap()]);
    let devices =
        (0..DEVICES_MAX as u8).map(|index| DeviceInfo { index: DeviceIndex(index), ..DeviceInfo::default() }).collect();
    let session = SessionInfo { devices, ..attacker(1) };
    let mut sender = StackSender::default();
    for line in 1..=8_192 {
        sender.add(&[Frame { function: "f".into(), file: "a.py".into(), line }]);
    }
    let (mut stream, _) = Stream::welcome(channel(&daemon).await, &session).await;
    stream.send(Packed::stacks(&sender.take().unwrap()).numbered(1)).await;
    stream.send(Packed::site_tables(&tables_of_all_devices(8_192, 1)).numbered(2)).await;
    stream.until_durable(2).await;
    let report = stored::report(channel(&daemon).await, "wire").await;
    let unjudged = report.findings.iter().find(|finding| finding.title == "This job could not be judged").unwrap();
    assert!(unjudged.explanation.contains("takes more than 67108864 bytes of memory"), "{}", unjudged.explanation);
    assert!(daemon.peak_bytes() < PEAK_BYTES / 2, "{} MiB", daemon.peak_bytes() >> 20);
    honest(&daemon, "honest").await;
    let report = stored::report(channel(&daemon).await, "honest").await;
    assert!(report.findings.iter().all(|finding| finding.title != unjudged.title), "the others are judged");
    assert_eq!(daemon.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_are_tested_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (rules, started, go) =
        (folder.path().join("rules.toml"), folder.path().join("started"), folder.path().join("go"));
    let script = format!("echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done", started.display(), go.display());
    let receiver = format!(
        "[[receiver]]\nname = \"slow\"\ntype = \"command\"\ntimeout = \"60s\"\ncommand = [\"sh\", \"-c\", {script:?}]\n"
    );
    std::fs::write(&rules, receiver).unwrap();
    let daemon = DaemonProcess::sqlite_with(folder.path(), free_port(), &["--alert-rules", rules.to_str().unwrap()]);
    let channel = channel(&daemon).await;
    let ask = || {
        let mut client = AlertsClient::new(channel.clone());
        async move { client.test_receivers(TestReceiversRequest { receiver: Some("slow".into()) }).await }
    };
    let first = tokio::spawn(ask());
    until("the receiver was started", || started.exists()).await;
    for _ in 0..60 {
        let refused = ask().await.expect_err("a second test");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("another test of the receivers is under way"), "{refused}");
    }
    std::fs::write(&go, "").unwrap();
    let first: Answers = from_wire(first.await.unwrap().unwrap().get_ref()).unwrap();
    assert!(first.receivers[0].delivered);
    assert_eq!(std::fs::read_to_string(&started).unwrap(), "x\n", "one was started");
    ask().await.expect("the next one is answered");
    assert_eq!(daemon.terminate(), 0);
}
