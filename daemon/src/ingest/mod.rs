//! Ingest: one bidirectional stream per session, from hello to the last acknowledgement.
//!
//! Guarantees: acknowledged items are durable. Duplicates are recognised, and missing items are recorded. Memory is
//! bounded per session and in total: a stream over its budget is not read, and HTTP/2 flow control slows its agent
//! down. If a session's start is ahead of the daemon's clock, it is stored as now, so that the session does not remain
//! the latest for long.
//!
//! Refuses: invalid sessions, items that cannot be decoded, and streams without a hello. Callers without the right to
//! write to the job and sessions of another agent are also refused, before anything of the session is changed.
//!
//! (Over 400 lines: one stream from hello to its end, whose steps share state.)

pub mod committer;
pub mod counts;
pub mod prepare;
pub mod sequence;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use committer::{Committer, Durable, Work};
use counts::{Counts, Figures};
use memctl_model::SessionInfo;
use memctl_model::limits::{ITEM_BYTES_MAX, MESSAGE_BYTES_MAX};
use memctl_proto::PROTOCOL_VERSION;
use memctl_proto::v1::agent_message::Body as AgentBody;
use memctl_proto::v1::daemon_message::Body as Answer;
use memctl_proto::v1::ingest_server::Ingest;
use memctl_proto::v1::{Ack, AgentMessage, DaemonMessage, Hello, Item, ItemKind, Refused, RefusedReason, Welcome};
use sequence::{Arrival, Sequence};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::access::{Caller, Gate};
use crate::clock::steady;
use crate::listen::Peer;
use crate::notify::{ChangedJob, Notifier};
use crate::server_requests::{AskReceiver, Readiness};
use crate::store::{OpenedSession, Opening, SecretHash, Store, StoreError, Tenant, opening};
use crate::streams::{Claim, Streams};

/// A stream without a hello within this time is refused.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// An older stream of a session has this time to commit the items that it took. After that, the new stream must retry
/// later.
const TAKEOVER_MAX: Duration = Duration::from_secs(10);
/// Timeout for the peer to take its last responses.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// The most responses that wait for the transport. Acknowledgements are merged, so the queue stays short.
const ANSWERS: usize = 16;

/// The largest item that an agent may send. Its message takes a few bytes more.
const ITEM_MESSAGE_BYTES_MAX: u64 = MESSAGE_BYTES_MAX as u64 - 16;

/// The largest number of items missing in one gap. More indicate a fault of the sender, not of the transport.
const GAP_MAX: u64 = 1 << 32;

/// Allowed lengths of a session's secret. A shorter one could be guessed.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=64;
/// How far an agent's clock may be ahead of the daemon's.
const AHEAD_NS: u64 = 600_000_000_000;

/// Limits of the data that waits in memory.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// Bytes of one session that wait for their commit.
    pub session_bytes: usize,
    /// Bytes of all sessions that wait for their commit.
    pub total_bytes: usize,
    /// Bytes of an agent that may be unacknowledged.
    pub in_flight_bytes: u64,
}

impl Default for IngestLimits {
    fn default() -> Self {
        // One commit per session (8 MiB) keeps a single fast agent at full speed. The total is 256 MiB.
        Self { session_bytes: ITEM_BYTES_MAX, total_bytes: 256 << 20, in_flight_bytes: 16 << 20 }
    }
}

/// The ingest service.
#[derive(Clone)]
pub struct IngestService {
    store: Arc<dyn Store>,
    gate: Gate,
    committer: Committer,
    streams: Streams,
    limits: IngestLimits,
    budget: Arc<Semaphore>,
    scale: Arc<prepare::Scale>,
    duplicates: Arc<AtomicU64>,
    notifier: Notifier,
    shutting_down: watch::Receiver<bool>,
    is_read_only: bool,
}

impl IngestService {
    /// Creates the service over a store and its committer.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        gate: Gate,
        committer: Committer,
        streams: Streams,
        limits: IngestLimits,
        notifier: Notifier,
        shutting_down: watch::Receiver<bool>,
    ) -> Self {
        let budget = Arc::new(Semaphore::new(limits.total_bytes));
        let (scale, duplicates) = Default::default();
        let is_read_only = false;
        Self {
            store,
            gate,
            committer,
            streams,
            limits,
            budget,
            scale,
            duplicates,
            notifier,
            shutting_down,
            is_read_only,
        }
    }

    /// Refuses all recordings if the store was opened read-only. That is no fault of the store.
    #[must_use]
    pub const fn read_only(mut self, is_read_only: bool) -> Self {
        self.is_read_only = is_read_only;
        self
    }

    /// Bytes that wait for their commit.
    #[must_use]
    pub fn queued_bytes(&self) -> u64 {
        self.figures().queued_bytes()
    }

    /// The metrics of ingest. They do not keep any task alive.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            counts: self.committer.counts(),
            duplicates: self.duplicates.clone(),
            budget: self.budget.clone(),
            budget_bytes: self.limits.total_bytes,
        }
    }

    /// Why the store did not take the last write; `None` if it did.
    #[must_use]
    pub fn write_failure(&self) -> Option<String> {
        self.committer.counts().write_fault.borrow().as_ref().map(|fault| fault.error.clone())
    }

    /// Duplicate items since the start.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        // Relaxed: this is only a counter.
        self.duplicates.load(Ordering::Relaxed)
    }
}

#[tonic::async_trait]
impl Ingest for IngestService {
    type PushStream = ReceiverStream<Result<DaemonMessage, Status>>;

    async fn push(&self, request: Request<Streaming<AgentMessage>>) -> Result<Response<Self::PushStream>, Status> {
        let caller = Caller::of(&request)?;
        let client = Peer::of(request.extensions()).map_or_else(String::new, ToString::to_string);
        let inbound = request.into_inner();
        let (answers, outbound) = mpsc::channel(ANSWERS);
        let service = self.clone();
        // The span adds the client's name to the log lines of the stream.
        let span = tracing::info_span!("stream", client, caller = caller.name, tenant = %caller.tenant());
        tokio::spawn(async move { service.serve(caller, inbound, answers).await }.instrument(span));
        Ok(Response::new(ReceiverStream::new(outbound)))
    }
}

type Answers = mpsc::Sender<Result<DaemonMessage, Status>>;

async fn answer(answers: &Answers, body: Answer) -> bool {
    answers.send(Ok(DaemonMessage { body: Some(body) })).await.is_ok()
}

async fn refuse(counts: &Counts, answers: &Answers, reason: RefusedReason, message: String) {
    counts.refuse(reason);
    tracing::warn!(reason = reason.as_str_name(), message, "stream refused");
    answer(answers, refused(reason, message)).await;
}

fn refused(reason: RefusedReason, message: String) -> Answer {
    let bytes_max = if reason == RefusedReason::TooLarge { ITEM_MESSAGE_BYTES_MAX } else { 0 };
    Answer::Refused(Refused { reason: reason as i32, message, bytes_max })
}

/// A hello and its sender.
struct Greeted {
    session: SessionInfo,
    readiness: Readiness,
    secret: Option<SecretHash>,
    tenant: Tenant,
    owner: String,
}

impl Greeted {
    fn opening(&self) -> Opening<'_> {
        let Self { session: info, readiness: _, secret, tenant, owner } = self;
        Opening { tenant, info, owner, secret: *secret, now_ns: steady().now_ns }
    }
}

fn refusal(error: &StoreError) -> (RefusedReason, String) {
    let reason = if matches!(error, StoreError::Foreign) { RefusedReason::Denied } else { RefusedReason::Store };
    (reason, error.to_string())
}

impl IngestService {
    async fn serve(self, caller: Caller, mut inbound: Streaming<AgentMessage>, answers: Answers) {
        let greeted = match self.hello(&caller, &mut inbound).await {
            Ok(greeted) => greeted,
            Err((reason, message)) => return refuse(&self.committer.counts(), &answers, reason, message).await,
        };
        if let Err((reason, message)) = self.owned(&caller, &greeted).await {
            return refuse(&self.committer.counts(), &answers, reason, message).await;
        }
        if self.is_read_only {
            let message = "this daemon is read-only and takes no recordings: name another one with --daemon".into();
            return refuse(&self.committer.counts(), &answers, RefusedReason::Denied, message).await;
        }
        let session = &greeted.session;
        let (mut claim, asked) = self.streams.claim(greeted.opening().stored_id(), &greeted.tenant, greeted.readiness);
        if tokio::time::timeout(TAKEOVER_MAX, claim.alone()).await.is_err() {
            let message = "an older stream of this session is still being stored; retry later".into();
            return refuse(&self.committer.counts(), &answers, RefusedReason::Busy, message).await;
        }
        let opened = match self.store.open(&greeted.opening()).await {
            Ok(opened) => opened,
            Err(error) => {
                self.committer.counts().not_written(&error);
                let (reason, message) = refusal(&error);
                return refuse(&self.committer.counts(), &answers, reason, message).await;
            }
        };
        claim.name(opened.key);
        let welcome = Welcome {
            resume_after: opened.durable_seq,
            in_flight_bytes_max: self.limits.in_flight_bytes,
            daemon_version: env!("CARGO_PKG_VERSION").into(),
        };
        tracing::info!(caller = caller.name, tenant = %greeted.tenant, job = session.job, attempt = session.attempt, rank = session.rank, session = %session.id,
            resume_after = opened.durable_seq, "session streams");
        if answer(&answers, Answer::Welcome(welcome)).await {
            self.receive(&caller, &greeted, &opened, (claim, asked), inbound, &answers).await;
            tracing::info!(job = session.job, rank = session.rank, session = %session.id, "stream ended");
        }
    }

    /// Whether this caller may resume the session. Nothing is changed.
    async fn owned(&self, caller: &Caller, greeted: &Greeted) -> Result<(), (RefusedReason, String)> {
        let Greeted { session, tenant, .. } = greeted;
        let why = if caller.may_write(&session.job) {
            let held = self.store.held(tenant, session.id).await.map_err(|error| refusal(&error))?;
            match held {
                Some(held) if !greeted.opening().may_continue(&held) => StoreError::Foreign.to_string(),
                _ => return Ok(()),
            }
        } else {
            // The job's name is untrusted text from the caller.
            format!("{} may write only to jobs {:?}", caller.name, caller.jobs)
        };
        self.gate.audit().refused(caller, "Push", &format!("{} session {}", session.job, session.id), &why).await;
        Err((RefusedReason::Denied, why))
    }

    async fn hello(
        &self,
        caller: &Caller,
        inbound: &mut Streaming<AgentMessage>,
    ) -> Result<Greeted, (RefusedReason, String)> {
        let invalid = |message: &str| (RefusedReason::Invalid, message.to_owned());
        if *self.shutting_down.borrow() {
            return Err((RefusedReason::ShuttingDown, "the daemon is shutting down; retry later".into()));
        }
        let down = || (RefusedReason::ShuttingDown, "the daemon is shutting down; retry later".to_owned());
        let mut shutting_down = self.shutting_down.clone();
        let hearing = tokio::select! {
            heard = tokio::time::timeout(HELLO_MAX, inbound.message()) => heard,
            _ = shutting_down.wait_for(|down| *down) => return Err(down()),
        };
        let first = hearing
            // The machine may be overloaded, so the agent may retry later.
            .map_err(|_| (RefusedReason::Busy, "no hello came in time".to_owned()))?
            .map_err(|status| (RefusedReason::Invalid, format!("the stream broke: {}", status.message())))?;
        let Some(AgentMessage { body: Some(AgentBody::Hello(hello)) }) = first else {
            return Err(invalid("the first message must be a hello"));
        };
        // Values of a newer agent that this daemon does not know are read as unset.
        let search = hello.holders();
        let Hello { version, session, secret, holders: _, holders_unasked: unasked } = hello;
        if version != PROTOCOL_VERSION {
            let message = format!(
                "the agent speaks protocol {version}, this daemon speaks {PROTOCOL_VERSION}: use versions of memctl that match"
            );
            return Err((RefusedReason::Version, message));
        }
        let session = session.ok_or_else(|| invalid("the hello names no session"))?;
        let mut session =
            SessionInfo::try_from(session).map_err(|error| (RefusedReason::Invalid, error.to_string()))?;
        let secret = match secret.len() {
            0 => None,
            bytes if SECRET_BYTES.contains(&bytes) => Some(opening::hash(&secret)),
            _ => return Err(invalid("a session's secret has 16 to 64 bytes")),
        };
        let now_ns = steady().now_ns;
        if session.started_ns > now_ns.saturating_add(AHEAD_NS) {
            tracing::warn!(job = session.job, session = %session.id, started_ns = session.started_ns, now_ns,
                "a session begins ahead of this daemon's clock; it is stored as beginning now: set the clock of its host");
            session.started_ns = now_ns;
        }
        let readiness = Readiness { search, unasked };
        Ok(Greeted { session, readiness, secret, tenant: caller.tenant(), owner: caller.name.clone() })
    }

    /// Reads until the stream ends, a newer stream takes over, or the daemon shuts down.
    async fn receive(
        &self,
        caller: &Caller,
        Greeted { session, tenant, .. }: &Greeted,
        opened: &OpenedSession,
        (mut claim, mut asked): (Claim, AskReceiver),
        mut inbound: Streaming<AgentMessage>,
        answers: &Answers,
    ) {
        let (durable, progress) = watch::channel(Durable::Upto(opened.durable_seq));
        let durable = Arc::new(durable);
        let devices: Vec<u8> = session.devices.iter().map(|device| device.index.0).collect();
        let mut sequence = Sequence::after(opened.durable_seq);
        let own_budget = Arc::new(Semaphore::new(self.limits.session_bytes));
        let mut shutting_down = self.shutting_down.clone();
        let acknowledging = tokio::spawn(acknowledge(progress, answers.clone(), self.committer.counts()));
        let mut failures = durable.subscribe();
        let changed =
            ChangedJob { tenant: tenant.clone(), job: session.job.clone(), run: opened.run, attempt: session.attempt };
        let mut unwanted = std::pin::pin!(self.gate.ended(caller));
        loop {
            let message = tokio::select! {
                message = inbound.message() => Ok(message),
                ask = asked.next() => {
                    // An agent that does not take requests is not waited for.
                    if answers.try_send(Ok(DaemonMessage { body: Some(Answer::Holders(ask)) })).is_err() {
                        asked.unsent();
                    }
                    continue;
                }
                () = claim.ended() => break,
                over = &mut unwanted => Err(over),
                _ = shutting_down.wait_for(|down| *down) => break,
                _ = failures.wait_for(|durable| matches!(durable, Durable::Failed(_))) => break,
            };
            let message = match message {
                Ok(message) => message,
                Err(over) => {
                    refuse(&self.committer.counts(), answers, RefusedReason::Unauthenticated, over.to_string()).await;
                    break;
                }
            };
            let item = match message {
                Ok(Some(AgentMessage { body: Some(AgentBody::Item(item)) })) => item,
                Ok(Some(AgentMessage { body: Some(AgentBody::Holders(answer)) })) => {
                    asked.heard(answer);
                    continue;
                }
                Ok(Some(_)) => {
                    refuse(
                        &self.committer.counts(),
                        answers,
                        RefusedReason::Invalid,
                        "only items and answers may follow the hello".into(),
                    )
                    .await;
                    break;
                }
                Err(status) if status.code() == Code::OutOfRange => {
                    let after = sequence.last();
                    let message = format!(
                        "what follows item {after} is larger than {ITEM_MESSAGE_BYTES_MAX} bytes, which is the most that this daemon reads: leave it out"
                    );
                    refuse(&self.committer.counts(), answers, RefusedReason::TooLarge, message).await;
                    break;
                }
                // After a broken stream, the agent reconnects.
                Ok(None) | Err(_) => break,
            };
            if let Err((reason, message)) =
                self.take(opened, &devices, &mut sequence, &durable, &own_budget, item).await
            {
                refuse(&self.committer.counts(), answers, reason, message).await;
                break;
            }
            self.notifier.notify(&changed);
        }
        // All items that were taken are committed before the place is released, because the committer holds the sender
        // until then. They are also acknowledged if the peer still reads.
        drop(durable);
        while failures.changed().await.is_ok() {}
        // All items are stored now, so this wakes the analyser for the verdict on the whole session.
        self.notifier.notify(&changed);
        let _ = tokio::time::timeout(FAREWELL_MAX, acknowledging).await;
        if *self.shutting_down.borrow() {
            let message = "the daemon is shutting down; retry later".into();
            answer(answers, refused(RefusedReason::ShuttingDown, message)).await;
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
        // The transport refuses items over the message limit, so an item fits the budgets. While the item is inspected,
        // its unpacked size counts against the shared budget.
        let bytes = item.payload.len().clamp(1, self.limits.session_bytes) as u32;
        let unfolded = (item.unpacked_bytes as usize).clamp(bytes as usize, self.limits.total_bytes / 4) as u32;
        let own = own_budget.clone().acquire_many_owned(bytes).await.map_err(|_| closed())?;
        let mut shared = self.budget.clone().acquire_many_owned(unfolded).await.map_err(|_| closed())?;
        let seq = item.seq;
        let (prepared, gap) = match sequence.arrive(seq) {
            Arrival::Duplicate => {
                // Relaxed: this is only a counter.
                self.duplicates.fetch_add(1, Ordering::Relaxed);
                (None, None)
            }
            _ if opened.ended => return Err(invalid(format!("the session has ended; item {seq} comes after its end"))),
            Arrival::AfterGap(gap) if gap.last - gap.first > GAP_MAX => {
                return Err(invalid(format!("item {seq} cannot follow item {}", gap.first - 1)));
            }
            Arrival::Next => (Some(self.prepare(opened, devices, item).await.map_err(invalid)?), None),
            Arrival::AfterGap(gap) => {
                tracing::warn!(
                    session = opened.key,
                    first = gap.first,
                    last = gap.last,
                    "items of a session never came"
                );
                (Some(self.prepare(opened, devices, item).await.map_err(invalid)?), Some(gap))
            }
        };
        // The item has been inspected, so now only its stored size counts.
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

    async fn prepare(
        &self,
        opened: &OpenedSession,
        devices: &[u8],
        item: Item,
    ) -> Result<Box<prepare::Prepared>, String> {
        let (session, scale) = (opened.key, self.scale.clone());
        let prepared = if item.kind == ItemKind::Chunk as i32 {
            prepare::prepare(session, devices, &item, &scale)
        } else {
            let devices = devices.to_vec();
            let work = tokio::task::spawn_blocking(move || prepare::prepare(session, &devices, &item, &scale));
            work.await.map_err(|error| format!("the item could not be looked at: {error}"))?
        };
        prepared.map(Box::new).map_err(|error| error.to_string())
    }
}

/// Reports to the agent, at every change, up to which item it is durable. Ends when nothing more can become durable.
async fn acknowledge(mut progress: watch::Receiver<Durable>, answers: Answers, counts: Arc<Counts>) {
    while progress.changed().await.is_ok() {
        let now = progress.borrow_and_update().clone();
        let said = match now {
            Durable::Upto(durable_seq) => answer(&answers, Answer::Ack(Ack { durable_seq })).await,
            Durable::Failed(message) => {
                refuse(&counts, &answers, RefusedReason::Store, message).await;
                false
            }
        };
        if !said {
            return;
        }
    }
}
