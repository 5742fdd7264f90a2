//! Attacks on a daemon's port. Each runs until it is stopped.
//!
//! Guarantees: every attack counts what it did, so that a test can assert that it happened.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memctl_model::limits::{ITEM_UNPACKED_BYTES_MAX, SESSION_STACKS_MAX, STACK_FRAMES_MAX};
use memctl_model::{Frame, SessionId, SessionInfo};
use memctl_proto::item::Packed;
use memctl_proto::v1::ItemKind;
use memctl_proto::{FILE_DESCRIPTOR_SET, StackSender};
use prost::Message as _;
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

use crate::bytes_codec::BytesCodec;
use crate::fuzz;
use crate::raw::{Stream, session};

/// The time after which an attack stops waiting for a response.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The kinds of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Items of a few hundred bytes that decompress to gigabytes.
    Bombs,
    /// Items of agents with changed bytes.
    Items,
    /// Messages of random bytes to every call.
    Calls,
    /// Connections that send nothing, or half of a message, and stay open.
    Silence,
    /// Bytes that are not HTTP/2.
    Noise,
}

/// All of them.
pub const ATTACKS: [Attack; 5] = [Attack::Bombs, Attack::Items, Attack::Calls, Attack::Silence, Attack::Noise];

/// Attacks the daemon on a port of the loopback interface until `stop`; counts in `done`.
pub async fn attack(attack: Attack, port: u16, seed: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut round = seed;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let once = async {
            match attack {
                Attack::Bombs => bombs(port, round).await,
                Attack::Items => items(port, round).await,
                Attack::Calls => calls(port, round).await,
                Attack::Silence => silence(port, round).await,
                Attack::Noise => noise(port, round).await,
            }
        };
        if let Ok(Some(count)) = tokio::time::timeout(ANSWER_MAX, once).await {
            done.fetch_add(count, Ordering::Relaxed);
        }
    }
}

async fn channel(port: u16) -> Option<Channel> {
    Endpoint::from_shared(format!("http://127.0.0.1:{port}")).ok()?.connect().await.ok()
}

fn enemy(round: u64) -> SessionInfo {
    let mut id = [0xee; 16];
    id[..8].copy_from_slice(&round.to_le_bytes());
    SessionInfo { id: SessionId(id), job: format!("enemy-{}", round % 64), ..session(0) }
}

/// A payload of a few hundred bytes that decompresses to `plain`.
#[must_use]
pub fn packed(kind: ItemKind, plain: &[u8]) -> Option<Packed> {
    Some(Packed { kind, payload: zstd::bulk::compress(plain, 3).ok()?.into(), unpacked_bytes: plain.len() as u32 })
}

/// A million stacks of the same 512 frames.
///
/// # Panics
/// Never.
#[must_use]
pub fn shared_stacks() -> Packed {
    let mut sender = StackSender::default();
    let deep: Vec<Frame> =
        (0..STACK_FRAMES_MAX as u32).map(|line| Frame { function: "f".into(), file: "a.py".into(), line }).collect();
    sender.add(&deep);
    let mut batch = sender.take().expect("one stack");
    batch.stack_shared.resize(SESSION_STACKS_MAX, STACK_FRAMES_MAX as u32);
    batch.stack_new.resize(SESSION_STACKS_MAX, 0);
    Packed::stacks(&batch)
}

async fn bombs(port: u16, round: u64) -> Option<u64> {
    let item = match round % 4 {
        0 => packed(ItemKind::SiteTables, &[0x0a, 0].repeat(ITEM_UNPACKED_BYTES_MAX / 2))?,
        1 => packed(ItemKind::Samples, &[0x0a, 0].repeat(ITEM_UNPACKED_BYTES_MAX / 2))?,
        2 => packed(ItemKind::Marks, &vec![0; ITEM_UNPACKED_BYTES_MAX])?,
        _ => shared_stacks(),
    };
    send(port, &enemy(round), [item]).await
}

async fn items(port: u16, round: u64) -> Option<u64> {
    let chunks = fuzz::mutations(fuzz::corpus(&fuzz::target("chunk")), round).map(|bytes| Packed {
        kind: ItemKind::Chunk,
        payload: bytes.into(),
        unpacked_bytes: 0,
    });
    let others = fuzz::mutations(fuzz::corpus(&fuzz::target("item")), round).filter_map(|bytes| {
        let (&kind, payload) = bytes.split_first()?;
        let kind = ItemKind::try_from(i32::from(kind & 7)).ok()?;
        Some(Packed { kind, payload: payload.to_vec().into(), unpacked_bytes: 0 })
    });
    send(port, &enemy(round), chunks.zip(others).flat_map(|(a, b)| [a, b]).take(16)).await
}

async fn send(port: u16, session: &SessionInfo, items: impl IntoIterator<Item = Packed>) -> Option<u64> {
    let (mut stream, _) = Stream::open(channel(port).await?, crate::raw::hello(session)).await;
    let mut sent = 0;
    for (index, item) in items.into_iter().enumerate() {
        stream.send(item.numbered(index as u64 + 1)).await;
        sent += 1;
        // Waits for the answer to each: a refusal ends the stream.
        if stream.hear().await.is_none() {
            break;
        }
    }
    Some(sent)
}

/// The paths of all calls in the daemon's descriptors.
fn paths() -> Vec<PathAndQuery> {
    let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the committed description");
    let mut paths = Vec::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                paths.push(path.parse().expect("a path"));
            }
        }
    }
    paths
}

async fn calls(port: u16, round: u64) -> Option<u64> {
    let channel = channel(port).await?;
    let mut messages = fuzz::mutations(fuzz::corpus(&fuzz::target("item")), round);
    let mut answers = 0;
    for path in paths() {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.ok()?;
        let message = Request::new(messages.next().unwrap_or_default());
        // An answer and a refusal are both fine.
        let _ = client.server_streaming(message, path, BytesCodec).await;
        answers += 1;
    }
    Some(answers)
}

async fn silence(port: u16, round: u64) -> Option<u64> {
    let (mut open, preface) = (Vec::new(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    for index in 0..32 {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { break };
        let said = (round + index) as usize % (preface.len() + 1);
        let _ = stream.write_all(&preface[..said]);
        open.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    Some(open.len() as u64)
}

async fn noise(port: u16, round: u64) -> Option<u64> {
    let seeds = vec![
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x05\0\0\0\x01\x82\x84\x86\x41\x8a".to_vec(),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
    ];
    let noise: Vec<Vec<u8>> = fuzz::mutations(seeds, round).take(32).collect();
    let talk = move || noise.iter().filter(|bytes| talked(port, bytes).is_some()).count() as u64;
    tokio::task::spawn_blocking(talk).await.ok()
}

fn talked(port: u16, bytes: &[u8]) -> Option<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(20))).ok()?;
    stream.write_all(bytes).ok()?;
    let _ = stream.read(&mut [0; 256]);
    Some(())
}
