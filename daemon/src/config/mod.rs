//! The daemon's configuration: flags before environment before one TOML file before defaults.
//!
//! Guarantees: everything is checked before anything is opened; an error names the setting, where it came
//! from and what it may be. Refuses: settings it does not know.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::alerts::{Rules, RulesError};
use crate::ingest::IngestLimits;
use crate::quantity;
use crate::store::{Retention, StoreAddress};

/// The largest queue of one session: beyond it a single agent could fill the memory.
const QUEUE_MAX: u64 = 1 << 30;

/// Where the daemon listens unless told otherwise: loopback, because there is no authentication yet.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7717";

/// Settings from one place; what is absent is left to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Address and port to listen on.
    pub listen: Option<String>,
    /// The store, `sqlite:PATH` or `postgres://…`.
    pub store: Option<String>,
    /// Folder of the SQLite store; `store` wins.
    pub data_dir: Option<PathBuf>,
    /// Jobs that were not heard of for longer go, `30d`.
    pub retain_age: Option<String>,
    /// Payload bytes kept at most, `10GB`.
    pub retain_bytes: Option<String>,
    /// Bytes of one session that may wait for their commit, `8MiB`.
    pub session_queue: Option<String>,
    /// Bytes of all sessions that may wait for their commit, `256MiB`.
    pub total_queue: Option<String>,
    /// Whether jobs are judged while their data arrives, `on` or `off`; questions are always judged.
    pub judging: Option<String>,
    /// Settings of alerting.
    pub alerts: Option<AlertsLayer>,
}

/// `[alerts]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertsLayer {
    /// The rules file.
    pub rules: Option<PathBuf>,
}

/// The configuration that holds.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// The store.
    pub store: StoreAddress,
    /// What is kept.
    pub retention: Retention,
    /// Bounds of what waits in memory.
    pub limits: IngestLimits,
    /// Whether jobs are judged while their data arrives.
    pub judging: bool,
    /// Which findings become alerts, and who is told.
    pub alerts: Rules,
}

/// A setting that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("configuration {path}: {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// The parser's words.
        reason: String,
    },
    /// A value that cannot be.
    #[error("{setting} (from {origin}): {reason}")]
    Invalid {
        /// The setting.
        setting: &'static str,
        /// Flag, environment or file.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// The alert rules are not what they should be.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// Neither a store nor a folder is known.
    #[error("no store is configured: set --data-dir DIR, --store URL or MEMCTL_DATABASE_URL")]
    NoStore,
}

/// The settings of the environment.
#[must_use]
pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Layer {
    Layer {
        listen: variable("MEMCTL_LISTEN"),
        store: variable("MEMCTL_DATABASE_URL"),
        data_dir: variable("MEMCTL_DATA_DIR").map(PathBuf::from),
        retain_age: variable("MEMCTL_RETAIN_AGE"),
        retain_bytes: variable("MEMCTL_RETAIN_BYTES"),
        session_queue: variable("MEMCTL_SESSION_QUEUE"),
        total_queue: variable("MEMCTL_TOTAL_QUEUE"),
        judging: variable("MEMCTL_JUDGING"),
        alerts: variable("MEMCTL_ALERT_RULES").map(|path| AlertsLayer { rules: Some(path.into()) }),
    }
}

/// The settings of a file.
///
/// # Errors
/// When it cannot be read or holds what it should not.
pub fn from_file(path: &Path) -> Result<Layer, ConfigError> {
    let shown = path.display().to_string();
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: shown.clone(), source })?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Malformed { path: shown, reason: error.to_string().trim().to_owned() })
}

/// Puts layers together, the first that has a setting wins, and checks the result. `default_data_dir` is used when no layer names a store.
///
/// # Errors
/// The first setting that cannot be.
pub fn resolve(layers: &[(String, Layer)], default_data_dir: Option<&Path>) -> Result<Config, ConfigError> {
    let listen = checked(
        layers,
        "listen",
        |layer| layer.listen.as_deref(),
        |text| {
            text.parse::<SocketAddr>()
                .map_err(|_| format!("{text:?} is not an address and port such as {DEFAULT_LISTEN}"))
        },
    )?;
    let limits = limits(layers)?;
    let retention = Retention {
        age_ns: checked(layers, "retain_age", |layer| layer.retain_age.as_deref(), shown(quantity::duration_ns))?,
        bytes: checked(layers, "retain_bytes", |layer| layer.retain_bytes.as_deref(), shown(quantity::bytes))?,
    };
    Ok(Config {
        listen: match listen {
            Some(listen) => listen,
            None => DEFAULT_LISTEN.parse().map_err(|_| ConfigError::NoStore)?,
        },
        store: store(layers, default_data_dir)?,
        retention,
        limits,
        judging: checked(layers, "judging", |layer| layer.judging.as_deref(), on_or_off)?.unwrap_or(true),
        alerts: alert_rules(layers)?,
    })
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
            // The largest item must fit, or it could never be taken.
            let least = defaults.session_bytes as u64;
            if bytes < least || bytes > QUEUE_MAX {
                Err(format!("must be at least {least}B, the size of the largest item, and at most 1GiB"))
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
        let config = resolve(&layers, None).unwrap();
        assert_eq!(config.listen.port(), 1);
        assert_eq!(config.store.to_string(), "postgres://u@h/d");
        assert_eq!(config.retention.age_ns, Some(604_800_000_000_000));
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_origin() {
        let message = |text| resolve(&[layer("MEMCTL_…", text)], Some(Path::new("/d"))).unwrap_err().to_string();
        assert_eq!(
            message("retain_bytes = 'lots'"),
            "retain_bytes (from MEMCTL_…): \"lots\" is not a number of bytes such as 64MiB, 10GB or 1TiB"
        );
        assert!(message("session_queue = '1KiB'").contains("at least"));
        assert_eq!(message("judging = 'maybe'"), "judging (from MEMCTL_…): \"maybe\" is neither on nor off");
        assert!(message("listen = 'here'").contains("listen (from MEMCTL_…)"));
        assert!(resolve(&[], None).unwrap_err().to_string().contains("--data-dir"));
        assert!(toml::from_str::<Layer>("speed = 'fast'").unwrap_err().to_string().contains("unknown field `speed`"));
    }
}
