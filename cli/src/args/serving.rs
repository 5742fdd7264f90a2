//! The flags of `daemon`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// How log messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text each, for people.
    Text,
    /// One JSON object each, for programs.
    Json,
}

/// What is done with the local service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum LocalService {
    /// Show the local service of a data folder: the daemon that commands start for themselves.
    Status,
    /// End the local service; what still runs starts it again.
    Stop,
    /// Be the local service of --data-dir.
    #[command(hide = true)]
    Service,
}

/// `memctl daemon`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Daemon {
    /// The local service, instead of a daemon of your own.
    #[command(subcommand)]
    pub local: Option<LocalService>,
    /// Where to listen: ADDR:PORT or unix:/path; may be repeated [default: a socket of your own].
    #[arg(long, env = "MEMCTL_LISTEN", value_name = "PLACE", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Who may connect to sockets that --listen names: 0600 (you), 0660 (your group) or 0666 (every user of this machine) [default: 0600].
    #[arg(long, env = "MEMCTL_SOCKET_MODE", value_name = "MODE")]
    pub socket_mode: Option<String>,
    /// Serve the page, /metrics, /healthz and /readyz over HTTP here: ADDR:PORT or unix:/path; may be repeated [default: no HTTP port].
    #[arg(long, env = "MEMCTL_HTTP_LISTEN", value_name = "PLACE", value_delimiter = ',')]
    pub http_listen: Vec<String>,
    /// The store: sqlite:PATH or postgres://… [default: SQLite in the data directory].
    #[arg(long, env = "MEMCTL_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// A TOML file with settings; flags and environment variables take precedence.
    #[arg(long, env = "MEMCTL_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Delete jobs that ended longer ago (30d, 12h).
    #[arg(long, value_name = "AGE")]
    pub retain_age: Option<String>,
    /// Delete the oldest beyond this size (20GiB, 500MB); the job that takes most gives first.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes: Option<String>,
    /// The same for every attempt of a job.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes_per_job: Option<String>,
    /// The same for the jobs of every tenant.
    #[arg(long, value_name = "BYTES")]
    pub retain_bytes_per_tenant: Option<String>,
    /// A TOML file with alert rules and receivers [default: the built-in rules, with the log as receiver].
    #[arg(long, env = "MEMCTL_ALERT_RULES", value_name = "FILE")]
    pub alert_rules: Option<PathBuf>,
    /// A PEM file with the authorities of clients' certificates: clients show one (mutual TLS).
    #[arg(long, env = "MEMCTL_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate: required or optional [default: required].
    #[arg(long, env = "MEMCTL_TLS_CLIENT_AUTH", value_name = "WHETHER")]
    pub tls_client_auth: Option<String>,
    /// Accept other machines without TLS: any of them can then read and change everything.
    #[arg(long)]
    pub insecure: bool,
    /// Answer questions and write nothing: for a copy, or a store that cannot be written.
    #[arg(long)]
    pub read_only: bool,
    /// How log messages are written to standard error.
    #[arg(long, env = "MEMCTL_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Check the settings and the store, print both, and exit.
    #[arg(long)]
    pub check: bool,
}
