//! `memctl daemon`: configures, binds, serves until a signal, drains.
//!
//! Guarantees: flags go before the environment, the environment before the file, the file before the default folder.

use std::net::SocketAddr;
use std::path::PathBuf;

use memctl_daemon::config::{self, AlertsLayer, Config, Layer};
use memctl_daemon::server;
use memctl_daemon::store;

use super::{serve_failure, store_failure, told_to_stop};
use crate::exit::Failure;

/// What a daemon is told by flags (and by the variables that stand for flags).
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// The store's URL.
    pub store: Option<String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// How long jobs are kept, as it was typed.
    pub retain_age: Option<String>,
    /// How much is kept, as it was typed.
    pub retain_bytes: Option<String>,
    /// The file with alert rules.
    pub alert_rules: Option<PathBuf>,
    /// Only check configuration and store.
    pub check: bool,
    /// The folder for the store that was named.
    pub data_dir: Option<PathBuf>,
    /// The folder for the store where nothing names one.
    pub default_data_dir: Option<PathBuf>,
}

/// `memctl daemon`: configures, binds, serves until a signal, drains.
///
/// # Errors
/// A configuration that is wrong, an address in use, a store that cannot be opened.
pub async fn serve(wanted: &Serving) -> Result<(), Failure> {
    let config = configuration(wanted)?;
    if wanted.check {
        return check(&config).await;
    }
    let store = config.store.to_string();
    let terminated = told_to_stop()?;
    let ready = |address| {
        say(&format!("memctl daemon listens on http://{address} and stores in {store}"));
    };
    server::serve(config, ready, terminated).await.map_err(|error| serve_failure(&error))?;
    say("memctl daemon has drained and closed its store");
    Ok(())
}

/// One line for whoever started the daemon. That nobody reads it (any more) must not end a daemon.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Flags before environment before file before the default folder. (Flags that have a variable of their own come with it from the argument parser.)
fn configuration(wanted: &Serving) -> Result<Config, Failure> {
    let from_flags = Layer {
        listen: wanted.listen.map(|address| address.to_string()),
        store: wanted.store.clone(),
        data_dir: wanted.data_dir.clone(),
        retain_age: wanted.retain_age.clone(),
        retain_bytes: wanted.retain_bytes.clone(),
        alerts: wanted.alert_rules.clone().map(|path| AlertsLayer { rules: Some(path) }),
        ..Layer::default()
    };
    let mut layers = vec![
        ("the command line or its environment variable".to_owned(), from_flags),
        ("the environment".to_owned(), config::from_environment(&|name| std::env::var(name).ok())),
    ];
    if let Some(path) = &wanted.config {
        let layer = config::from_file(path).map_err(|error| Failure::usage(error.to_string()))?;
        layers.push((path.display().to_string(), layer));
    }
    config::resolve(&layers, wanted.default_data_dir.as_deref()).map_err(|error| Failure::usage(error.to_string()))
}

async fn check(config: &Config) -> Result<(), Failure> {
    let store = store::open(&config.store, "memctl daemon --check").await.map_err(|error| store_failure(&error))?;
    let info = store.info().await.map_err(|error| store_failure(&error))?;
    println!("listen        {}", config.listen);
    println!("store         {} ({} {}, schema {})", info.place, info.kind, info.version, info.schema_version);
    let kept = |limit: Option<u64>, show: &dyn Fn(u64) -> String| limit.map_or_else(|| "no limit".into(), show);
    let hours = |age: u64| format!("{} h", age / 3_600_000_000_000);
    println!("retain age    {}", kept(config.retention.age_ns, &hours));
    println!(
        "retain bytes  {}",
        kept(config.retention.bytes, &|bytes| memctl_model::HumanBytes::of(bytes).to_string())
    );
    let receivers: Vec<&str> = config.alerts.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    let (origin, rules) = (&config.alerts.origin, config.alerts.rules.len());
    println!("alert rules   {rules} ({origin}), receivers: {}", [&["log"], &receivers[..]].concat().join(", "));
    store.close().await.map_err(|error| store_failure(&error))
}
