//! Answers about holders as a store keeps them, and which of them go, decided once for all three stores.
//!
//! Guarantees: the answers of a job have the order in which they came, whatever the clock does in between; the latest are
//! kept, [`HOLDERS_KEPT`] of a session, [`JOB_HOLDERS_KEPT`] and [`JOB_HOLDERS_BYTES`] of a job. What has to be known to
//! choose among them is known without reading them.
//! Refuses: to read an answer.

use bytes::Bytes;

use super::expiry::SMALL_ROW_BYTES;
use super::plan::SUM_MAX;
use super::rows::SessionKey;

/// Answers about holders that are kept of a session; the oldest goes where one more comes.
pub const HOLDERS_KEPT: usize = 64;
/// Answers that are kept of a job, which may have thousands of sessions,
pub const JOB_HOLDERS_KEPT: usize = 256;
/// and their bytes.
pub const JOB_HOLDERS_BYTES: u64 = 4 << 20;

/// How much an answer says; what says more is told before what says less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// Why there is none.
    #[default]
    Nothing,
    /// That no holder was found.
    NoHolder,
    /// Who the holders are.
    Holders,
}

impl Says {
    const ALL: [Self; 3] = [Self::Nothing, Self::NoHolder, Self::Holders];

    /// As it is stored.
    pub(super) fn number(self) -> i64 {
        self as i64
    }

    /// What another version stored for something else says nothing to this one.
    pub(super) fn of_number(number: i64) -> Self {
        Self::ALL.into_iter().find(|says| says.number() == number).unwrap_or_default()
    }
}

/// What is known of an answer without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersIndex {
    /// Whose process was asked.
    pub session: SessionKey,
    /// When the answer came, ns since the Unix epoch. What is put gets a later time than all that its job has.
    pub asked_ns: u64,
    /// The fingerprint of the finding that it was asked about; none where a person named the site.
    pub finding: Option<u64>,
    /// The site that it was asked about, as a hash: whoever reads the answer sees whether it is that one.
    pub site: u64,
    /// Whether the daemon asked by itself.
    pub unasked: bool,
    /// How much it says.
    pub says: Says,
    /// The epoch in which it counted a holder's tensors, if it did.
    pub counted_epoch: Option<u32>,
    /// Bytes of the answer.
    pub bytes: u64,
}

/// What a process was asked about the holders of its tensors, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersRow {
    /// What is known of it.
    pub index: HoldersIndex,
    /// A `memctl.v1.HoldersAsked`, which the store does not read.
    pub answer: Bytes,
}

impl HoldersIndex {
    /// By what it is found within its job.
    pub(super) fn key(&self) -> (SessionKey, u64) {
        (self.session, self.asked_ns)
    }

    /// What it takes with its row.
    pub(super) fn spends(&self) -> u64 {
        self.bytes.saturating_add(SMALL_ROW_BYTES)
    }
}

/// When a new answer has come, after all that its job has (`kept`, the oldest first), and which of these go for it.
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
    // The oldest first, as whoever else removes them: so two cannot wait for each other.
    gone.reverse();
    (asked_ns, gone)
}

/// As many answers of a job, the oldest first, as it takes to free so many bytes.
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

    /// What an answer gets, and what goes for it.
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
        assert_eq!(put(&kept, &row(1, 0, 1)), (10, vec![]), "a clock that went back");
        assert_eq!(put(&kept, &row(1, u64::MAX, 1)).0, SUM_MAX);
        assert_eq!(put(&[row(1, SUM_MAX, 1)], &row(1, 3, 1)), (SUM_MAX, vec![]), "in the other's place");
    }

    #[test]
    fn the_oldest_go_of_a_session_of_a_job_and_of_its_bytes() {
        let own: Vec<_> = (0..HOLDERS_KEPT as u64).map(|at| row(1, at, 1)).collect();
        assert_eq!(keys(&put(&own[1..], &row(1, 99, 1)).1), []);
        assert_eq!(keys(&put(&own, &row(1, 99, 1)).1), [(1, 0)]);
        assert_eq!(keys(&put(&own, &row(2, 99, 1)).1), [], "another session");
        // A clock that went back does not push out the newest.
        assert_eq!(keys(&put(&own, &row(1, 0, 1)).1), [(1, 0)]);
        let of_many: Vec<_> = (0..JOB_HOLDERS_KEPT as u64).map(|at| row(at as i64, at, 1)).collect();
        assert_eq!(keys(&put(&of_many, &row(999, 999, 1)).1), [(0, 0)]);
        let third = JOB_HOLDERS_BYTES / 3;
        let large = [row(1, 1, 1), row(2, 2, third), row(3, 3, third), row(4, 4, 1)];
        assert_eq!(keys(&put(&large, &row(5, 5, third - 2)).1), []);
        assert_eq!(keys(&put(&large, &row(5, 5, third)).1), [(1, 1)]);
        assert_eq!(keys(&put(&large, &row(5, 5, third + 2)).1), [(1, 1), (2, 2)], "what is older goes, too");
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
