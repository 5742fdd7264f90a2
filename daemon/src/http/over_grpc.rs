//! The page's requests over gRPC: `memctl report` uses them if there is no HTTP port, and for a store that it opens
//! itself.
//!
//! Guarantees: the HTTP handlers answer, for a caller that gRPC's gate has admitted. Only requests about one job that a
//! reader may make are answered. A response holds its permit until it is sent.
//! Refuses: everything else below `/api/v1`, and responses larger than [`ANSWER_MAX`].

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{StatusCode, Uri};
use memctl_proto::v1::page_server::Page;
use memctl_proto::v1::{PageAnswer, PageQuestion};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tonic::{Code, Request, Response, Status};
use tower::ServiceExt as _;

use super::{Authentication, Room, pages};
use crate::access::Caller;
use crate::listen::Held;
use crate::metrics::Sources;
use crate::permits::Permits;
use crate::query::QueryService;

/// The largest response in a message.
const ANSWER_MAX: usize = 60 << 20;
/// The path of requests about one job.
const BELOW: &str = "/api/v1/jobs/{job}/";

/// See the module.
pub struct PageService {
    router: Router,
    answers: Permits,
}

impl PageService {
    /// A service that answers as the HTTP port does.
    #[must_use]
    pub fn new(sources: Sources, query: Arc<QueryService>, auth: Authentication) -> Self {
        let of_a_job = pages().into_iter().filter(|(path, _)| path.starts_with(BELOW));
        let router = of_a_job.fold(Router::new(), |router, (path, page)| router.route(path, page));
        let answers = query.answers().clone();
        // A request has its permit before the router sees it.
        let room = Room { answers: None, ..Room::new(sources, query, auth) };
        Self { router: router.with_state(room), answers }
    }
}

#[tonic::async_trait]
impl Page for PageService {
    async fn ask(&self, request: Request<PageQuestion>) -> Result<Response<PageAnswer>, Status> {
        let caller = Caller::of(&request)?;
        let PageQuestion { job, question } = request.into_inner();
        let mut asked = axum::http::Request::new(Body::empty());
        *asked.uri_mut() = address(&job, &question)?;
        let permit = crate::query::permit(&self.answers, &caller).await?;
        asked.extensions_mut().insert(caller);
        let answer = match self.router.clone().oneshot(asked).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let status = answer.status();
        let content = to_bytes(answer.into_body(), ANSWER_MAX).await;
        let content = content.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        match status.is_success() {
            true => {
                let mut answer = Response::new(PageAnswer { content: content.into() });
                answer.extensions_mut().insert(Held::new(permit));
                Ok(answer)
            }
            false => Err(Status::new(code(status), String::from_utf8_lossy(&content).trim().to_owned())),
        }
    }
}

/// The address of a request.
fn address(job: &str, question: &str) -> Result<Uri, Status> {
    let job = utf8_percent_encode(job, NON_ALPHANUMERIC).to_string();
    let address = format!("{}{question}", BELOW.replace("{job}", &job)).parse();
    address.map_err(|_| Status::invalid_argument("the request must be encoded like a URL"))
}

/// The gRPC code for an HTTP status.
const fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::CONFLICT => Code::FailedPrecondition,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_part_of_the_address() {
        let uri = address("a/b?c#d", "blocks?rank=0&at=peak").unwrap();
        assert_eq!(uri.path(), "/api/v1/jobs/a%2Fb%3Fc%23d/blocks");
        assert_eq!(uri.query(), Some("rank=0&at=peak"));
        assert_eq!(address("a", "x y").unwrap_err().code(), Code::InvalidArgument);
    }
}
