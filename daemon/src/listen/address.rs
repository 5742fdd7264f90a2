//! Addresses to listen on, as text: `unix:/path`, `127.0.0.1:7717`, `http://…`, `https://…`.
//!
//! Guarantees: the printed form can be parsed again. Refuses: host names, because a daemon binds addresses.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A socket in the file system.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Whether the folder is private to memctl. It is then created, and no other user may enter it.
        own_folder: bool,
        /// Which users may connect, as the mode of the socket's file.
        access: SocketAccess,
    },
    /// A port.
    Tcp {
        /// The address and the port; 0 lets the system choose one.
        address: SocketAddr,
        /// Whether the port uses TLS.
        encryption: Encryption,
    },
}

/// Which users may connect to a socket. Their rights depend on their role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketAccess {
    /// The owner, and root.
    #[default]
    Owner,
    /// Also the members of its group.
    Group,
    /// Every user of this machine.
    AllUsers,
}

impl SocketAccess {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Owner, Self::Group, Self::AllUsers];

    /// The mode of the socket's file. Connecting needs write permission.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
            Self::AllUsers => 0o666,
        }
    }
}

/// Whether a port uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// TLS if a certificate is configured.
    Configured,
    /// No TLS (`http://`).
    Plain,
    /// Always TLS (`https://`).
    Tls,
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place to listen at: give an address and port such as 127.0.0.1:7717, or unix:/path")]
pub struct ListenAddressError(String);

impl Listen {
    /// A socket in a private folder.
    #[must_use]
    pub fn private(path: &Path) -> Self {
        Self::Unix { path: path.to_owned(), own_folder: true, access: SocketAccess::Owner }
    }

    /// Whether other machines can reach it.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Unix { .. } => false,
            Self::Tcp { address, .. } => !address.ip().to_canonical().is_loopback(),
        }
    }

    /// Whether it uses TLS. The parameter is whether there is a certificate.
    #[must_use]
    pub fn is_encrypted(&self, has_certificate: bool) -> bool {
        match self {
            Self::Unix { .. } | Self::Tcp { encryption: Encryption::Plain, .. } => false,
            Self::Tcp { encryption: Encryption::Tls, .. } => true,
            Self::Tcp { encryption: Encryption::Configured, .. } => has_certificate,
        }
    }
}

impl FromStr for Listen {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let wrong = || ListenAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///path` is another common spelling.
            let path = Path::new(path.strip_prefix("//").unwrap_or(path));
            // A relative path is relative to this process's folder. An empty path is an error.
            let path = std::path::absolute(path).map_err(|_| wrong())?;
            let is_one = path.file_name().is_some();
            return if is_one {
                Ok(Self::Unix { path, own_folder: false, access: SocketAccess::Owner })
            } else {
                Err(wrong())
            };
        }
        let (encryption, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Encryption::Plain, rest),
            Some(("https", rest)) => (Encryption::Tls, rest),
            Some(_) => return Err(wrong()),
            None => (Encryption::Configured, text),
        };
        let address = rest.trim_end_matches('/').parse().map_err(|_| wrong())?;
        Ok(Self::Tcp { address, encryption })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Self::Tcp { address, encryption: Encryption::Configured } => address.fmt(f),
            Self::Tcp { address, encryption: Encryption::Plain } => write!(f, "http://{address}"),
            Self::Tcp { address, encryption: Encryption::Tls } => write!(f, "https://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_and_nothing_else() {
        for text in ["unix:/run/memctl.sock", "127.0.0.1:7717", "http://[::1]:1", "https://0.0.0.0:7717", "[::]:0"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!("unix:///a/b".parse::<Listen>().unwrap().to_string(), "unix:/a/b");
        let below = std::env::current_dir().unwrap().join("a.sock");
        assert_eq!("unix:./a.sock".parse::<Listen>().unwrap().to_string(), format!("unix:{}", below.display()));
        for wrong in ["", "here", "localhost:7717", "unix:", "unix:/", "ftp://127.0.0.1:1", "127.0.0.1", ":1"] {
            assert!(wrong.parse::<Listen>().unwrap_err().to_string().contains("unix:/path"), "{wrong}");
        }
    }

    #[test]
    fn who_reaches_a_place() {
        for (text, remote) in [
            ("unix:/a", false),
            ("127.0.0.1:1", false),
            ("127.8.8.8:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_remote(), remote, "{text}");
        }
        let encrypted = |text: &str, certificate| text.parse::<Listen>().unwrap().is_encrypted(certificate);
        assert!(encrypted("0.0.0.0:1", true) && !encrypted("0.0.0.0:1", false));
        assert!(encrypted("https://0.0.0.0:1", false) && !encrypted("http://0.0.0.0:1", true));
        assert!(!encrypted("unix:/a", true));
    }
}
