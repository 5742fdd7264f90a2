//! Metrics to an OpenTelemetry receiver: the families of `/metrics`, sent by OTLP every minute or so, where OpenTelemetry's
//! variables name a receiver.
//!
//! Guarantees: it is off unless an endpoint is named; it waits for nobody and nobody waits for it: one export at a time, each
//! message with a time limit, what cannot be delivered is forgotten, since the next export tells the same counters. A
//! receiver that does not answer is told in the log once, and once when it does again.

mod convert;
mod send;
mod wire;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::clock::now_ns;
use crate::config::otlp::Settings;
use crate::metrics::{Exports, Sources};
use crate::store::Scope;

/// Sends what the daemon's sources tell.
pub struct Exporter {
    settings: Settings,
    receiver: send::Receiver,
    exports: Exports,
}

/// What was said last of how exports go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Well,
    Partly,
    Failed,
}

impl Exporter {
    /// An exporter; nothing is sent yet.
    ///
    /// # Errors
    /// A file that the settings name cannot be used.
    pub fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self { receiver: send::Receiver::new(settings.clone())?, settings, exports: Exports::default() })
    }

    /// How exports went.
    #[must_use]
    pub fn exports(&self) -> Exports {
        self.exports.clone()
    }

    /// Sends until it is dropped.
    pub async fn run(self, sources: Sources) {
        let every = self.settings.interval;
        tracing::info!(endpoint = %self.settings.endpoint, protocol = ?self.settings.protocol, seconds = every.as_secs_f64(),
            "metrics are sent by OTLP");
        let mut ticks = interval_at(Instant::now() + every, every);
        // After an export that took long the next one comes an interval later, not several at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = Said::Well;
        loop {
            ticks.tick().await;
            let outcome = self.export(&sources).await;
            self.exports.note(outcome.is_ok());
            said = tell(said, outcome);
        }
    }

    /// Everything once; the first failure ends it.
    async fn export(&self, sources: &Sources) -> Result<Option<String>, String> {
        let families = sources.gather(&Scope::All).await;
        let times = convert::Times { taken_ns: now_ns(), started_ns: sources.started_ns };
        let mut refused = None;
        for message in convert::requests(&families, &self.settings.resource, times) {
            refused = self.receiver.deliver(&message).await?.or(refused);
        }
        Ok(refused)
    }
}

/// Says what is new.
fn tell(said: Said, outcome: Result<Option<String>, String>) -> Said {
    match (said, outcome) {
        (Said::Failed, Err(_)) => Said::Failed,
        (_, Err(reason)) => {
            tracing::warn!(reason, "metrics cannot be delivered by OTLP; it is tried again at every interval");
            Said::Failed
        }
        (Said::Partly, Ok(Some(_))) => Said::Partly,
        (_, Ok(Some(refused))) => {
            tracing::warn!(refused, "the receiver of OTLP does not take all metrics");
            Said::Partly
        }
        (Said::Well, Ok(None)) => Said::Well,
        (_, Ok(None)) => {
            tracing::info!("metrics are delivered by OTLP again");
            Said::Well
        }
    }
}
