//! The wire seen by a raw client: duplicates, gaps, false data and takeovers; each gets a specific answer, and nothing
//! is stored in part.

use std::sync::Arc;

use bytes::Bytes;
use memctl_answers::report::Report;
use memctl_daemon::server::Embedded;
use memctl_daemon::store::SqliteStore;
use memctl_model::{DeviceIndex, Event, SessionEnd, SessionInfo};
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::{Hello, Item, ItemKind, RefusedReason};
use memctl_tests::raw::{Stream, chunk, hello, item, session};
use memctl_tests::stored;

async fn daemon() -> Embedded {
    Embedded::start(Arc::new(SqliteStore::in_memory().await.unwrap())).await.unwrap()
}

async fn report(daemon: &Embedded) -> Report {
    stored::report(daemon.channel(), "wire").await
}

#[tokio::test]
async fn what_comes_twice_is_stored_once() {
    let daemon = daemon().await;
    let (mut stream, resume) = Stream::welcome(daemon.channel(), &session(1)).await;
    assert_eq!(resume, 0);
    for seq in [1, 2, 1, 2, 2, 3] {
        stream.send(item(seq, (seq - 1) * 10)).await;
    }
    stream.until_durable(3).await;
    drop(stream);
    // The agent has lost the acknowledgement and sends all items again.
    let (mut stream, resume) = Stream::welcome(daemon.channel(), &session(1)).await;
    assert_eq!(resume, 3);
    for seq in 2..=4 {
        stream.send(item(seq, (seq - 1) * 10)).await;
    }
    stream.until_durable(4).await;
    let report = report(&daemon).await;
    assert_eq!(report.job.events, 40);
    assert_eq!(report.completeness.gaps, 0);
    let stored = stored::events(daemon.channel(), "wire").await;
    assert_eq!(stored[0].chunks, [(0, 10), (10, 10), (20, 10), (30, 10)]);
    drop(stream);
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn what_never_came_is_a_gap_and_nothing_is_exact_any_more() {
    let daemon = daemon().await;
    let (mut stream, _) = Stream::welcome(daemon.channel(), &session(1)).await;
    stream.send(item(1, 0)).await;
    stream.send(item(4, 30)).await;
    stream.until_durable(4).await;
    let completeness = report(&daemon).await.completeness;
    assert_eq!((completeness.gaps, completeness.exact, completeness.events_stored), (2, false, 20));
    drop(stream);
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn lies_are_refused_by_name_and_leave_nothing() {
    let daemon = daemon().await;
    let mut broken = chunk(0, 10).to_vec();
    let middle = broken.len() / 2;
    broken[middle] ^= 0x55;
    let bomb = Item { seq: 1, kind: ItemKind::Marks as i32, payload: vec![0; 100].into(), unpacked_bytes: u32::MAX };
    let foreign = {
        let mut encoder = Encoder::new(100).unwrap();
        encoder.push(&Event::default()).unwrap();
        Packed::chunk(encoder.finish(&ChunkMeta { device: DeviceIndex(9), ..ChunkMeta::default() }).unwrap().into())
    };
    let lies = [
        ("a flipped bit", Packed::chunk(broken.into()).numbered(1), "item 1"),
        ("not a chunk", Packed::chunk(Bytes::from_static(b"no chunk at all")).numbered(1), "item 1"),
        ("a declared size", bomb, "over the limit"),
        ("another device", foreign.numbered(1), "device 9"),
        ("an unknown kind", Item { seq: 1, kind: 77, ..Item::default() }, "item.kind"),
    ];
    for (id, (what, lie, says)) in (10..).zip(lies) {
        let (mut stream, _) = Stream::welcome(daemon.channel(), &session(id)).await;
        stream.send(lie).await;
        let (reason, message) = stream.until_refused().await;
        assert_eq!(reason, RefusedReason::Invalid, "{what}: {message}");
        assert!(message.contains(says), "{what}: {message}");
    }
    let report = report(&daemon).await;
    assert_eq!(report.job.events, 0);
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_hello_that_cannot_be_is_refused() {
    let daemon = daemon().await;
    let refused = async |hello: Hello| match Stream::open(daemon.channel(), hello).await.1 {
        Heard::Refused(refused) => (refused.reason(), refused.message),
        other => panic!("{other:?}"),
    };
    let (reason, message) = refused(Hello { version: 99, ..hello(&session(1)) }).await;
    assert_eq!(reason, RefusedReason::Version);
    assert!(message.contains("99"), "{message}");
    let (reason, message) = refused(Hello { version: PROTOCOL_VERSION, session: None, ..Hello::default() }).await;
    assert_eq!((reason, message.as_str()), (RefusedReason::Invalid, "the hello names no session"));
    let odd = SessionInfo { job: "-x\u{1b}[31m".into(), ..session(1) };
    let (reason, message) = refused(hello(&odd)).await;
    assert_eq!(reason, RefusedReason::Invalid);
    assert!(message.contains("session.job") && !message.contains('\u{1b}'), "{message}");
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn an_ended_session_takes_nothing_more() {
    let daemon = daemon().await;
    let (mut stream, _) = Stream::welcome(daemon.channel(), &session(1)).await;
    stream.send(item(1, 0)).await;
    let end = SessionEnd { time_ns: 5, produced: 10, ..SessionEnd::default() };
    stream.send(Packed::end(&end).numbered(2)).await;
    stream.until_durable(2).await;
    drop(stream);
    let (mut stream, resume) = Stream::welcome(daemon.channel(), &session(1)).await;
    assert_eq!(resume, 2, "a lost acknowledgement of the last item is repeated");
    stream.send(item(3, 10)).await;
    let (_, message) = stream.until_refused().await;
    assert!(message.contains("ended"), "{message}");
    let completeness = report(&daemon).await.completeness;
    assert_eq!((completeness.exact, completeness.events_stored), (true, 10));
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn a_session_that_comes_again_takes_over() {
    let daemon = daemon().await;
    let (mut first, _) = Stream::welcome(daemon.channel(), &session(1)).await;
    first.send(item(1, 0)).await;
    first.until_durable(1).await;
    let (mut second, resume) = Stream::welcome(daemon.channel(), &session(1)).await;
    assert_eq!(resume, 1);
    assert_eq!(first.hear().await, None, "the older stream ends");
    second.send(item(2, 10)).await;
    second.until_durable(2).await;
    drop(second);
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let daemon = daemon().await;
    for service in ["", "memctl.v1.Ingest", "memctl.v1.Query"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let answer = HealthClient::new(daemon.channel()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(daemon.channel())
        .server_reflection_info(tokio_stream::iter([question]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"memctl.v1.Ingest") && names.contains(&"memctl.v1.Query"), "{names:?}");
    drop(answers);
    daemon.stop().await.unwrap();
}
