//! File descriptors: raises their limit as far as the system allows.
//!
//! Guarantees: the soft limit, which is low for the sake of programs that call select(2), is raised to the hard limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::ConnectionLimits;

/// Descriptors for the store, files and programs, in addition to connections: an eighth of all, within this range.
const OTHERS: std::ops::RangeInclusive<u64> = 16..=256;

impl ConnectionLimits {
    /// Lowers the limits so that enough descriptors are left for everything else. Open descriptors are subtracted.
    #[must_use]
    pub fn within(self, descriptors: Option<u64>) -> Self {
        let Some(descriptors) = descriptors else { return self };
        let open = std::fs::read_dir("/proc/self/fd").map_or(64, |found| found.count() as u64);
        let others = (descriptors / 8).clamp(*OTHERS.start(), *OTHERS.end());
        let left = descriptors.saturating_sub(open + others).max(1);
        let total = self.total.min(usize::try_from(left).unwrap_or(usize::MAX));
        if total < self.total {
            tracing::warn!(
                connections = total,
                descriptors,
                "few file descriptors: no more connections are taken; raise LimitNOFILE of the service (ulimit -n)"
            );
        }
        Self { total, per_peer: self.per_peer.min(total) }
    }
}

/// Raises the limit and returns it; `None` if there is none.
pub fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors cannot be raised");
            current
        }
    }
}
