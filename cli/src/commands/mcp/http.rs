//! `memctl mcp --listen`: the protocol over streamable HTTP.
//!
//! Guarantees: a request with a token is answered with the rights that the daemon gives this token. A request without one
//! is answered with the rights of this process's user, as at a daemon's loopback port: only on a loopback address, and
//! only while no token exists. The token or certificate of this process is never lent. A request whose `Host` is not this machine, or that
//! a page of another site sends (`Origin`), is refused. No request has a state: nothing is kept between two requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use memctl_answers::access::Tokens;
use memctl_proto::v1;
use memctl_proto::v1::access_client::AccessClient;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::caller::{CallerCredentials, Transport};
use super::server::Server;
use crate::args::Global;
use crate::client::{answered, caller};
use crate::connect::{Connection, Source, WhenMissing, connect};
use crate::exit::{Failure, Outcome};
use crate::hosting::{Credentials, TokenSource, hosted, told_to_stop};

/// The path of the protocol.
const PATH: &str = "/mcp";
/// The most bytes of a request: a call has a few arguments.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The words for a request that needs a token and has none.
const NEEDS_TOKEN: &str = "a token is needed: `memctl token create NAME --role reader` creates one";
/// The most bytes of a token.
const TOKEN_BYTES_MAX: usize = 4_096;

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
    let is_exposed = !address.ip().to_canonical().is_loopback();
    let connection = connect(global, WhenMissing::Refuse).await?;
    let checked = checks_callers(&connection);
    connection.close().await;
    checked?;
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(REQUEST_BYTES_MAX)
        .enforce_origin_validation();
    // A page that another site makes point here has no token, so with tokens every name of this machine is right.
    let config = if is_exposed { config.disable_allowed_hosts() } else { config };
    let server = Server::new(global, Transport::Http);
    let service =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::new(NeverSessionManager::default()), config);
    let lends = global.credentials().token.is_some() || global.tls().cert.is_some();
    let door = Door { global: global.clone(), needs_token: is_exposed || lends };
    let router = Router::new().route_service(PATH, service).layer(middleware::from_fn_with_state(door, admit));
    let served = hosted(address, global.tls(), insecure, router).await?;
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "memctl mcp listens on {}{PATH}", served.address);
    stopped.await;
    Ok(())
}

/// Admits a request. A token that the daemon refuses is refused here, with the daemon's words.
async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let shown = match shown(request.headers(), &door.global) {
        Err(()) => return refused("this is not a token"),
        Ok(None) if door.needs_token => return refused(NEEDS_TOKEN),
        Ok(shown) => shown,
    };
    let global = Global { callers: shown.clone(), ..door.global };
    if let Err(why) = known(&global).await {
        return match why.outcome {
            Outcome::NotAllowed => refused(&why.to_string()),
            _ => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        };
    }
    if let Some(credentials) = shown {
        request.extensions_mut().insert(CallerCredentials(credentials));
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

/// Checks the caller of a request: a token with the daemon. Without one, the store may have no tokens.
async fn known(global: &Global) -> Result<(), Failure> {
    let connection = connect(global, WhenMissing::Refuse).await?;
    let checked = match (checks_callers(&connection), &global.callers) {
        (Err(why), _) => Err(why),
        (Ok(()), Some(_)) => caller(&connection).await.map(drop).map_err(|status| connection.failure(&status)),
        (Ok(()), None) if has_tokens(&connection).await => Err(Failure::not_allowed(NEEDS_TOKEN)),
        (Ok(()), None) => Ok(()),
    };
    connection.close().await;
    checked
}

/// Whether the store has tokens. Then a local user without one is refused by a daemon's port, and here.
async fn has_tokens(connection: &Connection) -> bool {
    // (A daemon that refuses this question decides about the call itself.)
    let listed = AccessClient::new(connection.asking()).list_tokens(v1::ListTokensRequest {}).await;
    let tokens: Result<Tokens, Failure> = answered(listed, connection);
    tokens.is_ok_and(|tokens| !tokens.tokens.is_empty())
}

/// Refuses a store that is opened in this process, where no daemon checks tokens.
fn checks_callers(connection: &Connection) -> Result<(), Failure> {
    match connection.place {
        Source::DataDir(_) => Err(Failure::usage(
            "--listen needs a daemon, which checks callers: name one with --daemon, or use the local service (without --in-process and MEMCTL_SERVICE=off)",
        )),
        Source::Daemon(_) | Source::Service(_) => Ok(()),
    }
}

fn refused(why: &str) -> Response {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], format!("{why}\n")).into_response()
}
