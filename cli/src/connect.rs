//! Where a question goes: a daemon that was named, a store that was named, the daemon at the default address, the default store.
//!
//! Guarantees: that order, as the command line's contract has it; every wait has an end; an
//! embedded daemon is drained and closed before the process ends. Refuses to make a store just to
//! say that it is empty.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memctl_answers::naming::shell_word;
use memctl_model::HumanBytes;
use memctl_model::limits::MESSAGE_BYTES_MAX;
use memctl_proto::v1::StatusRequest;
use memctl_proto::v1::query_client::QueryClient;
use tonic::transport::{Channel, Endpoint};

use crate::args::{DEFAULT_LISTEN, Global};
use crate::exit::Failure;
use crate::render::text::safe;
use crate::seams::{self, Daemon, Embedded, host, place};

/// A daemon that was named may be on the other side of a slow network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The daemon at the default address is on this machine: it answers at once or is not there.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// An answer over a job of billions of events may need many seconds; a daemon that hangs must not hang its users.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Idle connections are noticed when they are dead.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// A report of thousands of ranks is larger than an item.
const ANSWER_BYTES_MAX: usize = 8 * MESSAGE_BYTES_MAX;

/// What waits is taken in for at most so long before a question is asked.
const TAKING_MAX: Duration = Duration::from_secs(120);
/// Living processes that are named.
const LIVING_MAX: usize = 8;
/// Taking in more than this takes long enough to be said.
const SAID_BYTES_MIN: u64 = 8 << 20;

/// Where a command's answers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A daemon.
    Daemon(String),
    /// A store, opened in this process.
    DataDir(PathBuf),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Daemon(url) => write!(f, "the daemon at {url}"),
            Self::DataDir(dir) => write!(f, "the store in {}", dir.display()),
        }
    }
}

/// A connection to whoever answers.
pub struct Connection {
    /// Asks.
    pub query: QueryClient<Channel>,
    /// The way there, for the importer.
    pub channel: Channel,
    /// Where it leads.
    pub place: Source,
    /// Flags that lead there again, for the commands that a page proposes.
    pub flags: String,
    embedded: Option<Embedded>,
}

impl Connection {
    /// A failure in the words of this connection.
    pub fn failure(&self, status: &tonic::Status) -> Failure {
        Failure::from_status(status, &self.place.to_string())
    }

    /// Ends the connection; an embedded daemon drains.
    pub async fn close(self) {
        let Self { query, channel, embedded, .. } = self;
        // Open connections would make the daemon wait for them.
        drop((query, channel));
        if let Some(embedded) = embedded {
            embedded.close().await;
        }
    }
}

/// What is done with a store that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    /// It is made.
    Make,
    /// That is an answer in itself.
    Refuse,
}

/// Connects.
///
/// # Errors
/// [`Failure::unreachable`] with what to do.
pub async fn connect(global: &Global, missing: WhenMissing) -> Result<Connection, Failure> {
    if let Some(url) = global.daemon() {
        let flags = format!("--daemon {}", shell_word(url));
        return open_daemon(url, flags).await;
    }
    if let Some(dir) = &global.data_dir {
        if missing == WhenMissing::Refuse && !dir.is_dir() {
            let dir = dir.display();
            return Err(Failure::unreachable(format!(
                "there is no folder {dir}; `memctl import … --data-dir {dir}` creates it"
            )));
        }
        let flags = format!("--data-dir {}", shell_word(&dir.to_string_lossy()));
        return open_store(dir, flags).await;
    }
    let url = default_url();
    if let Some(channel) = probe(&url).await {
        return Ok(connection(channel, Source::Daemon(url), String::new(), None));
    }
    let dir = default_data_dir()?;
    if missing == WhenMissing::Refuse && !dir.is_dir() {
        return Err(Failure::unreachable(format!(
            "no daemon answers at {url} and there is no store in {}: start with `memctl demo`, `memctl import` or `memctl daemon`",
            dir.display()
        )));
    }
    open_store(&dir, String::new()).await
}

/// The daemon's address unless told otherwise.
#[must_use]
pub fn default_url() -> String {
    format!("http://{DEFAULT_LISTEN}")
}

/// `$XDG_DATA_HOME/memctl`, else `~/.local/share/memctl`.
///
/// # Errors
/// Neither variable is set.
pub fn default_data_dir() -> Result<PathBuf, Failure> {
    place::data_dir(&|name| std::env::var_os(name).map(PathBuf::from))
        .ok_or_else(|| Failure::unreachable("neither XDG_DATA_HOME nor HOME is set: name a folder with --data-dir DIR"))
}

/// Takes in what waits on this machine for where a connection leads: sessions that ended, or were killed, when nobody
/// took them. A question has to find them.
pub async fn take_in(connection: &Connection, global: &Global) {
    let Some(data_dir) = global.data_dir.clone().or_else(|| default_data_dir().ok()) else { return };
    let folder = place::spool_folder(&data_dir, global.daemon());
    let say = |line: String| {
        if !global.quiet {
            eprintln!("memctl: {line}");
        }
    };
    for session in host::living_spools(&folder).iter().take(LIVING_MAX) {
        let process = session.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        let job = safe(&session.job);
        say(format!(
            "{process} records job {job} to disk, because no daemon takes it: this answer lacks it until the process ends or \
             `memctl daemon` is started"
        ));
    }
    let bytes = host::spooled_bytes(&folder);
    if bytes == 0 {
        return;
    }
    let daemon = match &connection.place {
        Source::Daemon(url) => Daemon::Address(url.clone()),
        Source::DataDir(_) => Daemon::Connected(connection.channel.clone()),
    };
    if bytes > SAID_BYTES_MIN {
        say(format!("storing {} that wait in {}", HumanBytes::of(bytes), folder.display()));
    }
    let end = Instant::now() + TAKING_MAX;
    let work = {
        let folder = folder.clone();
        move || host::deliver_spool(&folder, &daemon, seams::backoff(), &|| Instant::now() >= end)
    };
    // A panic in it was logged there; what is in the spool stays.
    let _ = tokio::task::spawn_blocking(work).await;
    let left = host::spooled_bytes(&folder);
    if left > 0 {
        let (left, place) = (HumanBytes::of(left), &connection.place);
        say(format!(
            "{left} still wait in {} and are not in this answer: {place} did not accept them",
            folder.display()
        ));
    }
}

async fn open_daemon(url: &str, flags: String) -> Result<Connection, Failure> {
    let endpoint = endpoint(url)?.connect_timeout(CONNECT_TIMEOUT);
    let channel = endpoint.connect().await.map_err(|error| {
        Failure::unreachable(format!(
            "no daemon answers at {url} ({}): start one with `memctl daemon`, or omit --daemon and MEMCTL_DAEMON",
            innermost(&error)
        ))
    })?;
    Ok(connection(channel, Source::Daemon(url.to_owned()), flags, None))
}

/// Whether this can be a daemon's address; nobody is asked.
///
/// # Errors
/// Wrong usage.
pub fn check_address(url: &str) -> Result<(), Failure> {
    endpoint(url).map(drop)
}

fn endpoint(url: &str) -> Result<Endpoint, Failure> {
    let wrong = || Failure::usage(format!("`{url}` is not a daemon's address; write it like {}", default_url()));
    if url.starts_with("https://") {
        return Err(Failure::usage(format!("`{url}`: this memctl does not speak TLS; use http:// through a tunnel")));
    }
    if !url.starts_with("http://") {
        return Err(wrong());
    }
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| wrong())?;
    Ok(endpoint.timeout(ANSWER_TIMEOUT).http2_keep_alive_interval(KEEP_ALIVE).tcp_nodelay(true))
}

/// The cause that says most: "Connection refused" rather than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A daemon at this address, if one answers as a daemon does.
pub async fn probe(url: &str) -> Option<Channel> {
    let endpoint = endpoint(url).ok()?.connect_timeout(PROBE_TIMEOUT);
    let probing = async {
        let channel = endpoint.connect().await.ok()?;
        QueryClient::new(channel.clone()).get_status(StatusRequest {}).await.ok()?;
        Some(channel)
    };
    tokio::time::timeout(PROBE_TIMEOUT, probing).await.ok().flatten()
}

async fn open_store(dir: &Path, flags: String) -> Result<Connection, Failure> {
    std::fs::create_dir_all(dir).map_err(|error| {
        Failure::unreachable(format!(
            "cannot make the data folder {}: {error}; choose another one with --data-dir DIR",
            dir.display()
        ))
    })?;
    let embedded = seams::embedded(dir).await?;
    Ok(connection(embedded.channel.clone(), Source::DataDir(dir.to_owned()), flags, Some(embedded)))
}

/// A connection to a store in this folder, whatever else there is.
///
/// # Errors
/// The store cannot be opened.
pub async fn open_here(dir: &Path) -> Result<Connection, Failure> {
    open_store(dir, format!("--data-dir {}", shell_word(&dir.to_string_lossy()))).await
}

fn connection(channel: Channel, place: Source, flags: String, embedded: Option<Embedded>) -> Connection {
    let query = QueryClient::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
    Connection { query, channel, place, flags, embedded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_none_are_wrong_usage() {
        for url in ["", "localhost:7717", "ftp://x", "http://", "http://a b"] {
            assert_eq!(endpoint(url).unwrap_err().outcome, crate::exit::Outcome::Usage, "{url}");
        }
        assert!(endpoint("https://host:1").unwrap_err().to_string().contains("TLS"));
        assert!(endpoint("http://host:1").is_ok());
    }
}
