//! Reading the configuration again while the daemon runs.
//!
//! Guarantees: what was read is checked whole before anything of it is in force; a configuration that is wrong leaves the old
//! one in force, is logged and counted. Refuses to change what cannot change without a restart (addresses, the store,
//! queues): it says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, watch};

use crate::access::Gate;
use crate::alerts::Alerts;
use crate::config::Config;
use crate::listen::Certificates;
use crate::store::Retention;

/// Configurations as they were read again, or why they cannot be.
pub type Reread = mpsc::Receiver<Result<Config, String>>;

/// How reloading went; clones tell the same.
#[derive(Clone, Default)]
pub struct Reloads {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    applied: AtomicU64,
    refused: AtomicU64,
    /// Whether the last one was refused.
    failed: AtomicBool,
}

impl Reloads {
    /// How many were applied, how many were refused, and whether the last one was applied.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, bool) {
        // Relaxed: figures for people.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.inner.applied), read(&self.inner.refused), !self.inner.failed.load(Ordering::Relaxed))
    }

    fn note(&self, applied: bool) {
        let count = if applied { &self.inner.applied } else { &self.inner.refused };
        count.fetch_add(1, Ordering::Relaxed);
        self.inner.failed.store(!applied, Ordering::Relaxed);
    }
}

/// What a configuration that was read again changes.
pub struct InForce {
    /// The configuration the daemon was started with, as far as it cannot change.
    pub config: Config,
    /// Where retention hears of it.
    pub retention: watch::Sender<Retention>,
    /// Where the rules are.
    pub alerts: Alerts,
    /// The certificates of the ports: their files are read again as well.
    pub certificates: Option<Arc<Certificates>>,
    /// Who is who.
    pub gate: Gate,
    /// Counts.
    pub reloads: Reloads,
}

impl InForce {
    /// Follows what is read, until nobody reads any more. `before` and `after` are called around each.
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

    /// The certificates as their files have them now.
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
            alert_rules = rules,
            origin,
            "the configuration was read again and is in force"
        );
    }

    /// Settings that differ and cannot change.
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
