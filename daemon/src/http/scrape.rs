//! `/metrics`: the metrics of the data that the caller may see.
//!
//! Guarantees: at most [`SCRAPES_MAX`] responses are in memory at a time. A caller without a permit gets status 503 and
//! should retry.

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::{Room, plain};
use crate::access::Caller;
use crate::metrics::text;
use crate::permits;

/// The most concurrent scrapes. A response with all shown jobs has about 6 MB.
pub const SCRAPES_MAX: usize = 8;

/// Returns the metrics.
pub async fn metrics(State(room): State<Room>, Extension(caller): Extension<Caller>) -> Response {
    let Some(permit) = room.scrapes.take(caller.tenant_name()).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent scrapes; try again later\n".to_owned());
    };
    let families = room.sources.gather(&caller.scope).await;
    let page = permits::body(text::render(&families), Some(permit));
    ([(CONTENT_TYPE, text::CONTENT_TYPE), (CACHE_CONTROL, "no-store")], page).into_response()
}
