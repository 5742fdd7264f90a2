//! Assembles the parts of a daemon between the sockets and the store.
//!
//! Guarantees: windows, message sizes and streams per connection are limited. Every call passes the budget of
//! incomplete messages, the guard and the gate, in that order.

use std::sync::Arc;
use std::time::Duration;

use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::FILE_DESCRIPTOR_SET;
use memctl_proto::v1::access_server::AccessServer;
use memctl_proto::v1::alerts_server::AlertsServer;
use memctl_proto::v1::ingest_server::IngestServer;
use memctl_proto::v1::page_server::PageServer;
use memctl_proto::v1::query_server::QueryServer;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use super::ServeError;
use crate::access::gate::GateLayer;
use crate::access::{Access, AccessService, Gate};
use crate::alerts::{Alerting, Notifying, Pace, Rules};

use crate::clock::now_ns;
use crate::health::{self, GuardLayer, Health};
use crate::http::PageService;
use crate::ingest::committer::Committer;
use crate::ingest::{IngestLimits, IngestService};
use crate::judge::{Judge, JudgeSettings, Judging};
use crate::listen::{self, Requests};
use crate::metrics::Sources;
use crate::notify::Notifier;
use crate::query::QueryService;
use crate::reload::Reloads;
use crate::retention::Removing;
use crate::store::{Retention, Store};
use crate::streams::Streams;
use crate::supervise::Tasks;

/// HTTP/2 window of a stream: the bytes that a daemon with thousands of agents may have to buffer for each. On a local
/// network it does not limit throughput.
const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2 window of a connection: the bytes that it may send before the daemon reads them.
const CONNECTION_WINDOW: u32 = 512 << 10;
/// The most concurrent calls on one connection.
const STREAMS_PER_CONNECTION: u32 = 64;
/// Limit of the bytes of headers.
const HEADER_BYTES: u32 = 16 << 10;
/// A dead peer is detected after this time plus [`KEEPALIVE_ANSWER`].
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);

/// The services behind the checks that every call passes: its peer, whether the store responds, and its rights.
type Gated = Router<Stack<GateLayer, Stack<GuardLayer, Stack<Requests, Identity>>>>;

/// Everything between the sockets and the store.
pub(super) struct Parts {
    pub(super) router: Gated,
    pub(super) committing: JoinHandle<()>,
    pub(super) expiring: JoinHandle<()>,
    pub(super) judging: Judging,
    pub(super) alerting: Alerting,
    /// These tasks end with the daemon.
    pub(super) reporting: JoinSet<()>,
    pub(super) sources: Sources,
    pub(super) query: Arc<QueryService>,
    pub(super) gate: Gate,
    pub(super) retention: watch::Sender<Retention>,
    pub(super) streams: Streams,
    pub(super) store: Arc<dyn Store>,
    pub(super) shut_down: watch::Sender<bool>,
    /// When this is set, no more items are accepted, not even from open streams.
    pub(super) closing: watch::Sender<bool>,
}

/// Starts the parts over a store.
pub(super) async fn parts(
    store: Arc<dyn Store>,
    limits: IngestLimits,
    retention: Retention,
    judging: JudgeSettings,
    (rules, notifying): (Rules, Notifying),
    access: Access,
    (http, holders): (Vec<String>, bool),
) -> Result<Parts, ServeError> {
    let (shut_down, shutting_down) = watch::channel(false);
    let streams = Streams::default();
    let tasks = Tasks::default();
    let (closing, is_closing) = watch::channel(false);
    let (committer, committing) = Committer::start(store.clone(), &tasks, is_closing);
    let notifier = Notifier::default();
    let gate = Gate::new(store.clone(), access);
    let ingest = IngestService::new(
        store.clone(),
        gate.clone(),
        committer,
        streams.clone(),
        limits,
        notifier.clone(),
        shutting_down.clone(),
    );
    let ingest = ingest.read_only(store.info().await?.is_read_only);
    let judge = Judge::new(store.clone(), streams.clone(), judging.memory).with_holders(holders).listening();
    let summaries = judge.summaries();
    let removed = judge.clone();
    let alerting = Alerting::supervised(store.clone(), rules, Pace::default(), notifying, &tasks);
    let alerts = alerting.alerts.clone();
    let query = QueryService::new(
        store.clone(),
        gate.clone(),
        streams.clone(),
        ingest.clone(),
        judge.clone(),
        alerts,
        tasks.clone(),
    );
    let query = Arc::new(query.with_http(http).with_holders(holders));
    let mut reporting = JoinSet::new();
    let counts = ingest.figures().counts;
    let health = Health::watch(
        store.clone(),
        counts.write_fault.subscribe(),
        tasks.clone(),
        shutting_down.clone(),
        &mut reporting,
    );
    let sources = Sources {
        store: store.clone(),
        ingest: ingest.figures(),
        gate: gate.clone(),
        streams: streams.clone(),
        notifier: notifier.clone(),
        alerts: alerting.alerts.clone(),
        tasks: tasks.clone(),
        health: health.clone(),
        reloads: Reloads::default(),
        summaries,
        judge: judge.clone(),
        ports: Vec::new(),
        exports: None,
        started_ns: now_ns(),
        store_figures: Arc::default(),
    };
    let judging =
        Judging::start(judge, notifier, alerting.alerts.clone(), (judging.on, holders), shutting_down.clone(), &tasks);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    health::report(&health, &reporter).await;
    reporting.spawn(health::keep_reporting(health.clone(), reporter));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| ServeError::Reflection(error.to_string()))?;
    let page = PageService::new(query.clone());
    let router = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .layer(Requests::new(listen::RECEIVING_BYTES))
        .layer(GuardLayer(health))
        .layer(GateLayer(gate.clone()))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(
            IngestServer::new(ingest)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        // Responses grow with the job (sites, timelines). They are limited, but may be larger than items.
        .add_service(QueryServer::from_arc(query.clone()).max_encoding_message_size(64 << 20))
        .add_service(PageServer::new(page).max_encoding_message_size(64 << 20))
        .add_service(AccessServer::new(AccessService::new(store.clone(), gate.clone())))
        .add_service(AlertsServer::new(alerting.alerts.clone()).max_encoding_message_size(64 << 20));
    let (policy, followed) = watch::channel(retention);
    let removing =
        Removing { store: store.clone(), judge: removed, alerts: alerting.alerts.clone(), gate: gate.clone(), counts };
    let expiring = tasks.supervise("retention", move || removing.clone().run(followed.clone(), shutting_down.clone()));
    Ok(Parts {
        router,
        committing,
        expiring,
        judging,
        alerting,
        reporting,
        sources,
        query,
        gate,
        retention: policy,
        streams,
        store,
        shut_down,
        closing,
    })
}
