//! The id of the launch that started a process on its host. Processes with the same id belong to one run of their job.
//!
//! Guarantees: a process that is restarted, or started after a reboot, has another id.

use sha2::{Digest as _, Sha256};

/// The id of a `memctl run`, for the processes below it.
pub const VARIABLE: &str = "MEMCTL_RUN_LAUNCHER";

/// A random id for a launch.
#[must_use]
pub fn drawn() -> u64 {
    // Without random numbers, two launchers within the same nanosecond differ by their process ids.
    getrandom::u64().unwrap_or_else(|_| crate::now_ns() ^ (u64::from(std::process::id()) << 40))
}

/// The id of a process of this host that starts others or runs alone.
#[must_use]
pub fn of_process(pid: u32) -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let started = started(pid).unwrap_or_default();
    let digest = Sha256::digest(format!("{boot}\0{pid}\0{started}"));
    u64::from_le_bytes(std::array::from_fn(|index| digest[index]))
}

/// The start of a process, in clock ticks since boot: field 22 of `/proc/PID/stat`.
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets, which may contain any characters.
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_number_and_others_have_others() {
        let own = std::process::id();
        assert_eq!(of_process(own), of_process(own));
        assert_ne!(of_process(own), of_process(std::os::unix::process::parent_id()));
        assert!(started(own).unwrap().parse::<u64>().unwrap() > 0);
        assert_ne!(drawn(), drawn());
    }
}
