//! Sends the families of `/metrics` to an OpenTelemetry receiver by OTLP, if OpenTelemetry's environment variables name
//! one; every minute by default.
//!
//! Guarantees: nothing is sent unless an endpoint is named. It blocks nothing: there is one export at a time, with a
//! timeout for each message. A message that cannot be delivered is dropped, because the next export has the same
//! counters. If the receiver does not respond, this is logged once, and once more when it responds again.

mod convert;
mod send;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::clock::now_ns;
use crate::config::otlp::Settings;
use crate::metrics::{Exports, Sources};
use crate::store::Scope;

/// Sends the metrics of the daemon's sources.
pub struct Exporter {
    settings: Settings,
    receiver: send::Receiver,
    exports: Exports,
}

/// The last logged state of exports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExportState {
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

    /// The outcomes of exports.
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
        // After a slow export the next one follows an interval later, rather than several at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = ExportState::Well;
        loop {
            ticks.tick().await;
            let outcome = self.export(&sources).await;
            self.exports.note(outcome.is_ok());
            said = tell(said, outcome);
        }
    }

    /// Makes one export. The first failure ends it.
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

/// Logs a changed outcome.
fn tell(said: ExportState, outcome: Result<Option<String>, String>) -> ExportState {
    match (said, outcome) {
        (ExportState::Failed, Err(_)) => ExportState::Failed,
        (_, Err(reason)) => {
            tracing::warn!(reason, "metrics cannot be delivered by OTLP; retrying at every interval");
            ExportState::Failed
        }
        (ExportState::Partly, Ok(Some(_))) => ExportState::Partly,
        (_, Ok(Some(refused))) => {
            tracing::warn!(refused, "the receiver of OTLP does not take all metrics");
            ExportState::Partly
        }
        (ExportState::Well, Ok(None)) => ExportState::Well,
        (_, Ok(None)) => {
            tracing::info!("metrics are delivered by OTLP again");
            ExportState::Well
        }
    }
}
