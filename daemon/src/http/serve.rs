//! Connections of the HTTP port.
//!
//! Guarantees: connections are accepted, bounded and encrypted as those of gRPC are ([`crate::listen`]), with places of their
//! own; a head that does not come within [`HEAD_MAX`], or is longer than [`HEAD_BYTES_MAX`], ends its connection; after
//! [`CONNECTION_MAX`] a connection ends with the answer that is under way.

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

use super::door::Encrypted;
use crate::listen::{Caller, Connection, ConnectionLimits, Incoming};

/// Connections at a time: Prometheus servers, probes, browsers, of several networks.
const CONNECTIONS_MAX: usize = 256;
/// For a request's head, and between two requests.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Whoever keeps its connection for longer gets another one.
const CONNECTION_MAX: Duration = Duration::from_secs(300);
/// For the answer that is under way then.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(30);

/// How many connections the port takes: an eighth of the descriptors at most.
#[must_use]
pub fn limits(descriptors: Option<u64>) -> ConnectionLimits {
    let eighth = descriptors.map_or(usize::MAX, |count| usize::try_from(count / 8).unwrap_or(usize::MAX));
    let total = CONNECTIONS_MAX.min(eighth).max(2);
    // One peer leaves room for others.
    ConnectionLimits { total, per_peer: total / 2 }
}

/// Serves until it is dropped; connections end with it.
pub async fn serve(mut incoming: Incoming, router: Router) {
    let mut connections = JoinSet::new();
    // It has no end, and an error of one connection is that connection's.
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

/// The same words as gRPC's: the gate asks who is at the other end, and the connection is not idle meanwhile.
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
