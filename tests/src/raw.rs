//! A raw client of ingest that can send messages that no agent sends.

use crate::source::Producer;
use bytes::Bytes;
use memctl_model::{DeviceIndex, DeviceInfo, Event, Rollup, SessionId, SessionInfo};
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::chunk::{ChunkMeta, Encoder};
use memctl_proto::item::Packed;
use memctl_proto::v1::agent_message::Body as AgentBody;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::ingest_client::IngestClient;
use memctl_proto::v1::{AgentMessage, DaemonMessage, Hello, HoldersAnswer, Item, RefusedReason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// A session of the job `wire`, rank 0, with one device.
#[must_use]
pub fn session(id: u8) -> SessionInfo {
    SessionInfo { devices: vec![DeviceInfo::default()], ..SessionInfo::live(SessionId([id; 16]), "wire", 1) }
}

/// A chunk of generated events.
///
/// # Panics
/// When the codec rejects them.
#[must_use]
pub fn chunk(first: u64, count: usize) -> Bytes {
    let events: Vec<Event> = Producer::new(3).skip(first as usize).take(count).collect();
    let mut encoder = Encoder::new(100).unwrap();
    let mut rollup = Rollup { first_ns: events[0].time_ns, exact: true, ..Rollup::default() };
    for event in &events {
        encoder.push(event).unwrap();
        rollup.counts[event.action as usize] += 1;
        rollup.last_ns = event.time_ns;
    }
    encoder.finish(&ChunkMeta { device: DeviceIndex(0), first_event: first, rollup }).unwrap().into()
}

/// The item with this number; each item has ten events.
#[must_use]
pub fn item(seq: u64, first: u64) -> Item {
    Packed::chunk(chunk(first, 10)).numbered(seq)
}

/// A stream of one session.
pub struct Stream {
    outbound: mpsc::Sender<AgentMessage>,
    inbound: Streaming<DaemonMessage>,
}

impl Stream {
    /// Sends a hello; returns the first response.
    ///
    /// # Panics
    /// When there is no response.
    pub async fn open(channel: Channel, hello: Hello) -> (Self, Heard) {
        let (outbound, requests) = mpsc::channel(16);
        outbound.send(AgentMessage { body: Some(AgentBody::Hello(hello)) }).await.unwrap();
        let inbound = IngestClient::new(channel).push(ReceiverStream::new(requests)).await.unwrap().into_inner();
        let mut stream = Self { outbound, inbound };
        let first = stream.hear().await.expect("an answer to the hello");
        (stream, first)
    }

    /// Opens a session that must be accepted; returns the number to continue at.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn welcome(channel: Channel, session: &SessionInfo) -> (Self, u64) {
        let (stream, heard) = Self::open(channel, hello(session)).await;
        match heard {
            Heard::Welcome(welcome) => (stream, welcome.resume_after),
            other => panic!("not welcome: {other:?}"),
        }
    }

    /// Sends an item.
    pub async fn send(&self, item: Item) {
        // The daemon may have ended the stream by now; its answer is read elsewhere.
        let _ = self.outbound.send(AgentMessage { body: Some(AgentBody::Item(item)) }).await;
    }

    /// Answers a request for holders.
    pub async fn answer(&self, answer: HoldersAnswer) {
        let _ = self.outbound.send(AgentMessage { body: Some(AgentBody::Holders(answer)) }).await;
    }

    /// The next answer.
    pub async fn hear(&mut self) -> Option<Heard> {
        self.inbound.message().await.ok().flatten().and_then(|message| message.body)
    }

    /// Waits for the acknowledgement of an item.
    ///
    /// # Panics
    /// When another message arrives.
    pub async fn until_durable(&mut self, seq: u64) {
        loop {
            match self.hear().await {
                Some(Heard::Ack(ack)) if ack.durable_seq >= seq => return,
                Some(Heard::Ack(_)) => {}
                other => panic!("instead of an acknowledgement: {other:?}"),
            }
        }
    }

    /// Waits for the refusal; returns its reason and text.
    ///
    /// # Panics
    /// When another message arrives, or none.
    pub async fn until_refused(&mut self) -> (RefusedReason, String) {
        loop {
            match self.hear().await {
                Some(Heard::Refused(refused)) => return (refused.reason(), refused.message),
                Some(Heard::Ack(_)) => {}
                other => panic!("instead of a refusal: {other:?}"),
            }
        }
    }
}

/// The hello of a session.
#[must_use]
pub fn hello(session: &SessionInfo) -> Hello {
    Hello { version: PROTOCOL_VERSION, session: Some(session.into()), secret: Vec::new(), ..Hello::default() }
}
