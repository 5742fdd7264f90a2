//! Asks what holds the blocks of a leak that was just confirmed, without anybody asking, where the process's launcher allows
//! that (`memctl run --holders`).
//!
//! Guarantees: the judge never waits for it; of a finding one process is asked, once, the first by rank that may be; a
//! process is asked about one finding at a time, about [`SITES_MAX`] in all, and again, [`TRIES_MAX`] times in all, only
//! where its stream broke off or its search ended before it had looked everywhere and found nothing: a machine that does
//! something else meanwhile leaves little of a budget.
//! Refuses suspicions, and whatever has no site.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memctl_model::{Finding, HoldersFound};
use memctl_proto::convert::holders::BUDGET_MS;
use memctl_proto::v1;
use memctl_proto::v1::holders_asked::Outcome;

use super::holders::{concerns, keep, may_be_about, may_be_asked_about, stacks_of};
use crate::asks::{AskError, Line};
use crate::pokes::{Poked, Pokes};
use crate::read::stacks::dictionary;
use crate::read::{Found, ReadError};
use crate::store::{HoldersIndex, Says, SessionKey, Store};
use crate::streams::Streams;

/// Findings about which a session is asked at most.
const SITES_MAX: usize = 8;
/// How often it is asked about one of them, where its answer was lost on the way or says nothing yet.
const TRIES_MAX: u8 = 3;
/// How long the end of a step is waited for: nobody waits for the answer.
const STEP_MAX: Duration = Duration::from_secs(120);

/// See the module.
#[derive(Clone)]
pub(super) struct Unasked {
    store: Arc<dyn Store>,
    streams: Streams,
    pokes: Pokes,
    tried: Arc<Mutex<HashMap<SessionKey, Tried>>>,
}

/// What a session was asked since its stream began, or since this daemon did.
#[derive(Default)]
struct Tried {
    is_under_way: bool,
    /// How often, by the finding's fingerprint.
    sites: HashMap<u64, u8>,
}

/// What became of a try.
enum Try {
    /// The process was asked, or is not to be.
    Done,
    /// It was not, for now.
    Later,
}

/// Which session is asked about which finding; given up when dropped.
struct Turn {
    of: Unasked,
    session: SessionKey,
    site: u64,
    counts: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(tried) = self.of.tried().get_mut(&self.session) {
            tried.is_under_way = false;
            if let Some(tries) = tried.sites.get_mut(&self.site).filter(|_| !self.counts) {
                *tries -= 1;
            }
        }
    }
}

impl Unasked {
    pub fn new(store: Arc<dyn Store>, streams: Streams, pokes: Pokes) -> Self {
        Self { store, streams, pokes, tried: Arc::default() }
    }

    fn tried(&self) -> MutexGuard<'_, HashMap<SessionKey, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to ask about findings of a job of whose holders nothing is known.
    pub fn look(&self, job: &Poked, found: &Arc<Found>, findings: &[Finding]) {
        self.tried().retain(|session, tried| tried.is_under_way || self.streams.is_streaming(*session));
        let confirmed = |finding: &&Finding| may_be_asked_about(finding) && !finding.is_suspected();
        for finding in findings.iter().filter(confirmed).filter(|finding| is_open(finding)) {
            let mut concerned = found.sessions.iter().filter(|session| concerns(finding, found, session));
            let line = |key: SessionKey| self.streams.line(key).filter(Line::may_be_asked_unasked);
            let Some((session, line)) = concerned.find_map(|session| Some((session, line(session.key)?))) else {
                continue;
            };
            let site = finding.fingerprint(&found.job.name).0;
            let Some(turn) = self.turn(session.key, site) else { continue };
            let (asking, job, found, finding) = (self.clone(), job.clone(), found.clone(), finding.clone());
            let rank = session.info.rank;
            tokio::spawn(async move { asking.ask((&job, &*found), &finding, (rank, line), turn).await });
        }
    }

    /// The right to ask a session about a finding, if it may be asked (again).
    fn turn(&self, session: SessionKey, site: u64) -> Option<Turn> {
        let mut all = self.tried();
        let tried = all.entry(session).or_default();
        let (is_under_way, sites) = (tried.is_under_way, tried.sites.len());
        match tried.sites.entry(site) {
            _ if is_under_way => return None,
            Entry::Occupied(mut tries) if *tries.get() < TRIES_MAX => *tries.get_mut() += 1,
            Entry::Vacant(tries) if sites < SITES_MAX => {
                tries.insert(1);
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return None,
        }
        tried.is_under_way = true;
        Some(Turn { of: self.clone(), session, site, counts: true })
    }

    async fn ask(self, (job, found): (&Poked, &Found), finding: &Finding, of: (u32, Line), mut turn: Turn) {
        match self.tried_once(found, finding, of, turn.session).await {
            Ok(Try::Done) => {}
            Ok(Try::Later) => {
                turn.counts = false;
                return;
            }
            Err(error) => tracing::warn!(job = job.job, %error, "what holds the blocks of a leak is not asked now"),
        }
        drop(turn);
        // Whoever follows the job, and alerts, hear of it.
        self.pokes.poke(job);
    }

    async fn tried_once(
        &self,
        found: &Found,
        finding: &Finding,
        (rank, line): (u32, Line),
        session: SessionKey,
    ) -> Result<Try, ReadError> {
        let Some(site) = &finding.site else { return Ok(Try::Done) };
        // What a daemon before this one asked counts, too.
        let mut before = self.store.holders_kept(found.job.key).await?;
        before.retain(|kept| kept.session == session && kept.unasked);
        if !is_left(&before, finding, &found.job.name) {
            return Ok(Try::Done);
        }
        let stacks = stacks_of(&dictionary(&*self.store, session).await?, rank, finding);
        if stacks.is_empty() {
            return Ok(Try::Later);
        }
        let wait = STEP_MAX + Duration::from_millis(BUDGET_MS.into());
        let outcome = match line.ask(stacks, BUDGET_MS, wait).await {
            Ok(found) => Outcome::Found(found),
            Err(AskError::Busy) => return Ok(Try::Later),
            // It may come again.
            Err(AskError::Gone) => return Ok(Try::Done),
            Err(error) => Outcome::Failure(error.to_string()),
        };
        let id = finding.fingerprint(&found.job.name).to_string();
        tracing::info!(job = found.job.name, rank, finding = id, "asked what holds the blocks of a leak");
        let asked = v1::HoldersAsked {
            function: site.function.to_string(),
            file: site.file.to_string(),
            line: site.line,
            finding: id,
            unasked: true,
            budget_ms: BUDGET_MS,
            outcome: Some(outcome),
        };
        keep(&*self.store, session, &asked).await?;
        Ok(Try::Done)
    }
}

/// Whether a process is yet to say what holds a finding's blocks: nothing was answered, or the search that the daemon began
/// came to its end before it had found anything.
fn is_open(finding: &Finding) -> bool {
    finding.holders.as_ref().is_none_or(|told| {
        let is_cut = |found: &HoldersFound| found.holders.is_empty() && !found.complete;
        told.asked.unasked && told.asked.outcome.as_ref().is_ok_and(is_cut)
    })
}

/// Whether a session that gave these answers may be asked about a finding.
fn is_left(before: &[HoldersIndex], finding: &Finding, job: &str) -> bool {
    let sites: HashSet<u64> = before.iter().map(|kept| kept.site).collect();
    let mut about = before.iter().filter(|kept| may_be_about(kept, finding, job)).peekable();
    if about.peek().is_none() {
        return sites.len() < SITES_MAX;
    }
    // (An answer that is kept is not told where it is damaged, or where too many are: it counts all the same.)
    about.clone().all(|kept| kept.says == Says::NoHolder) && about.count() < usize::from(TRIES_MAX)
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingHolders, FindingKind, Frame, HoldersAsked, Severity, TensorHolder};

    use super::*;
    use crate::store::MemoryStore;

    fn unasked() -> Unasked {
        Unasked::new(Arc::new(MemoryStore::new()), Streams::default(), Pokes::default())
    }

    #[test]
    fn a_session_is_asked_about_one_finding_at_a_time_and_about_few_in_all() {
        let unasked = unasked();
        let first = unasked.turn(1, 100).unwrap();
        assert!(unasked.turn(1, 100).is_none() && unasked.turn(1, 101).is_none(), "one is under way");
        assert!(unasked.turn(2, 100).is_some(), "another session");
        drop(first);
        for site in 101..100 + SITES_MAX as u64 {
            assert!(unasked.turn(1, site).is_some());
        }
        assert!(unasked.turn(1, 200).is_none(), "one too many");
        // An answer that is lost is asked for again, and not for ever.
        for _ in 1..TRIES_MAX {
            assert!(unasked.turn(1, 100).is_some());
        }
        assert!(unasked.turn(1, 100).is_none());
    }

    #[test]
    fn who_could_not_be_asked_is_asked_later() {
        let unasked = unasked();
        for _ in 0..9 {
            let mut turn = unasked.turn(1, 100).unwrap();
            turn.counts = false;
        }
        let counted = (0..9).filter(|_| unasked.turn(1, 100).is_some()).count();
        assert_eq!(counted, usize::from(TRIES_MAX));
    }
    fn finding() -> Finding {
        let site = Frame { function: "keep".into(), file: "train.py".into(), line: 17 };
        Finding { site: Some(site), ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0]) }
    }

    #[test]
    fn a_search_that_ended_early_and_found_nothing_leaves_the_question_open() {
        let found = |complete| HoldersFound { complete, ..HoldersFound::default() };
        let told = |unasked, outcome| {
            let asked = HoldersAsked {
                rank: 0,
                process: "rank 0".into(),
                asked_ns: 1,
                unasked,
                budget_ms: BUDGET_MS,
                site: finding().site.unwrap(),
                finding: String::new(),
                outcome,
            };
            let holders = FindingHolders { asked, growth: Vec::new(), sentence: String::new() };
            Finding { holders: Some(holders), ..finding() }
        };
        let some = HoldersFound { holders: vec![TensorHolder::default()], ..found(false) };
        assert!(is_open(&finding()) && is_open(&told(true, Ok(found(false)))));
        for known in [
            told(true, Ok(found(true))),
            told(true, Ok(some)),
            told(true, Err("it did not say".into())),
            told(false, Ok(found(false))),
        ] {
            assert!(!is_open(&known), "{:?}", known.holders);
        }
    }

    #[test]
    fn what_an_earlier_daemon_asked_counts() {
        let kept = |site, says| HoldersIndex {
            session: 1,
            asked_ns: 1,
            finding: (site == 17).then(|| finding().fingerprint("job").0),
            site,
            unasked: true,
            says,
            counted_epoch: None,
            bytes: 100,
        };
        let is_left = |before: &[HoldersIndex]| is_left(before, &finding(), "job");
        let others = |count: u64| (100..100 + count).map(|site| kept(site, Says::Holders)).collect::<Vec<_>>();
        assert!(is_left(&others(SITES_MAX as u64 - 1)) && !is_left(&others(SITES_MAX as u64)));
        for (says, tries) in [(Says::NoHolder, usize::from(TRIES_MAX)), (Says::Holders, 1), (Says::Nothing, 1)] {
            for given in 1..=TRIES_MAX.into() {
                let answers = [others(SITES_MAX as u64), vec![kept(17, says); given]].concat();
                assert_eq!(is_left(&answers), given < tries, "{says:?}, {given} times");
            }
        }
    }
}
