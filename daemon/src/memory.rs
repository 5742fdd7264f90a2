//! The memory limit of this process: the lowest of the machine's memory, its control group's limit and its own limits.
//!
//! Guarantees: there is a result on any machine; a limit that cannot be read is ignored. Each call reads files of the
//! kernel.

use std::fs;

/// The result if no limit can be read.
const UNKNOWN: u64 = 4 << 30;
/// Limits of a process that bound its memory, as the kernel names them.
const LIMITS: [&str; 2] = ["Max address space", "Max data size"];

/// Bytes that this process may use.
#[must_use]
pub fn allowed_bytes() -> u64 {
    let own = LIMITS.map(own);
    [machine(), group()].into_iter().chain(own).flatten().min().unwrap_or(UNKNOWN)
}

fn machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest limit of its control group and the groups above it, because a limit applies to everything below it.
fn group() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_matches('/').to_owned();
    let levels = std::iter::successors(Some(path.as_str()), |path| {
        (!path.is_empty()).then(|| path.rsplit_once('/').map_or("", |(outer, _)| outer))
    });
    // Without a limit the file contains `max`, which is skipped.
    levels
        .filter_map(|level| fs::read_to_string(format!("/sys/fs/cgroup/{level}/memory.max")).ok()?.trim().parse().ok())
        .min()
}

/// This process's own limit (setrlimit); `None` if it is unlimited.
fn own(limit: &str) -> Option<u64> {
    of_limits(&fs::read_to_string("/proc/self/limits").ok()?, limit)
}

fn of_limits(text: &str, limit: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(limit))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_memory() {
        let machine = machine().unwrap();
        assert!(machine > 64 << 20 && (1..=machine).contains(&allowed_bytes()));
    }
    #[test]
    fn a_limit_of_its_own_counts_and_none_does_not() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max data size             1073741824           1073741824           bytes     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert_eq!(LIMITS.map(|limit| of_limits(text, limit)), [None, Some(1 << 30)]);
    }
}
