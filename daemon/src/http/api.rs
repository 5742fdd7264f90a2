//! `/api/v1/…`: the command line's `-o json` output over HTTP. This file has the caller and the list of jobs. Views of
//! one job are in `job_views`, tiles in `tiles`, errors in `trouble`.
//!
//! Guarantees: a response comes from the same service as over gRPC, for the same caller. The crate that writes the
//! command line's output also writes the response. At most [`crate::permits::ANSWERS_MAX`] responses are in memory at a
//! time, and at most half of them for one tenant. An error is one sentence of text, and its status shows which side
//! caused it.

use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use memctl_answers::access::Known;
use memctl_answers::format::json;
use memctl_proto::v1;
use serde::Serialize;
use tonic::Status;

use super::Room;
use super::params::Params;
use super::trouble::Trouble;
use crate::access::Caller;
use crate::permits::{self, Permit};

pub(super) type Answered = Result<Response, Trouble>;

/// A caller and the services that it uses.
pub(super) struct Asking<'r> {
    pub(super) room: &'r Room,
    pub(super) caller: Caller,
}

impl Asking<'_> {
    /// The response in the form of the command line's output, once there is a permit for it.
    pub(super) async fn json_response<T: Serialize>(
        &self,
        answer: impl Future<Output = Result<T, Trouble>>,
    ) -> Answered {
        let permit = self.room.permit(&self.caller).await?;
        let answer = answer.await?;
        let mut text = Vec::new();
        json::line(&mut text, &answer).map_err(|error| Status::internal(error.to_string()))?;
        Ok(respond(text, permit))
    }
}

/// A JSON response, which holds its permit until it is sent.
pub(super) fn respond(text: Vec<u8>, permit: Permit) -> Response {
    let head = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (head, permits::body(text, Some(permit))).into_response()
}

/// The caller as the daemon identifies it.
pub async fn caller(State(room): State<Room>, Extension(caller): Extension<Caller>) -> Answered {
    let asking = Asking { room: &room, caller };
    let Caller { name, role, .. } = &asking.caller;
    let tenant = asking.caller.tenant_name().to_owned();
    let may_leave = matches!(&room.auth, super::Authentication::Gate(_)) && asking.caller.has_token();
    let known = Known::new(name.clone(), *role, tenant, may_leave, env!("CARGO_PKG_VERSION"));
    asking.json_response(async { Ok(known) }).await
}

/// The response of `memctl jobs`.
pub async fn jobs(State(room): State<Room>, Extension(caller): Extension<Caller>, uri: Uri) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["limit"])?;
    let limit = asked.number("limit")?.unwrap_or(0);
    let asking = Asking { room: &room, caller };
    let request = v1::ListJobsRequest { limit, judge: true, ..v1::ListJobsRequest::default() };
    asking.json_response(async { Ok(room.query.jobs(&asking.caller, request).await.map_err(Status::from)?) }).await
}
