//! Removes the oldest data every minute.
//!
//! Guarantees: data is deleted for its age only if the clock has run long enough without a jump. A clock that has not
//! just jumped and agrees with the latest stored data also suffices. Age counts from the latest stored data, so nothing
//! gets older while no new data arrives. A store that shrinks returns its disk space.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{JUMP_NS, Reading, STAND_NS, steady};
use crate::store::{Expired, Retention, Store, StoreError};

/// How often it runs.
const EVERY: Duration = Duration::from_secs(60);

/// Runs until the daemon shuts down, and additionally whenever the policy changes.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    mut policy: watch::Receiver<Retention>,
    mut shutting_down: watch::Receiver<bool>,
) {
    // The time is read before any data arrives that a wrong clock could stamp.
    let mut latest_ns = None;
    loop {
        if latest_ns.is_none() {
            latest_ns = store.heard_latest().await.unwrap_or_default();
        }
        let retention = *policy.borrow_and_update();
        match once(&*store, retention, steady(), latest_ns).await {
            Ok(gone) if gone != Expired::default() => {
                tracing::info!(
                    jobs = gone.jobs,
                    chunks = gone.chunks,
                    items = gone.items,
                    events = gone.events,
                    bytes = gone.bytes,
                    "retention removed the oldest"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "retention failed and will be retried"),
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            Ok(()) = policy.changed() => {}
            _ = shutting_down.wait_for(|down| *down) => return,
        }
    }
}

/// Runs once, at the time of a clock reading. `latest_ns` is the time of the newest data from before this daemon
/// started.
///
/// # Errors
/// Those of the store.
pub async fn once(
    store: &dyn Store,
    retention: Retention,
    reading: Reading,
    latest_ns: Option<u64>,
) -> Result<Expired, StoreError> {
    let mut policy = retention;
    // Age counts only if the clock has run without a jump for a while, or agrees with the latest stored data.
    let agrees = latest_ns.is_some_and(|latest_ns| reading.now_ns.abs_diff(latest_ns) <= JUMP_NS);
    if reading.stood_ns < STAND_NS && (reading.jumped_ns.is_some() || !agrees) {
        policy.age_ns = None;
    }
    store.expire(policy, reading.now_ns).await
}
