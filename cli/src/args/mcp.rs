//! The flags of `mcp`.

use std::net::SocketAddr;

use clap::Args;

/// `memctl mcp`.
#[derive(Clone, Debug, Args)]
pub struct Mcp {
    /// Serve over streamable HTTP at http://ADDR:PORT/mcp, until Ctrl-C [default: standard input and output]. An address that other machines can reach requires a token in every request.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// With --listen: serve other machines without TLS, for example behind a proxy that encrypts.
    #[arg(long, requires = "listen")]
    pub insecure: bool,
}
