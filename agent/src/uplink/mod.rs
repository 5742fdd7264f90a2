//! The uplink: delivers the outbox's items to the daemon over one bidirectional stream and reconnects as needed.
//!
//! Guarantees: after any break, delivery continues after the daemon's last durable item. An item leaves the outbox only
//! when the daemon has acknowledged it. Every connect, response and silence has a time limit. The daemon's limit bounds
//! the bytes in flight. Answers to requests for holders (`holders`) have no number. They are sent once, over the link
//! that carried the request.
//!
//! Refuses: to retry what the daemon refused permanently (wrong version, session ended, invalid session).

pub mod outgoing;
pub mod spool;
pub mod window;

use std::sync::Arc;
use std::time::Duration;

use crate::credentials::Credentials;
use crate::holders::Asks;
use crate::reach::{DaemonAddress, ReachError};
use crate::secret::SessionSecret;
use memctl_model::Backoff;
use memctl_model::SessionInfo;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::v1::agent_message::Body as AgentBody;
use memctl_proto::v1::daemon_message::Body as Heard;
use memctl_proto::v1::ingest_client::IngestClient;
use memctl_proto::v1::{
    AgentMessage, DaemonMessage, Hello, HolderSearch, Refused, RefusedReason, SessionInfo as WireSession,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use window::Window;

/// Time limit for a connection. A daemon that does not accept it in this time cannot be reached.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time limit for the response to the hello. A daemon that does not respond in this time is not healthy.
const WELCOME_MAX: Duration = Duration::from_secs(30);
/// A connection with bytes in flight and no acknowledgement for this long is dead. (A commit takes milliseconds.)
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Interval between syncs. A crash of the host loses what was spooled since the last sync.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of messages that wait for the transport.
const TRANSPORT_QUEUE: usize = 4;

/// How to reach the daemon.
#[derive(Clone, Debug)]
pub enum Daemon {
    /// An address: `unix:/path`, `http://host:port`, `https://host:port`.
    Address(DaemonAddress),
    /// An existing connection: a daemon in the same process.
    Connected(Channel),
    /// One of the others, with the credentials to present.
    As(Box<Self>, Credentials),
}

impl Daemon {
    /// The same daemon, with these credentials.
    #[must_use]
    pub fn showing(self, credentials: Credentials) -> Self {
        if credentials == Credentials::default() { self } else { Self::As(Box::new(self), credentials) }
    }
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("the stream broke: {0}")]
    Broken(Box<Status>),
    #[error("the daemon did not answer in {0:?}")]
    Silent(Duration),
    #[error("the daemon closed the stream")]
    Closed,
    #[error("the daemon refused: {0}")]
    Refused(String),
    #[error("protocol error: the daemon {0}")]
    Nonsense(&'static str),
    #[error("an item cannot be read back: {0}")]
    Spool(std::io::Error),
    #[error("the daemon reads at most {bytes_max} bytes: {message}")]
    TooLarge { bytes_max: u64, message: String },
    #[error("refused for good: {0}")]
    Final(String),
}

/// How the uplink ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkEnd {
    /// `stop` was closed.
    Stopped,
    /// The daemon will never accept this session. The text is its reason.
    Refused(String),
}

/// The contents of a link.
#[derive(Clone)]
pub(crate) struct Link {
    /// The items.
    pub window: Arc<Window>,
    /// The daemon's requests for holders.
    pub asks: Arc<Asks>,
    /// The session's readiness for such requests, which the hello reports.
    pub readiness: HolderSearch,
    /// Whether the daemon may request holders without a user.
    pub unasked: bool,
}

impl Link {
    /// A link for a spool of a dead process, from which holders cannot be requested.
    pub fn of_a_spool(window: Arc<Window>) -> Self {
        Self { window, asks: Arc::default(), readiness: HolderSearch::NotPython, unasked: false }
    }
}

/// Delivers until `stop` is closed or the daemon refuses permanently. Meanwhile, spooled data is synced every second.
pub(crate) async fn run(
    daemon: Daemon,
    session: (SessionInfo, SessionSecret),
    over: Link,
    stop: mpsc::Receiver<()>,
    backoff: Backoff,
) -> UplinkEnd {
    tokio::select! {
        ended = deliver(daemon, session, &over, stop, backoff) => ended,
        never = keep_synced(over.window.clone()) => match never {},
    }
}

/// Syncs the spool, on a thread that may block.
async fn keep_synced(window: Arc<Window>) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(SYNC_EVERY).await;
        if !window.is_synced() {
            let window = window.clone();
            // `sync` logs a failure. The written data is still in the page cache.
            let _ = tokio::task::spawn_blocking(move || window.sync()).await;
        }
    }
}

async fn deliver(
    daemon: Daemon,
    (session, secret): (SessionInfo, SessionSecret),
    over: &Link,
    mut stop: mpsc::Receiver<()>,
    backoff: Backoff,
) -> UplinkEnd {
    let mut attempt = 0;
    loop {
        let linked = tokio::select! {
            _ = stop.recv() => return UplinkEnd::Stopped,
            result = link(&daemon, (&session, &secret), over, &mut attempt) => result,
        };
        over.window.set_linked(false);
        if let Err(LinkError::Refused(reason)) = &linked {
            over.window.note_refusal(reason);
        }
        match linked {
            Err(LinkError::Final(message)) => {
                // (The line has its own target, so that a command that prints the refusal itself can leave it out.)
                tracing::error!(target: "memctl_agent::uplink::refused", session = %session.id, reason = message,
                    "the daemon refused the session");
                return UplinkEnd::Refused(message);
            }
            Err(LinkError::TooLarge { bytes_max, message }) => {
                let (items, events) = over.window.leave_out(bytes_max);
                tracing::error!(session = %session.id, items, events, bytes_max,
                    "items larger than the daemon reads are left out, and their events counted as dropped");
                if items == 0 {
                    // No item here is that large, so each attempt would be refused again.
                    return UplinkEnd::Refused(message);
                }
            }
            Err(error) if attempt == 0 => {
                tracing::warn!(session = %session.id, %error, "link to the daemon lost; retrying")
            }
            Err(error) => tracing::debug!(session = %session.id, %error, attempt, "daemon not reached"),
            Ok(never) => match never {},
        }
        tokio::select! {
            _ = stop.recv() => return UplinkEnd::Stopped,
            () = tokio::time::sleep(backoff.wait(attempt, draw())) => {}
        }
        attempt = attempt.saturating_add(1);
    }
}

/// A random number, uniform in 0..1.
fn draw() -> f64 {
    getrandom::u32().map_or(0.5, |bits| f64::from(bits) / f64::from(u32::MAX))
}

/// Connects. Returns the connection and the credentials for it.
async fn connect(daemon: &Daemon) -> Result<(Channel, Credentials), LinkError> {
    match daemon {
        Daemon::As(daemon, credentials) => {
            if let Daemon::Address(address) = &**daemon {
                credentials.check(&address.to_string()).map_err(LinkError::Final)?;
            }
            Ok((channel(daemon).await?, credentials.clone()))
        }
        daemon => Ok((channel(daemon).await?, Credentials::default())),
    }
}

async fn channel(daemon: &Daemon) -> Result<Channel, LinkError> {
    match daemon {
        Daemon::As(..) => Err(LinkError::Final("a daemon address has one set of credentials, not two".into())),
        Daemon::Connected(channel) => Ok(channel.clone()),
        Daemon::Address(address) => {
            let adjust = |endpoint: Endpoint| {
                endpoint
                    .connect_timeout(CONNECT_MAX)
                    .http2_keep_alive_interval(Duration::from_secs(20))
                    .keep_alive_timeout(Duration::from_secs(10))
            };
            address.connect(adjust).await.map_err(|error| match error {
                ReachError::Address(error) => LinkError::Final(error.to_string()),
                error => LinkError::Connect(error.to_string()),
            })
        }
    }
}

/// Runs one connection, from the hello to its end. Never returns successfully.
async fn link(
    daemon: &Daemon,
    (session, secret): (&SessionInfo, &SessionSecret),
    over: &Link,
    attempt: &mut u32,
) -> Result<std::convert::Infallible, LinkError> {
    let connected = timeout(CONNECT_MAX, connect(daemon)).await.map_err(|_| LinkError::Silent(CONNECT_MAX))?;
    let (channel, credentials) = connected?;
    let mut client = IngestClient::with_interceptor(channel, credentials)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        // The daemon decides what is too large. Only its refusal lets an item be left out.
        .max_encoding_message_size(usize::MAX);
    let (outbound, requests) = mpsc::channel(TRANSPORT_QUEUE);
    let (wire, secret) = (WireSession::from(session), secret.bytes().to_vec());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        session: Some(wire),
        secret,
        holders: over.readiness as i32,
        holders_unasked: over.unasked,
    };
    say(&outbound, AgentBody::Hello(hello)).await?;
    let opened = timeout(WELCOME_MAX, client.push(ReceiverStream::new(requests))).await;
    let mut inbound = opened.map_err(|_| LinkError::Silent(WELCOME_MAX))?.map_err(refused_call)?.into_inner();
    let welcome = match timeout(WELCOME_MAX, hear(&mut inbound)).await.map_err(|_| LinkError::Silent(WELCOME_MAX))?? {
        Heard::Welcome(welcome) => welcome,
        Heard::Refused(refused) => return Err(refusal(&refused)),
        _ => return Err(LinkError::Nonsense("sent something before its Welcome")),
    };
    tracing::debug!(session = %session.id, resume_after = welcome.resume_after, "linked");
    *attempt = 0;
    over.asks.forget();
    if !over.window.resume(welcome.resume_after) {
        return Err(LinkError::Final(format!(
            "the daemon has {} items of session {} that this agent never made: it was recorded before",
            welcome.resume_after, session.id
        )));
    }
    over.window.set_linked(true);
    converse(&outbound, &mut inbound, over, welcome.resume_after, welcome.in_flight_bytes_max.max(1)).await
}

/// Sends the items of the outbox and processes what the daemon sends.
async fn converse(
    outbound: &mpsc::Sender<AgentMessage>,
    inbound: &mut Streaming<DaemonMessage>,
    Link { window, asks, .. }: &Link,
    resume_after: u64,
    in_flight_max: u64,
) -> Result<std::convert::Infallible, LinkError> {
    let mut sent = resume_after;
    let mut waiting_since = None;
    let mut reply = None;
    loop {
        let under_way = window.under_way(sent);
        if under_way == 0 {
            waiting_since = None;
        } else if waiting_since.is_none() {
            waiting_since = Some(tokio::time::Instant::now());
        }
        let silence = waiting_since.map_or(SILENCE_MAX, |since| SILENCE_MAX.saturating_sub(since.elapsed()));
        let news = window.news();
        let next = if under_way < in_flight_max { window.after(sent).map_err(LinkError::Spool)? } else { None };
        tokio::select! {
            biased;
            message = hear(inbound) => match message? {
                Heard::Ack(ack) => {
                    window.ack(ack.durable_seq);
                    waiting_since = None;
                }
                Heard::Holders(ask) => asks.ask(ask),
                Heard::Control(control) => tracing::info!(level = control.level, "the daemon asks for another recording level"),
                Heard::Refused(refused) => return Err(refusal(&refused)),
                Heard::Welcome(_) => return Err(LinkError::Nonsense("sent a second Welcome")),
            },
            answer = asks.answered(), if reply.is_none() => reply = Some(answer),
            room = outbound.reserve(), if reply.is_some() => {
                let body = reply.take().map(AgentBody::Holders);
                room.map_err(|_| LinkError::Closed)?.send(AgentMessage { body });
            }
            said = async {
                match next {
                    Some(item) => {
                        let seq = item.seq;
                        say(outbound, AgentBody::Item(item)).await.map(|()| seq)
                    }
                    None => std::future::pending().await,
                }
            } => sent = said?,
            () = news => {}
            () = tokio::time::sleep(silence) => {
                if waiting_since.is_some() {
                    return Err(LinkError::Silent(SILENCE_MAX));
                }
            }
        }
    }
}

async fn say(outbound: &mpsc::Sender<AgentMessage>, body: AgentBody) -> Result<(), LinkError> {
    outbound.send(AgentMessage { body: Some(body) }).await.map_err(|_| LinkError::Closed)
}

async fn hear(inbound: &mut Streaming<DaemonMessage>) -> Result<Heard, LinkError> {
    match inbound.message().await {
        Ok(Some(message)) => message.body.ok_or(LinkError::Nonsense("sent an empty message")),
        Ok(None) => Err(LinkError::Closed),
        Err(status) => Err(LinkError::Broken(Box::new(status))),
    }
}

/// The error for a call that returned a status instead of a stream.
fn refused_call(status: Status) -> LinkError {
    match status.code() {
        // This principal may not write there, and another attempt would not change that.
        tonic::Code::PermissionDenied => LinkError::Final(status.message().to_owned()),
        // The token may be replaced at any time, so this is retried.
        tonic::Code::Unauthenticated => LinkError::Refused(status.message().to_owned()),
        // A connection beyond the daemon's limits ends like this, too.
        _ => {
            memctl_proto::goaway::words(&status).map_or_else(|| LinkError::Broken(Box::new(status)), LinkError::Refused)
        }
    }
}

fn refusal(refused: &Refused) -> LinkError {
    match refused.reason() {
        RefusedReason::Version | RefusedReason::Invalid | RefusedReason::Ended | RefusedReason::Denied => {
            LinkError::Final(refused.message.clone())
        }
        RefusedReason::TooLarge => {
            LinkError::TooLarge { bytes_max: refused.bytes_max, message: refused.message.clone() }
        }
        // An unknown reason comes from a newer daemon and may be temporary.
        // A token that has expired may be replaced at any time.
        RefusedReason::Busy
        | RefusedReason::Store
        | RefusedReason::ShuttingDown
        | RefusedReason::Unauthenticated
        | RefusedReason::Unspecified => LinkError::Refused(refused.message.clone()),
    }
}
