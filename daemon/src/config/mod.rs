//! The daemon's configuration. Flags take precedence, then the environment, then one TOML file, then defaults.
//!
//! Guarantees: everything is checked before anything is opened. An error names the setting, its origin and the allowed
//! values. Refuses: unknown settings.

mod layer;
mod listed;
pub mod otlp;
mod ports;
mod sockets;

use std::path::{Path, PathBuf};

use crate::access::Access;
use crate::alerts::{Rules, RulesError};
use crate::idle::Idle;
use crate::ingest::IngestLimits;
use crate::judge;
use crate::listen::{ConnectionLimits, Listen, TlsFiles};
use crate::quantity;
use crate::store::{Retention, StoreAddress};

/// The largest queue of one session. With a larger one, a single agent could fill the memory.
const QUEUE_MAX: u64 = 1 << 30;
/// The smallest memory of the judge. With less, no job fits.
const JUDGE_MEMORY_MIN: u64 = 16 << 20;

pub use layer::{AlertsLayer, HttpLayer, Layer, TlsLayer, from_environment, from_file, from_text};
pub use listed::Listed;

/// The effective configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen at.
    pub listen: Vec<Listen>,
    /// The store.
    pub store: StoreAddress,
    /// The retention policy.
    pub retention: Retention,
    /// Limits of the data that waits in memory.
    pub limits: IngestLimits,
    /// Memory of the analyser for all jobs.
    pub judge_memory: usize,
    /// Whether jobs are analysed while their data arrives.
    pub judging: bool,
    /// Whether running processes may be queried for the holders of their tensors.
    pub holders: bool,
    /// Whether the store is read-only. If so, nothing is received and nothing expires.
    pub read_only: bool,
    /// Log filter, if the environment sets none.
    pub log: Option<String>,
    /// Which findings become alerts, and their receivers.
    pub alerts: Rules,
    /// Access rules.
    pub access: Access,
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// TLS of the ports.
    pub tls: Option<TlsFiles>,
    /// Whether other machines may connect without TLS.
    pub insecure: bool,
    /// Where metrics are sent by OTLP, if anywhere.
    pub otlp: Option<otlp::Settings>,
    /// Addresses of the HTTP port; empty if it is off.
    pub http: Vec<Listen>,
    /// When the daemon ends by itself, if ever.
    pub idle: Option<Idle>,
}

/// An invalid setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is invalid.
    #[error("configuration {path}: {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// The parser's message.
        reason: String,
    },
    /// An invalid value.
    #[error("{setting} (from {origin}): {reason}")]
    Invalid {
        /// The setting.
        setting: &'static str,
        /// Flag, environment or file.
        origin: String,
        /// The reason why the value is invalid.
        reason: String,
    },
    /// The alert rules are invalid.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// Neither a store nor a data folder is configured.
    #[error("no store is configured: set --data-dir DIR, --store URL or MEMCTL_DATABASE_URL")]
    NoStore,
    /// Other machines could reach an address without TLS.
    #[error(
        "{place} is reached by other machines and has no TLS: {way_out}, listen on 127.0.0.1 or a socket, or use --insecure to let any client read and change everything"
    )]
    Exposed {
        /// The address.
        place: String,
        /// How it gets TLS.
        way_out: &'static str,
    },
    /// An address that always uses TLS has no certificate.
    #[error("cannot listen on {place}: there is no certificate for https://: set --tls-cert and --tls-key")]
    NoCertificate {
        /// The address.
        place: String,
    },
    /// No address to listen on is configured.
    #[error("no folder for a socket is known: set --listen 127.0.0.1:7717 or --listen unix:/path, or XDG_RUNTIME_DIR")]
    NoPlace,
}

/// Values that apply if no layer sets them.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The folder of the store.
    pub data_dir: Option<PathBuf>,
    /// The socket to listen on, in a private folder.
    pub socket: Option<PathBuf>,
}

/// Merges layers and checks the result. The first layer that has a setting decides it.
///
/// # Errors
/// The first invalid setting.
pub fn resolve(layers: &[(String, Layer)], defaults: &Defaults) -> Result<Config, ConfigError> {
    let limits = limits(layers)?;
    let retention = Retention {
        age_ns: checked(layers, "retain_age", |layer| layer.retain_age.as_deref(), shown(quantity::duration_ns))?,
        bytes: checked(layers, "retain_bytes", |layer| layer.retain_bytes.as_deref(), shown(quantity::bytes))?,
        bytes_per_job: checked(
            layers,
            "retain_bytes_per_job",
            |layer| layer.retain_bytes_per_job.as_deref(),
            shown(quantity::bytes),
        )?,
        bytes_per_tenant: checked(
            layers,
            "retain_bytes_per_tenant",
            |layer| layer.retain_bytes_per_tenant.as_deref(),
            shown(quantity::bytes),
        )?,
    };
    let insecure = layers.iter().find_map(|(_, layer)| layer.insecure).unwrap_or(false);
    let mut access = access(layers)?;
    access.insecure = insecure;
    let config = Config {
        listen: sockets::opened(layers, ports::listen(layers, defaults.socket.as_deref())?)?,
        store: store(layers, defaults.data_dir.as_deref())?,
        retention,
        limits,
        read_only: checked(layers, "read_only", |layer| layer.read_only.as_deref(), on_or_off)?.unwrap_or(false),
        judge_memory: judge_memory(layers)?,
        judging: checked(layers, "judging", |layer| layer.judging.as_deref(), on_or_off)?.unwrap_or(true),
        holders: checked(layers, "holders", |layer| layer.holders.as_deref(), holders)?.unwrap_or(true),
        log: layers.iter().find_map(|(_, layer)| layer.log.clone()),
        alerts: alert_rules(layers)?,
        access,
        connections: ports::connections(layers),
        tls: ports::tls(layers)?,
        insecure,
        http: sockets::opened(layers, ports::http_listen(layers)?)?,
        otlp: otlp(layers)?,
        idle: None,
    };
    if let Some(place) = config.without_certificate() {
        return Err(ConfigError::NoCertificate { place: place.to_string() });
    }
    match config.exposed().first() {
        Some(place) if !config.insecure => {
            let way_out = match config.tls {
                Some(_) => "write https:// before it to use the certificate that is set",
                None => "set --tls-cert and --tls-key",
            };
            Err(ConfigError::Exposed { place: place.to_string(), way_out })
        }
        _ => Ok(config),
    }
}

/// The access rules of the first layer that has the section. The rules of several layers are not merged.
fn access(layers: &[(String, Layer)]) -> Result<Access, ConfigError> {
    let named = layers.iter().find_map(|(origin, layer)| Some((origin, layer.access.as_ref()?)));
    let Some((origin, layer)) = named else { return Ok(Access::default()) };
    Access::new(layer).map_err(|reason| ConfigError::Invalid { setting: "access", origin: origin.clone(), reason })
}

fn judge_memory(layers: &[(String, Layer)]) -> Result<usize, ConfigError> {
    let given = checked(
        layers,
        "judge_memory",
        |layer| layer.judge_memory.as_deref(),
        |text| match quantity::bytes(text).map_err(|error| error.to_string())? {
            bytes if bytes < JUDGE_MEMORY_MIN => Err("must be at least 16MiB".to_owned()),
            bytes => Ok(bytes),
        },
    )?;
    Ok(given.map_or_else(judge::usual_memory, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)))
}

/// OTLP's settings from the environment.
fn otlp(layers: &[(String, Layer)]) -> Result<Option<otlp::Settings>, ConfigError> {
    let variable = |name: &str| layers.iter().find_map(|(_, layer)| layer.otlp.get(name).cloned());
    otlp::Settings::of(&variable).map_err(|otlp::Wrong { variable, reason }| ConfigError::Invalid {
        setting: variable,
        origin: "the environment".to_owned(),
        reason,
    })
}

/// Parses `holders`. The value `leaks` is meant for launchers, and the daemon treats it as `on`.
fn holders(text: &str) -> Result<bool, String> {
    if text == "leaks" { Ok(true) } else { on_or_off(text) }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("{other:?} is neither on nor off")),
    }
}

fn alert_rules(layers: &[(String, Layer)]) -> Result<Rules, ConfigError> {
    let path = layers.iter().find_map(|(_, layer)| layer.alerts.as_ref()?.rules.as_deref());
    match path.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => Ok(Rules::from_file(path)?),
        None => Ok(Rules::default()),
    }
}

fn limits(layers: &[(String, Layer)]) -> Result<IngestLimits, ConfigError> {
    let defaults = IngestLimits::default();
    let session = checked(
        layers,
        "session_queue",
        |layer| layer.session_queue.as_deref(),
        |text| {
            let bytes = quantity::bytes(text).map_err(|error| error.to_string())?;
            // The largest item must fit, because otherwise it could never be received.
            let least = defaults.session_bytes as u64;
            if bytes < least || bytes > QUEUE_MAX {
                Err(format!("must be at least {}MiB, the size of the largest item, and at most 1GiB", least >> 20))
            } else {
                Ok(bytes)
            }
        },
    )?;
    let session_bytes = session.map_or(defaults.session_bytes, |bytes| bytes as usize);
    let total = checked(
        layers,
        "total_queue",
        |layer| layer.total_queue.as_deref(),
        |text| {
            let bytes = quantity::bytes(text).map_err(|error| error.to_string())?;
            if bytes < session_bytes as u64 || bytes > 1 << 40 {
                Err("must be at least session_queue and at most 1TiB".into())
            } else {
                Ok(bytes)
            }
        },
    )?;
    Ok(IngestLimits {
        session_bytes,
        total_bytes: total.map_or(defaults.total_bytes.max(session_bytes), |bytes| bytes as usize),
        ..defaults
    })
}

fn store(layers: &[(String, Layer)], default_data_dir: Option<&Path>) -> Result<StoreAddress, ConfigError> {
    for (origin, layer) in layers {
        if let Some(text) = &layer.store {
            return text.parse().map_err(|error: crate::store::AddressError| ConfigError::Invalid {
                setting: "store",
                origin: origin.clone(),
                reason: error.to_string(),
            });
        }
        if let Some(folder) = &layer.data_dir {
            return Ok(in_folder(folder));
        }
    }
    default_data_dir.map(in_folder).ok_or(ConfigError::NoStore)
}

/// The SQLite store of a data folder.
#[must_use]
pub fn in_folder(folder: &Path) -> StoreAddress {
    StoreAddress::Sqlite(folder.join("memctl.db"))
}

fn shown<T>(parse: impl Fn(&str) -> Result<T, quantity::QuantityError>) -> impl Fn(&str) -> Result<T, String> {
    move |text| parse(text).map_err(|error| error.to_string())
}

fn checked<T>(
    layers: &[(String, Layer)],
    setting: &'static str,
    text: impl Fn(&Layer) -> Option<&str>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, ConfigError> {
    let Some((origin, text)) = layers.iter().find_map(|(origin, layer)| text(layer).map(|text| (origin, text))) else {
        return Ok(None);
    };
    parse(text).map(Some).map_err(|reason| ConfigError::Invalid { setting, origin: origin.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(origin: &str, text: &str) -> (String, Layer) {
        (origin.into(), toml::from_str(text).unwrap())
    }

    #[test]
    fn the_first_layer_that_speaks_wins() {
        let layers = [
            layer("flags", "listen = '127.0.0.1:1'"),
            layer("environment", "store = 'postgres://u:p@h/d'\nlisten = '127.0.0.1:2'"),
            layer("file", "data_dir = '/d'\nretain_age = '7d'"),
        ];
        let defaults = Defaults { socket: Some("/run/memctl/daemon.sock".into()), ..Defaults::default() };
        let config = resolve(&layers, &defaults).unwrap();
        assert_eq!(config.listen, ["127.0.0.1:1".parse().unwrap()]);
        let config = resolve(&layers[2..], &defaults).unwrap();
        assert_eq!(config.listen, [Listen::private(Path::new("/run/memctl/daemon.sock"))]);
        let several = [layer("file", "data_dir = '/d'\nlisten = ['unix:/a', '127.0.0.1:3']")];
        let listen = resolve(&several, &defaults).unwrap().listen;
        assert_eq!(listen.iter().map(ToString::to_string).collect::<Vec<_>>(), ["unix:/a", "127.0.0.1:3"]);
        let config = resolve(&layers, &defaults).unwrap();
        assert_eq!(config.store.to_string(), "postgres://u@h/d");
        assert_eq!(config.retention.age_ns, Some(604_800_000_000_000));
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_origin() {
        let defaults = Defaults { data_dir: Some("/d".into()), socket: Some("/s".into()) };
        let message = |text| resolve(&[layer("MEMCTL_…", text)], &defaults).unwrap_err().to_string();
        assert_eq!(
            message("retain_bytes = 'lots'"),
            "retain_bytes (from MEMCTL_…): \"lots\" is not a number of bytes such as 64MiB, 10GB or 1TiB"
        );
        assert!(message("session_queue = '1KiB'").contains("at least 8MiB"));
        let said = message("listen = '0.0.0.0:1'");
        assert!(said.contains("--insecure") && said.contains("set --tls-cert"), "{said}");
        let said = message("listen = 'http://0.0.0.0:1'\n[tls]\ncert = '/c'\nkey = '/k'");
        assert!(said.contains("has no TLS: write https:// before it") && !said.contains("--tls-cert"), "{said}");
        assert!(message("[tls]\ncert = '/c'").contains("name both files"));
        assert!(message("[tls]\nclient_ca = '/c'").contains("name cert and key"));
        assert!(message("[tls]\nclient_auth = 'no'").contains("neither required nor optional"));
        for text in ["listen = 'https://127.0.0.1:1'", "[http]\nlisten = ['127.0.0.1:2', 'https://127.0.0.1:1']"] {
            let said = message(text);
            assert!(said.starts_with("cannot listen on https://127.0.0.1:1: there is no certificate"), "{said}");
        }
        let fine = |text| resolve(&[layer("file", text)], &defaults).unwrap();
        assert!(fine("listen = '0.0.0.0:1'\n[tls]\ncert = '/c'\nkey = '/k'").exposed().is_empty());
        assert_eq!(fine("listen = ['[::]:1', '127.0.0.1:1']\ninsecure = true").exposed().len(), 1);
        assert!(message("[http]\nlisten = '0.0.0.0:1'").contains("0.0.0.0:1 is reached by other machines"));
        assert!(message("[http]\nlisten = 'here'").contains("http listen (from MEMCTL_…)"));
        assert!(fine("[http]\nlisten = ''").http.is_empty());
        let http = fine("[http]\nlisten = ['0.0.0.0:1', 'http://127.0.0.1:2']\n[tls]\ncert = '/c'\nkey = '/k'").http;
        assert_eq!(http.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0.0.0.0:1", "http://127.0.0.1:2"]);
        assert_eq!(message("judging = 'maybe'"), "judging (from MEMCTL_…): \"maybe\" is neither on nor off");
        assert!(message("listen = 'here'").contains("listen (from MEMCTL_…)"));
        let of = |defaults| resolve(&[], &defaults).unwrap_err().to_string();
        assert!(of(Defaults { data_dir: None, ..defaults.clone() }).contains("--data-dir"));
        assert!(of(Defaults { socket: None, ..defaults }).contains("--listen"));
        assert!(toml::from_str::<Layer>("speed = 'fast'").unwrap_err().to_string().contains("unknown field `speed`"));
    }
}
