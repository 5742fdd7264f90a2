//! The flags of `daemon`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// How log messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text per message, for people.
    Text,
    /// One JSON object per message, for programs.
    Json,
}

/// The actions on the local service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum LocalService {
    /// Show the local service of a data folder. Commands start this daemon automatically.
    Status,
    /// Stop the local service. A recording that still runs starts it again.
    Stop,
    /// Run as the local service of --data-dir.
    #[command(hide = true)]
    Service,
}

/// `memctl daemon`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Daemon {
    /// An action on the local service. Without one, a daemon is started.
    #[command(subcommand)]
    pub local: Option<LocalService>,
    /// Listen on this address: ADDR:PORT or unix:/path; may be repeated [default: a socket of your own].
    #[arg(long, env = "MEMCTL_LISTEN", value_name = "PLACE", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// The users who may connect to the sockets of --listen: 0600 (only you), 0660 (your group) or 0666 (all users of this machine) [default: 0600].
    #[arg(long, env = "MEMCTL_SOCKET_MODE", value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Serve the page, /metrics, /healthz and /readyz over HTTP on this address: ADDR:PORT or unix:/path; may be repeated [default: no HTTP port].
    #[arg(long, env = "MEMCTL_HTTP_LISTEN", value_name = "PLACE", value_delimiter = ',')]
    pub http_listen: Vec<String>,
    /// The store: sqlite:PATH or postgres://… [default: SQLite in the data folder].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// A TOML file with settings; flags and environment variables take precedence.
    #[arg(long, env = "MEMCTL_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete jobs that have received no data for this long (30d, 12h).
    #[arg(long, value_name = "AGE")]
    pub retain_age: Option<String>,
    /// Delete the oldest data beyond this size (20GiB, 500MB). The largest tenant loses data first, and of its jobs the largest.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes: Option<String>,
    /// The same limit for each attempt of a job.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes_per_job: Option<String>,
    /// The same limit for all jobs of each tenant.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes_per_tenant: Option<String>,
    /// A TOML file with alert rules and receivers [default: the built-in rules, with the log as receiver].
    #[arg(long, env = "MEMCTL_ALERT_RULES", value_name = "FILE")]
    pub alert_rules: Option<PathBuf>,
    /// A PEM file with the authorities for clients' certificates. With it, clients need a certificate (mutual TLS).
    #[arg(long, env = "MEMCTL_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate: required or optional [default: required].
    #[arg(long, env = "MEMCTL_TLS_CLIENT_AUTH", value_name = "WHETHER")]
    pub tls_client_auth: Option<String>,
    /// Accept other machines without TLS. Every machine that can connect can then read and change all data.
    #[arg(long)]
    pub insecure: bool,
    /// Answer queries and write nothing, for a copy of a store or for a store that cannot be written.
    #[arg(long)]
    pub read_only: bool,
    /// How log messages are written to standard error.
    #[arg(long, env = "MEMCTL_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Check the settings and the store, print the result, and exit.
    #[arg(long)]
    pub check: bool,
}
