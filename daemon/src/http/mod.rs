//! The HTTP port: the page for people, and its data, metrics and health for clients that do not use gRPC.
//!
//! Guarantees: the gate and the table of rights of gRPC decide about access (`auth`). Connections are those of
//! [`crate::listen`], with TLS, limits and timeouts. Bodies of requests are not read. A client that holds a connection
//! open delays neither others nor shutdown. Every response forbids the browser to load anything from other sites, to
//! run scripts other than the page's own, and to show the page in a frame.
//!
//! Refuses: every method except GET and HEAD. POST is accepted only where a request changes something.

mod alerts;
mod api;
mod assets;
mod auth;
mod forward;
mod health;
mod hosted;
mod job_views;
mod live;
mod over_grpc;
mod params;
pub mod recordings;
mod scrape;
mod serve;
mod tiles;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

pub use assets::{SCRIPT, STYLE};
pub use auth::{Authentication, Key};
pub use forward::{ForwardError, Forwarded, forward};
pub use hosted::{HostError, Hosted, host};
pub use job_views::VIEWS;
pub use over_grpc::PageService;
pub use serve::{limits, serve};
use trouble::Trouble;

use crate::access::rights::{Need, need};
use crate::access::{Caller, Refusal};
use crate::health::{Health, while_the_store_answers};
use crate::listen::{Admission, Peer};
use crate::metrics::Sources;
use crate::permits::{Permit, Permits};
use crate::query::QueryService;

/// The list of addresses.
const PAGES: &str = "memctl daemon\n\n/         the page\n/api/v1/  its data\n/metrics  figures for Prometheus\n/healthz  whether its tasks run\n/readyz   whether it can be used\n";

/// How long to wait for a permit.
const SLOT_WAIT: Duration = Duration::from_secs(5);

/// Headers of every response.
const TOLD: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The services and data that responses are made from.
#[derive(Clone)]
struct Room {
    sources: Sources,
    query: Arc<QueryService>,
    auth: Authentication,
    scrapes: Permits,
    answers: Permits,
    listeners: Permits,
}

/// All routes; each has a row in the table of rights.
fn pages() -> [(&'static str, MethodRouter<Room>); 24] {
    [
        ("/", get(assets::page)),
        ("/jobs/{job}", get(assets::page)),
        ("/jobs/{job}/moment", get(assets::page)),
        ("/jobs/{job}/blocks", get(assets::page)),
        ("/jobs/{job}/step", get(assets::page)),
        ("/jobs/{job}/compare", get(assets::page)),
        ("/jobs/{job}/settings", get(assets::page)),
        ("/alerts", get(assets::page)),
        ("/assets/{file}", get(assets::asset)),
        ("/login", post(auth::login)),
        ("/logout", post(auth::logout)),
        ("/enter", get(auth::enter)),
        ("/api/v1/caller", get(api::caller)),
        ("/api/v1/live", get(live::live)),
        ("/api/v1/jobs", get(api::jobs)),
        ("/api/v1/jobs/{job}/{view}", get(job_views::view)),
        ("/api/v1/jobs/{job}/tiles", get(tiles::tile)),
        ("/api/v1/alerts", get(alerts::alerts)),
        ("/api/v1/silences", get(alerts::silences)),
        ("/api/v1/silence", post(alerts::silence)),
        ("/api/v1/unsilence", post(alerts::unsilence)),
        ("/metrics", get(scrape::metrics)),
        ("/healthz", get(health::alive)),
        ("/readyz", get(health::ready)),
    ]
}

impl Room {
    fn new(sources: Sources, query: Arc<QueryService>, auth: Authentication) -> Self {
        let scrapes = Permits::new(scrape::SCRAPES_MAX, SLOT_WAIT);
        let (answers, listeners) = (query.answers().clone(), Permits::new(live::LISTENERS_MAX, SLOT_WAIT));
        Self { sources, query, auth, scrapes, answers, listeners }
    }

    /// A permit for a response.
    async fn permit(&self, caller: &Caller) -> Result<Permit, Trouble> {
        self.answers.take(caller.tenant_name()).await.ok_or(Trouble::Busy)
    }
}

/// The routes of this port, behind authentication.
pub fn router(sources: Sources, query: Arc<QueryService>, auth: Authentication) -> Router {
    let pages = pages().into_iter().fold(Router::new(), |router, (path, page)| router.route(path, page));
    pages
        .route_layer(middleware::from_fn_with_state((auth.clone(), sources.health.clone()), admit))
        .fallback(|| async { plain(StatusCode::NOT_FOUND, format!("There is no such page.\n\n{PAGES}")) })
        .layer(middleware::map_response(tell))
        .with_state(Room::new(sources, query, auth))
}

/// Admits a request like the gate of gRPC, or returns the reason for the refusal.
async fn admit(State((auth, health)): State<(Authentication, Health)>, request: Request, next: Next) -> Response {
    // These routes need the store. Health and metrics are served without it.
    let needs_the_store = request.uri().path().starts_with("/api/v1/");
    let answer = admitted(&auth, request, next);
    if !needs_the_store {
        return answer.await;
    }
    let answer = while_the_store_answers(&health, answer).await;
    answer.unwrap_or_else(|fault| plain(StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")))
}

async fn admitted(auth: &Authentication, request: Request, next: Next) -> Response {
    // Data that is held while the gate queries the store must be `Sync`, and a body is not.
    let (mut head, body) = request.into_parts();
    let peer = Peer::of(&head.extensions).cloned();
    let path = head.extensions.get::<MatchedPath>().cloned();
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    let mut parts = auth::Parts { headers: &mut head.headers, uri: &head.uri };
    match auth.admit(peer.as_ref(), path, &mut parts).await {
        Ok(caller) => {
            if need(path) != Some(Need::Nothing)
                && let Some(admission) = head.extensions.get::<Admission>()
            {
                admission.admitted();
            }
            head.extensions.insert(caller);
            next.run(Request::from_parts(head, body)).await
        }
        Err(refusal) => refused(&refusal, auth),
    }
}

async fn tell(mut answer: Response) -> Response {
    answer.headers_mut().extend(TOLD.map(|(name, value)| (name, HeaderValue::from_static(value))));
    answer
}

fn refused(refusal: &Refusal, auth: &Authentication) -> Response {
    if refusal.code() != StatusCode::UNAUTHORIZED || matches!(auth, Authentication::Key(_)) {
        return plain(refusal.code(), format!("{refusal}\n"));
    }
    let way = "Over HTTP a token comes in the header: Authorization: Bearer TOKEN; the page at / has a form for it";
    let mut answer = plain(refusal.code(), format!("{refusal}\n{way}\n"));
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

/// Text that must not be cached.
fn plain(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::rights::{RIGHTS, is_grpc};

    #[test]
    fn every_page_has_a_row_in_the_table_of_rights_and_no_row_is_left() {
        let pages: BTreeSet<&str> = pages().iter().map(|(path, _)| *path).collect();
        let rows: BTreeSet<&str> = RIGHTS.iter().map(|(path, _)| *path).filter(|path| !is_grpc(path)).collect();
        assert_eq!(pages, rows);
    }
}
