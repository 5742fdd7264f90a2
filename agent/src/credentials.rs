//! The credentials that a client presents to a daemon: its token, and the tenant that it addresses.
//!
//! Guarantees: a token file is read for every call, so the next connection uses a replaced token. A token is neither
//! logged nor shown.
//! Refuses: a token from a command line, which every user of the machine can read.

use std::fmt;
use std::path::PathBuf;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::Uri;
use tonic::{Request, Status};

/// The header with which a principal with access to all tenants selects one.
const TENANT_HEADER: &str = "memctl-tenant";
/// The beginning of every token.
const TOKEN_BEGINS: &str = "memctl_";
/// Maximum size of a token file. A longer file is not a token.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// The source of a token.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file with the token.
    File(PathBuf),
    /// The token itself.
    Text(String),
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => fmt::Debug::fmt(path, f),
            Self::Text(_) => f.write_str("(a token)"),
        }
    }
}

/// Credentials; see the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The token, if there is one.
    pub token: Option<TokenSource>,
    /// The tenant, for principals with access to all tenants.
    pub tenant: Option<String>,
}

impl Credentials {
    /// Credentials from `MEMCTL_TOKEN_FILE` (otherwise `MEMCTL_TOKEN`) and `MEMCTL_TENANT`.
    #[must_use]
    pub fn from_environment(environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let named = |name: &str| environment(name).filter(|value| !value.is_empty());
        let file = named("MEMCTL_TOKEN_FILE").map(|path| TokenSource::File(path.into()));
        let token = file.or_else(|| named("MEMCTL_TOKEN").map(TokenSource::Text));
        Self { token, tenant: named("MEMCTL_TENANT") }
    }

    /// Checks that these credentials may be sent to an address. A token is never sent to another machine without TLS.
    ///
    /// # Errors
    /// They may not be sent. The message has the remedy.
    pub fn check(&self, url: &str) -> Result<(), String> {
        if self.token.is_none() || is_private(url) {
            return Ok(());
        }
        Err(format!("a token is not sent to {url}, where others could read it on its way: use https://"))
    }

    /// Checks that the token can be read and sent.
    ///
    /// # Errors
    /// Its file cannot be read, is empty or has no token, or the token has characters that are not valid in one. The
    /// message names the file and the setting that names the file.
    pub fn readable(&self) -> Result<(), String> {
        self.bearer().map(|_| ())
    }

    fn bearer(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        let text = match &self.token {
            None => return Ok(None),
            Some(TokenSource::Text(text)) => text.clone(),
            Some(TokenSource::File(path)) => token_of(path).map_err(|why| {
                format!("the token file {}: {why}; --token-file or MEMCTL_TOKEN_FILE names it", path.display())
            })?,
        };
        let value = MetadataValue::try_from(format!("Bearer {}", text.trim()));
        let mut value = value.map_err(|_| "the token has characters that no token has".to_owned())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Whether a connection is encrypted or stays on this machine. An invalid address counts as private, because it is
/// never connected to.
fn is_private(url: &str) -> bool {
    match url.parse::<Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") => uri.host().is_some_and(is_this_machine),
        _ => true,
    }
}

/// Whether the host of a URL is certainly this machine: `localhost`, or a loopback address (in brackets for IPv6).
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let is_loopback = |address: std::net::IpAddr| address.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.trim_matches(['[', ']']).parse().is_ok_and(is_loopback)
}

/// The token in a file.
fn token_of(path: &std::path::Path) -> Result<String, String> {
    let text = read(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if token.is_empty() {
        return Err("it is empty".to_owned());
    }
    if !token.starts_with(TOKEN_BEGINS) || token.contains(char::is_whitespace) {
        return Err(format!("it does not contain a token alone; a token looks like {TOKEN_BEGINS}…_…"));
    }
    Ok(token.to_owned())
}

fn read(path: &std::path::Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = self.bearer().map_err(Status::unauthenticated)? {
            request.metadata_mut().insert("authorization", bearer);
        }
        if let Some(tenant) = &self.tenant {
            let name = tenant.parse().map_err(|_| Status::invalid_argument("this is not a tenant's name"))?;
            request.metadata_mut().insert(TENANT_HEADER, name);
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mut credentials: Credentials) -> Result<Option<String>, Status> {
        let request = credentials.call(Request::new(()))?;
        Ok(request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned()))
    }

    #[test]
    fn a_token_goes_to_no_other_machine_in_clear() {
        let some = Credentials { token: Some(TokenSource::Text("t".into())), tenant: None };
        for url in ["unix:/a", "https://host:1", "http://127.0.0.1:1", "http://[::1]:1/", "http://LocalHost"] {
            assert_eq!(some.check(url), Ok(()), "{url}");
        }
        for url in [
            "http://host:1",
            "http://10.0.0.1",
            "http://127.0.0.1@host/",
            "http://localhost.evil:1",
            "http://[fe80::1]:1",
        ] {
            assert!(some.check(url).unwrap_err().contains("https://"), "{url}");
            assert_eq!(Credentials::default().check(url), Ok(()), "nothing is shown to {url}");
        }
    }

    #[test]
    fn a_file_is_read_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credentials = Credentials { token: Some(TokenSource::File(path.clone())), tenant: None };
        assert!(shown(credentials.clone()).unwrap_err().message().contains("the token file"));
        for (text, why) in [("", "it is empty"), (" \n", "it is empty"), ("secret", "looks like memctl_")] {
            std::fs::write(&path, text).unwrap();
            let said = shown(credentials.clone()).unwrap_err().message().to_owned();
            assert!(said.contains(&path.display().to_string()) && said.contains(why), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
        for text in ["memctl_1_one", "memctl_1_two"] {
            std::fs::write(&path, format!("{text}\n")).unwrap();
            assert_eq!(shown(credentials.clone()).unwrap(), Some(format!("Bearer {text}")));
        }
        std::fs::write(&path, "memctl_1_a\nb").unwrap();
        assert!(shown(credentials).is_err());
        assert_eq!(shown(Credentials::default()).unwrap(), None);
    }

    #[test]
    fn the_file_goes_before_the_text_and_nothing_is_shown() {
        let environment = |name: &str| match name {
            "MEMCTL_TOKEN" => Some("secret".to_owned()),
            "MEMCTL_TENANT" => Some(String::new()),
            _ => None,
        };
        let credentials = Credentials::from_environment(&environment);
        assert_eq!(credentials.token, Some(TokenSource::Text("secret".into())));
        assert_eq!(credentials.tenant, None);
        assert!(!format!("{credentials:?}").contains("secret"));
        let both = |name: &str| Some(if name == "MEMCTL_TOKEN_FILE" { "/f" } else { "x" }.to_owned());
        assert_eq!(Credentials::from_environment(&both).token, Some(TokenSource::File("/f".into())));
    }
}
