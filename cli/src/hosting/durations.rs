//! Lengths of time as the daemon's settings have them.

use memctl_daemon::quantity;

/// Nanoseconds of `45s`, `90m`, `2h`, `7d`, as the daemon's settings have them.
pub fn length_of_time_ns(text: &str) -> Option<u64> {
    quantity::duration_ns(text).ok()
}
