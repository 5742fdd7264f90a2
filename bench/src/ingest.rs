//! Durable ingest: encoded chunks through gRPC on a loopback port into SQLite (synchronous=FULL), until the last one is acknowledged.
//!
//! The streams are made beforehand; measured is what the daemon and the transport do, with the client on
//! the same two cores. Peak memory is the whole process's, client and prepared chunks included.

use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use memctl_daemon::config::{Layer, resolve};
use memctl_daemon::server;
use memctl_model::{AllocatorSettings, DeviceInfo, Event, SessionId, SessionInfo, SourceKind};
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::item::Packed;
use memctl_proto::v1::agent_message::Body as Said;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::ingest_client::IngestClient;
use memctl_proto::v1::{AgentMessage, Hello};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use crate::chunks::Chunks;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Streams at once.
    pub streams: u32,
    /// Events.
    pub events: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Seconds from the first hello to the last acknowledgement.
    pub seconds: f64,
}

/// The session of a stream.
#[must_use]
pub fn session(job: &str, rank: u32) -> SessionInfo {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&rank.to_le_bytes());
    for (byte, letter) in id[4..].iter_mut().zip(job.bytes()) {
        *byte = letter;
    }
    SessionInfo {
        id: SessionId(id),
        job: job.into(),
        attempt: 0,
        rank,
        world_size: None,
        source: SourceKind::Live,
        host: None,
        pid: None,
        started_ns: 1,
        framework: None,
        settings: AllocatorSettings::default(),
        devices: vec![DeviceInfo::default()],
        labels: Vec::new(),
        resolution_ns: 100,
    }
}

/// Streams `chunks_per_stream` chunks over each of `streams` streams into a fresh SQLite store.
///
/// # Errors
/// When anything fails.
pub async fn run(events: &[Event], streams: u32, chunks_per_stream: usize) -> Result<Run, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let layer = Layer {
        listen: Some("127.0.0.1:0".into()),
        data_dir: Some(folder.path().to_owned()),
        ..Layer::default()
    };
    let config = resolve(&[("bench".into(), layer)], None)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, bound) = oneshot::channel();
    let serving = tokio::spawn(server::serve(
        config,
        move |address| {
            let _ = ready.send(address);
        },
        async move {
            let _ = stopped.await;
        },
    ));
    let url = format!("http://{}", bound.await?);
    let mut prepared: Vec<Vec<Bytes>> = Vec::new();
    for _ in 0..streams {
        let mut chunks = Chunks::new(events.to_vec(), 100)?;
        let encoded: Result<Vec<Bytes>, Box<dyn Error>> =
            (0..chunks_per_stream).map(|_| Ok(chunks.next_chunk()?.into())).collect();
        prepared.push(encoded?);
    }
    let bytes = prepared.iter().flatten().map(|chunk| chunk.len() as u64).sum();
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for (rank, chunks) in (0..streams).zip(prepared) {
        tasks.push(tokio::spawn(stream(url.clone(), rank, chunks)));
    }
    for task in tasks {
        task.await?.map_err(|error| error.to_string())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let _ = stop.send(());
    serving.await??;
    Ok(Run { streams, events: u64::from(streams) * chunks_per_stream as u64 * 65_536, bytes, seconds })
}

/// Sends everything and waits until the last item is durable.
async fn stream(url: String, rank: u32, chunks: Vec<Bytes>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let channel = Endpoint::from_shared(url)?.tcp_nodelay(true).connect().await?;
    let mut client = IngestClient::new(channel);
    let (outbound, requests) = mpsc::channel(8);
    let hello = Hello { version: PROTOCOL_VERSION, session: Some((&session("ingest", rank)).into()) };
    outbound.send(AgentMessage { body: Some(Said::Hello(hello)) }).await?;
    let mut inbound = client.push(ReceiverStream::new(requests)).await?.into_inner();
    let last = chunks.len() as u64;
    let sending = tokio::spawn(async move {
        for (seq, chunk) in (1..).zip(chunks) {
            let item = Packed::chunk(chunk).numbered(seq);
            if outbound.send(AgentMessage { body: Some(Said::Item(item)) }).await.is_err() {
                break;
            }
        }
        outbound
    });
    while let Some(message) = inbound.message().await? {
        match message.body {
            Some(Heard::Ack(ack)) if ack.durable_seq >= last => {
                drop(sending.await?);
                return Ok(());
            }
            Some(Heard::Refused(refused)) => return Err(refused.message.into()),
            _ => {}
        }
    }
    Err("the daemon closed the stream".into())
}
