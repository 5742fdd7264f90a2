//! Delays between attempts to deliver a spool while a user waits.

use std::time::Duration;

use memctl_agent::Backoff;

/// The delays between attempts to deliver a spool. They are short, because a user waits.
pub fn backoff() -> Backoff {
    Backoff { most: Duration::from_secs(1), ..Backoff::default() }
}
