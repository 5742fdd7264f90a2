//! When the events themselves are looked at: for fragmentation, out of memory and churn, which no table shows.
//!
//! Guarantees: a question about a large job that shows nothing odd replays nothing; of a job that goes on the events are
//! looked at twice a minute at most, and at once when a request has failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::explain::{Explained, explain};
use crate::read::{Found, ReadError};
use crate::store::{DeviceRow, Store};

/// Jobs of up to so many events are always looked at: tens of milliseconds.
const EVENTS_SMALL: u64 = 4 << 20;
/// Reserved memory beyond the highest allocated that is worth a look.
const WASTE_BYTES_MIN: u64 = 256 << 20;
/// Likewise as a share of what is reserved.
const WASTE_SHARE_MIN: f64 = 0.15;
/// A job that goes on is looked at again after this.
const AGAIN: Duration = Duration::from_secs(30);

/// What was found, and when, of what.
pub(super) struct Kept {
    at: Instant,
    stored: u64,
    ooms: u64,
    explained: Explained,
}

/// What single events explain, where that is worth a look; `kept` is what was found the last time.
pub(super) async fn look(
    store: &Arc<dyn Store>,
    found: &Arc<Found>,
    kept: &mut Option<Kept>,
) -> Result<Option<Explained>, ReadError> {
    if !is_worth_a_look(found) {
        return Ok(None);
    }
    // Wrapping: only whether it is the same counts.
    let stored = found.sessions.iter().fold(0, |sum: u64, session| sum.wrapping_add(session.durable_seq));
    let ooms = found.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.ooms));
    let goes_on = found.sessions.iter().any(|session| session.end.is_none());
    if let Some(kept) = kept
        && kept.ooms == ooms
        && (kept.stored == stored || (goes_on && kept.at.elapsed() < AGAIN))
    {
        return Ok(Some(kept.explained.clone()));
    }
    let explained = explain(store, found).await?;
    *kept = Some(Kept { at: Instant::now(), stored, ooms, explained: explained.clone() });
    Ok(Some(explained))
}

fn is_worth_a_look(found: &Found) -> bool {
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
