//! `memctl mcp`: serves the tools of [`crate::mcp`] over standard input and output, or on a port.

use crate::args::{self, Format, Global};
use crate::exit::Failure;
use crate::mcp::{http, server};

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
