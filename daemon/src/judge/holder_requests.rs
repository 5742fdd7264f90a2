//! Queries a process, without a user's request, for the objects that hold the blocks of a site whose growth is certain.
//! The launcher or the operator can forbid this.
//!
//! Guarantees: the judge never waits for an answer. For each finding one process is queried: the eligible one with the
//! lowest rank. It is queried again when the site has grown and the holder has a length, so that the two answers show
//! whether the holder grew with the bytes. A process is queried about one finding at a time and about [`SITES_MAX`] in
//! all, but not within its first seconds. All searches together take at most 1/[`SHARE`] of its time so far. If a
//! search ended early and explains few blocks, it is repeated once it may take twice as long, [`TRIES_MAX`] times in
//! all. Less severe findings wait until then.
//!
//! Refuses: findings without a site.
//!
//! (Over 400 lines: nearly half are tests of when a process is queried, next to the rules for it.)

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memctl_model::{Finding, HoldersFound};
use memctl_proto::convert::holders::BUDGET_MS;
use memctl_proto::v1;
use memctl_proto::v1::holders_asked::Outcome;

use super::holders::{concerns, is_cut, keep, may_be_about, may_be_asked_about, stacks_of};
use crate::clock::steady;
use crate::job_data::stacks::dictionary;
use crate::job_data::{FoundJob, ReadError};
use crate::notify::{ChangedJob, Notifier};
use crate::server_requests::{AskError, Line};
use crate::store::{HoldersIndex, Says, SessionKey, Store};
use crate::streams::Streams;

/// The most findings about which a session is queried.
const SITES_MAX: usize = 3;
/// How often a session is queried about one finding if its answer was lost or explains nothing yet.
const TRIES_MAX: u8 = 5;
/// How often a session is queried about one finding if its answers name holders.
const ANSWERS_MAX: usize = 4;
/// How long to wait for the last slice of a search. No query waits for the answer.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// All searches together may take one part in this many of a process's time.
const SHARE: u32 = 200;
/// A process younger than this is not queried.
const AGE_MIN: Duration = Duration::from_secs(4);
/// A process is not queried until a search may take this long.
const BUDGET_MS_MIN: u32 = 20;
/// Growth is certain after this many increments.
const RISES_MIN: u64 = 5;
/// Growth is also certain if it takes one part in this many of the device.
const DEVICE_PART: u64 = 100;
/// A site has grown if its live bytes rose by one part in this many since the process was queried.
const GROWN_ON: u64 = 4;

/// Queries without a user's request; see the module.
#[derive(Clone)]
pub(super) struct Unasked {
    store: Arc<dyn Store>,
    streams: Streams,
    notifier: Notifier,
    tried: Arc<Mutex<HashMap<SessionKey, Tried>>>,
}

/// The queries to a session since its stream began, or since this daemon started.
#[derive(Default)]
struct Tried {
    is_under_way: bool,
    /// The number of queries, by the finding's fingerprint.
    sites: HashMap<u64, u8>,
    /// How long searches have paused the process.
    spent: Duration,
}

/// The outcome of a try.
enum Try {
    /// The process was queried, or must not be queried.
    Done,
    /// The process was not queried this time.
    Later,
}

/// The right to query a session about a finding. It is returned on drop.
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
    pub fn new(store: Arc<dyn Store>, streams: Streams, notifier: Notifier) -> Self {
        Self { store, streams, notifier, tried: Arc::default() }
    }

    fn tried(&self) -> MutexGuard<'_, HashMap<SessionKey, Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins queries about findings of a job whose holders are unknown or whose sites have grown.
    pub fn look(&self, job: &ChangedJob, found: &Arc<FoundJob>, findings: &[Finding]) {
        self.tried().retain(|session, tried| tried.is_under_way || self.streams.is_streaming(*session));
        let mut waiting: HashSet<SessionKey> = HashSet::new();
        for finding in findings.iter().filter(|finding| may_be_asked_about(finding) && is_open(finding)) {
            let mut concerned = found.sessions.iter().filter(|session| concerns(finding, found, session));
            let line = |key: SessionKey| self.streams.line(key).filter(Line::may_be_asked_unasked);
            let Some((session, line)) = concerned.find_map(|session| Some((session, line(session.key)?))) else {
                continue;
            };
            let age = Duration::from_nanos(steady().now_ns.saturating_sub(session.info.started_ns));
            let device = session.info.devices.iter().filter_map(|device| device.total_bytes).max();
            if !is_fact(finding, device) {
                continue;
            }
            let site = finding.fingerprint(&found.job.name).0;
            let at_least = finding
                .holders
                .as_ref()
                .map_or(0, |known| budget_for_more(known.asked.budget_ms, &known.asked.outcome));
            if waiting.contains(&session.key) {
                continue;
            }
            let Some((turn, budget_ms)) = self.turn(session.key, site, age, at_least) else {
                // Less severe findings would use up the time that this session must save for a longer search.
                if is_cut_short(finding) && self.may_try(session.key, site) {
                    waiting.insert(session.key);
                }
                continue;
            };
            let (asking, job, found, finding) = (self.clone(), job.clone(), found.clone(), finding.clone());
            let of = Asking { rank: session.info.rank, line, budget_ms };
            tokio::spawn(async move { asking.ask((&job, &*found), &finding, of, turn).await });
        }
    }

    /// The right to query a session about a finding, if it may be queried (again), and how long the search may take.
    fn turn(&self, session: SessionKey, site: u64, age: Duration, at_least_ms: u32) -> Option<(Turn, u32)> {
        let mut all = self.tried();
        let tried = all.entry(session).or_default();
        let budget_ms = budget_ms(age, tried.spent).filter(|budget_ms| *budget_ms >= at_least_ms)?;
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
        Some((Turn { of: self.clone(), session, site, counts: true }, budget_ms))
    }

    /// Whether a session may be queried about a finding once more.
    fn may_try(&self, session: SessionKey, site: u64) -> bool {
        self.tried().get(&session).and_then(|tried| tried.sites.get(&site)).is_some_and(|tries| *tries < TRIES_MAX)
    }

    async fn ask(self, (job, found): (&ChangedJob, &FoundJob), finding: &Finding, of: Asking, mut turn: Turn) {
        match self.tried_once(found, finding, of, turn.session).await {
            Ok(Try::Done) => {}
            Ok(Try::Later) => {
                turn.counts = false;
                return;
            }
            Err(error) => {
                tracing::warn!(job = job.job, %error, "the holders of a leak's blocks could not be requested")
            }
        }
        drop(turn);
        // Notifies subscribers of the job, and alerts.
        self.notifier.notify(job);
    }

    async fn tried_once(
        &self,
        found: &FoundJob,
        finding: &Finding,
        Asking { rank, line, budget_ms }: Asking,
        session: SessionKey,
    ) -> Result<Try, ReadError> {
        let Some(site) = &finding.site else { return Ok(Try::Done) };
        // Queries by an earlier daemon count too.
        let mut before = self.store.holders_kept(found.job.key).await?;
        before.retain(|kept| kept.session == session && kept.unasked);
        if !is_left(&before, finding, &found.job.name) {
            return Ok(Try::Done);
        }
        let stacks = stacks_of(&dictionary(&*self.store, session).await?, rank, finding);
        if stacks.is_empty() {
            return Ok(Try::Later);
        }
        let outcome = match line.ask(stacks, budget_ms, WAIT_MAX).await {
            Ok(found) => {
                if let Some(tried) = self.tried().get_mut(&session) {
                    tried.spent += Duration::from_micros(found.took_us);
                }
                Outcome::Found(found)
            }
            Err(AskError::Busy) => return Ok(Try::Later),
            // The process may reconnect later.
            Err(AskError::Gone | AskError::Left) => return Ok(Try::Done),
            Err(error) => Outcome::Failure(error.to_string()),
        };
        let id = finding.fingerprint(&found.job.name).to_string();
        tracing::info!(job = found.job.name, rank, finding = id, "requested the holders of a leak's blocks");
        let asked = v1::HoldersAsked {
            function: site.function.to_string(),
            file: site.file.to_string(),
            line: site.line,
            lines: finding.all_lines(),
            finding: id,
            unasked: true,
            budget_ms,
            outcome: Some(outcome),
        };
        keep(&*self.store, session, &asked).await?;
        Ok(Try::Done)
    }
}

/// The process to query, and how long its search may take.
struct Asking {
    rank: u32,
    line: Line,
    budget_ms: u32,
}

/// How long a search may take, given the process's age and how long searches have paused it; `None` if it must not be
/// queried now.
fn budget_ms(age: Duration, spent: Duration) -> Option<u32> {
    let left = (age / SHARE).saturating_sub(spent).as_millis();
    let budget_ms = u32::try_from(left).unwrap_or(u32::MAX).min(BUDGET_MS);
    (age >= AGE_MIN && budget_ms >= BUDGET_MS_MIN).then_some(budget_ms)
}

/// How long a search must be to find more than one that ended early, or as much as a complete one.
fn budget_for_more(budget_ms: u32, outcome: &Result<HoldersFound, String>) -> u32 {
    match outcome {
        Ok(found) if is_cut(found) => budget_ms.saturating_mul(2).min(BUDGET_MS),
        Ok(found) => u32::try_from(found.took_us.div_ceil(1_000)).unwrap_or(u32::MAX).min(BUDGET_MS),
        Err(_) => 0,
    }
}

/// Whether growth at a site is certain enough for a query, even if the growth turns out to be bounded.
fn is_fact(finding: &Finding, device_bytes: Option<u64>) -> bool {
    let part = device_bytes.map(|total| total / DEVICE_PART).filter(|part| *part > 0);
    let is_large = finding.live_bytes.zip(part).is_some_and(|(live, part)| live >= part);
    is_large || finding.rises.is_some_and(|rises| rises >= RISES_MIN)
}

/// Whether a process must still be queried about a finding's holders. That is so if there is no answer, if the daemon's
/// own search ended early and explains few blocks, or if the site has grown since the only query.
fn is_open(finding: &Finding) -> bool {
    let Some(holders) = &finding.holders else { return true };
    let Ok(found) = &holders.asked.outcome else { return false };
    if !holders.asked.unasked {
        return false;
    }
    if is_cut(found) {
        return true;
    }
    if found.holders.is_empty() {
        return false;
    }
    // Growth of a holder is known only if the holder has a length.
    let was_asked_once = holders.pace.iter().all(Option::is_none);
    let has_length = found.holders.iter().any(|holder| holder.length.is_some());
    was_asked_once && has_length && finding.live_bytes.is_some_and(|now| has_grown_on(found, now))
}

fn is_cut_short(finding: &Finding) -> bool {
    finding.holders.as_ref().is_some_and(|holders| holders.asked.outcome.as_ref().is_ok_and(is_cut))
}

fn has_grown_on(found: &HoldersFound, live_bytes: u64) -> bool {
    live_bytes >= found.live_bytes.saturating_add(found.live_bytes / GROWN_ON).max(1)
}

/// Whether a session with these answers may be queried about a finding.
fn is_left(before: &[HoldersIndex], finding: &Finding, job: &str) -> bool {
    let sites: HashSet<u64> = before.iter().map(|kept| kept.site).collect();
    let about: Vec<&HoldersIndex> = before.iter().filter(|kept| may_be_about(kept, finding, job)).collect();
    if about.is_empty() {
        return sites.len() < SITES_MAX;
    }
    // A stored answer counts even if it is damaged or left out.
    let count = |says| about.iter().filter(|kept| kept.says == says).count();
    let is_answered = count(Says::Holders) >= ANSWERS_MAX || count(Says::Nothing) > 0;
    !is_answered && about.len() < usize::from(TRIES_MAX)
}

#[cfg(test)]
mod tests {
    use memctl_model::{FindingHolders, FindingKind, Frame, HolderPace, HoldersAsked, Severity, TensorHolder};

    use super::*;
    use crate::store::SqliteStore;

    async fn unasked() -> Unasked {
        Unasked::new(Arc::new(SqliteStore::in_memory().await.unwrap()), Streams::default(), Notifier::default())
    }

    const OLD: Duration = Duration::from_secs(3_600);

    fn turn(unasked: &Unasked, session: SessionKey, site: u64) -> Option<Turn> {
        Some(unasked.turn(session, site, OLD, 0)?.0)
    }

    #[tokio::test]
    async fn a_session_is_asked_about_one_finding_at_a_time_and_about_few_in_all() {
        let unasked = unasked().await;
        let first = turn(&unasked, 1, 100).unwrap();
        assert!(turn(&unasked, 1, 100).is_none() && turn(&unasked, 1, 101).is_none(), "one is under way");
        assert!(turn(&unasked, 2, 100).is_some(), "another session");
        drop(first);
        for site in 101..100 + SITES_MAX as u64 {
            assert!(turn(&unasked, 1, site).is_some());
        }
        assert!(turn(&unasked, 1, 200).is_none(), "one too many");
        // A lost answer is requested again, but not forever.
        for _ in 1..TRIES_MAX {
            assert!(turn(&unasked, 1, 100).is_some());
        }
        assert!(turn(&unasked, 1, 100).is_none());
    }

    #[tokio::test]
    async fn what_is_to_be_asked_again_goes_first_as_long_as_it_may_be() {
        let unasked = unasked().await;
        assert!(!unasked.may_try(1, 100), "it was not asked");
        for _ in 0..TRIES_MAX {
            assert!(unasked.turn(1, 100, OLD, 0).is_some());
            assert_eq!(unasked.may_try(1, 100), unasked.tried()[&1].sites[&100] < TRIES_MAX);
        }
        assert!(!unasked.may_try(1, 100) && !unasked.may_try(2, 100));
    }

    #[tokio::test]
    async fn who_could_not_be_asked_is_asked_later() {
        let unasked = unasked().await;
        for _ in 0..9 {
            let mut turn = turn(&unasked, 1, 100).unwrap();
            turn.counts = false;
        }
        let counted = (0..9).filter(|_| turn(&unasked, 1, 100).is_some()).count();
        assert_eq!(counted, usize::from(TRIES_MAX));
    }

    #[tokio::test]
    async fn searches_take_a_small_part_of_the_time_so_far_and_nothing_of_the_first_seconds() {
        let s = Duration::from_secs;
        assert_eq!(budget_ms(s(3), Duration::ZERO), None);
        assert_eq!(budget_ms(s(4), Duration::ZERO), Some(20));
        assert_eq!(budget_ms(s(10), Duration::ZERO), Some(50));
        assert_eq!(budget_ms(s(10), Duration::from_millis(31)), None, "what is left is not worth it");
        assert_eq!(budget_ms(s(3_600), s(1)), Some(BUDGET_MS));
        assert_eq!(budget_ms(s(200), s(2)), None);
        // A search that ended early is repeated once it may take twice as long.
        let cut = |complete| Ok(HoldersFound { complete, ..HoldersFound::default() });
        assert_eq!(
            [budget_for_more(20, &cut(false)), budget_for_more(80, &cut(false)), budget_for_more(20, &cut(true))],
            [40, 100, 0]
        );
        let whole = Ok(HoldersFound { complete: true, took_us: 30_500, ..HoldersFound::default() });
        assert_eq!(budget_for_more(80, &whole), 31, "a shorter one would say less");
        assert!(unasked().await.turn(1, 100, s(4), 40).is_none() && unasked().await.turn(1, 100, s(8), 40).is_some());
        let unasked = unasked().await;
        unasked.tried().entry(1).or_default().spent = s(18);
        assert!(turn(&unasked, 1, 100).is_none() && turn(&unasked, 2, 100).is_some());
    }

    #[test]
    fn growth_is_a_fact_after_some_rises_or_where_it_takes_a_part_of_the_device() {
        let device = Some(80 << 30);
        let rises = |count| Finding { rises: Some(count), ..finding() };
        assert!(is_fact(&rises(RISES_MIN), None) && !is_fact(&rises(RISES_MIN - 1), device));
        let live = |bytes| Finding { live_bytes: Some(bytes), ..rises(3) };
        assert!(
            is_fact(&live(1 << 30), device) && !is_fact(&live(100 << 20), device) && !is_fact(&live(1 << 30), None)
        );
        // The confidence does not matter.
        let mut suspected = rises(RISES_MIN);
        suspected.is_suspected = true;
        assert!(suspected.is_suspected && may_be_asked_about(&suspected) && is_fact(&suspected, None));
    }

    fn finding() -> Finding {
        let site = Frame { function: "keep".into(), file: "train.py".into(), line: 17 };
        Finding { site: Some(site), ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0]) }
    }

    #[test]
    fn a_search_that_ended_early_and_found_nothing_leaves_the_question_open() {
        let found = |complete| HoldersFound { complete, ..HoldersFound::default() };
        let answered = |unasked, outcome| {
            let asked = HoldersAsked {
                rank: 0,
                process: "rank 0".into(),
                asked_ns: 1,
                unasked,
                budget_ms: BUDGET_MS,
                site: finding().site.unwrap(),
                lines: vec![3],
                finding: String::new(),
                outcome,
            };
            let holders = FindingHolders { asked, growth: Vec::new(), pace: Vec::new(), sentence: String::new() };
            Finding { holders: Some(holders), ..finding() }
        };
        let holders = vec![TensorHolder { length: Some(9), ..TensorHolder::default() }];
        let some = HoldersFound { holders, live_bytes: 100, asked_blocks: 64, found_blocks: 32, ..found(false) };
        assert!(is_open(&answered(true, Ok(HoldersFound { found_blocks: 31, ..some.clone() }))));
        assert!(is_open(&finding()) && is_open(&answered(true, Ok(found(false)))));
        for known in [
            answered(true, Ok(found(true))),
            answered(true, Ok(some.clone())),
            answered(true, Err("it did not say".into())),
            answered(false, Ok(found(false))),
        ] {
            assert!(!is_open(&known), "{:?}", known.holders);
        }
        // The site has grown, so one more query shows how the holder grew.
        let grown = |bytes| Finding { live_bytes: Some(bytes), ..answered(true, Ok(some.clone())) };
        assert!(is_open(&grown(125)) && !is_open(&grown(124)));
        let waits = HoldersFound { holders: vec![TensorHolder::default()], ..some.clone() };
        let waits = Finding { live_bytes: Some(500), ..answered(true, Ok(waits)) };
        assert!(!is_open(&waits), "threads and cycles have no length: they would say the same");
        let pace = HolderPace { since_ns: 1, length_before: 1, length_now: 2, bytes_before: 1, bytes_now: 2 };
        let mut twice = grown(500);
        twice.holders.as_mut().unwrap().pace = vec![Some(pace)];
        assert!(!is_open(&twice));
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
        for (says, tries) in
            [(Says::NoHolder, usize::from(TRIES_MAX)), (Says::Holders, ANSWERS_MAX), (Says::Nothing, 1)]
        {
            for given in 1..=TRIES_MAX.into() {
                let answers = [others(SITES_MAX as u64), vec![kept(17, says); given]].concat();
                assert_eq!(is_left(&answers), given < tries, "{says:?}, {given} times");
            }
        }
    }
}
