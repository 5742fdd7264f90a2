//! Chooses where requests go: the daemon that was named, the local service of the folder that was named, this user's
//! own daemon, or the local service of the default folder. Without a local service, the store is opened in this
//! process.
//!
//! Guarantees: the order of the command line's contract; every wait has a timeout; an embedded daemon is drained and
//! closed before the process ends. If no daemon was named, only sockets in this user's own folders are tried, never a
//! port, because any user can listen on a port. Refuses to create a store only to report that it is empty.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memctl_answers::naming::shell_word;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::v1::StatusRequest;
use memctl_proto::v1::query_client::QueryClient;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::args::Global;
use crate::exit::Failure;
use crate::hosting::service::Service;
use crate::hosting::{
    self, Asking, Beside, Credentials, Daemon, DaemonAddress, Embedded, JobFolder, ReachError, data_dirs, reach,
};
use crate::render::text::safe;
use crate::service;

/// A named daemon may be reached over a slow network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The first response under TLS needs neither the store nor the principal: a daemon sends it as soon as it has a core.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(10);
/// How many connections are tried for it.
const FIRST_TRIES: u32 = 3;
/// This user's own daemon is on this machine.
const OWN_TIMEOUT: Duration = Duration::from_secs(5);
/// A response about a job of billions of events may take many seconds; a daemon that hangs must not hang its clients.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Detects dead idle connections.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// A report of thousands of ranks is larger than an item.
pub const ANSWER_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;

/// Where a command's responses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A daemon.
    Daemon(DaemonAddress),
    /// The local service of a data folder.
    Service(Service),
    /// A store, opened in this process.
    DataDir(PathBuf),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Daemon(address) => write!(f, "the daemon at {address}"),
            Self::Service(service) => write!(f, "the local service of {}", service.files().folder().display()),
            Self::DataDir(dir) => write!(f, "the store in {}", dir.display()),
        }
    }
}

/// A connection to a daemon, a local service or the embedded daemon.
pub struct Connection {
    /// The client for queries.
    pub query: QueryClient<Asking>,
    /// The channel.
    pub channel: Channel,
    credentials: Credentials,
    /// Where the channel leads.
    pub place: Source,
    /// Flags that lead there again, for the commands that a page proposes.
    pub flags: String,
    embedded: Option<Embedded>,
}

impl Connection {
    /// A failure that names this connection.
    pub fn failure(&self, status: &tonic::Status) -> Failure {
        Failure::from_status(status, &self.place.to_string())
    }

    /// The channel with credentials, for another client.
    pub fn asking(&self) -> Asking {
        Asking::new(self.channel.clone(), self.credentials.clone())
    }

    /// The same destination, for agents.
    pub fn daemon(&self) -> Daemon {
        let daemon = match &self.place {
            Source::Daemon(address) => Daemon::Address(address.clone()),
            Source::Service(service) => Daemon::Address(DaemonAddress::of_service(service.clone())),
            Source::DataDir(_) => Daemon::Connected(self.channel.clone()),
        };
        daemon.showing(self.credentials.clone())
    }

    /// Serves the page of the store that is open here, on a port (0: any); returns the address that opens it once.
    ///
    /// # Errors
    /// No port is free, or the connection leads to a daemon, which serves its own page.
    pub async fn page(&mut self, port: u16) -> Result<String, Failure> {
        match &mut self.embedded {
            Some(embedded) => embedded.page(port).await,
            None => Err(Failure::usage(format!("{} serves its own page", self.place))),
        }
    }

    /// Ends the connection; an embedded daemon drains.
    pub async fn close(self) {
        let Self { query, channel, embedded, .. } = self;
        // The daemon would wait for open connections.
        drop((query, channel));
        if let Some(embedded) = embedded {
            embedded.close().await;
        }
    }
}

/// What to do when a store does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    /// Create it.
    Make,
    /// Report that it is missing.
    Refuse,
}

/// Connects.
///
/// # Errors
/// [`Failure::unreachable`] with what to do.
pub async fn connect(global: &Global, missing: WhenMissing) -> Result<Connection, Failure> {
    if let Some(address) = global.daemon_address() {
        let flags = flags(global, &address);
        return open_daemon(address, flags, global.credentials()).await;
    }
    if let Some(dir) = &global.data_dir {
        if missing == WhenMissing::Refuse && !is_there(dir)? {
            let dir = dir.display();
            return Err(Failure::unreachable(format!(
                "there is no folder {dir}; `memctl import … --data-dir {dir}` creates it"
            )));
        }
        let flags = format!("--data-dir {}", shell_word(&dir.to_string_lossy()));
        return open_local(dir, flags, global, missing).await;
    }
    let (own, credentials) = (DaemonAddress::own(), global.credentials());
    if let Some(channel) = try_own(&own, &credentials, global).await? {
        return Ok(connection((channel, credentials), Source::Daemon(own), String::new(), None));
    }
    let dir = default_data_dir()?;
    if missing == WhenMissing::Refuse && !is_there(&dir)? {
        return Err(Failure::unreachable(format!(
            "no daemon of yours runs here and there is no store in {}: start with `memctl run -- python train.py`, `memctl import` or `memctl demo`",
            dir.display()
        )));
    }
    open_local(&dir, String::new(), global, missing).await
}

/// Whether a store's folder exists. A folder that this user may not see is an error, not a missing one.
fn is_there(dir: &Path) -> Result<bool, Failure> {
    match std::fs::metadata(dir) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(Failure::unreachable(format!(
            "{}: {error}: ask its daemon (--daemon), or run this as a user who may read the folder",
            dir.display()
        ))),
    }
}

/// The flags that lead to a daemon again. Values from the environment are left out: they will be read from there again.
#[must_use]
pub fn flags(global: &Global, address: &DaemonAddress) -> String {
    let mut flags = format!("--daemon {}", shell_word(&address.url));
    let files = [
        ("--tls-ca", &global.tls_ca),
        ("--tls-cert", &global.tls_cert),
        ("--tls-key", &global.tls_key),
        ("--token-file", &global.token_file),
    ];
    for (flag, file) in files {
        if let Some(file) = file {
            flags.push_str(&format!(" {flag} {}", shell_word(&file.to_string_lossy())));
        }
    }
    if let Some(tenant) = &global.tenant {
        flags.push_str(&format!(" --tenant {}", shell_word(tenant)));
    }
    flags
}

/// The socket of this user's daemon.
#[must_use]
pub fn default_socket() -> PathBuf {
    reach::own_socket()
}

/// `$XDG_DATA_HOME/memctl`, else `~/.local/share/memctl`.
///
/// # Errors
/// Neither variable is set.
pub fn default_data_dir() -> Result<PathBuf, Failure> {
    data_dirs::data_dir(&|name| std::env::var_os(name).map(PathBuf::from))
        .ok_or_else(|| Failure::unreachable("neither XDG_DATA_HOME nor HOME is set: name a folder with --data-dir DIR"))
}

async fn open_daemon(address: DaemonAddress, flags: String, credentials: Credentials) -> Result<Connection, Failure> {
    credentials.check(&address.url).and_then(|()| credentials.readable()).map_err(Failure::usage)?;
    let mut channel = reached(&address).await?;
    if address.url.starts_with("https:") {
        let mut tries = 1;
        while !is_taken(&channel, &address).await? {
            if tries == FIRST_TRIES {
                return Err(Failure::unreachable(format!(
                    "the daemon at {address} took {FIRST_TRIES} connections and answered none of them within {} s; `memctl doctor` may show the reason",
                    FIRST_ANSWER_MAX.as_secs()
                )));
            }
            tries += 1;
            channel = reached(&address).await?;
        }
    }
    Ok(connection((channel, credentials), Source::Daemon(address), flags, None))
}

async fn reached(address: &DaemonAddress) -> Result<Channel, Failure> {
    let limits = |endpoint: Endpoint| usual(endpoint).connect_timeout(CONNECT_TIMEOUT);
    address.connect(limits).await.map_err(|error| match error {
        ReachError::Address(error) => Failure::usage(error.to_string()),
        ReachError::Identity(error) => Failure::usage(error.to_string()),
        ReachError::File { path, reason } => Failure::usage(format!("{path}: {reason}")),
        ReachError::Absent(error) => Failure::unreachable(format!(
            "no daemon answers at {address} ({error}): start one with `memctl daemon`, or omit --daemon and MEMCTL_DAEMON"
        )),
        ReachError::NotTrusted { said, remedy } => {
            Failure::unreachable(format!("the daemon at {address} is not trusted ({said}): {remedy}"))
        }
        ReachError::Connect(error) => Failure::unreachable(format!(
            "what answers at {address} does not answer as a daemon does ({error}); `memctl doctor` may show the reason"
        )),
    })
}

/// Whether a TLS connection gets any response. TLS 1.3 lets a client send before its certificate was checked, and the
/// HTTP/2 library can lose the refusal: a request that is written while the connection ends then waits for its whole
/// timeout. So the first request is small and has a short timeout.
async fn is_taken(channel: &Channel, address: &DaemonAddress) -> Result<bool, Failure> {
    let mut health = HealthClient::new(channel.clone());
    match tokio::time::timeout(FIRST_ANSWER_MAX, health.check(HealthCheckRequest::default())).await {
        // The connection ended; this is not a response from the daemon.
        Ok(Err(status)) if std::error::Error::source(&status).is_some() => {
            Err(Failure::from_status(&status, &Source::Daemon(address.clone()).to_string()))
        }
        Ok(_) => Ok(true),
        Err(_) => Ok(false),
    }
}

/// Whether this can be a daemon's address; does not connect.
///
/// # Errors
/// Wrong usage.
pub fn check_address(address: &DaemonAddress) -> Result<(), Failure> {
    address.check().map_err(|error| Failure::usage(error.to_string()))
}

fn usual(endpoint: Endpoint) -> Endpoint {
    endpoint.timeout(ANSWER_TIMEOUT).http2_keep_alive_interval(KEEP_ALIVE)
}

/// This user's own daemon, if it runs. If the socket cannot be trusted, this prints why and does not use it.
async fn try_own(own: &DaemonAddress, credentials: &Credentials, global: &Global) -> Result<Option<Channel>, Failure> {
    let limits = |endpoint: Endpoint| usual(endpoint).connect_timeout(OWN_TIMEOUT);
    let channel = match own.connect(limits).await {
        Ok(channel) => channel,
        // There is no socket, or a daemon that was killed left one.
        Err(ReachError::Absent(_)) => return Ok(None),
        Err(error) => {
            if !global.quiet {
                eprintln!("memctl: {own} is not asked: {error}");
            }
            return Ok(None);
        }
    };
    credentials.readable().map_err(Failure::usage)?;
    let mut asking = QueryClient::with_interceptor(channel.clone(), credentials.clone());
    let asking = asking.get_status(StatusRequest {}).await;
    asking.map(|_| Some(channel)).map_err(|status| Failure::from_status(&status, &format!("the daemon at {own}")))
}

/// The local service of a folder, or the store in this process if no service is wanted or possible.
async fn open_local(dir: &Path, flags: String, global: &Global, missing: WhenMissing) -> Result<Connection, Failure> {
    if let Some(service) = service::of(dir, global) {
        // The socket identifies the user; a token is meant for another daemon.
        let credentials = Credentials { token: None, ..global.credentials() };
        match service::reached(&service, &credentials, usual).await {
            Ok((channel, status)) => {
                service::settle_version(&service, &status.version, global);
                return Ok(connection((channel, credentials), Source::Service(service), flags, None));
            }
            Err(reason) => {
                let opened = open_store(dir, flags, global.credentials(), missing).await;
                if opened.is_ok() && !global.quiet {
                    eprintln!("memctl: no local service ({}): this command opens the store itself", safe(&reason));
                }
                return opened;
            }
        }
    }
    open_store(dir, flags, global.credentials(), missing).await
}

async fn open_store(
    dir: &Path,
    flags: String,
    credentials: Credentials,
    missing: WhenMissing,
) -> Result<Connection, Failure> {
    // The daemon uses the same mode: recordings show what a person works on.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| {
        Failure::unreachable(format!(
            "cannot make the data folder {}: {error}; choose another one with --data-dir DIR",
            dir.display()
        ))
    })?;
    let beside = match missing {
        WhenMissing::Make => Beside::Refuse,
        WhenMissing::Refuse if JobFolder::at(dir).is_some() => Beside::ReadOnly,
        // Requests can be answered while another process writes.
        WhenMissing::Refuse => Beside::Read,
    };
    let embedded = hosting::embedded(dir, beside).await?;
    Ok(connection((embedded.channel.clone(), credentials), Source::DataDir(dir.to_owned()), flags, Some(embedded)))
}

/// A connection to the store in this folder, opened in this process.
///
/// # Errors
/// The store cannot be opened.
pub async fn open_here(dir: &Path) -> Result<Connection, Failure> {
    let flags = format!("--data-dir {}", shell_word(&dir.to_string_lossy()));
    open_store(dir, flags, Credentials::default(), WhenMissing::Make).await
}

fn connection(
    (channel, credentials): (Channel, Credentials),
    place: Source,
    flags: String,
    embedded: Option<Embedded>,
) -> Connection {
    let query = QueryClient::with_interceptor(channel.clone(), credentials.clone());
    let query = query.max_decoding_message_size(ANSWER_BYTES_MAX);
    Connection { query, channel, credentials, place, flags, embedded }
}
