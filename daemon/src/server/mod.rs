//! The daemon as a server: on ports and sockets, or inside another process over pipes in memory ([`Embedded`]).
//!
//! Guarantees: the bound addresses are logged before they are served. On shutdown, streams end, everything received is
//! committed and acknowledged, and the store is closed before `serve` returns.

mod embedded;
mod parts;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

pub use embedded::Embedded;
use parts::{Parts, parts};

use crate::alerts::{Alerting, Notifying};
use crate::config::Config;
use crate::http::{self, Authentication};
use crate::idle;
use crate::judge::{JudgeSettings, Judging};
use crate::listen::{self, BindError, Bound, Certificates, Connections, Speaks, TlsError};
use crate::otlp::Exporter;
use crate::reload::{InForce, Reread};
use crate::service_manager::ServiceManager;
use crate::store::{self, Retention, Store, StoreError};

/// How long a shutdown may take in total.
const DRAIN: Duration = Duration::from_secs(9);
/// The part of [`DRAIN`] for peers to close their connections. After that, the connections are cut.
const CLOSING: Duration = Duration::from_secs(4);
/// The part of [`DRAIN`] that is reserved for the final analysis if the store is slow.
const VERDICTS: Duration = Duration::from_secs(2);
/// The reason why the daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The store cannot be opened or closed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The server itself failed.
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A file that OpenTelemetry's variables name cannot be used.
    #[error("metrics cannot be sent by OTLP: {0}")]
    Otlp(String),
    /// No key for the page could be made.
    #[error("no random number is available for the page's key: {0}")]
    Key(String),
    /// gRPC reflection cannot read its own descriptors.
    #[error("reflection: {0}")]
    Reflection(String),
}

/// Serves at the addresses of `config.listen` until `shutdown` resolves. `ready` receives the bound addresses, for gRPC
/// and for HTTP. New configurations from `reread` are applied as far as possible.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    config: Config,
    ready: impl FnOnce(&[String], &[String]),
    shutdown: impl Future<Output = ()> + Send + 'static,
    reread: Reread,
) -> Result<(), ServeError> {
    // Addresses are bound first, because the lock file contains them for the next daemon.
    for place in config.exposed() {
        tracing::warn!(%place, "--insecure: any client that reaches this address can read and change everything, and its traffic is not encrypted");
    }
    for (place, words) in config.opened() {
        tracing::warn!(%place, "socket_mode: {words}");
    }
    let descriptors = listen::raise_limit();
    let certificates = config.tls.clone().map(Certificates::load).transpose()?;
    let exporter = config.otlp.clone().map(Exporter::new).transpose().map_err(ServeError::Otlp)?;
    let bound = listen::bind(&config.listen, Speaks::Grpc, certificates.clone()).await?;
    let http = listen::bind(&config.http, Speaks::Http, certificates.clone()).await?;
    let (places, http_places) = (bound.places().to_vec(), http.places().to_vec());
    let store = if config.read_only {
        store::open_read_only(&config.store).await?
    } else {
        let holder = match config.idle {
            Some(_) => format!("the local service (pid {}): `memctl daemon stop` ends it", std::process::id()),
            None => format!("the memctl daemon at {} (pid {})", places.join(", "), std::process::id()),
        };
        store::open(&config.store, &holder).await?
    };
    let retention = if config.read_only { Retention::default() } else { config.retention };
    tracing::info!(listen = places.join(", "), store = %config.store, retain_age_ns = config.retention.age_ns,
        retain_bytes = config.retention.bytes, retain_bytes_per_job = config.retention.bytes_per_job,
        retain_bytes_per_tenant = config.retention.bytes_per_tenant, session_queue_bytes = config.limits.session_bytes,
        total_queue_bytes = config.limits.total_bytes, in_flight_bytes = config.limits.in_flight_bytes,
        judging = config.judging, judge_memory_bytes = config.judge_memory, read_only = config.read_only, holders = config.holders,
        alert_rules = config.alerts.origin, file_descriptors = descriptors, "configuration");
    let (rules, access) = (config.alerts.clone(), config.access.clone());
    let judging = JudgeSettings { on: config.judging, memory: config.judge_memory };
    let http_and_holders = (http_places.clone(), config.holders);
    let parts =
        parts(store, config.limits, retention, judging, (rules, Notifying::Always), access, http_and_holders).await?;
    let info = parts.store.info().await?;
    // This lookup is made before any request. If the store hangs later, the daemon's own metrics can still be read.
    parts.gate.is_open().await?;
    tracing::info!(
        listen = places.join(", "),
        store = info.place,
        store_kind = info.kind,
        store_version = info.version,
        schema = info.schema_version,
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    let Parts {
        router,
        committing,
        expiring,
        judging,
        alerting,
        mut reporting,
        mut sources,
        query,
        gate,
        retention,
        streams,
        store,
        shut_down,
        closing,
    } = parts;
    let manager = ServiceManager::of_environment();
    let (grpc_connections, http_connections) = connections(&config, &http, descriptors);
    sources.ports = vec![("grpc", grpc_connections.clone()), ("http", http_connections.clone())];
    sources.exports = exporter.as_ref().map(Exporter::exports);
    if !http.places().is_empty() {
        tracing::info!(listen = http.places().join(", "), "the page, metrics and health are served over HTTP");
        let router = http::router(sources.clone(), query, Authentication::Gate(gate.clone()));
        reporting.spawn(http::serve(http.accept(&http_connections), router));
    }
    if let Some(exporter) = exporter {
        reporting.spawn(exporter.run(sources.clone()));
    }
    let (alerts, reloads) = (alerting.alerts.clone(), sources.reloads.clone());
    let (before, after) = (manager.clone(), manager.clone());
    let idle = config
        .idle
        .clone()
        .map(|idle| idle::wait(idle, [grpc_connections.clone(), http_connections.clone()], streams.clone()));
    let in_force = InForce { config, retention, alerts, certificates: certificates.clone(), gate, reloads };
    reporting.spawn(in_force.follow(reread, move || before.reloading(), move || after.ready()));
    reporting.spawn(manager.clone().keep_alive(sources.health.clone()));
    drop(sources);
    ready(&places, &http_places);
    if let Some(certificates) = certificates {
        reporting.spawn(certificates.follow());
    }
    manager.ready();
    let listening = bound.accept(&grpc_connections);
    let stop_listening = listening.stopper();
    let ending = async move {
        match idle {
            Some(idle) => tokio::select! {
                () = shutdown => {}
                () = idle => {}
            },
            None => shutdown.await,
        }
        // A client that connects after this finds no socket. It starts the next service or waits for it.
        stop_listening.stop();
        manager.stopping();
        tracing::info!("shutting down: streams are ended and received items committed");
        shut_down.send_replace(true);
        streams.end_all();
    };
    let (ended, end) = watch::channel(false);
    let serving = router.serve_with_incoming_shutdown(listening, async move {
        ending.await;
        ended.send_replace(true);
    });
    let began = drain(serving, end, &grpc_connections).await?;
    closing.send_replace(true);
    finish(began + DRAIN, committing, expiring, judging, alerting, (&*store, reporting)).await
}

/// The connection limits of gRPC and of HTTP. They are separate, so that a flood on one does not use up the other's
/// connections.
fn connections(config: &Config, http: &Bound, descriptors: Option<u64>) -> (Arc<Connections>, Arc<Connections>) {
    if http.places().is_empty() {
        return (Connections::new(config.connections.within(descriptors)), Connections::new(http::limits(descriptors)));
    }
    let of_http = http::limits(descriptors);
    let left = descriptors.map(|descriptors| descriptors.saturating_sub(of_http.total as u64));
    (Connections::new(config.connections.within(left)), Connections::new(of_http))
}

/// Waits for the server and cuts connections that do not close. Returns the time at which the shutdown began.
async fn drain(
    serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    mut end: watch::Receiver<bool>,
    connections: &Connections,
) -> Result<Instant, ServeError> {
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        result = &mut serving => {
            result?;
            return Ok(Instant::now());
        }
        // An error means that the server ended first.
        _ = end.wait_for(|ended| *ended) => {}
    }
    let began = Instant::now();
    if let Ok(result) = tokio::time::timeout_at(began + CLOSING, &mut serving).await {
        result?;
        return Ok(began);
    }
    let left = connections.count();
    connections.cut_all();
    tracing::warn!(connections = left, seconds = CLOSING.as_secs(), "connections that did not close were ended");
    // A cut connection ends after its task has run.
    if let Ok(result) = tokio::time::timeout(Duration::from_secs(1), &mut serving).await {
        result?;
    }
    Ok(began)
}

/// Runs the last commit, the final analysis and the last notifications, and closes the store; all until `deadline`.
async fn finish(
    deadline: Instant,
    committing: JoinHandle<()>,
    expiring: JoinHandle<()>,
    judging: Judging,
    alerting: Alerting,
    (store, mut reporting): (&dyn Store, JoinSet<()>),
) -> Result<(), ServeError> {
    expiring.abort();
    if tokio::time::timeout_at(deadline - VERDICTS, committing).await.is_err() {
        tracing::error!(
            "the store was still writing at the end; what it had not confirmed was not acknowledged, and agents send it again"
        );
    }
    // Everything is stored now, so the final analysis and the last notifications follow.
    let last_words = async {
        judging.finish().await;
        alerting.finish().await;
    };
    if tokio::time::timeout_at(deadline, last_words).await.is_err() {
        tracing::warn!("the final analysis did not end in time; it is repeated after the next start");
    }
    let closing = async {
        // Probing stops first, because it would report a closed store as a fault.
        reporting.shutdown().await;
        let totals = store.totals().await?;
        store.close().await?;
        Ok::<_, StoreError>(totals)
    };
    let Ok(totals) = tokio::time::timeout_at(deadline + Duration::from_millis(500), closing).await else {
        tracing::error!("the store did not close in time; everything that was acknowledged is in it");
        return Ok(());
    };
    let totals = totals?;
    tracing::info!(
        jobs = totals.jobs,
        events = totals.events.saturating_sub(totals.expired_events),
        stored_bytes = totals.stored_bytes,
        "drained and closed"
    );
    Ok(())
}
