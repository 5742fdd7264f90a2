//! A daemon inside another process, over pipes in memory.
//!
//! Guarantees: it has the same services and shutdown as a daemon with ports. Its only client is its process.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::parts::{Parts, parts};
use super::{DRAIN, ServeError, finish};
use crate::access::Access;
use crate::alerts::{Alerting, Notifying, Rules};
use crate::http::{self, Authentication, Key};
use crate::ingest::IngestLimits;
use crate::judge::{JudgeSettings, Judging};
use crate::listen::{self, Connection, Connections, Encryption, Listen, Speaks};
use crate::metrics::Sources;
use crate::query::QueryService;
use crate::store::{Retention, Store};
use crate::streams::Streams;

/// Time limit for an embedded daemon's last commit and final analysis. Its caller waits for it and shows progress.
const EMBEDDED_FINISH: Duration = Duration::from_secs(40);
/// Buffer size of a pipe between an embedded daemon and its process.
const PIPE_BYTES: usize = 1 << 20;

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
    sources: Sources,
    query: Arc<QueryService>,
    /// It is never changed. It is kept because the task that watches it ends when it is dropped.
    _retention: watch::Sender<Retention>,
    store: Arc<dyn Store>,
    closing: watch::Sender<bool>,
}

impl Embedded {
    /// Starts a daemon over a store, with the built-in alert rules.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(store: Arc<dyn Store>) -> Result<Self, ServeError> {
        Self::start_with(store, Rules::default()).await
    }

    /// Starts a daemon over a store with alert rules. Receivers get nothing before something was analysed.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start_with(store: Arc<dyn Store>, rules: Rules) -> Result<Self, ServeError> {
        let (limits, retention) = (IngestLimits::default(), Retention::default());
        let Parts {
            router,
            committing,
            expiring,
            judging,
            alerting,
            reporting,
            sources,
            query,
            gate: _,
            retention: _retention,
            streams,
            store,
            shut_down,
            closing,
        } = parts(
            store,
            limits,
            retention,
            JudgeSettings::default(),
            (rules, Notifying::AfterObserving),
            Access::default(),
            (Vec::new(), true),
        )
        .await?;
        let (connections, incoming) = mpsc::channel::<Result<Connection, std::io::Error>>(16);
        let mut down = shut_down.subscribe();
        let serving = tokio::spawn(router.serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move {
            // An error means that the handle was dropped, which is also a shutdown.
            let _ = down.wait_for(|down| *down).await;
        }));
        let connector = tower::service_fn(move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
                connections
                    .send(Ok(Connection::embedded(theirs)))
                    .await
                    .map_err(|_| std::io::Error::other("the embedded daemon has ended"))?;
                Ok::<_, std::io::Error>(TokioIo::new(ours))
            }
        });
        // The address is never resolved: the connector ignores it.
        let channel = Endpoint::from_static("http://embedded").connect_with_connector_lazy(connector);
        Ok(Self {
            channel,
            shut_down,
            streams,
            serving,
            committing,
            expiring,
            judging,
            alerting,
            reporting,
            sources,
            query,
            _retention,
            store,
            closing,
        })
    }

    /// A connection to this daemon.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Serves the page on a port of this machine (0: a free one) until the daemon stops. Returns an address that signs
    /// in once.
    ///
    /// # Errors
    /// The port cannot be bound, or the system has no random numbers.
    pub async fn page(&mut self, port: u16) -> Result<String, ServeError> {
        let place = Listen::Tcp { address: (Ipv4Addr::LOCALHOST, port).into(), encryption: Encryption::Plain };
        let bound = listen::bind(&[place], Speaks::Http, None).await?;
        let address = bound.places().concat();
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
        let (key, path) = Key::new(port).map_err(|error| ServeError::Key(error.to_string()))?;
        let router = http::router(self.sources.clone(), self.query.clone(), Authentication::Key(Arc::new(key)));
        let connections = Connections::new(http::limits(listen::raise_limit()));
        self.reporting.spawn(http::serve(bound.accept(&connections), router));
        Ok(format!("{address}{path}"))
    }

    /// Stops the daemon: received items are committed, and the store is closed.
    ///
    /// # Errors
    /// The store cannot be closed.
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
            sources,
            query,
            _retention,
            store,
            closing,
        } = self;
        drop((sources, query));
        shut_down.send_replace(true);
        streams.end_all();
        drop(channel);
        // The only client is this process, so cutting connections early has no benefit.
        if tokio::time::timeout(DRAIN, &mut serving).await.is_err() {
            serving.abort();
        }
        closing.send_replace(true);
        finish(Instant::now() + EMBEDDED_FINISH, committing, expiring, judging, alerting, (&*store, reporting)).await
    }
}
