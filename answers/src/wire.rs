//! The transport of answers from the daemon to a client: as JSON, in the schema that the command prints.
//!
//! Guarantees: reading returns the written value.

use memctl_proto::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An answer that this memctl cannot read.
#[derive(Debug, thiserror::Error)]
#[error("the daemon's answer is not of the version this memctl knows ({0}): upgrade one of them")]
pub struct UnknownAnswer(serde_json::Error);

/// Encodes an answer for the client.
///
/// # Errors
/// The answer contains a map whose keys are not strings; no answer has one.
pub fn to_wire(answer: &impl Serialize) -> Result<v1::Answer, serde_json::Error> {
    Ok(v1::Answer { json: serde_json::to_vec(answer)? })
}

/// Decodes an answer of the daemon.
///
/// # Errors
/// The daemon has another version.
pub fn from_wire<T: DeserializeOwned>(wire: &v1::Answer) -> Result<T, UnknownAnswer> {
    serde_json::from_slice(&wire.json).map_err(UnknownAnswer)
}
