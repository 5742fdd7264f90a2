//! The reasons why a request of the page has no response, and their statuses.
//!
//! Guarantees: an error is one sentence of text, and its status shows which side caused it.

use tonic::codegen::http::StatusCode;
use tonic::{Code, Status};
#[cfg(not(target_family = "wasm"))]
use {
    super::plain,
    axum::response::{IntoResponse, Response},
};

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
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn into_status(self) -> Status {
        match self {
            Self::Params(why) => Status::invalid_argument(why),
            Self::Said(status) => status,
            Self::Busy => Status::unavailable(BUSY),
        }
    }

    /// The status over HTTP, and the text, which ends with a line break.
    pub(super) fn status_and_text(&self) -> (StatusCode, String) {
        match self {
            Self::Params(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")),
            Self::Said(status) => (code(status.code()), format!("{}\n", status.message())),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, format!("{BUSY}\n")),
        }
    }
}

#[cfg(not(target_family = "wasm"))]
impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let (status, text) = self.status_and_text();
        plain(status, text)
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
