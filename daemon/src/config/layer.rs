//! Settings from one source: the flags, the environment, or a TOML file.
//!
//! Guarantees: a missing setting stays missing, so that the next layer can set it. Refuses: unknown keys in the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, Listed, otlp};
use crate::access::settings::AccessLayer;

/// Settings from one source. The next source may set the missing ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Addresses to listen at: one, or a list.
    pub listen: Option<Listed>,
    /// Mode of the sockets in `listen`: `0600`, `0660` or `0666`.
    pub socket_mode: Option<String>,
    /// The store, `sqlite:PATH` or `postgres://…`.
    pub store: Option<String>,
    /// Folder of the SQLite store; `store` wins.
    pub data_dir: Option<PathBuf>,
    /// Jobs without new data for longer are removed, `30d`.
    pub retain_age: Option<String>,
    /// Limit of the bytes stored, `10GB`.
    pub retain_bytes: Option<String>,
    /// Limit of the bytes stored by one attempt of a job, `1GB`.
    pub retain_bytes_per_job: Option<String>,
    /// Limit of the bytes stored by the jobs of one tenant, `5GB`.
    pub retain_bytes_per_tenant: Option<String>,
    /// Bytes of one session that may wait for their commit, `8MiB`.
    pub session_queue: Option<String>,
    /// Bytes of all sessions that may wait for their commit, `256MiB`.
    pub total_queue: Option<String>,
    /// Memory of the analyser for all jobs, `2GiB`.
    pub judge_memory: Option<String>,
    /// Whether jobs are analysed while their data arrives, `on` or `off`; requests always analyse.
    pub judging: Option<String>,
    /// Whether running processes may be queried for the holders of their tensors, `on` or `off`.
    pub holders: Option<String>,
    /// Whether the store is opened read-only, `on` or `off`.
    pub read_only: Option<String>,
    /// Log filter: a level, or a list such as `warn,memctl_daemon::judge=debug`.
    pub log: Option<String>,
    /// Settings of alerting.
    pub alerts: Option<AlertsLayer>,
    /// Access rules.
    pub access: Option<AccessLayer>,
    /// Connections at the same time, `8192`.
    pub max_connections: Option<usize>,
    /// Connections at the same time from one address or of one user, `4096`.
    pub max_connections_per_peer: Option<usize>,
    /// TLS of the ports.
    pub tls: Option<TlsLayer>,
    /// Whether other machines may connect without TLS.
    pub insecure: Option<bool>,
    /// The HTTP port.
    pub http: Option<HttpLayer>,
    /// OpenTelemetry's variables by name; they exist only in the environment.
    #[serde(skip)]
    pub otlp: BTreeMap<&'static str, String>,
}

/// `[tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsLayer {
    /// The daemon's certificate with its chain, in PEM.
    pub cert: Option<PathBuf>,
    /// Its key, in PEM.
    pub key: Option<PathBuf>,
    /// The authorities of clients' certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate, `required` or `optional`.
    pub client_auth: Option<String>,
}

/// `[http]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpLayer {
    /// Where `/metrics`, `/healthz` and `/readyz` are served: one address, or a list.
    pub listen: Option<Listed>,
}

/// `[alerts]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertsLayer {
    /// The rules file.
    pub rules: Option<PathBuf>,
}

/// Reads the settings of the environment.
#[must_use]
pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Layer {
    Layer {
        listen: variable("MEMCTL_LISTEN").map(|text| Listed::separated(&text)),
        socket_mode: variable("MEMCTL_SOCKET_MODE"),
        store: variable("MEMCTL_DATABASE_URL"),
        data_dir: variable("MEMCTL_DATA_DIR").map(PathBuf::from),
        retain_age: variable("MEMCTL_RETAIN_AGE"),
        retain_bytes: variable("MEMCTL_RETAIN_BYTES"),
        retain_bytes_per_job: variable("MEMCTL_RETAIN_BYTES_PER_JOB"),
        retain_bytes_per_tenant: variable("MEMCTL_RETAIN_BYTES_PER_TENANT"),
        session_queue: variable("MEMCTL_SESSION_QUEUE"),
        total_queue: variable("MEMCTL_TOTAL_QUEUE"),
        judge_memory: variable("MEMCTL_JUDGE_MEMORY"),
        judging: variable("MEMCTL_JUDGING"),
        holders: variable("MEMCTL_HOLDERS"),
        access: None,
        max_connections: None,
        max_connections_per_peer: None,
        tls: tls_from_environment(variable),
        insecure: variable("MEMCTL_INSECURE").map(|text| !matches!(text.as_str(), "" | "0" | "off" | "false")),
        read_only: variable("MEMCTL_READ_ONLY"),
        log: None,
        http: variable("MEMCTL_HTTP_LISTEN").map(|text| HttpLayer { listen: Some(Listed::separated(&text)) }),
        otlp: otlp::VARIABLES.into_iter().filter_map(|name| Some((name, variable(name)?))).collect(),
        alerts: variable("MEMCTL_ALERT_RULES").map(|path| AlertsLayer { rules: Some(path.into()) }),
    }
}

fn tls_from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Option<TlsLayer> {
    let file = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let layer = TlsLayer {
        cert: file("MEMCTL_TLS_CERT"),
        key: file("MEMCTL_TLS_KEY"),
        client_ca: file("MEMCTL_TLS_CLIENT_CA"),
        client_auth: variable("MEMCTL_TLS_CLIENT_AUTH"),
    };
    Some(layer).filter(|layer| *layer != TlsLayer::default())
}

/// Reads the settings of a file.
///
/// # Errors
/// The file cannot be read or is invalid.
pub fn from_file(path: &Path) -> Result<Layer, ConfigError> {
    let shown = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: shown.clone(), source })?;
    from_text(&text, &shown)
}

/// Parses the settings of a file; errors name it `path`.
///
/// # Errors
/// The text is invalid.
pub fn from_text(text: &str, path: &str) -> Result<Layer, ConfigError> {
    toml::from_str(text)
        .map_err(|error| ConfigError::Malformed { path: path.to_owned(), reason: explained(text, &error) })
}

/// Keys whose values have a unit, with an example.
const WITH_UNITS: [(&str, &str); 7] = [
    ("retain_age", "30d"),
    ("retain_bytes", "100GiB"),
    ("retain_bytes_per_job", "10GiB"),
    ("retain_bytes_per_tenant", "50GiB"),
    ("session_queue", "8MiB"),
    ("total_queue", "256MiB"),
    ("judge_memory", "2GiB"),
];

/// Keys whose values are words in quotes.
const WITH_WORDS: [(&str, &str); 6] = [
    ("judging", "\"on\" or \"off\""),
    ("holders", "\"on\" or \"off\""),
    ("read_only", "\"on\" or \"off\""),
    ("tokens", "\"required\""),
    ("client_auth", "\"required\" or \"optional\""),
    ("socket_mode", "\"0600\", \"0660\" or \"0666\""),
];

/// The parser's message on one line: the position, the problem, the key, and the unit or the words that it takes.
fn explained(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return message };
    let line = before.matches('\n').count() + 1;
    let begun = before.rsplit('\n').next().unwrap_or_default();
    let column = begun.chars().count() + 1;
    let key = begun.split('=').next().unwrap_or_default().trim();
    let of = |table: &'static [(&str, &str)]| table.iter().find(|(name, _)| *name == key).map(|(_, words)| *words);
    let way_out = match (message.contains("invalid type"), of(&WITH_UNITS), of(&WITH_WORDS)) {
        (true, Some(example), _) => format!("; it needs a unit: {key} = \"{example}\""),
        (true, None, Some(words)) => format!("; {key} is {words}"),
        (true, None, None) if !key.is_empty() => format!("; this is the value of {key}"),
        _ => String::new(),
    };
    format!("line {line}, column {column}: {message}{way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_has_a_message_of_one_line() {
        let said = |text| from_text(text, "c.toml").unwrap_err().to_string();
        assert_eq!(
            said("judging = 'on'\nretain_bytes = 100"),
            "configuration c.toml: line 2, column 16: invalid type: integer `100`, expected a string; \
             it needs a unit: retain_bytes = \"100GiB\""
        );
        assert!(said("retain_age = 30").ends_with("it needs a unit: retain_age = \"30d\""));
        assert!(
            said("judging = true").ends_with("expected a string; judging is \"on\" or \"off\""),
            "{}",
            said("judging = true")
        );
        assert!(said("[tls]\ncert = 1").ends_with("; this is the value of cert"), "{}", said("[tls]\ncert = 1"));
        let unknown = said("[tls]\nspeed = 'fast'");
        assert!(unknown.starts_with("configuration c.toml: line 2, column 1: unknown field `speed`"), "{unknown}");
        for text in ["listen = ", "=", "a\nb", "[tls\n", "listen = {a = 1}"] {
            assert!(!said(text).contains('\n') && !said(text).contains(" | "), "{}", said(text));
        }
    }
}
