//! `memctl daemon`: configures, binds, serves until a signal, drains; reads its configuration again at SIGHUP.
//!
//! Guarantees: flags take precedence over the environment, the environment over the file, the file over the default
//! folder.

use std::path::{Path, PathBuf};

use memctl_daemon::config::{self, AlertsLayer, Config, Defaults, HttpLayer, Layer, Listed, TlsLayer};
use memctl_daemon::entry;
use memctl_daemon::listen::Listen;
use memctl_daemon::store::{Retention, StoreAddress, StoreError, StoreInfo};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use super::{serve_failure, signals, store_failure, told_to_stop};
use crate::exit::Failure;
use crate::logs;

/// A daemon's settings from flags and their environment variables.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// Places to listen at.
    pub listen: Vec<String>,
    /// Who may connect to sockets that are named, as it was typed.
    pub socket_mode: Option<String>,
    /// Places of the HTTP port, as they were typed.
    pub http_listen: Vec<String>,
    /// The store's URL.
    pub store: Option<String>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// How long jobs are kept, as it was typed.
    pub retain_age: Option<String>,
    /// How much is kept, as it was typed.
    pub retain_bytes: Option<String>,
    /// How much one attempt of a job may keep, as it was typed.
    pub retain_bytes_per_job: Option<String>,
    /// How much the jobs of one tenant may keep, as it was typed.
    pub retain_bytes_per_tenant: Option<String>,
    /// The file with alert rules.
    pub alert_rules: Option<PathBuf>,
    /// TLS of the ports.
    pub tls: TlsLayer,
    /// Whether other machines may connect without TLS.
    pub insecure: bool,
    /// Write nothing.
    pub read_only: bool,
    /// Only check configuration and store.
    pub check: bool,
    /// The folder for the store that was named.
    pub data_dir: Option<PathBuf>,
    /// The folder for the store where nothing names one.
    pub default_data_dir: Option<PathBuf>,
    /// The socket where nothing says where to listen.
    pub default_socket: Option<PathBuf>,
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
    let hangups = signals::hangups()?;
    logs::follow(config.log.as_deref())?;
    let ready = |places: &[String], http: &[String]| {
        let http =
            if http.is_empty() { String::new() } else { format!(", metrics and health on {},", http.join(", ")) };
        say(&format!("memctl daemon listens on {}{http} and stores in {store}", places.join(", ")));
    };
    let (tell, reread) = mpsc::channel(1);
    let rereading = tokio::spawn(reread_on(hangups, wanted.clone(), tell));
    let served = entry::serve(config, Box::new(ready), Box::pin(terminated), reread).await;
    rereading.abort();
    served.map_err(|error| serve_failure(&error))?;
    say("memctl daemon has stopped");
    Ok(())
}

/// The data folder of the store that the whole configuration names; `None` for another store.
///
/// # Errors
/// A configuration that is wrong.
pub fn store_folder(wanted: &Serving) -> Result<Option<PathBuf>, Failure> {
    let store = configuration(wanted)?.store;
    let StoreAddress::Sqlite(path) = &store else { return Ok(None) };
    let folder = path.parent().map(Path::to_path_buf);
    Ok(folder.filter(|folder| config::in_folder(folder) == store))
}

/// Reads the configuration again at each SIGHUP and reports errors in it.
async fn reread_on(mut hangups: Signal, wanted: Serving, tell: mpsc::Sender<Result<Config, String>>) {
    while hangups.recv().await.is_some() {
        let read = configuration(&wanted).and_then(|config| {
            logs::follow(config.log.as_deref())?;
            Ok(config)
        });
        if tell.send(read.map_err(|failure| failure.to_string())).await.is_err() {
            return;
        }
    }
}

/// One line for the process that started the daemon. A closed standard output must not end a daemon.
fn say(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Flags before environment before file before the default folder. (The argument parser already includes the variables
/// of flags.)
fn configuration(wanted: &Serving) -> Result<Config, Failure> {
    let from_flags = Layer {
        listen: Some(Listed(wanted.listen.clone())).filter(|places| !places.0.is_empty()),
        socket_mode: wanted.socket_mode.clone(),
        store: wanted.store.clone(),
        data_dir: wanted.data_dir.clone(),
        retain_age: wanted.retain_age.clone(),
        retain_bytes: wanted.retain_bytes.clone(),
        tls: Some(wanted.tls.clone()).filter(|tls| *tls != TlsLayer::default()),
        insecure: wanted.insecure.then_some(true),
        retain_bytes_per_job: wanted.retain_bytes_per_job.clone(),
        retain_bytes_per_tenant: wanted.retain_bytes_per_tenant.clone(),
        read_only: wanted.read_only.then(|| "on".to_owned()),
        http: Some(HttpLayer { listen: Some(Listed(wanted.http_listen.clone())) })
            .filter(|_| !wanted.http_listen.is_empty()),
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
    let defaults = Defaults { data_dir: wanted.default_data_dir.clone(), socket: wanted.default_socket.clone() };
    let config = config::resolve(&layers, &defaults).map_err(|error| Failure::usage(error.to_string()))?;
    logs::check(config.log.as_deref())?;
    Ok(config)
}

async fn check(config: &Config) -> Result<(), Failure> {
    let store = match entry::open(&config.store, "memctl daemon --check").await {
        // The daemon whose new configuration is checked runs.
        Err(StoreError::InUse { .. }) => entry::open_read_only(&config.store).await,
        opened => opened,
    };
    let store = store.map_err(|error| store_failure(&error))?;
    let info = store.info().await.map_err(|error| store_failure(&error))?;
    let checked = print_checked(config, &info);
    store.close().await.map_err(|error| store_failure(&error))?;
    checked
}

/// Prints the configuration in force and the store. The TLS files have been read before.
fn print_checked(config: &Config, info: &StoreInfo) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut lines = vec![format!("listen        {}", listed(&config.listen))];
    if let Some(tls) = &config.tls {
        memctl_daemon::listen::Certificates::load(tls.clone()).map_err(|error| Failure::usage(error.to_string()))?;
        lines.push(format!("tls           {}", tls.cert.display()));
    }
    let http = if config.http.is_empty() { "off".to_owned() } else { listed(&config.http) };
    let sent = config.otlp.as_ref().map_or_else(|| "off".to_owned(), |settings| settings.endpoint.to_string());
    let StoreInfo { place, kind, version, schema_version, is_read_only } = info;
    let mode = if *is_read_only { ", read-only" } else { "" };
    lines.push(format!("http          {http}"));
    lines.push(format!("otlp          {sent}"));
    lines.push(format!("store         {place} ({kind} {version}, schema {schema_version}{mode})"));
    lines.extend(kept(&config.retention));
    let receivers: Vec<&str> = config.alerts.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    let (origin, rules) = (&config.alerts.origin, config.alerts.rules.len());
    let receivers = [&["log"], &receivers[..]].concat().join(", ");
    lines.push(format!("alert rules   {rules} ({origin}), receivers: {receivers}"));
    // Written in one piece, because the reader may close the pipe (`… | head`).
    let text = lines.join("\n") + "\n";
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::output("standard output", &error))
}

/// The retention limits, one per line.
fn kept(retention: &Retention) -> [String; 4] {
    let limit = |limit: Option<u64>, show: &dyn Fn(u64) -> String| limit.map_or_else(|| "no limit".into(), show);
    let hours = |age: u64| format!("{} h", age / 3_600_000_000_000);
    let bytes = |most: Option<u64>| limit(most, &|bytes| memctl_model::HumanBytes::of(bytes).to_string());
    let Retention { bytes: all, bytes_per_job, bytes_per_tenant, .. } = *retention;
    [
        format!("retain age    {}", limit(retention.age_ns, &hours)),
        format!("retain bytes  {}", bytes(all)),
        format!("     per job  {}", bytes(bytes_per_job)),
        format!("  per tenant  {}", bytes(bytes_per_tenant)),
    ]
}

fn listed(places: &[Listen]) -> String {
    places.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
