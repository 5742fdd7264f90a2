//! The page's requests over gRPC. `memctl report` uses them if there is no HTTP port, and for a store that it opens
//! itself.
//!
//! Guarantees: responses are the views of the HTTP port, for a caller that gRPC's gate has admitted. A response holds
//! its permit until it is sent.
//! Refuses: responses larger than [`ANSWER_MAX`].

use std::sync::Arc;

use memctl_proto::v1::page_server::Page;
use memctl_proto::v1::{PageAnswer, PageQuestion};
use tonic::{Request, Response, Status};

use super::job_views::{Calling, JobViews};
use super::params::Params;
use super::trouble::Trouble;
use crate::access::Caller;
use crate::listen::ResponseGuard;
use crate::query::QueryService;

/// The largest response.
const ANSWER_MAX: usize = 60 << 20;

/// The service; see the module.
pub struct PageService {
    query: Arc<QueryService>,
}

impl PageService {
    /// A service with the same responses as the HTTP port.
    #[must_use]
    pub fn new(query: Arc<QueryService>) -> Self {
        Self { query }
    }
}

#[tonic::async_trait]
impl Page for PageService {
    async fn ask(&self, request: Request<PageQuestion>) -> Result<Response<PageAnswer>, Status> {
        let caller = Caller::of(&request)?;
        let PageQuestion { job, question } = request.into_inner();
        let (view, params) = question.split_once('?').unwrap_or((&question, ""));
        let params = Params::decode(params).map_err(Status::invalid_argument)?;
        let selection = params.selection(&job).map_err(Status::invalid_argument)?;
        let permit = crate::query::permit(self.query.answers(), &caller).await?;
        let views = JobViews { from: &Calling { query: &self.query, caller }, selection, params: &params };
        let content = views.answer(view).await.map_err(Trouble::into_status)?;
        if content.len() > ANSWER_MAX {
            return Err(Status::resource_exhausted("the answer is too large for a message; select fewer ranks"));
        }
        let mut answer = Response::new(PageAnswer { content });
        answer.extensions_mut().insert(ResponseGuard::new(permit));
        Ok(answer)
    }
}
