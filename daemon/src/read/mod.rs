//! A stored job, read: its rows, what its processes are called, its stacks and marks, the state of a device at any event.
//!
//! Guarantees: whoever asks about a job (the judge, a question, an explanation) finds it here and in the same way; memory is
//! bounded by what is read at a time; what retention removed is an error and never a wrong state. Refuses to judge anything
//! and to know the wire's answers.

pub(crate) mod error;
pub(crate) mod job;
mod like;
pub(crate) mod mark_cursor;
pub(crate) mod processes;
pub(crate) mod replay;
pub(crate) mod samples;
pub(crate) mod side_by_side;
pub(crate) mod stacks;

pub use error::ReadError;
pub(crate) use job::{Found, find};
