//! Decides when a job's events are replayed for fragmentation, out of memory and churn, which site tables do not show.
//!
//! Guarantees: a query about a large job without anomalies replays nothing. A running job is replayed at most twice a
//! minute, but at once when a request has failed, and often in the minute after it: whether the program caught the failure
//! shows only later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event_analysis::{Explained, explain};
use crate::job_data::{FoundJob, ReadError};
use crate::store::{DeviceRow, Store};

/// Jobs with at most this many events are always replayed, because it takes only tens of milliseconds.
const EVENTS_SMALL: u64 = 4 << 20;
/// A job is replayed if reserved memory exceeds the highest allocated bytes by more than this and by
/// [`WASTE_SHARE_MIN`].
const WASTE_BYTES_MIN: u64 = 256 << 20;
/// The same excess as a share of the reserved bytes.
const WASTE_SHARE_MIN: f64 = 0.15;
/// A running job is replayed again after this time.
const AGAIN: Duration = Duration::from_secs(30);

/// The same in the first minute after a failed request.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(3);
/// Time after which the outcome of a failed request is known.
const DECIDED: Duration = Duration::from_secs(60);

/// The last result, and the state of the job for which it was computed.
pub(super) struct CachedFindings {
    at: Instant,
    stored: u64,
    ooms: u64,
    /// When the number of failed requests last changed.
    failed_at: Option<Instant>,
    explained: Explained,
}

/// Replays the job's events if it is worth the time; `kept` is the last result.
pub(super) async fn look(
    store: &Arc<dyn Store>,
    found: &Arc<FoundJob>,
    kept: &mut Option<CachedFindings>,
) -> Result<Option<Explained>, ReadError> {
    if !is_worth_a_look(found) {
        return Ok(None);
    }
    // The sum may wrap: it is only compared for equality. Retention removes events that a result was computed from, maybe
    // while it was computed.
    let changes = found.sessions.iter().map(|session| session.durable_seq.wrapping_add(session.expired_events));
    let stored = changes.fold(0, u64::wrapping_add);
    let ooms = found.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.ooms));
    let goes_on = found.sessions.iter().any(|session| session.end.is_none());
    let is_fresh = |kept: &CachedFindings| {
        let open = kept.failed_at.is_some_and(|at| at.elapsed() < DECIDED);
        kept.at.elapsed() < if open { AGAIN_AFTER_FAILURE } else { AGAIN }
    };
    if let Some(kept) = kept
        && kept.ooms == ooms
        && (kept.stored == stored || (goes_on && is_fresh(kept)))
    {
        return Ok(Some(kept.explained.clone()));
    }
    let explained = explain(store, found).await?;
    let unchanged = kept.as_ref().filter(|kept| kept.ooms == ooms).map(|kept| kept.failed_at);
    let failed_at = unchanged.unwrap_or_else(|| (ooms > 0).then(Instant::now));
    *kept = Some(CachedFindings { at: Instant::now(), stored, ooms, failed_at, explained: explained.clone() });
    Ok(Some(explained))
}

fn is_worth_a_look(found: &FoundJob) -> bool {
    let events: u64 = found.sessions.iter().fold(0, |sum, session| sum.saturating_add(session.events));
    let failed = found.sessions.iter().any(|session| session.end.as_ref().is_some_and(|end| end.failure.is_some()));
    events <= EVENTS_SMALL || failed || found.devices.iter().any(is_odd)
}

fn is_odd(device: &DeviceRow) -> bool {
    let wastes = device.latest.is_some_and(|latest| {
        let waste = latest.peaks.reserved_bytes.saturating_sub(latest.peaks.allocated_bytes);
        waste > WASTE_BYTES_MIN && waste as f64 > WASTE_SHARE_MIN * latest.peaks.reserved_bytes as f64
    });
    wastes || device.ooms > 0 || device.alloc_retries.is_some_and(|retries| retries > 0)
}
