//! The daemon as a server: on a port, or inside another process over pipes in memory.
//!
//! Guarantees: it says what it bound before it serves; on shutdown streams end, everything taken is
//! committed and acknowledged, and the store is closed before `serve` returns; windows, message sizes and
//! streams per connection are bounded on purpose.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::FILE_DESCRIPTOR_SET;
use memctl_proto::v1::alerts_server::AlertsServer;
use memctl_proto::v1::ingest_server::IngestServer;
use memctl_proto::v1::query_server::QueryServer;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::server::NamedService;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::alerts::{Alerting, Alerts, Notifying, Pace, Rules};
use crate::clock::now_ns;
use crate::config::Config;
use crate::ingest::committer::Committer;
use crate::ingest::{IngestLimits, IngestService};
use crate::judge::{Judge, Judging};
use crate::pokes::Pokes;
use crate::query::QueryService;
use crate::store::{self, Retention, Store, StoreError};
use crate::streams::Streams;
use crate::supervise::Tasks;

/// HTTP/2 window of a stream: what a daemon with thousands of agents may have to buffer for each. On a local network it does not limit throughput.
const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2 window of a connection: a few streams' worth.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Calls under way on one connection.
const STREAMS_PER_CONNECTION: u32 = 64;
/// Bytes of headers that are read.
const HEADER_BYTES: u32 = 16 << 10;
/// Dead peers are noticed after this and [`KEEPALIVE_ANSWER`].
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);
/// How long calls may take to end after a shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(20);
/// How often retention looks.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a pipe between an embedded daemon and its process.
const PIPE_BYTES: usize = 1 << 20;

/// Why the daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}{hint}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
        /// The way out.
        hint: &'static str,
    },
    /// The store cannot be opened or closed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The server itself failed.
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// gRPC reflection does not know its own protos.
    #[error("reflection: {0}")]
    Reflection(String),
}

/// Everything between the sockets and the store.
struct Parts {
    router: Router,
    committing: JoinHandle<()>,
    expiring: JoinHandle<()>,
    judging: Judging,
    alerting: Alerting,
    /// Ends with the daemon.
    reporting: JoinSet<()>,
    streams: Streams,
    store: Arc<dyn Store>,
    shut_down: watch::Sender<bool>,
}

async fn parts(
    store: Arc<dyn Store>,
    limits: IngestLimits,
    retention: Retention,
    judging: bool,
    rules: Rules,
    notifying: Notifying,
) -> Result<Parts, ServeError> {
    let (shut_down, shutting_down) = watch::channel(false);
    let streams = Streams::default();
    let tasks = Tasks::default();
    let (committer, committing) = Committer::start(store.clone(), &tasks);
    let pokes = Pokes::default();
    let ingest =
        IngestService::new(store.clone(), committer, streams.clone(), limits, pokes.clone(), shutting_down.clone());
    let judge = Judge::new(store.clone(), streams.clone());
    let alerting = Alerting::supervised(store.clone(), rules, Pace::default(), notifying, &tasks);
    let alerts = alerting.alerts.clone();
    let query = QueryService::new(store.clone(), streams.clone(), ingest.clone(), judge.clone(), alerts, tasks.clone());
    let judging = Judging::start(judge, pokes, alerting.alerts.clone(), judging, shutting_down.clone(), &tasks);
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<QueryServer<QueryService>>().await;
    report_health(&tasks, &reporter).await;
    let mut reporting = JoinSet::new();
    reporting.spawn(keep_reporting_health(tasks.clone(), reporter));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| ServeError::Reflection(error.to_string()))?;
    let router = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .tcp_nodelay(true)
        .add_service(health)
        .add_service(reflection)
        .add_service(
            IngestServer::new(ingest)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        // Answers grow with the job (sites, timelines): bounded, but larger than items.
        .add_service(QueryServer::new(query).max_encoding_message_size(64 << 20))
        .add_service(AlertsServer::new(alerting.alerts.clone()).max_encoding_message_size(64 << 20));
    let kept = store.clone();
    let expiring = tasks.supervise("retention", move || expire(kept.clone(), retention, shutting_down.clone()));
    Ok(Parts { router, committing, expiring, judging, alerting, reporting, streams, store, shut_down })
}

/// Services without which a task is down, as gRPC's health service calls them; the empty one stands for the whole daemon.
async fn report_health(tasks: &Tasks, reporter: &HealthReporter) {
    let states = tasks.states();
    let status = |running: bool| if running { ServingStatus::Serving } else { ServingStatus::NotServing };
    let runs = |name: &str| status(states.get(name).is_none_or(|state| state.running));
    reporter.set_service_status(IngestServer::<IngestService>::NAME, runs("committer")).await;
    reporter.set_service_status(AlertsServer::<Alerts>::NAME, runs("alerts")).await;
    reporter.set_service_status("", status(states.values().all(|state| state.running))).await;
}

/// Health follows the tasks.
async fn keep_reporting_health(tasks: Tasks, reporter: HealthReporter) {
    let mut changes = tasks.changes();
    loop {
        report_health(&tasks, &reporter).await;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Serves on `config.listen` until `shutdown` resolves; `ready` hears the bound address.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    config: Config,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    // The port first: its number is what the lock file tells the next one.
    let listener = TcpListener::bind(config.listen).await.map_err(|source| listen_error(config.listen, source))?;
    let bound = listener.local_addr().map_err(|source| listen_error(config.listen, source))?;
    let store =
        store::open(&config.store, &format!("the memctl daemon at http://{bound} (pid {})", std::process::id()))
            .await?;
    tracing::info!(listen = %config.listen, store = %config.store, retain_age_ns = config.retention.age_ns,
        retain_bytes = config.retention.bytes, session_queue_bytes = config.limits.session_bytes,
        total_queue_bytes = config.limits.total_bytes, in_flight_bytes = config.limits.in_flight_bytes,
        judging = config.judging, alert_rules = config.alerts.origin, "configuration");
    let parts = parts(store, config.limits, config.retention, config.judging, config.alerts, Notifying::Always).await?;
    let info = parts.store.info().await?;
    tracing::info!(address = %bound, store = info.place, store_kind = info.kind, store_version = info.version,
        schema = info.schema_version, version = env!("CARGO_PKG_VERSION"), "serving");
    ready(bound);
    let Parts { router, committing, expiring, judging, alerting, reporting: _reporting, streams, store, shut_down } =
        parts;
    let ending = async move {
        shutdown.await;
        tracing::info!("shutting down: streams are ended and received items committed");
        shut_down.send_replace(true);
        streams.end_all();
    };
    let (ended, end) = watch::channel(false);
    let serving = router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move {
        ending.await;
        ended.send_replace(true);
    });
    drain(serving, end).await?;
    finish(committing, expiring, judging, alerting, &*store).await
}

fn listen_error(address: SocketAddr, source: std::io::Error) -> ServeError {
    let hint = match source.kind() {
        std::io::ErrorKind::AddrInUse => "; another program listens there: use --listen with another port, or stop it",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges: use --listen with a higher one",
        _ => "",
    };
    ServeError::Listen { address, source, hint }
}

/// Waits for the server, but not for ever for connections that do not close.
async fn drain(
    serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    mut end: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let overdue = async {
        // An error means that the server went first.
        let _ = end.wait_for(|ended| *ended).await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = serving => Ok(result?),
        () = overdue => {
            tracing::warn!(seconds = DRAIN.as_secs(), "connections that did not close were aborted");
            Ok(())
        }
    }
}

async fn finish(
    committing: JoinHandle<()>,
    expiring: JoinHandle<()>,
    judging: Judging,
    alerting: Alerting,
    store: &dyn Store,
) -> Result<(), ServeError> {
    expiring.abort();
    if tokio::time::timeout(DRAIN, committing).await.is_err() {
        tracing::error!("the last commit did not finish in time; its items were not acknowledged");
    }
    // Everything is stored now: the last verdicts, then the last notifications.
    judging.finish().await;
    alerting.finish().await;
    let totals = store.totals().await?;
    store.close().await?;
    tracing::info!(
        jobs = totals.jobs,
        events = totals.events,
        stored_bytes = totals.stored_bytes,
        "drained and closed"
    );
    Ok(())
}

async fn expire(store: Arc<dyn Store>, retention: Retention, mut shutting_down: watch::Receiver<bool>) {
    if retention == Retention::default() {
        return;
    }
    loop {
        match store.expire(retention, now_ns()).await {
            Ok(gone) if gone != Default::default() => {
                tracing::info!(
                    jobs = gone.jobs,
                    chunks = gone.chunks,
                    events = gone.events,
                    bytes = gone.bytes,
                    "retention removed the oldest"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "retention failed and will be retried"),
        }
        tokio::select! {
            () = tokio::time::sleep(EXPIRE_EVERY) => {}
            _ = shutting_down.wait_for(|down| *down) => return,
        }
    }
}

/// A daemon in this process.
pub struct Embedded {
    channel: Channel,
    shut_down: watch::Sender<bool>,
    streams: Streams,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
    committing: JoinHandle<()>,
    expiring: JoinHandle<()>,
    judging: Judging,
    alerting: Alerting,
    reporting: JoinSet<()>,
    store: Arc<dyn Store>,
}

impl Embedded {
    /// Starts one over a store, with the built-in alert rules.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(store: Arc<dyn Store>) -> Result<Self, ServeError> {
        Self::start_with(store, Rules::default()).await
    }

    /// Starts one over a store with alert rules; receivers are told of nothing before something was judged.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start_with(store: Arc<dyn Store>, rules: Rules) -> Result<Self, ServeError> {
        let (limits, retention) = (IngestLimits::default(), Retention::default());
        let Parts { router, committing, expiring, judging, alerting, reporting, streams, store, shut_down } =
            parts(store, limits, retention, true, rules, Notifying::AfterObserving).await?;
        let (connections, incoming) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(16);
        let mut down = shut_down.subscribe();
        let serving = tokio::spawn(router.serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move {
            // An error means that the handle is gone: that is a shutdown, too.
            let _ = down.wait_for(|down| *down).await;
        }));
        let connector = tower::service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                connections
                    .send(Ok(theirs))
                    .await
                    .map_err(|_| std::io::Error::other("the embedded daemon has ended"))?;
                Ok::<_, std::io::Error>(TokioIo::new(ours))
            }
        });
        // The address is never looked up: the connector ignores it.
        let channel = Endpoint::from_static("http://embedded").connect_with_connector_lazy(connector);
        Ok(Self { channel, shut_down, streams, serving, committing, expiring, judging, alerting, reporting, store })
    }

    /// A connection to it.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Ends it: what was taken is committed, the store is closed.
    ///
    /// # Errors
    /// When the store cannot be closed.
    pub async fn stop(self) -> Result<(), ServeError> {
        let Self {
            channel,
            shut_down,
            streams,
            mut serving,
            committing,
            expiring,
            judging,
            alerting,
            reporting,
            store,
        } = self;
        drop(reporting);
        shut_down.send_replace(true);
        streams.end_all();
        drop(channel);
        if tokio::time::timeout(DRAIN, &mut serving).await.is_err() {
            serving.abort();
        }
        finish(committing, expiring, judging, alerting, &*store).await
    }
}
