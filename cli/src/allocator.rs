//! Keeps the C library's allocator from retaining much free memory, because a daemon runs for months.
//!
//! Guarantees: large buffers return to the system as soon as they are freed; small ones within [`TRIM_EVERY`] once they
//! exceed [`KEPT_BYTES`]. Does nothing with a C library other than glibc.

use std::convert::Infallible;
use std::time::Duration;

/// Buffers of at least this size get their own mapping. (By default glibc raises this threshold to 32 MiB as such
/// buffers are freed, and then retains them.)
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: i32 = 1 << 20;
/// Free bytes that may be retained for later allocations.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: usize = 32 << 20;
/// How often free memory is checked.
const TRIM_EVERY: Duration = Duration::from_secs(1);

/// Limits retained memory until it is dropped.
pub async fn keep_little() -> Infallible {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number in the allocator and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
    let mut look = tokio::time::interval(TRIM_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        // Takes each arena's lock for a moment; it is not called while little is free.
        let _ = tokio::task::spawn_blocking(trim).await;
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: both may be called at any time, from any thread.
    unsafe {
        if libc::mallinfo2().fordblks > KEPT_BYTES {
            libc::malloc_trim(KEPT_BYTES);
        }
    }
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap() << 10
    }

    #[test]
    fn small_buffers_that_were_freed_go_back_to_the_system() {
        let held: Vec<Vec<u8>> = (0..20_000).map(|_| vec![1; 16 << 10]).collect();
        // One in sixteen stays allocated, so that no heap ends in free memory.
        let kept: Vec<Vec<u8>> = held.into_iter().step_by(16).collect();
        let before = resident();
        trim();
        let after = resident();
        assert!(after + (200 << 20) < before, "{} MiB of {} MiB stay", after >> 20, before >> 20);
        drop(kept);
    }
}
