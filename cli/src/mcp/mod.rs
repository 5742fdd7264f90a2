//! `memctl mcp`: answers the questions of assistants over the Model Context Protocol.
//!
//! Guarantees: no tool deletes, records or changes anything, except that `search_holders` pauses a training process for
//! the budget that the caller names. Every answer is made from the types that `-o json` prints, and fits into
//! [`room::ANSWER_BYTES_MAX`]. Text from jobs is escaped, and shown as quoted data.

mod asked;
mod catalogue;
mod explain;
pub mod http;
mod next;
mod resources;
mod room;
pub mod server;
mod shape;
mod tools;

/// Who calls: decides what a tool may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The program that started this process, as the same user.
    Stdio,
    /// Any program that reaches the port. It may not name files of this machine.
    Http,
}
