//! What lies in a spool and is delivered while somebody waits.

use std::time::Duration;

use memctl_agent::Backoff;

/// Waits between attempts to deliver what lies in a spool: somebody waits for it.
pub fn backoff() -> Backoff {
    Backoff { most: Duration::from_secs(1), ..Backoff::default() }
}
