//! Which chunks go, and how that is counted; the same for all three stores.
//!
//! Guarantees: pure. Never takes more chunks than it needs to get below the limit.
//! Refuses: to know where the candidates come from; they arrive oldest first.

use std::ops::AddAssign;

use super::rows::{Expired, SessionKey};

/// Chunks that go in one transaction: a few milliseconds' work, so that appends wait no longer than that.
pub(super) const BATCH_CHUNKS: i64 = 256;

/// A chunk that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub job: i64,
    pub session: SessionKey,
    pub device: u8,
    pub seq: u64,
    pub events: u64,
    pub bytes: u64,
}

/// As many candidates, from the first on, as it takes to free `excess_bytes`; all of them if they do not suffice.
pub(super) fn victims(candidates: Vec<Candidate>, excess_bytes: u64) -> Vec<Candidate> {
    let mut freed = 0_u64;
    candidates
        .into_iter()
        .take_while(|candidate| {
            let wanted = freed < excess_bytes;
            freed = freed.saturating_add(candidate.bytes);
            wanted
        })
        .collect()
}

impl AddAssign for Expired {
    fn add_assign(&mut self, more: Self) {
        let Self { jobs, sessions, chunks, events, bytes } = more;
        self.jobs += jobs;
        self.sessions += sessions;
        self.chunks += chunks;
        self.events = self.events.saturating_add(events);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(bytes: &[u64]) -> Vec<Candidate> {
        (1..)
            .zip(bytes)
            .map(|(seq, &bytes)| Candidate { job: 1, session: 1, device: 0, seq, events: 1, bytes })
            .collect()
    }

    #[test]
    fn no_more_go_than_are_needed() {
        let went = |bytes: &[u64], excess| victims(candidates(bytes), excess).len();
        assert_eq!(went(&[10, 10, 10], 0), 0);
        assert_eq!(went(&[10, 10, 10], 1), 1);
        assert_eq!(went(&[10, 10, 10], 10), 1);
        assert_eq!(went(&[10, 10, 10], 11), 2);
        assert_eq!(went(&[10, 10, 10], 1000), 3);
        assert_eq!(went(&[u64::MAX, u64::MAX], u64::MAX), 1);
    }
}
