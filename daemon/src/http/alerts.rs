//! `/api/v1/alerts` and silences: the output of `memctl alerts -o json`, and the two buttons of the page for silences.
//!
//! Guarantees: requests use the same service as gRPC, for the same caller. A change needs the rights of
//! `memctl alerts silence`, must come from the page itself, and is recorded in the audit log.
//!
//! Bodies are not read. The parameters of a silence are in the address.

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use memctl_answers::alerts::{Alerts, Watched};
use memctl_model::limits::JOBS_LISTED;
use memctl_proto::v1;
use tonic::Status;

use super::Room;
use super::api::{Answered, Asking};
use super::auth::{elsewhere, from_this_page};
use super::params::Params;
use super::trouble::Trouble;
use crate::access::Caller;

/// A minute in nanoseconds.
const MINUTE_NS: u64 = 60_000_000_000;

/// The response of `memctl alerts`.
pub async fn alerts(State(room): State<Room>, Extension(caller): Extension<Caller>, uri: Uri) -> Answered {
    Params::of(&uri)?.takes(&[])?;
    let asking = Asking { room: &room, caller };
    let answer = async {
        let alerts = room.sources.alerts.list(&asking.caller, false).await?;
        let jobs = v1::ListJobsRequest { judge: true, limit: JOBS_LISTED, ..v1::ListJobsRequest::default() };
        let jobs = room.query.jobs(&asking.caller, jobs).await.map_err(Status::from)?.jobs;
        Ok(Alerts { jobs: Some(Watched::new(&jobs)), ..alerts })
    };
    asking.json_response(answer).await
}

/// The response of `memctl alerts silences`.
pub async fn silences(State(room): State<Room>, Extension(caller): Extension<Caller>, uri: Uri) -> Answered {
    Params::of(&uri)?.takes(&[])?;
    let asking = Asking { room: &room, caller };
    asking.json_response(async { Ok(room.sources.alerts.list_own_silences(&asking.caller).await?) }).await
}

/// The request of `memctl alerts silence`; returns the new silence.
pub async fn silence(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Trouble> {
    if !from_this_page(&headers) {
        return Ok(elsewhere());
    }
    let asked = Params::of(&uri)?;
    asked.takes(&["job", "kind", "rule", "minutes", "comment"])?;
    let silence = v1::Silence { author: caller.name.clone(), ..asked.silence()? };
    let minutes = asked.number("minutes")?.ok_or_else(|| "a silence ends: minutes=N".to_owned())?;
    let asking = Asking { room: &room, caller };
    let request =
        v1::AddSilenceRequest { silence: Some(silence), for_ns: u64::from(minutes).saturating_mul(MINUTE_NS) };
    let answer = async { Ok(room.sources.alerts.silence(&asking.caller, request).await?) };
    Ok(asking.json_response(answer).await.into_response())
}

/// The request of `memctl alerts unsilence`.
pub async fn unsilence(
    State(room): State<Room>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Trouble> {
    if !from_this_page(&headers) {
        return Ok(elsewhere());
    }
    let asked = Params::of(&uri)?;
    asked.takes(&["id"])?;
    let id = asked.text("id").ok_or_else(|| "which silence: id=…".to_owned())?.to_owned();
    let asking = Asking { room: &room, caller };
    let answer = async {
        room.sources.alerts.unsilence(&asking.caller, &id).await?;
        Ok(room.sources.alerts.list_own_silences(&asking.caller).await?)
    };
    Ok(asking.json_response(answer).await.into_response())
}
