//! The HTTP port: metrics and health, for those who do not speak gRPC.
//!
//! Guarantees: the gate of gRPC decides by the same table who gets which page; connections are those of [`crate::listen`],
//! with TLS, bounds and time limits; nothing of a request's body is read; whoever holds a connection open holds up nobody
//! else, nor the daemon's end.
//! Refuses every method but GET and HEAD.

mod health;
mod scrape;
mod serve;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

pub use serve::{limits, serve};

use crate::access::{Gate, Refusal};
use crate::listen::Peer;
use crate::metrics::Sources;

/// What there is.
const PAGES: &str = "memctl daemon\n\n/metrics  figures for Prometheus\n/healthz  whether its tasks run\n/readyz   whether it can be used\n";

/// What answers are made of.
#[derive(Clone)]
struct Room {
    sources: Sources,
    places: scrape::Places,
}

/// Every page; each has a row in the table of rights.
fn pages() -> [(&'static str, MethodRouter<Room>); 4] {
    [
        ("/", get(|| async { plain(StatusCode::OK, PAGES.to_owned()) })),
        ("/metrics", get(scrape::metrics)),
        ("/healthz", get(health::alive)),
        ("/readyz", get(health::ready)),
    ]
}

/// The pages of this port, behind the gate.
pub fn router(sources: Sources, gate: Gate) -> Router {
    let pages = pages().into_iter().fold(Router::new(), |router, (path, page)| router.route(path, page));
    pages
        .route_layer(middleware::from_fn_with_state(gate, admit))
        .fallback(|| async { plain(StatusCode::NOT_FOUND, format!("There is no such page.\n\n{PAGES}")) })
        .with_state(Room { sources, places: scrape::Places::default() })
}

/// Lets a request in as the gate of gRPC does, or says why not.
async fn admit(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    // (What is held while the gate asks the store has to be shareable; a body is not.)
    let (mut head, body) = request.into_parts();
    let peer = Peer::of(&head.extensions).cloned();
    match gate.admit(peer.as_ref(), head.uri.path(), &head.headers).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    if refusal.code() != StatusCode::UNAUTHORIZED {
        return plain(refusal.code(), format!("{refusal}\n"));
    }
    let way = "Over HTTP a token comes in the header: Authorization: Bearer TOKEN";
    let mut answer = plain(refusal.code(), format!("{refusal}\n{way}\n"));
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

/// A page of text that nobody may keep.
fn plain(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::rights::RIGHTS;

    #[test]
    fn every_page_has_a_row_in_the_table_of_rights_and_no_row_is_left() {
        let pages: BTreeSet<&str> = pages().iter().map(|(path, _)| *path).collect();
        // A call of gRPC has a service and a method.
        let rows: BTreeSet<&str> =
            RIGHTS.iter().map(|(path, _)| *path).filter(|path| path.matches('/').count() == 1).collect();
        assert_eq!(pages, rows);
    }
}
