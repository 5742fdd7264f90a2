//! Ingest: one bidirectional stream a session, from hello to the last acknowledgement.
//!
//! Guarantees: what is acknowledged is durable; what comes twice is recognised, what never comes is
//! recorded; memory is bounded per session and in all (a stream that is over its budget is not read,
//! HTTP/2 flow control holds its agent back).
//!
//! Refuses: sessions that are not valid, items that do not open, streams without a hello.

pub mod committer;
pub mod prepare;
pub mod sequence;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use committer::{Committer, Durable, Work};
use memctl_model::SessionInfo;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::v1::agent_message::Body as Said;
use memctl_proto::v1::daemon_message::Body as Answer;
use memctl_proto::v1::ingest_server::Ingest;
use memctl_proto::v1::{Ack, AgentMessage, DaemonMessage, Hello, Item, Refused, RefusedReason, Welcome};
use sequence::{Arrival, Sequence};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::clock::now_ns;
use crate::pokes::Pokes;
use crate::store::{OpenedSession, Store};
use crate::streams::{Claim, Streams};

/// A stream that does not say hello in this time is none.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// An older stream of a session has this long to commit what it took; then the agent is told to retry later.
const TAKEOVER_MAX: Duration = Duration::from_secs(10);
/// A peer that does not take its last answers in this time is gone.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// Answers that wait for the transport; acknowledgements are merged, so this is never long.
const ANSWERS: usize = 16;

/// Items that may be missing in one place: more is a mistake of the sender, not a fault of the transport.
const GAP_MAX: u64 = 1 << 32;

/// Bounds of what waits in memory.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// Bytes of one session that wait for their commit.
    pub session_bytes: usize,
    /// Bytes of all sessions that wait for their commit.
    pub total_bytes: usize,
    /// Bytes that an agent may have unacknowledged.
    pub in_flight_bytes: u64,
}

impl Default for IngestLimits {
    fn default() -> Self {
        // One commit's worth per session (8 MiB) keeps a single fast agent at full speed; 256 MiB in all.
        Self { session_bytes: MESSAGE_BYTES_MAX, total_bytes: 256 << 20, in_flight_bytes: 16 << 20 }
    }
}

/// The ingest service.
#[derive(Clone)]
pub struct IngestService {
    store: Arc<dyn Store>,
    committer: Committer,
    streams: Streams,
    limits: IngestLimits,
    budget: Arc<Semaphore>,
    duplicates: Arc<AtomicU64>,
    pokes: Pokes,
    shutting_down: watch::Receiver<bool>,
}

impl IngestService {
    /// A service over a store and its committer.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        committer: Committer,
        streams: Streams,
        limits: IngestLimits,
        pokes: Pokes,
        shutting_down: watch::Receiver<bool>,
    ) -> Self {
        let budget = Arc::new(Semaphore::new(limits.total_bytes));
        Self { store, committer, streams, limits, budget, duplicates: Arc::default(), pokes, shutting_down }
    }

    /// Bytes that wait for their commit.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        (self.limits.total_bytes - self.budget.available_permits().min(self.limits.total_bytes)) as u64
    }

    /// Items that came twice since the start.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        // Relaxed: a plain count.
        self.duplicates.load(Ordering::Relaxed)
    }
}

#[tonic::async_trait]
impl Ingest for IngestService {
    type PushStream = ReceiverStream<Result<DaemonMessage, Status>>;

    async fn push(&self, request: Request<Streaming<AgentMessage>>) -> Result<Response<Self::PushStream>, Status> {
        let inbound = request.into_inner();
        let (answers, outbound) = mpsc::channel(ANSWERS);
        let service = self.clone();
        tokio::spawn(async move { service.serve(inbound, answers).await });
        Ok(Response::new(ReceiverStream::new(outbound)))
    }
}

type Answers = mpsc::Sender<Result<DaemonMessage, Status>>;

async fn answer(answers: &Answers, body: Answer) -> bool {
    answers.send(Ok(DaemonMessage { body: Some(body) })).await.is_ok()
}

async fn refuse(answers: &Answers, reason: RefusedReason, message: String) {
    tracing::warn!(reason = reason.as_str_name(), message, "stream refused");
    answer(answers, Answer::Refused(Refused { reason: reason as i32, message })).await;
}

impl IngestService {
    async fn serve(self, mut inbound: Streaming<AgentMessage>, answers: Answers) {
        let session = match self.hello(&mut inbound).await {
            Ok(session) => session,
            Err((reason, message)) => return refuse(&answers, reason, message).await,
        };
        let mut claim = self.streams.claim(session.id);
        if tokio::time::timeout(TAKEOVER_MAX, claim.alone()).await.is_err() {
            let message = "an older stream of this session is still being stored; retry later".into();
            return refuse(&answers, RefusedReason::Busy, message).await;
        }
        let opened = match self.store.open_session(&session, now_ns()).await {
            Ok(opened) => opened,
            Err(error) => return refuse(&answers, RefusedReason::Store, error.to_string()).await,
        };
        claim.name(opened.key);
        let welcome = Welcome {
            resume_after: opened.durable_seq,
            in_flight_bytes_max: self.limits.in_flight_bytes,
            daemon_version: env!("CARGO_PKG_VERSION").into(),
        };
        tracing::info!(job = session.job, attempt = session.attempt, rank = session.rank, session = %session.id,
            resume_after = opened.durable_seq, "session streams");
        if answer(&answers, Answer::Welcome(welcome)).await {
            self.receive(&session, &opened, claim, inbound, &answers).await;
            tracing::info!(job = session.job, rank = session.rank, session = %session.id, "stream ended");
        }
    }

    async fn hello(&self, inbound: &mut Streaming<AgentMessage>) -> Result<SessionInfo, (RefusedReason, String)> {
        let invalid = |message: &str| (RefusedReason::Invalid, message.to_owned());
        if *self.shutting_down.borrow() {
            return Err((RefusedReason::ShuttingDown, "the daemon is shutting down; retry later".into()));
        }
        let first = tokio::time::timeout(HELLO_MAX, inbound.message())
            .await
            // An overloaded machine, perhaps: it may retry later.
            .map_err(|_| (RefusedReason::Busy, "no hello came in time".to_owned()))?
            .map_err(|status| (RefusedReason::Invalid, format!("the stream broke: {}", status.message())))?;
        let Some(AgentMessage { body: Some(Said::Hello(Hello { version, session })) }) = first else {
            return Err(invalid("the first message must be a hello"));
        };
        if version != PROTOCOL_VERSION {
            let message = format!(
                "the agent speaks protocol {version}, this daemon speaks {PROTOCOL_VERSION}: use versions of memctl that match"
            );
            return Err((RefusedReason::Version, message));
        }
        let session = session.ok_or_else(|| invalid("the hello names no session"))?;
        SessionInfo::try_from(session).map_err(|error| (RefusedReason::Invalid, error.to_string()))
    }

    /// Reads until the stream ends, the session is taken over, or the daemon shuts down.
    async fn receive(
        &self,
        session: &SessionInfo,
        opened: &OpenedSession,
        mut claim: Claim,
        mut inbound: Streaming<AgentMessage>,
        answers: &Answers,
    ) {
        let (durable, progress) = watch::channel(Durable::Upto(opened.durable_seq));
        let durable = Arc::new(durable);
        let devices: Vec<u8> = session.devices.iter().map(|device| device.index.0).collect();
        let mut sequence = Sequence::after(opened.durable_seq);
        let own_budget = Arc::new(Semaphore::new(self.limits.session_bytes));
        let mut shutting_down = self.shutting_down.clone();
        let acknowledging = tokio::spawn(acknowledge(progress, answers.clone()));
        let mut failures = durable.subscribe();
        loop {
            let message = tokio::select! {
                message = inbound.message() => message,
                () = claim.ended() => break,
                _ = shutting_down.wait_for(|down| *down) => break,
                _ = failures.wait_for(|durable| matches!(durable, Durable::Failed(_))) => break,
            };
            let item = match message {
                Ok(Some(AgentMessage { body: Some(Said::Item(item)) })) => item,
                Ok(Some(_)) => {
                    refuse(answers, RefusedReason::Invalid, "only items may follow the hello".into()).await;
                    break;
                }
                // A broken stream is the agent's to take up again.
                Ok(None) | Err(_) => break,
            };
            if let Err((reason, message)) =
                self.take(opened, &devices, &mut sequence, &durable, &own_budget, item).await
            {
                refuse(answers, reason, message).await;
                break;
            }
            self.pokes.poke(&session.job, session.attempt);
        }
        // Everything taken is committed before the place is given up (the last holder of the sender is the
        // committer), and acknowledged if the peer still listens.
        drop(durable);
        while failures.changed().await.is_ok() {}
        // The last of it is stored now: the verdict on the whole can be made.
        self.pokes.poke(&session.job, session.attempt);
        let _ = tokio::time::timeout(FAREWELL_MAX, acknowledging).await;
        if *self.shutting_down.borrow() {
            let message = "the daemon is shutting down; retry later".into();
            answer(answers, Answer::Refused(Refused { reason: RefusedReason::ShuttingDown as i32, message })).await;
        }
    }

    async fn take(
        &self,
        opened: &OpenedSession,
        devices: &[u8],
        sequence: &mut Sequence,
        durable: &Arc<watch::Sender<Durable>>,
        own_budget: &Arc<Semaphore>,
        item: Item,
    ) -> Result<(), (RefusedReason, String)> {
        let invalid = |message: String| (RefusedReason::Invalid, message);
        let closed = || (RefusedReason::ShuttingDown, "the daemon is shutting down; retry later".to_owned());
        // An item over the message limit was refused by the transport, so this is below the budgets. What it
        // unfolds to while it is looked at counts against the budget of all.
        let bytes = item.payload.len().clamp(1, self.limits.session_bytes) as u32;
        let unfolded = (item.unpacked_bytes as usize).clamp(bytes as usize, self.limits.total_bytes / 4) as u32;
        let own = own_budget.clone().acquire_many_owned(bytes).await.map_err(|_| closed())?;
        let mut shared = self.budget.clone().acquire_many_owned(unfolded).await.map_err(|_| closed())?;
        let seq = item.seq;
        let (prepared, gap) = match sequence.arrive(seq) {
            Arrival::Duplicate => {
                // Relaxed: a plain count.
                self.duplicates.fetch_add(1, Ordering::Relaxed);
                (None, None)
            }
            _ if opened.ended => return Err(invalid(format!("the session has ended; item {seq} comes after its end"))),
            Arrival::AfterGap(gap) if gap.last - gap.first > GAP_MAX => {
                return Err(invalid(format!("item {seq} cannot follow item {}", gap.first - 1)));
            }
            Arrival::Next => (Some(self.prepare(opened, devices, &item).map_err(invalid)?), None),
            Arrival::AfterGap(gap) => {
                tracing::warn!(
                    session = opened.key,
                    first = gap.first,
                    last = gap.last,
                    "items of a session never came"
                );
                (Some(self.prepare(opened, devices, &item).map_err(invalid)?), Some(gap))
            }
        };
        // Looked at: from here on it is as large as it is stored.
        drop(shared.split((unfolded - bytes) as usize));
        let work = Work {
            session: opened.key,
            prepared,
            gap,
            seq: sequence.last(),
            durable: durable.clone(),
            permits: (own, shared),
        };
        if self.committer.submit(work).await { Ok(()) } else { Err(closed()) }
    }

    fn prepare(&self, opened: &OpenedSession, devices: &[u8], item: &Item) -> Result<Box<prepare::Prepared>, String> {
        prepare::prepare(opened.key, devices, item).map(Box::new).map_err(|error| error.to_string())
    }
}

/// Tells the agent how far it is durable, whenever that changes; ends when nothing more can become durable.
async fn acknowledge(mut progress: watch::Receiver<Durable>, answers: Answers) {
    while progress.changed().await.is_ok() {
        let now = progress.borrow_and_update().clone();
        let said = match now {
            Durable::Upto(durable_seq) => answer(&answers, Answer::Ack(Ack { durable_seq })).await,
            Durable::Failed(message) => {
                refuse(&answers, RefusedReason::Store, message).await;
                false
            }
        };
        if !said {
            return;
        }
    }
}
