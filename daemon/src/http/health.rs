//! `/healthz` and `/readyz`: 200 and "ok", or 503 and the reasons, one per line.
//!
//! Guarantees: both are unauthenticated, so the reasons only name parts of the daemon: no address, path, job or user.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::{Room, plain};

/// Whether the daemon's tasks run. If not, the daemon should be restarted.
pub async fn alive(State(room): State<Room>) -> Response {
    verdict(&room.sources.health.dead())
}

/// Whether the daemon can be used now.
pub async fn ready(State(room): State<Room>) -> Response {
    verdict(&room.sources.health.unready())
}

fn verdict(reasons: &[String]) -> Response {
    match reasons {
        [] => plain(StatusCode::OK, "ok\n".to_owned()),
        reasons => plain(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
    }
}
