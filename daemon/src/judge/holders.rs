//! Stores the answers of processes about the holders of tensors, and adds them to the findings that they are about.
//!
//! Guarantees: an answer that cannot be read is skipped and does not affect the finding. Only the answers that a
//! sentence needs are read, one at a time and at most [`READ_BYTES_MAX`] per query. Answers that are left out are
//! counted.
//!
//! Refuses: answers of processes that a later process has replaced, because their tensors no longer exist.

use memctl_analysis::holders::{is_about, is_growth_open, is_pace_open, of_finding};
use memctl_analysis::unexplained_growth::is_about_blocks;
use memctl_model::{Finding, FindingHolders, Frame, HoldersAsked, HoldersFound, StackId};
use memctl_proto::convert::holders::{STACKS_MAX, from_kept};
use memctl_proto::v1::holders_asked::Outcome;
use memctl_proto::{StackDictionary, v1};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::clock::steady;
use crate::job_data::FoundJob;
use crate::store::{HoldersIndex, HoldersRow, Says, SessionKey, SessionRow, Store, StoreError};

/// Bytes of answers that are read for one query, over all its findings. This is half of what a job may store.
const READ_BYTES_MAX: u64 = 2 << 20;

/// Stores the outcome of a request.
///
/// # Errors
/// The store fails.
pub(crate) async fn keep(store: &dyn Store, session: SessionKey, asked: &v1::HoldersAsked) -> Result<(), StoreError> {
    store.put_holders(&row(session, steady().now_ns, asked)).await
}

fn row(session: SessionKey, asked_ns: u64, asked: &v1::HoldersAsked) -> HoldersRow {
    let v1::HoldersAsked { function, file, line, finding, unasked, budget_ms: _, outcome, lines: _ } = asked;
    let (says, counted_epoch) = match outcome {
        None | Some(Outcome::Failure(_)) => (Says::Nothing, None),
        Some(Outcome::Found(found)) if found.holders.is_empty() => (Says::NoHolder, None),
        Some(Outcome::Found(found)) => {
            (Says::Holders, found.epoch.filter(|_| found.holders.iter().any(|holder| holder.tensors.is_some())))
        }
    };
    let answer = asked.encode_to_vec();
    let index = HoldersIndex {
        session,
        asked_ns,
        finding: u64::from_str_radix(finding, 16).ok(),
        site: site_key(function, file, *line),
        unasked: *unasked,
        says,
        counted_epoch,
        bytes: answer.len() as u64,
    };
    HoldersRow { index, answer: answer.into() }
}

/// The key by which answers about a site are found.
fn site_key(function: &str, file: &str, line: u32) -> u64 {
    let mut hash = Sha256::new();
    for part in [function, file] {
        hash.update(part);
        // This byte never occurs in UTF-8. It separates ("ab", "c") from ("a", "bc").
        hash.update([0xff]);
    }
    hash.update(line.to_le_bytes());
    let digest = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
}

/// Whether an answer seems to be about a finding, by its index. The answer itself must be read to be sure.
pub(super) fn may_be_about(kept: &HoldersIndex, finding: &Finding, job: &str) -> bool {
    let is_of = |site: &Frame| kept.site == site_key(&site.function, &site.file, site.line);
    kept.finding == Some(finding.fingerprint(job).0) || finding.site.as_ref().is_some_and(is_of)
}

/// Adds the answers of its processes to each finding. Returns how many answers were left out because there are too
/// many.
///
/// # Errors
/// The store fails.
pub(super) async fn tell(store: &dyn Store, found: &FoundJob, findings: &mut [Finding]) -> Result<u64, StoreError> {
    if !findings.iter().any(may_be_asked_about) {
        return Ok(0);
    }
    let mut kept = store.holders_kept(found.job.key).await?;
    kept.retain(|kept| found.sessions.iter().any(|session| session.key == kept.session));
    let mut reading = Reading { store, found, bytes_left: READ_BYTES_MAX, left_out: 0 };
    for finding in findings.iter_mut().filter(|finding| may_be_asked_about(finding)) {
        finding.holders = reading.holders_of(finding, &kept).await?;
    }
    Ok(reading.left_out)
}

/// Reads answers for one query, within its budget.
struct Reading<'a> {
    store: &'a dyn Store,
    found: &'a FoundJob,
    bytes_left: u64,
    left_out: u64,
}

impl Reading<'_> {
    /// The holders of a finding's blocks, if known. `kept` are the answers of the job's processes, oldest first.
    async fn holders_of(
        &mut self,
        finding: &Finding,
        kept: &[HoldersIndex],
    ) -> Result<Option<FindingHolders>, StoreError> {
        let id = finding.fingerprint(&self.found.job.name).to_string();
        let own = kept.iter().filter(|kept| may_be_about(kept, finding, &self.found.job.name));
        let mut own: Vec<&HoldersIndex> = own.collect();
        // The most informative answer that can be read is used, and of equally informative ones the latest. A search
        // that ended early does not replace what an earlier search of the same process found.
        own.sort_by_key(|kept| (kept.says, kept.asked_ns));
        let (mut asked, mut of) = (Vec::new(), None);
        for kept in own.iter().rev() {
            let is_better = of.is_none_or(|of: &HoldersIndex| kept.says == Says::Holders && kept.session == of.session);
            if !is_better {
                break;
            }
            let Some(read) = self.read(kept).await? else { break };
            let Some(read) = read.filter(|read| is_about(read, finding, &id)) else { continue };
            let is_cut = read.outcome.as_ref().is_ok_and(is_cut);
            if asked.is_empty() || !is_cut {
                (asked, of) = (vec![read], Some(*kept));
            }
            if !is_cut {
                break;
            }
        }
        let mut known = of_finding(finding, &id, &asked);
        let Some(of) = of else { return Ok(known) };
        // The growth of the holders is measured from the first answer of the same process that named holders and
        // counted them in an earlier epoch.
        let is_earlier = |kept: &&&HoldersIndex| {
            kept.session == of.session && kept.says == Says::Holders && kept.asked_ns < of.asked_ns
        };
        let mut earlier: Vec<&HoldersIndex> = own.iter().filter(is_earlier).copied().collect();
        earlier.sort_by_key(|kept| kept.asked_ns);
        for kept in earlier {
            let counted = kept.counted_epoch.zip(of.counted_epoch).is_some_and(|(then, now)| then < now);
            let is_open = known.as_ref().is_some_and(|known| is_pace_open(known) || (counted && is_growth_open(known)));
            if !is_open {
                continue;
            }
            let Some(read) = self.read(kept).await? else { break };
            if let Some(read) = read {
                asked.insert(asked.len() - 1, read);
                known = of_finding(finding, &id, &asked);
            }
        }
        Ok(known)
    }

    /// Reads an answer. The outer `None` means that the budget is spent; the inner `None` means that the answer cannot
    /// be read.
    async fn read(&mut self, kept: &HoldersIndex) -> Result<Option<Option<HoldersAsked>>, StoreError> {
        let Some(bytes_left) = self.bytes_left.checked_sub(kept.bytes) else {
            self.left_out += 1;
            return Ok(None);
        };
        self.bytes_left = bytes_left;
        let Some(session) = self.found.sessions.iter().find(|session| session.key == kept.session) else {
            return Ok(Some(None));
        };
        // The store logs an error if the bytes are damaged.
        let Some(row) = self.store.holders(self.found.job.key, kept.session, kept.asked_ns).await? else {
            return Ok(Some(None));
        };
        let who = (session.info.rank, self.found.process_name(session));
        let read = v1::HoldersAsked::decode(row.answer).map_err(|error| error.to_string());
        Ok(Some(match read.and_then(|read| from_kept(read, who, kept.asked_ns).map_err(|error| error.to_string())) {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::warn!(session = kept.session, error, "an answer about holders cannot be read");
                None
            }
        }))
    }
}

/// Whether a search ended early and explains few blocks.
pub(super) fn is_cut(found: &HoldersFound) -> bool {
    !found.complete && (found.holders.is_empty() || found.found_blocks < found.asked_blocks / 2)
}

/// Whether a process can be queried for the objects that hold a finding's blocks.
pub(super) fn may_be_asked_about(finding: &Finding) -> bool {
    finding.kind.is_leak() && finding.site.is_some()
}

/// Whether a finding is about a process.
pub(crate) fn concerns(finding: &Finding, found: &FoundJob, session: &SessionRow) -> bool {
    finding.ranks.contains(&session.info.rank)
        && (finding.processes.is_empty() || finding.processes.contains(&found.process_name(session)))
}

/// A process's stacks that belong to a finding, ascending.
pub(crate) fn stacks_of(dictionary: &StackDictionary, rank: u32, finding: &Finding) -> Vec<u32> {
    let ids = (1..=dictionary.len()).filter_map(|id| u32::try_from(id).ok());
    let is_of_it = |id: &u32| {
        dictionary
            .site(StackId(*id))
            .is_some_and(|frame| is_about_blocks(finding, rank, frame, &dictionary.stack(StackId(*id)).frames))
    };
    ids.filter(is_of_it).take(STACKS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingKind, SessionId, SessionInfo, Severity};

    use super::*;
    use crate::job_data::find;
    use crate::store::SqliteStore;

    fn site(line: u32) -> Frame {
        Frame { function: "keep".into(), file: "train.py".into(), line }
    }

    fn finding(line: u32) -> Finding {
        Finding { site: Some(site(line)), ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0]) }
    }

    /// An answer in which a list of `tensors` tensors holds the blocks of a site. It takes about 30 KB.
    fn asked(line: u32, epoch: u32, tensors: u64) -> v1::HoldersAsked {
        let list = v1::TensorHolder {
            kind: "list".into(),
            sentence: format!("list `KEPT`, {tensors} tensors"),
            chain: vec!["global `KEPT`".into()],
            blocks: 1,
            tensors: Some(tensors),
            ..Default::default()
        };
        let found = v1::HoldersFound {
            live_blocks: 1,
            asked_blocks: 1,
            found_blocks: 1,
            complete: true,
            not_looked_at: vec!["x".repeat(1_000); 30],
            holders: vec![list],
            epoch: Some(epoch),
            ..Default::default()
        };
        let Frame { function, file, line } = site(line);
        v1::HoldersAsked {
            function: function.to_string(),
            file: file.to_string(),
            line,
            outcome: Some(Outcome::Found(found)),
            ..Default::default()
        }
    }

    fn failed(line: u32) -> v1::HoldersAsked {
        v1::HoldersAsked { outcome: Some(Outcome::Failure("it did not answer".into())), ..asked(line, 0, 0) }
    }

    async fn session(store: &SqliteStore, id: u8, rank: u32) -> SessionKey {
        let info = SessionInfo { rank, ..SessionInfo::live(SessionId([id; 16]), "job", 1_000) };
        store.open_session(&info, 1_000).await.unwrap().key
    }

    async fn found(store: &SqliteStore) -> FoundJob {
        find(store, &v1::Selection { job: "job".into(), ..Default::default() }).await.unwrap()
    }

    /// The sentence about a finding's holders, how many bytes are read for it, and how many answers are left out.
    async fn sentence_of(store: &SqliteStore, found: &FoundJob, bytes_left: u64) -> (Option<String>, u64, u64) {
        let mut reading = Reading { store, found, bytes_left, left_out: 0 };
        let kept = store.holders_kept(found.job.key).await.unwrap();
        let known = reading.holders_of(&finding(17), &kept).await.unwrap();
        (known.map(|known| known.sentence), bytes_left - reading.bytes_left, reading.left_out)
    }

    #[tokio::test]
    async fn of_many_answers_those_are_read_that_the_sentence_is_made_of() {
        let store = SqliteStore::in_memory().await.unwrap();
        let key = session(&store, 1, 0).await;
        for epoch in 0..20 {
            keep(&store, key, &asked(17, epoch, 100 + 10 * u64::from(epoch))).await.unwrap();
            keep(&store, key, &asked(18, epoch, 9)).await.unwrap();
            keep(&store, key, &failed(17)).await.unwrap();
        }
        let found = found(&store).await;
        let one = asked(17, 0, 100).encoded_len() as u64;
        let (sentence, read, left_out) = sentence_of(&store, &found, READ_BYTES_MAX).await;
        let sentence = sentence.unwrap();
        assert!(sentence.starts_with("Held in epoch 19 by list `KEPT`, 290 tensors (100 in epoch 0)."), "{sentence}");
        assert!(read < 2 * one + 100, "two of 60 are read: {read} bytes");
        assert_eq!(left_out, 0);
        // All findings, as in a query; the most severe first.
        let mut findings =
            [finding(17), finding(18), Finding::new(FindingKind::RankSkew, Severity::Info, 0.9, vec![0])];
        assert_eq!(tell(&store, &found, &mut findings).await.unwrap(), 0);
        assert_eq!(findings.map(|finding| finding.holders.is_some()), [true, true, false]);
    }

    #[tokio::test]
    async fn what_would_be_too_much_is_left_out_and_counted() {
        let store = SqliteStore::in_memory().await.unwrap();
        let key = session(&store, 1, 0).await;
        keep(&store, key, &failed(17)).await.unwrap();
        for epoch in 1..=2 {
            keep(&store, key, &asked(17, epoch, 100)).await.unwrap();
        }
        let found = found(&store).await;
        let one = asked(17, 1, 100).encoded_len() as u64;
        let (sentence, read, left_out) = sentence_of(&store, &found, 2 * one - 1).await;
        assert!(sentence.unwrap().starts_with("Held in epoch 2 by list `KEPT`, 100 tensors. Rank 0 was asked about"));
        assert_eq!((read, left_out), (one, 1), "how it grew is not known");
        assert_eq!(sentence_of(&store, &found, one - 1).await, (None, 0, 1), "an older one would not be the latest");
    }

    #[tokio::test]
    async fn what_cannot_be_read_costs_itself() {
        let store = SqliteStore::in_memory().await.unwrap();
        let key = session(&store, 1, 0).await;
        keep(&store, key, &asked(17, 3, 9)).await.unwrap();
        // Stores bytes that are not a message, and a message about another site with the same hash.
        let HoldersRow { index, .. } = row(key, 0, &asked(17, 4, 10));
        store.put_holders(&HoldersRow { index: index.clone(), answer: vec![0xff].into() }).await.unwrap();
        let answer = asked(18, 4, 11).encode_to_vec().into();
        store.put_holders(&HoldersRow { index, answer }).await.unwrap();
        let (sentence, ..) = sentence_of(&store, &found(&store).await, READ_BYTES_MAX).await;
        assert!(sentence.unwrap().starts_with("Held in epoch 3 by list `KEPT`, 9 tensors."));
    }

    #[tokio::test]
    async fn a_search_that_was_cut_short_takes_no_holder_back() {
        let store = SqliteStore::in_memory().await.unwrap();
        let key = session(&store, 1, 0).await;
        keep(&store, key, &asked(17, 3, 9)).await.unwrap();
        let mut cut = asked(17, 4, 2);
        if let Some(Outcome::Found(found)) = &mut cut.outcome {
            (found.complete, found.asked_blocks) = (false, 40);
        }
        keep(&store, key, &cut).await.unwrap();
        let (sentence, ..) = sentence_of(&store, &found(&store).await, READ_BYTES_MAX).await;
        assert!(sentence.unwrap().starts_with("Held in epoch 3 by list `KEPT`, 9 tensors."));
    }

    #[tokio::test]
    async fn a_process_whose_place_another_has_taken_is_not_read() {
        let store = SqliteStore::in_memory().await.unwrap();
        let (earlier, later) = (session(&store, 1, 0).await, session(&store, 2, 1).await);
        keep(&store, later, &asked(17, 1, 5)).await.unwrap();
        keep(&store, earlier, &asked(17, 3, 9)).await.unwrap();
        let mut found = found(&store).await;
        found.sessions.retain(|session| session.key == later);
        let mut findings = [finding(17)];
        assert_eq!(tell(&store, &found, &mut findings).await.unwrap(), 0);
        let holders = findings[0].holders.take().unwrap();
        assert_eq!((holders.asked.rank, holders.growth), (1, vec![None]));
        found.sessions.clear();
        tell(&store, &found, &mut findings).await.unwrap();
        assert_eq!(findings[0].holders, None);
    }

    #[tokio::test]
    async fn a_finding_finds_what_it_was_asked_about_by_its_name_and_by_its_site() {
        let id = finding(17).fingerprint("job");
        let of = |line, finding: String| row(1, 0, &v1::HoldersAsked { finding, ..asked(line, 0, 0) }).index;
        for (kept, is_about) in [
            (of(17, String::new()), true),
            (of(18, String::new()), false),
            (of(18, id.to_string()), true),
            (of(18, "0123".into()), false),
        ] {
            assert_eq!(may_be_about(&kept, &finding(17), "job"), is_about, "{kept:?}");
        }
        let index = row(1, 0, &failed(17)).index;
        assert_eq!((index.says, index.counted_epoch), (Says::Nothing, None));
        let index = row(1, 0, &asked(17, 3, 9)).index;
        assert_eq!((index.says, index.counted_epoch), (Says::Holders, Some(3)));
    }
}
