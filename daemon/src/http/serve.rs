//! Serves the connections of the HTTP port.
//!
//! Guarantees: connections are accepted, limited and encrypted like those of gRPC ([`crate::listen`]), with a limit of
//! their own. A request's head that does not arrive within [`HEAD_MAX`], or is longer than [`HEAD_BYTES_MAX`], ends its
//! connection. After [`CONNECTION_MAX`] a connection ends with its current response.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming as Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::transport::server::Connected as _;
use tower::ServiceExt as _;

use super::auth::Encrypted;
use crate::listen::{Caller, Connection, ConnectionLimits, Incoming};

/// The most concurrent connections: Prometheus servers, probes, and browsers, from several networks.
const CONNECTIONS_MAX: usize = 256;
/// Time limit for a request's head, and for the pause between two requests.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Limit of the bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest life of a connection. The client can open another one.
const CONNECTION_MAX: Duration = Duration::from_secs(300);
/// Time limit for the current response at the end of this life.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(30);

/// The connection limits of the port: at most an eighth of the descriptors.
#[must_use]
pub fn limits(descriptors: Option<u64>) -> ConnectionLimits {
    let eighth = descriptors.map_or(usize::MAX, |count| usize::try_from(count / 8).unwrap_or(usize::MAX));
    let total = CONNECTIONS_MAX.min(eighth).max(2);
    // One peer must leave room for others.
    ConnectionLimits { total, per_peer: total / 2 }
}

/// Serves until this is dropped, which ends the connections.
pub async fn serve(mut incoming: Incoming, router: Router) {
    let mut connections = JoinSet::new();
    // The stream has no end. An error affects only its own connection.
    while let Some(accepted) = incoming.next().await {
        while connections.try_join_next().is_some() {}
        if let Ok(connection) = accepted {
            connections.spawn(converse(connection, router.clone()));
        }
    }
}

async fn converse(connection: Connection, router: Router) {
    let (caller, encrypted) = (connection.connect_info(), Encrypted(connection.is_encrypted()));
    let service = service_fn(move |request| answer(request, caller.clone(), encrypted, router.clone()));
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(connection), service)
    );
    let served = tokio::select! {
        served = &mut serving => served,
        () = tokio::time::sleep(CONNECTION_MAX) => {
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER_MAX, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the HTTP port broke");
    }
}

/// Adds the extensions that gRPC's requests have: the gate needs the peer, and the connection counts as busy during the
/// request.
async fn answer(
    mut request: Request<Body>,
    caller: Caller,
    encrypted: Encrypted,
    router: Router,
) -> Result<Response, Infallible> {
    let _underway = caller.begin();
    request.extensions_mut().insert(caller.peer().clone());
    request.extensions_mut().insert(caller.admission());
    request.extensions_mut().insert(encrypted);
    router.oneshot(request).await
}
