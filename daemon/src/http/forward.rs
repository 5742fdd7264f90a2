//! Serves the page of a daemon on a socket at a port of this machine, for callers that have the printed key.
//!
//! Guarantees: no request passes without the key. The daemon on the socket sees its owner as the caller, and no cookie.
//! Each request has a connection of its own, so that requests reach a restarted daemon.
//! Refuses: to listen on addresses that other machines can reach.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::auth::{self, Key};
use super::{plain, serve};
use crate::listen::{self, BindError, Connections, Encryption, Listen, Speaks};

/// A page that is served until this is dropped.
pub struct Forwarded {
    /// The address that opens it once.
    pub address: String,
    _serving: JoinSet<()>,
}

/// The target of requests, and the key that they need.
#[derive(Clone)]
struct Way {
    key: Arc<Key>,
    socket: PathBuf,
}

/// The reason why the page is not served.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The port cannot be bound.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// There is no key for the page.
    #[error("no random number is available for the page's key: {0}")]
    Key(#[from] getrandom::Error),
}

/// Serves the page of the daemon at `socket` on a port of this machine; 0 lets the system choose one.
///
/// # Errors
/// See [`ForwardError`].
pub async fn forward(socket: &Path, port: u16) -> Result<Forwarded, ForwardError> {
    let place = Listen::Tcp { address: (Ipv4Addr::LOCALHOST, port).into(), encryption: Encryption::Plain };
    let bound = listen::bind(&[place], Speaks::Http, None).await?;
    let address = bound.places().concat();
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
    let (key, path) = Key::new(port)?;
    let way = Way { key: Arc::new(key), socket: socket.to_owned() };
    let router = Router::new()
        .route("/enter", get(enter))
        .route("/login", post(login))
        .route("/logout", post(logout))
        .fallback(pass)
        .with_state(way);
    let mut serving = JoinSet::new();
    let connections = Connections::new(serve::limits(listen::raise_limit()));
    serving.spawn(serve::serve(bound.accept(&connections), router));
    Ok(Forwarded { address: format!("{address}{path}"), _serving: serving })
}

async fn enter(State(way): State<Way>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    auth::exchanged(&way.key, &method, &uri, &headers)
}

async fn login(headers: HeaderMap) -> Response {
    if auth::from_this_page(&headers) { auth::takes_no_tokens() } else { auth::elsewhere() }
}

async fn logout(State(way): State<Way>, headers: HeaderMap) -> Response {
    if auth::from_this_page(&headers) { way.key.ended() } else { auth::elsewhere() }
}

/// Forwards a request to the daemon and returns its response.
async fn pass(State(way): State<Way>, mut request: Request) -> Response {
    if !way.key.knows(request.headers()) {
        return plain(StatusCode::UNAUTHORIZED, format!("{}\n", auth::NEEDS_KEY));
    }
    // These headers authenticate the caller here, not at the daemon.
    request.headers_mut().remove(COOKIE);
    request.headers_mut().remove(AUTHORIZATION);
    match passed(&way.socket, request).await {
        Ok(answer) => answer,
        Err(error) => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the local service does not answer: {error}; load this page again\n"),
        ),
    }
}

async fn passed(socket: &Path, request: Request) -> Result<Response, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
    // The task ends with the last byte of the response, or when the reader of the response disconnects.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(answer.map(Body::new).into_response())
}
