//! An item that is larger than the daemon reads: the agent is notified, the item is dropped and counted, and all other
//! items arrive.

use std::time::{Duration, Instant};

use bytes::Bytes;
use memctl_agent::{Backoff, Daemon, host};
use memctl_model::{DeviceIndex, Event, Rollup, SessionEnd};
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::{self, Item, RefusedReason};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::raw::{Stream, session};
use memctl_tests::source::Producer;
use memctl_tests::stored;
use prost::Message as _;
use tonic::transport::Endpoint;

fn chunk(first: u64) -> Packed {
    let events: Vec<Event> = Producer::new(3).skip(first as usize).take(10).collect();
    let mut encoder = Encoder::new(100).unwrap();
    let mut rollup = Rollup { first_ns: events[0].time_ns, exact: true, ..Rollup::default() };
    for event in &events {
        encoder.push(event).unwrap();
        rollup.counts[event.action as usize] += 1;
        rollup.last_ns = event.time_ns;
    }
    let bytes = encoder.finish(&ChunkMeta { device: DeviceIndex(0), first_event: first, rollup }).unwrap();
    Packed::chunk(bytes.into())
}

/// Larger than any message that the daemon reads.
fn oversize() -> Packed {
    Packed::chunk(Bytes::from(vec![7; 9 << 20]))
}

async fn connect(url: &str) -> tonic::transport::Channel {
    Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_what_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    let (mut stream, _) = Stream::welcome(connect(&daemon.url).await, &session(1)).await;
    stream.send(chunk(0).numbered(1)).await;
    stream.until_durable(1).await;
    stream.send(oversize().numbered(2)).await;
    let refused = loop {
        match stream.hear().await.expect("an answer, not silence") {
            Heard::Refused(refused) => break refused,
            Heard::Ack(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused.reason(), RefusedReason::TooLarge, "{refused:?}");
    assert!(refused.message.contains("follows item 1") && refused.bytes_max > 8 << 20, "{refused:?}");
    // Stored items stay, and the session continues after the omitted item.
    let (mut stream, resume) = Stream::welcome(connect(&daemon.url).await, &session(1)).await;
    assert_eq!(resume, 1);
    stream.send(chunk(10).numbered(3)).await;
    stream.until_durable(3).await;
    assert_eq!(daemon.terminate(), 0);
}

/// A spool in the format of an agent.
fn spool(items: &[Item]) -> Vec<u8> {
    let mut bytes = b"MCSPOOL1".to_vec();
    let mut record = |message: Vec<u8>| {
        bytes.extend((message.len() as u32).to_le_bytes());
        bytes.extend(crc32c::crc32c(&message).to_le_bytes());
        bytes.extend(message);
    };
    record(v1::SessionInfo::from(&session(2)).encode_to_vec());
    items.iter().for_each(|item| record(item.encode_to_vec()));
    bytes
}

#[test]
fn an_agent_leaves_it_out_and_delivers_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(&folder.path().join("data"), free_port());
    let place = folder.path().join("spool").join(session(2).id.to_string());
    std::fs::create_dir_all(&place).unwrap();
    let end = SessionEnd { time_ns: 1, produced: 20, ..SessionEnd::default() };
    let items = [chunk(0), oversize(), chunk(10), Packed::end(&end)];
    let items: Vec<Item> = (1..).zip(items).map(|(seq, packed)| packed.numbered(seq)).collect();
    std::fs::write(place.join("00000001.spool"), spool(&items)).unwrap();
    let (deadline, to) = (Instant::now() + Duration::from_secs(60), Daemon::Address(daemon.url.as_str().into()));
    host::deliver_spool(&folder.path().join("spool"), &to, Backoff::default(), &|| Instant::now() >= deadline);
    assert!(Instant::now() < deadline, "it was tried again and again");
    assert!(!place.exists(), "everything was delivered");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async { stored::report(connect(&daemon.url).await, "wire").await });
    let completeness = report.completeness;
    assert_eq!((report.job.events, completeness.gaps), (20, 1), "{completeness:?}");
    assert_eq!(daemon.terminate(), 0);
}
