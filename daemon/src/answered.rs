//! Builds responses whose message is an answer as JSON, in the form that the command line prints.

use memctl_answers::wire::to_wire;
use memctl_proto::v1;
use serde::Serialize;
use tonic::{Response, Status};

/// The response of a call.
///
/// # Errors
/// The answer cannot be encoded as JSON, which is a bug.
pub(crate) fn answered(answer: &impl Serialize) -> Result<Response<v1::Answer>, Status> {
    to_wire(answer).map(Response::new).map_err(|error| Status::internal(error.to_string()))
}
