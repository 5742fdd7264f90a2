//! Connects to a daemon: `unix:/path`, `http://host:port`, `https://host:port`.
//!
//! Guarantees: every connection reads the TLS files again, so the next connection uses replaced certificates. A daemon
//! behind `https://` has proved its name before any byte of a request is sent. At this user's own socket, only a daemon
//! of this user or of root is used.
//! Refuses: to guess. An invalid address is an error, and only a port that was named is tried.
//! (Over 400 lines: an address, its TLS files, and the causes and remedies of a failed connection belong together.)

use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};

use crate::own_identity;
pub use crate::own_identity::IdentityError;
use crate::service::{self, Service};

/// A daemon's address, and how it is authenticated.
#[derive(Clone, PartialEq, Eq)]
pub struct DaemonAddress {
    /// The address. The path of a socket is absolute.
    pub url: String,
    /// The TLS files, for `https://`.
    pub tls: Tls,
    /// The local service that listens there, if any. The first connection starts it.
    pub service: Option<Service>,
}

/// Files for `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The trusted authorities for the daemon's certificate, in PEM. Without this file the system's authorities are
    /// trusted.
    pub ca: Option<PathBuf>,
    /// The client's certificate with its chain, in PEM.
    pub cert: Option<PathBuf>,
    /// The key of the client's certificate, in PEM.
    pub key: Option<PathBuf>,
}

/// An address that can never work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not an address.
    #[error("`{0}` is not a daemon's address; write it like unix:/path, http://host:7717 or https://host:7717")]
    NotOne(String),
    /// A certificate without its key, or the reverse.
    #[error("a client certificate needs its key, and a key its certificate: name both files or none")]
    HalfAnIdentity,
    /// Files for TLS without TLS.
    #[error("`{0}` does not use TLS: a certificate authority or a client certificate needs an https:// address")]
    NotEncrypted(String),
}

/// Why a daemon is not reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The address can never work.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A file for TLS cannot be used for now.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The client's certificate and its key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No daemon is there.
    #[error("{0}")]
    Absent(String),
    /// TLS does not trust the daemon. The error includes the remedy.
    #[error("it is not trusted: {said}; {remedy}")]
    NotTrusted {
        /// The TLS library's message.
        said: String,
        /// What to change.
        remedy: &'static str,
    },
    /// The peer answers, but not like a daemon.
    #[error("{0}")]
    Connect(String),
}

impl From<String> for DaemonAddress {
    fn from(url: String) -> Self {
        Self { url: absolute(url), tls: Tls::default(), service: None }
    }
}

/// Makes a socket's path absolute. A relative path starts at this process's folder, and a child that inherits the
/// address may run in another folder.
fn absolute(url: String) -> String {
    let relative = url.strip_prefix("unix:").filter(|path| !path.is_empty() && !path.starts_with('/'));
    match relative.map(std::path::absolute) {
        Some(Ok(path)) => format!("unix:{}", path.display()),
        _ => url,
    }
}

impl From<&str> for DaemonAddress {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.url, f)
    }
}

/// The target of an address.
enum Way<'a> {
    Socket(&'a Path),
    Http(Uri),
    Https(Uri),
}

impl Tls {
    /// `MEMCTL_TLS_CA`, `MEMCTL_TLS_CERT`, `MEMCTL_TLS_KEY`.
    #[must_use]
    pub fn from_environment(environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let file = |name: &str| environment(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { ca: file("MEMCTL_TLS_CA"), cert: file("MEMCTL_TLS_CERT"), key: file("MEMCTL_TLS_KEY") }
    }

    fn config(&self) -> Result<ClientTlsConfig, ReachError> {
        let mut config = ClientTlsConfig::new();
        config = match &self.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(read_pem(path, "CERTIFICATE")?)),
            None => config.with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let (cert_pem, key_pem) = (read_pem(cert, "CERTIFICATE")?, read_pem(key, "PRIVATE KEY")?);
            own_identity::check((cert, &cert_pem), (key, &key_pem))?;
            config = config.identity(Identity::from_pem(cert_pem, key_pem));
        }
        Ok(config)
    }
}

/// Reads a PEM file with at least one block whose label ends in `label` (RFC 7468). Without this check, the TLS library
/// would only report that it trusts no authority.
fn read_pem(path: &Path, label: &str) -> Result<Vec<u8>, ReachError> {
    let failed = |reason: String| ReachError::File { path: path.display().to_string(), reason };
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let has_block = String::from_utf8_lossy(&bytes).lines().any(|line| {
        line.strip_prefix("-----BEGIN ").is_some_and(|rest| rest.trim_end().ends_with(&format!("{label}-----")))
    });
    if has_block {
        return Ok(bytes);
    }
    Err(failed(format!("the file holds no {} in PEM (`-----BEGIN {label}-----`)", label.to_lowercase())))
}

impl DaemonAddress {
    /// This user's daemon on this machine.
    #[must_use]
    pub fn own() -> Self {
        own_url().into()
    }

    /// The local service of a data folder.
    #[must_use]
    pub fn of_service(service: Service) -> Self {
        let url = format!("unix:{}", service.files().socket().display());
        Self { url, tls: Tls::default(), service: Some(service) }
    }

    /// Checks that the address is valid. Does not connect.
    ///
    /// # Errors
    /// The address is not valid.
    pub fn check(&self) -> Result<(), AddressError> {
        self.way().map(drop)
    }

    fn way(&self) -> Result<Way<'_>, AddressError> {
        let wrong = || AddressError::NotOne(self.url.clone());
        if self.tls.cert.is_some() != self.tls.key.is_some() {
            return Err(AddressError::HalfAnIdentity);
        }
        if let Some(path) = self.url.strip_prefix("unix:") {
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            return if path.is_absolute() { Ok(Way::Socket(path)) } else { Err(wrong()) };
        }
        let uri: Uri = self.url.parse().map_err(|_| wrong())?;
        if uri.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        match uri.scheme_str() {
            Some("http") => Ok(Way::Http(uri)),
            Some("https") => Ok(Way::Https(uri)),
            _ => Err(wrong()),
        }
    }

    /// Connects to the daemon. `adjust` sets time limits.
    ///
    /// # Errors
    /// See [`ReachError`].
    pub async fn connect(&self, adjust: impl FnOnce(Endpoint) -> Endpoint) -> Result<Channel, ReachError> {
        match self.way()? {
            Way::Socket(path) => {
                let trusted = match &self.service {
                    Some(_) => Trusted::Server,
                    None if self.url == own_url() => Trusted::Own,
                    None => Trusted::Any,
                };
                let (path, service) = (path.to_owned(), self.service.clone());
                let connector = tower::service_fn(move |_: Uri| {
                    let (path, service) = (path.clone(), service.clone());
                    async move {
                        match (connect_socket(&path, trusted).await, service) {
                            (Err(error), Some(service)) if is_absent(error.kind()) => {
                                started(service).await?;
                                connect_socket(&path, trusted).await
                            }
                            (connected, _) => connected,
                        }
                        .map(TokioIo::new)
                    }
                });
                // The name is never resolved: the connector ignores it.
                adjust(Endpoint::from_static("http://localhost"))
                    .connect_with_connector(connector)
                    .await
                    .map_err(failed)
            }
            Way::Http(uri) => adjust(Endpoint::from(uri).tcp_nodelay(true)).connect().await.map_err(failed),
            Way::Https(uri) => {
                let tls = self.tls.clone();
                // This reads files and the system's certificates, so it runs on a thread that may block.
                let reading = tokio::task::spawn_blocking(move || tls.config()).await;
                let config = reading.map_err(|error| ReachError::Connect(error.to_string()))??;
                let endpoint = Endpoint::from(uri).tcp_nodelay(true).tls_config(config).map_err(failed)?;
                let failed = |error| failed(error).with_authority(self.tls.ca.is_some());
                adjust(endpoint).connect().await.map_err(failed)
            }
        }
    }
}

/// The daemons that are trusted at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trusted {
    /// A daemon of any user, because the caller named the path.
    Any,
    /// A daemon of this user or of root.
    Server,
    /// A daemon of this user or of root, at a socket of this user in a folder that only this user can change.
    Own,
}

/// Starts a service that is not running.
async fn started(service: Service) -> io::Result<()> {
    let starting = tokio::task::spawn_blocking(move || service.ensure()).await;
    starting.map_err(io::Error::other)?.map_err(io::Error::other)
}

fn is_absent(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

async fn connect_socket(path: &Path, trusted: Trusted) -> io::Result<UnixStream> {
    let me = rustix::process::geteuid().as_raw();
    if trusted == Trusted::Own {
        check_own(path, me)?;
    }
    let stream = match trusted {
        // (This blocks only briefly: a local socket accepts a connection at once, or its queue is full.)
        Trusted::Server => {
            let stream = service::connect(path)?;
            stream.set_nonblocking(true)?;
            UnixStream::from_std(stream)?
        }
        Trusted::Any | Trusted::Own => UnixStream::connect(path).await?,
    };
    let server = stream.peer_cred()?.uid();
    if trusted != Trusted::Any && server != me && server != 0 {
        return Err(not_trusted(format!("{} is served by uid {server}, not by you", path.display())));
    }
    Ok(stream)
}

/// Checks that this user's own socket and its folder belong to this user, and that no other user can replace the
/// socket.
fn check_own(path: &Path, me: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != me || found.mode() & 0o022 != 0 {
        return Err(not_trusted(format!("{} is not a folder of yours alone", folder.display())));
    }
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() || found.uid() != me {
        return Err(not_trusted(format!("{} is not a socket of yours", path.display())));
    }
    Ok(())
}

fn not_trusted(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// The socket of a user's daemon. It is below the first of `$XDG_RUNTIME_DIR` and `/run/user/UID` that is a folder of
/// that user. Otherwise it is in a folder below `/tmp`, whose owner every process must check.
fn socket_of(environment: &dyn Fn(&str) -> Option<PathBuf>, uid: u32, is_ours: &dyn Fn(&Path) -> bool) -> PathBuf {
    let named = environment("XDG_RUNTIME_DIR").filter(|folder| folder.is_absolute() && is_ours(folder));
    let usual = || Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|folder| is_ours(folder));
    let folder = named.or_else(usual).map(|folder| folder.join("memctl"));
    folder.unwrap_or_else(|| PathBuf::from(format!("/tmp/memctl-{uid}"))).join("daemon.sock")
}

/// The socket of this user's daemon.
#[must_use]
pub fn own_socket() -> PathBuf {
    let me = rustix::process::geteuid().as_raw();
    let is_ours = |folder: &Path| std::fs::metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == me);
    socket_of(&|name| std::env::var_os(name).map(PathBuf::from), me, &is_ours)
}

/// The address of this user's daemon.
#[must_use]
pub fn own_url() -> String {
    format!("unix:{}", own_socket().display())
}

/// The error with the most specific cause: "Connection refused" rather than "transport error".
fn failed(error: tonic::transport::Error) -> ReachError {
    if let Some(words) = memctl_proto::goaway::words(&error) {
        return ReachError::Connect(words);
    }
    let mut cause: &(dyn std::error::Error + 'static) = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(kind) if is_absent(kind) => ReachError::Absent(cause.to_string()),
        // (The resolver's errors have no kind.)
        _ if cause.to_string().contains("failed to lookup address") => ReachError::Absent(cause.to_string()),
        _ => explained(&cause.to_string()),
    }
}

/// The remedy for a certificate of an authority that is not trusted.
const UNKNOWN_AUTHORITY: &str = "no authority that is trusted here issued its certificate: name the file of the one that did with --tls-ca or \
                                 MEMCTL_TLS_CA";

/// Remedies for TLS errors. The texts on the left are parts of the TLS library's messages.
const REMEDIES: [(&str, &str); 11] = [
    (
        "CaUsedAsEndEntity",
        "its certificate is an authority's own (CA:TRUE): make one for the daemon with CA:FALSE, as docs/operate.md shows",
    ),
    ("UnknownIssuer", UNKNOWN_AUTHORITY),
    (
        "BadSignature",
        "another authority of the same name signed its certificate: name the file of the one that did with --tls-ca or MEMCTL_TLS_CA",
    ),
    ("NotValidForName", "its certificate is for another name: use an address with a name that the certificate has"),
    ("not valid for name", "its certificate is for another name: use an address with a name that the certificate has"),
    ("Expired", "its certificate has expired: renew it"),
    ("certificate expired", "its certificate has expired: renew it"),
    ("NotValidYet", "its certificate is not valid yet: compare the clocks of both hosts"),
    ("certificate not valid yet", "its certificate is not valid yet: compare the clocks of both hosts"),
    (
        "UnsupportedSignatureAlgorithm",
        "TLS 1.3 does not accept the signature of its certificate: make one with a P-256 or RSA-PSS key, and name its \
         authority with --tls-ca",
    ),
    (
        "corrupt message",
        "nothing speaks TLS there: write http://, or give the daemon a certificate; if neither helps, it is the HTTP port, and the port of --listen is another one",
    ),
];

impl ReachError {
    /// Replaces the remedy for a bad signature when no authority's file was named. In that case the certificate's
    /// authority has to be named first, whatever is wrong with the signature.
    fn with_authority(self, is_named: bool) -> Self {
        match self {
            Self::NotTrusted { said, .. } if !is_named && said.contains("Signature") => {
                Self::NotTrusted { said, remedy: UNKNOWN_AUTHORITY }
            }
            other => other,
        }
    }
}

/// Adds the remedy for a known message of the TLS library.
fn explained(said: &str) -> ReachError {
    match REMEDIES.iter().find(|(words, _)| said.contains(words)) {
        Some((_, remedy)) => ReachError::NotTrusted { said: said.to_owned(), remedy },
        None => ReachError::Connect(said.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_none() {
        for url in ["", "localhost:7717", "ftp://x", "http://", "http://a b", "unix:", "https://"] {
            let error = DaemonAddress::from(url).check().unwrap_err().to_string();
            assert!(error.contains("https://host:7717"), "{url}: {error}");
        }
        for url in ["unix:/a", "unix:///a", "http://host:1", "https://host:1", "https://[::1]:1"] {
            assert_eq!(DaemonAddress::from(url).check(), Ok(()), "{url}");
        }
        let relative = DaemonAddress::from("unix:./a.sock");
        assert_eq!(relative.check(), Ok(()));
        assert_eq!(relative.url, format!("unix:{}", std::env::current_dir().unwrap().join("a.sock").display()));
        let tls = Tls { cert: Some("/c".into()), ..Tls::default() };
        let half = DaemonAddress { tls, ..DaemonAddress::from("https://host:1") };
        assert_eq!(half.check(), Err(AddressError::HalfAnIdentity));
    }

    #[test]
    fn the_socket_is_in_a_folder_of_the_users_own() {
        let of = |named: Option<&str>, ours: &[&str]| {
            socket_of(&|_| named.map(PathBuf::from), 7, &|folder| ours.iter().any(|ours| folder == Path::new(ours)))
        };
        assert_eq!(of(Some("/x"), &["/x", "/run/user/7"]), Path::new("/x/memctl/daemon.sock"));
        assert_eq!(of(Some("/x"), &["/run/user/7"]), Path::new("/run/user/7/memctl/daemon.sock"), "another user's");
        assert_eq!(of(Some("x"), &["x"]), Path::new("/tmp/memctl-7/daemon.sock"), "a relative path is ignored");
        assert_eq!(of(None, &[]), Path::new("/tmp/memctl-7/daemon.sock"));
    }

    #[test]
    fn a_signature_that_fails_has_the_cause_that_can_be_changed() {
        let said = "invalid peer certificate: BadSignature";
        let remedy = |is_named| match explained(said).with_authority(is_named) {
            ReachError::NotTrusted { remedy, .. } => remedy,
            other => panic!("{other}"),
        };
        assert!(remedy(true).starts_with("another authority of the same name"));
        assert_eq!(remedy(false), UNKNOWN_AUTHORITY);
    }

    #[test]
    fn a_file_without_pem_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate = file("c.pem", "bag\r\n-----BEGIN CERTIFICATE-----\r\nMA==\r\n-----END CERTIFICATE-----\r\n");
        let key = file("k.pem", "-----BEGIN EC PRIVATE KEY-----\nMA==\n-----END EC PRIVATE KEY-----\n");
        let reason = |path: &Path, label: &str| read_pem(path, label).map_err(|error| error.to_string());
        assert!(reason(&certificate, "CERTIFICATE").is_ok() && reason(&key, "PRIVATE KEY").is_ok());
        let swapped = reason(&key, "CERTIFICATE").unwrap_err();
        assert!(swapped.contains("k.pem") && swapped.contains("holds no certificate in PEM"), "{swapped}");
        assert!(reason(&file("empty", ""), "PRIVATE KEY").unwrap_err().contains("holds no private key in PEM"));
    }

    #[tokio::test]
    async fn the_socket_of_ones_own_belongs_to_no_other_user() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.sock");
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        let me = rustix::process::geteuid().as_raw();
        assert!(check_own(&path, me).is_ok());
        assert!(check_own(&path, me + 1).unwrap_err().to_string().contains("of yours"));
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_own(&path, me).unwrap_err().to_string().contains("of yours alone"));
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(check_own(&link, me).unwrap_err().to_string().contains("not a socket"));
    }
}
