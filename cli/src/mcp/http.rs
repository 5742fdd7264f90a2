//! `memctl mcp --listen`: the protocol over streamable HTTP.
//!
//! Guarantees: a request with a token is answered with the rights that the daemon gives this token. On an address that
//! other machines can reach, a request without a token is refused. A request whose `Host` is not this machine, or that
//! a page of another site sends (`Origin`), is refused. No request has a state: nothing is kept between two requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::Transport;
use super::server::Server;
use crate::args::Global;
use crate::client::caller;
use crate::connect::{Source, WhenMissing, connect};
use crate::exit::Failure;
use crate::hosting::{Credentials, TokenSource, hosted, told_to_stop};

/// The path of the protocol.
const PATH: &str = "/mcp";
/// The most bytes of a request: a call has a few arguments.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a token.
const TOKEN_BYTES_MAX: usize = 4_096;

/// The credentials that a request showed.
#[derive(Clone, Debug)]
pub struct Shown(pub Credentials);

/// The rule for callers.
#[derive(Clone)]
struct Door {
    global: Global,
    needs_token: bool,
}

/// Serves until a signal ends it.
///
/// # Errors
/// The port is not free, or the address needs more to be safe.
pub async fn serve(address: SocketAddr, insecure: bool, global: &Global) -> Result<(), Failure> {
    let stopped = told_to_stop()?;
    let needs_token = !address.ip().to_canonical().is_loopback();
    if needs_token {
        let connection = connect(global, WhenMissing::Refuse).await?;
        let checks_tokens = !matches!(connection.place, Source::DataDir(_));
        connection.close().await;
        if !checks_tokens {
            return Err(Failure::usage(
                "other machines need tokens, which a daemon checks: name one with --daemon, or use the local service",
            ));
        }
    }
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(REQUEST_BYTES_MAX)
        .enforce_origin_validation();
    // A page that another site makes point here has no token, so with tokens every name of this machine is right.
    let config = if needs_token { config.disable_allowed_hosts() } else { config };
    let server = Server::new(global, Transport::Http);
    let service =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config);
    let door = Door { global: global.clone(), needs_token };
    let router = Router::new().route_service(PATH, service).layer(middleware::from_fn_with_state(door, admit));
    let served = hosted(address, global.tls(), insecure, router).await?;
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "memctl mcp listens on {}{PATH}", served.address);
    stopped.await;
    Ok(())
}

/// Admits a request. A token that the daemon refuses is refused here, with the daemon's words.
async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    match shown(request.headers(), &door.global) {
        Err(()) => return refused("this is not a token"),
        Ok(None) if door.needs_token => {
            return refused("a token is needed: `memctl token create NAME --role reader` creates one");
        }
        Ok(None) => {}
        Ok(Some(credentials)) => {
            if let Err(why) = known(&door.global, &credentials).await {
                return refused(&why.to_string());
            }
            request.extensions_mut().insert(Shown(credentials));
        }
    }
    next.run(request).await
}

/// The credentials of a request; `None` if it has none.
fn shown(headers: &HeaderMap, global: &Global) -> Result<Option<Credentials>, ()> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(drop)?;
    let (scheme, token) = text.split_once(' ').ok_or(())?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(());
    }
    let tenant = global.credentials().tenant;
    Ok(Some(Credentials { token: Some(TokenSource::Text(token.to_owned())), tenant }))
}

/// Asks the daemon for the caller of a token.
async fn known(global: &Global, credentials: &Credentials) -> Result<(), Failure> {
    let global = Global { callers: Some(credentials.clone()), ..global.clone() };
    let connection = connect(&global, WhenMissing::Refuse).await?;
    let asked = caller(&connection).await.map(drop).map_err(|status| connection.failure(&status));
    connection.close().await;
    asked
}

fn refused(why: &str) -> Response {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], format!("{why}\n")).into_response()
}
