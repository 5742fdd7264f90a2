//! `memctl mcp`: answers the questions of assistants over the Model Context Protocol, on standard input and output or on
//! a port.
//!
//! Guarantees: no tool deletes, records or changes anything, except that `search_holders` pauses a training process for
//! the budget that the caller names. Every answer is made from the types that `-o json` prints, and fits into
//! [`room::ANSWER_BYTES_MAX`]. Text from jobs is escaped, and shown as quoted data.

mod asked;
mod caller;
mod catalogue;
mod explain;
mod http;
mod next;
mod resources;
mod room;
mod said;
mod server;
mod shape;
mod tools;

use crate::args::{self, Format, Global};
use crate::exit::Failure;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(args: &args::Mcp, global: &Global) -> Result<(), Failure> {
    if global.output != Format::Table {
        return Err(Failure::usage("answers of `memctl mcp` are JSON-RPC messages; omit -o"));
    }
    match args.listen {
        Some(address) => http::serve(address, args.insecure, global).await,
        None => server::serve_stdio(global).await,
    }
}
