//! The one place where the agent reads the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch; 0 before it.
#[must_use]
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
