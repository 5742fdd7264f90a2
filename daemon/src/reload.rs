//! Reloads the configuration while the daemon runs.
//!
//! Guarantees: a configuration is checked completely before any of it applies. An invalid one is logged and counted,
//! and the old one stays in force. Settings that need a restart (addresses, the store, queues) do not change, and this
//! is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, watch};

use crate::access::Gate;
use crate::alerts::Alerts;
use crate::config::Config;
use crate::listen::Certificates;
use crate::store::Retention;

/// Configurations that were read again, or the error.
pub type Reread = mpsc::Receiver<Result<Config, String>>;

/// Counts of reloads; clones share them.
#[derive(Clone, Default)]
pub struct Reloads {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    applied: AtomicU64,
    refused: AtomicU64,
    /// Whether the last reload was refused.
    failed: AtomicBool,
}

impl Reloads {
    /// The number of applied reloads, the number of refused reloads, and whether the last one was applied.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, bool) {
        // Relaxed: these are only metrics.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.inner.applied), read(&self.inner.refused), !self.inner.failed.load(Ordering::Relaxed))
    }

    fn note(&self, applied: bool) {
        let count = if applied { &self.inner.applied } else { &self.inner.refused };
        count.fetch_add(1, Ordering::Relaxed);
        self.inner.failed.store(!applied, Ordering::Relaxed);
    }
}

/// The parts of the daemon that a reload changes.
pub struct InForce {
    /// The configuration that the daemon was started with. It is used for settings that cannot change.
    pub config: Config,
    /// The retention policy.
    pub retention: watch::Sender<Retention>,
    /// The alert rules.
    pub alerts: Alerts,
    /// The certificates of the ports. Their files are read again too.
    pub certificates: Option<Arc<Certificates>>,
    /// The access rules.
    pub gate: Gate,
    /// The counters.
    pub reloads: Reloads,
}

impl InForce {
    /// Applies configurations until the sender is dropped. `before` and `after` are called around each.
    pub async fn follow(self, mut reread: Reread, before: impl Fn(), after: impl Fn()) {
        while let Some(config) = reread.recv().await {
            before();
            match config.and_then(|config| self.certified().map(|()| config)) {
                Ok(config) => self.apply(config),
                Err(reason) => {
                    tracing::error!(reason, "the configuration is wrong; what was in force stays in force");
                    self.reloads.note(false);
                }
            }
            after();
        }
    }

    /// Reads the files of the certificates again.
    fn certified(&self) -> Result<(), String> {
        self.certificates
            .as_ref()
            .map_or(Ok(()), |certificates| certificates.reload().map_err(|error| error.to_string()))
    }

    fn apply(&self, config: Config) {
        let fixed = self.fixed(&config);
        if !fixed.is_empty() {
            tracing::warn!(settings = fixed.join(", "), "these settings change with the next start of the daemon only");
        }
        self.retention.send_replace(config.retention);
        let (rules, origin) = (config.alerts.rules.len(), config.alerts.origin.clone());
        self.alerts.replace_rules(config.alerts);
        self.gate.replace_access(config.access);
        self.reloads.note(true);
        tracing::info!(
            retain_age_ns = config.retention.age_ns,
            retain_bytes = config.retention.bytes,
            retain_bytes_per_job = config.retention.bytes_per_job,
            retain_bytes_per_tenant = config.retention.bytes_per_tenant,
            alert_rules = rules,
            origin,
            "the configuration was read again and is in force"
        );
    }

    /// The settings that differ but cannot change.
    fn fixed(&self, config: &Config) -> Vec<&'static str> {
        let old = &self.config;
        let limits = |config: &Config| (config.limits.session_bytes, config.limits.total_bytes);
        let changed = [
            ("listen", old.listen != config.listen),
            ("http listen", old.http != config.http),
            ("store", old.store.to_string() != config.store.to_string()),
            ("queues", limits(old) != limits(config)),
            ("judging", old.judging != config.judging),
            ("holders", old.holders != config.holders),
        ];
        changed.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}
