//! `/api/v1/…`: the command line's `-o json` output over HTTP. This file has the caller and the list of jobs. Views of
//! one job are in `job_views`, tiles in `tiles`.
//!
//! Guarantees: a response comes from the same service as over gRPC, for the same caller. The crate that writes the
//! command line's output also writes the response. At most [`crate::permits::ANSWERS_MAX`] responses are in memory at a
//! time, and at most half of them for one tenant. An error is one sentence of text, and its status shows which side
//! caused it.

use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use memctl_answers::access::Known;
use memctl_answers::format::json;
use memctl_proto::v1;
use serde::Serialize;
use tonic::{Code, Status};

use super::params::Params;
use super::{Room, plain};
use crate::access::Caller;
use crate::permits::{self, Permit};

/// The message if the maximum number of responses is being computed.
const BUSY: &str = "too many concurrent requests; try again later";

/// The reason why a request has no response.
#[derive(Debug)]
pub enum Trouble {
    /// The request is invalid.
    Params(String),
    /// The service returned an error.
    Said(Status),
    /// The maximum number of responses is being computed.
    Busy,
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Params(why)
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Said(status)
    }
}

impl Trouble {
    /// The error as a gRPC status.
    pub(super) fn into_status(self) -> Status {
        match self {
            Self::Params(why) => Status::invalid_argument(why),
            Self::Said(status) => status,
            Self::Busy => Status::unavailable(BUSY),
        }
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        match self {
            Self::Params(why) => plain(StatusCode::BAD_REQUEST, format!("{why}\n")),
            Self::Said(status) => plain(code(status.code()), format!("{}\n", status.message())),
            Self::Busy => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{BUSY}\n")),
        }
    }
}

const fn code(code: Code) -> StatusCode {
    match code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

pub(super) type Answered = Result<Response, Trouble>;

/// A caller and the services that it uses.
pub(super) struct Asking<'r> {
    pub(super) room: &'r Room,
    pub(super) caller: Caller,
}

impl Asking<'_> {
    /// The response in the form of the command line's output, once there is a permit for it.
    pub(super) async fn told<T: Serialize>(&self, answer: impl Future<Output = Result<T, Trouble>>) -> Answered {
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
    asking.told(async { Ok(known) }).await
}

/// The response of `memctl jobs`.
pub async fn jobs(State(room): State<Room>, Extension(caller): Extension<Caller>, uri: Uri) -> Answered {
    let asked = Params::of(&uri)?;
    asked.takes(&["limit"])?;
    let limit = asked.number("limit")?.unwrap_or(0);
    let asking = Asking { room: &room, caller };
    let request = v1::ListJobsRequest { limit, judge: true, ..v1::ListJobsRequest::default() };
    asking.told(async { Ok(room.query.jobs(&asking.caller, request).await.map_err(Status::from)?) }).await
}
