//! Reads a stored job: its rows, the names of its processes, its stacks and marks, and the state of a device at any
//! event.
//!
//! Guarantees: the judge, queries and explanations all read jobs through this module. Memory is bounded by the data
//! read at a time. Expired data is an error and never a wrong state. The module neither judges jobs nor depends on the
//! wire format of responses.

pub(crate) mod concurrently;
pub(crate) mod error;
pub(crate) mod job;
pub(crate) mod mark_cursor;
pub(crate) mod processes;
pub(crate) mod replay;
pub(crate) mod samples;
mod similar_names;
pub(crate) mod stacks;

pub use error::ReadError;
pub(crate) use job::{FoundJob, find};
