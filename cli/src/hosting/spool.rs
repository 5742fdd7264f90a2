//! Waits for delivering a spool while a user waits.

use std::time::Duration;

use memctl_agent::Backoff;

/// Waits between attempts to deliver a spool: short, because a user waits.
pub fn backoff() -> Backoff {
    Backoff { most: Duration::from_secs(1), ..Backoff::default() }
}
