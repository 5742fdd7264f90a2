//! Stored answers about holders, and which of them are removed; one rule for both databases.
//!
//! Guarantees: a job's answers keep the order of their arrival, even if the clock jumps. The latest [`HOLDERS_KEPT`]
//! answers per session are kept, and the latest [`JOB_HOLDERS_KEPT`] answers and [`JOB_HOLDERS_BYTES`] bytes per job.
//! The index suffices to choose among answers without decoding any.

use bytes::Bytes;

use super::expiry::SMALL_ROW_BYTES;
use super::plan::SUM_MAX;
use super::rows::SessionKey;

/// Answers kept per session; another one replaces the oldest.
pub const HOLDERS_KEPT: usize = 64;
/// Answers kept per job. A job may have thousands of sessions, so the limit per session does not suffice.
pub const JOB_HOLDERS_KEPT: usize = 256;
/// Bytes of answers kept per job.
pub const JOB_HOLDERS_BYTES: u64 = 4 << 20;

/// What an answer contains; later variants are shown first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// Only the reason why there is no result.
    #[default]
    Nothing,
    /// No holder was found.
    NoHolder,
    /// The answer lists holders.
    Holders,
}

impl Says {
    const ALL: [Self; 3] = [Self::Nothing, Self::NoHolder, Self::Holders];

    /// The stored form.
    pub(super) fn number(self) -> i64 {
        self as i64
    }

    /// Reads the stored form. An unknown number, from another version, counts as `Nothing`.
    pub(super) fn of_number(number: i64) -> Self {
        Self::ALL.into_iter().find(|says| says.number() == number).unwrap_or_default()
    }
}

/// An answer's index, readable without decoding the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersIndex {
    /// The session whose process was queried.
    pub session: SessionKey,
    /// When the answer arrived, ns since the Unix epoch. A new answer gets a later time than all others of its job.
    pub asked_ns: u64,
    /// The fingerprint of the finding that the query is about; none if a person named the site.
    pub finding: Option<u64>,
    /// The hash of the site that the query is about. Readers of the answer compare the site itself.
    pub site: u64,
    /// Whether the daemon queried without a request.
    pub unasked: bool,
    /// What the answer contains.
    pub says: Says,
    /// The epoch in which it counted a holder's tensors, if any.
    pub counted_epoch: Option<u32>,
    /// Bytes of the answer.
    pub bytes: u64,
}

/// A query for the holders of a process's tensors, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersRow {
    /// Its index.
    pub index: HoldersIndex,
    /// A `memctl.v1.HoldersAsked`, which the store does not decode.
    pub answer: Bytes,
}

impl HoldersIndex {
    /// Its key within the job.
    pub(super) fn key(&self) -> (SessionKey, u64) {
        (self.session, self.asked_ns)
    }

    /// Its size including its row.
    pub(super) fn spends(&self) -> u64 {
        self.bytes.saturating_add(SMALL_ROW_BYTES)
    }
}

/// The time of a new answer, which is later than all others of its job (`kept`, oldest first), and the answers that it
/// replaces.
pub(super) fn put(kept: &[HoldersIndex], row: &HoldersRow) -> (u64, Vec<HoldersIndex>) {
    let HoldersRow { index: new, answer } = row;
    let after_all = kept.last().map_or(0, |latest| latest.asked_ns.saturating_add(1));
    let asked_ns = new.asked_ns.max(after_all).min(SUM_MAX);
    let (mut of_session, mut of_job, mut bytes, mut is_full) = (1, 1, answer.len() as u64, false);
    let mut gone = Vec::new();
    for row in kept.iter().rev().filter(|row| row.key() != (new.session, asked_ns)) {
        let is_own = row.session == new.session;
        is_full |= of_job >= JOB_HOLDERS_KEPT || bytes.saturating_add(row.bytes) > JOB_HOLDERS_BYTES;
        if is_full || (is_own && of_session >= HOLDERS_KEPT) {
            gone.push(row.clone());
            continue;
        }
        of_job += 1;
        of_session += usize::from(is_own);
        bytes += row.bytes;
    }
    // Oldest first, like every other removal, so that two transactions cannot deadlock.
    gone.reverse();
    (asked_ns, gone)
}

/// A job's oldest answers that together free this many bytes.
pub(super) fn victims(mut kept: Vec<HoldersIndex>, excess_bytes: u64) -> Vec<HoldersIndex> {
    let mut freed = 0_u64;
    let needed = kept.iter().take_while(|row| {
        let is_needed = freed < excess_bytes;
        freed = freed.saturating_add(row.spends());
        is_needed
    });
    kept.truncate(needed.count());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(session: SessionKey, asked_ns: u64, bytes: u64) -> HoldersIndex {
        HoldersIndex {
            session,
            asked_ns,
            finding: None,
            site: 0,
            unasked: false,
            says: Says::Nothing,
            counted_epoch: None,
            bytes,
        }
    }

    /// The time of a new answer, and the keys of those it replaces.
    fn put(kept: &[HoldersIndex], new: &HoldersIndex) -> (u64, Vec<HoldersIndex>) {
        super::put(kept, &HoldersRow { index: new.clone(), answer: vec![0; new.bytes as usize].into() })
    }

    fn keys(rows: &[HoldersIndex]) -> Vec<(SessionKey, u64)> {
        rows.iter().map(HoldersIndex::key).collect()
    }

    #[test]
    fn an_answer_comes_after_all_others_of_its_job_whatever_the_clock_says() {
        assert_eq!(put(&[], &row(1, 7, 1)).0, 7);
        let kept = [row(1, 5, 1), row(2, 9, 1)];
        assert_eq!(put(&kept, &row(1, 20, 1)), (20, vec![]));
        assert_eq!(put(&kept, &row(1, 9, 1)), (10, vec![]), "of one moment");
        assert_eq!(put(&kept, &row(1, 0, 1)), (10, vec![]), "the clock went back");
        assert_eq!(put(&kept, &row(1, u64::MAX, 1)).0, SUM_MAX);
        assert_eq!(put(&[row(1, SUM_MAX, 1)], &row(1, 3, 1)), (SUM_MAX, vec![]), "in the other's place");
    }

    #[test]
    fn the_oldest_go_of_a_session_of_a_job_and_of_its_bytes() {
        let own: Vec<_> = (0..HOLDERS_KEPT as u64).map(|at| row(1, at, 1)).collect();
        assert_eq!(keys(&put(&own[1..], &row(1, 99, 1)).1), []);
        assert_eq!(keys(&put(&own, &row(1, 99, 1)).1), [(1, 0)]);
        assert_eq!(keys(&put(&own, &row(2, 99, 1)).1), [], "another session");
        // The newest answer stays even if the clock went back.
        assert_eq!(keys(&put(&own, &row(1, 0, 1)).1), [(1, 0)]);
        let of_many: Vec<_> = (0..JOB_HOLDERS_KEPT as u64).map(|at| row(at as i64, at, 1)).collect();
        assert_eq!(keys(&put(&of_many, &row(999, 999, 1)).1), [(0, 0)]);
        let third = JOB_HOLDERS_BYTES / 3;
        let large = [row(1, 1, 1), row(2, 2, third), row(3, 3, third), row(4, 4, 1)];
        assert_eq!(keys(&put(&large, &row(5, 5, third - 2)).1), []);
        assert_eq!(keys(&put(&large, &row(5, 5, third)).1), [(1, 1)]);
        assert_eq!(keys(&put(&large, &row(5, 5, third + 2)).1), [(1, 1), (2, 2)], "older ones are removed, too");
    }

    #[test]
    fn no_more_go_than_are_needed() {
        let kept = [row(1, 1, 72), row(2, 2, 72), row(1, 3, 72)];
        let went = |excess| victims(kept.to_vec(), excess).len();
        assert_eq!([0, 1, 200, 201, 400, 401, 9_999].map(went), [0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn what_is_stored_comes_back() {
        assert_eq!(Says::ALL.map(|says| Says::of_number(says.number())), Says::ALL);
        assert_eq!(Says::of_number(9), Says::Nothing);
    }
}
