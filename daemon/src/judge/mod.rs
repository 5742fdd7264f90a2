//! The judge: watches jobs and reports findings about them, for queries and for alerts.
//!
//! Guarantees: ingest is never blocked: the judge reads committed data, and it rests twenty times as long as it worked.
//! Memory is bounded in bytes. Idle jobs are dropped first. A job that alone exceeds the limit is not judged, and a
//! finding states this. A fault while a job is judged drops the state of that job and yields a finding; other jobs are
//! not affected.
//!
//! Refuses: to store verdicts. They are computed from the current state, so they are never stale.
//!
//! (Over 400 lines: one type, with the ways in which a job is judged.)

mod ahead;
mod event_findings;
#[cfg(not(target_family = "wasm"))]
mod figures;
#[cfg(not(target_family = "wasm"))]
mod holder_requests;
pub(crate) mod holders;
mod job_watch;
mod judgement;
mod lost;
mod range;
mod saved_state;
mod session_boundaries;
#[cfg(not(target_family = "wasm"))]
mod task;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memctl_analysis::judge::Activity;
use memctl_analysis::{coverage, judge, oom};
use memctl_answers::naming::shell_word;
use memctl_model::{EvidenceValue, Finding, FindingKind, JobState, Sample, Severity};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::clock::now_ns;
use crate::event_analysis::{Explained, explain, name_job, name_processes};
use crate::job_data::job::state;
use crate::job_data::{FoundJob, ReadError};
use crate::memory;
use crate::store::{SessionKey, Store};
use crate::streams::Streams;
use crate::summaries::Summaries;
use crate::supervise;
use job_watch::JobWatch;
use job_watch::Watched;
pub(crate) use judgement::Judgement;
pub use range::Range;
pub(crate) use session_boundaries::Levels;
#[cfg(not(target_family = "wasm"))]
pub use task::Judging;

/// Settings of the judge.
#[derive(Clone, Copy, Debug)]
pub struct JudgeSettings {
    /// Whether jobs are judged while their data arrives.
    pub on: bool,
    /// Bytes that the watches of all jobs may take.
    pub memory: usize,
}

impl Default for JudgeSettings {
    fn default() -> Self {
        Self { on: true, memory: usual_memory() }
    }
}

/// The watches may take one part in [`SHARE`] of this process's memory limit, but at least [`MEMORY_MIN`].
const SHARE: u64 = 4;
const MEMORY_MIN: u64 = 256 << 20;

/// The most jobs with a state at a time, regardless of its size. The summaries show as many.
const JOBS_KEPT: usize = 1_024;

/// The memory limit of the watches, unless it is configured.
#[must_use]
pub fn usual_memory() -> usize {
    usize::try_from((memory::allowed_bytes() / SHARE).max(MEMORY_MIN)).unwrap_or(usize::MAX)
}

/// The judge; see the module.
#[derive(Clone)]
pub struct Judge {
    store: Arc<dyn Store>,
    streams: Streams,
    summaries: Summaries,
    jobs: Arc<Mutex<Jobs>>,
    /// Limit of the bytes that the watches of all jobs take. With 500 sites, a device takes about 1 MB.
    memory: usize,
    /// Limits queries about parts of jobs to one at a time, because their watches are not kept.
    apart: Arc<Semaphore>,
    /// Places for devices with a forecast, over all jobs.
    ahead: Arc<Semaphore>,
    /// Nanoseconds that forecasts took. Forecasts have a share of processor time of their own (see `ahead`).
    ahead_ns: Arc<AtomicU64>,
    /// Whether running processes may be searched for holders.
    holders: bool,
    /// When the daemon began to listen, ns since the Unix epoch; `None` if it only reads.
    listens_since_ns: Option<u64>,
}

/// Processes that outlive a daemon try to reach the next one at least every ten seconds.
const LISTENED_MIN_NS: u64 = 60_000_000_000;

#[derive(Default)]
struct Jobs {
    /// The number of queries so far; it orders the jobs by their last query.
    clock: u64,
    known: HashMap<i64, JobEntry>,
}

#[derive(Default)]
struct JobEntry {
    asked: u64,
    bytes: usize,
    /// The reason why the job is no longer judged: it would take too much memory.
    too_large: Option<String>,
    /// Whether the log already reports that answers about holders were left out.
    is_cut: bool,
    watch: Arc<tokio::sync::Mutex<WatchedJob>>,
}

/// The judge's state of a job.
#[derive(Default)]
struct WatchedJob {
    watch: JobWatch,
    explained: Option<event_findings::CachedFindings>,
    ahead: ahead::Looks,
}

impl Judge {
    /// The judge of a daemon that processes reach from now on.
    #[must_use]
    pub fn listening(self) -> Self {
        Self { listens_since_ns: Some(now_ns()), ..self }
    }

    /// A judge over a store, whose watches may take `memory` bytes.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, streams: Streams, memory: usize) -> Self {
        let (apart, ahead) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(ahead::DEVICES_MAX)));
        let (summaries, jobs, ahead_ns) = (Summaries::default(), Arc::default(), Arc::default());
        Self { store, streams, summaries, jobs, memory, apart, ahead, ahead_ns, holders: true, listens_since_ns: None }
    }

    /// The judge, with the daemon's setting for searches for holders. The verdict reports if they are off.
    #[must_use]
    pub fn with_holders(self, holders: bool) -> Self {
        Self { holders, ..self }
    }

    /// The summaries that get the figures of judged jobs.
    #[must_use]
    pub fn summaries(&self) -> Summaries {
        self.summaries.clone()
    }

    /// Judges a job. `found` must have all its processes, `asked` those that the query is about. `whole` is true if the
    /// query is about every rank. A fault costs only this job its verdict.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) async fn judgement(
        &self,
        found: &Arc<FoundJob>,
        asked: &Arc<FoundJob>,
        range: Range,
        whole: bool,
    ) -> Result<Judgement, ReadError> {
        let too_large = self.lock().known.get(&found.job.key).and_then(|known| known.too_large.clone());
        if let Some(why) = too_large {
            return self.with_lost(Judgement::failed(unjudged(found, &why, ALLOW_MORE)), found).await;
        }
        let (judge, job, question) = (self.clone(), found.clone(), asked.clone());
        // A task of its own contains a panic. The task ends when it is dropped.
        let mut alone = JoinSet::new();
        alone.spawn(async move { judge.judged(&job, &question, range, whole).await });
        let fault = match alone.join_next().await {
            Some(Ok(Err(error @ ReadError::TooLarge { .. }))) => {
                let why = error.to_string();
                tracing::warn!(
                    job = found.job.name,
                    attempt = found.job.attempt,
                    why,
                    "the job is not judged any more"
                );
                if range == Range::default() {
                    let given_up = JobEntry { too_large: Some(why.clone()), ..JobEntry::default() };
                    self.lock().known.insert(found.job.key, given_up);
                }
                return self.with_lost(Judgement::failed(unjudged(found, &why, ALLOW_MORE)), found).await;
            }
            Some(Ok(Err(error @ (ReadError::Damaged { .. } | ReadError::Expired { .. })))) => {
                let why = error.to_string();
                tracing::error!(job = found.job.name, attempt = found.job.attempt, why, "the job could not be judged");
                self.lock().known.remove(&found.job.key);
                return self.with_lost(Judgement::failed(unjudged(found, &why, NOT_THERE)), found).await;
            }
            Some(Ok(judgement)) => return self.with_lost(judgement?, found).await,
            Some(Err(error)) => supervise::words(error),
            None => "judging ended without a result".to_owned(),
        };
        tracing::error!(job = found.job.name, attempt = found.job.attempt, fault, "the job could not be judged");
        // The state of this job may be inconsistent.
        self.lock().known.remove(&found.job.key);
        self.with_lost(Judgement::failed(unjudged(found, &fault, FAULT)), found).await
    }

    async fn judged(
        &self,
        found: &Arc<FoundJob>,
        asked: &FoundJob,
        range: Range,
        whole: bool,
    ) -> Result<Judgement, ReadError> {
        let activity = self.activity_in(found, range);
        if range != Range::default() {
            let _alone = self.apart.acquire().await.map_err(|_| ReadError::Fault("the judge has ended".to_owned()))?;
            let mut watch = JobWatch::over(range);
            watch.catch_up(&self.store, found, self.memory, &|_| {}).await?;
            let mut findings = judge::findings(&watch.watches(counts_of(found)), activity);
            of_devices(&mut findings, &watch, found, asked, activity);
            return Ok(Judgement::new(findings, &watch, asked, whole));
        }
        let seen = self.watch(found.job.key);
        let mut seen = seen.lock().await;
        let WatchedJob { watch, explained, ahead } = &mut *seen;
        let keep = |bytes| self.keep(found.job.key, bytes);
        // The replay of events has its own tasks, so both run at the same time.
        let (explained, ()) = tokio::try_join!(
            event_findings::look(&self.store, found, explained),
            watch.catch_up(&self.store, found, self.memory, &keep)
        )?;
        let watches = watch.watches(counts_of(found));
        let mut findings = explained.unwrap_or_default().settle(judge::findings(&watches, activity));
        name_processes(&mut findings, found);
        let begun = Instant::now();
        let foreseen = ahead.look((&*self.store, &self.streams, &self.ahead), found, watch, &findings).await;
        self.ahead_ns.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        findings.extend(foreseen);
        of_devices(&mut findings, watch, found, asked, activity);
        Ok(Judgement::new(findings, watch, asked, whole))
    }

    /// Whether a job is still running.
    pub(crate) fn activity(&self, found: &FoundJob) -> Activity {
        if found.goes_on(&self.streams) { Activity::Running } else { Activity::Ended }
    }

    /// Whether a job was still running at the end of a range.
    pub(crate) fn activity_in(&self, found: &FoundJob, range: Range) -> Activity {
        let until_ns = range.times_ns.map_or(u64::MAX, |(_, last)| last);
        let latest = found.devices.iter().filter_map(|device| device.latest.as_ref());
        let went_on = latest.map(|latest| latest.time_ns).any(|time_ns| time_ns > until_ns);
        if went_on { Activity::Running } else { self.activity(found) }
    }

    /// Adds the findings that the sessions' ends yield, and sorts all findings.
    async fn with_lost(&self, mut judgement: Judgement, found: &FoundJob) -> Result<Judgement, ReadError> {
        judgement.holders_allowed = self.holders;
        let findings = &mut judgement.findings;
        let has_listened = self.has_listened();
        let incidents = lost::tell(&*self.store, found, has_listened, |session| state(session, &self.streams)).await?;
        if self.awaits(found) {
            judgement.not_judged.insert(0, coverage::awaited(LISTENED_MIN_NS / 1_000_000_000));
        }
        oom::outcome::add_consequences(findings, &incidents.after_oom);
        findings.extend(incidents.findings);
        judge::sort(findings);
        // The findings are sorted first, so that the most severe ones get the answers if there are more than are read.
        let left_out = holders::tell(&*self.store, found, findings).await?;
        judge::decide(findings);
        judge::sort(findings);
        if left_out > 0 && self.is_first_cut(found.job.key) {
            tracing::warn!(
                job = found.job.name,
                left_out,
                "this job has more stored answers about holders than are read; some are left out"
            );
        }
        name_job(findings, found);
        if !found.goes_on(&self.streams) {
            coverage::of_ended(&mut judgement.not_judged, found.failures());
        }
        Ok(judgement)
    }

    /// Whether processes that outlived an earlier daemon had time to reach this one.
    fn has_listened(&self) -> bool {
        self.listens_since_ns.is_none_or(|since_ns| now_ns().saturating_sub(since_ns) >= LISTENED_MIN_NS)
    }

    /// Whether processes of a job sent nothing for a while and may reach this daemon yet.
    fn awaits(&self, found: &FoundJob) -> bool {
        let is_in = |wanted: JobState| found.sessions.iter().any(|session| state(session, &self.streams) == wanted);
        let may_come_back = || is_in(JobState::Lost) && !is_in(JobState::Running) && !is_in(JobState::Finished);
        !self.has_listened() && may_come_back()
    }

    /// Whether answers of a job are left out for the first time. A job is judged every second, so only the first time
    /// is logged.
    fn is_first_cut(&self, job: i64) -> bool {
        let mut jobs = self.lock();
        jobs.known.get_mut(&job).is_none_or(|known| !std::mem::replace(&mut known.is_cut, true))
    }

    /// The explanations from the events of the ranks in `asked`, and the findings about these ranks. The findings
    /// include growth, because a consequence of growth is not a cause of its own.
    ///
    /// # Errors
    /// The store fails, or a stored item cannot be decoded.
    pub(crate) async fn explained(
        &self,
        asked: &Arc<FoundJob>,
        whole_job: &Arc<FoundJob>,
    ) -> Result<(Explained, Vec<Finding>), ReadError> {
        let seen = self.watch(whole_job.job.key);
        let mut seen = seen.lock().await;
        let keep = |bytes| self.keep(whole_job.job.key, bytes);
        let (mut explained, ()) = tokio::try_join!(
            explain(&self.store, asked),
            seen.watch.catch_up(&self.store, whole_job, self.memory, &keep)
        )?;
        let mut findings =
            explained.settle(judge::findings(&seen.watch.watches(counts_of(asked)), self.activity(whole_job)));
        name_processes(&mut findings, asked);
        holders::tell(&*self.store, asked, &mut findings).await?;
        judge::decide(&mut findings);
        name_job(&mut findings, asked);
        Ok((explained, findings))
    }

    /// The highest value of each measured quantity of a job, if the whole job has been judged.
    pub(crate) async fn highest(&self, job: i64) -> HashMap<(SessionKey, u8), Sample> {
        let watch = self.lock().known.get(&job).map(|known| known.watch.clone());
        match watch {
            Some(seen) => seen.lock().await.watch.highest(),
            None => HashMap::new(),
        }
    }

    /// What the watches know about a job's devices, if the whole job has been judged.
    async fn watched(&self, job: i64) -> Watched {
        let watch = self.lock().known.get(&job).map(|known| known.watch.clone());
        match watch {
            Some(seen) => seen.lock().await.watch.watched(),
            None => Watched::default(),
        }
    }

    /// Drops a deleted job and its entry in the summaries.
    pub(crate) fn forget(&self, job: i64) {
        self.summaries.forget(job);
        self.lock().known.remove(&job);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, job: i64) -> Arc<tokio::sync::Mutex<WatchedJob>> {
        let mut jobs = self.lock();
        jobs.clock += 1;
        let clock = jobs.clock;
        let known = jobs.known.entry(job).or_default();
        known.asked = clock;
        known.watch.clone()
    }

    /// Total time that forecasts took.
    fn looked_ahead(&self) -> Duration {
        Duration::from_nanos(self.ahead_ns.load(Ordering::Relaxed))
    }

    /// Bytes that the watches of all jobs take.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().known.values().map(|known| known.bytes).sum()
    }

    /// The limit of [`Self::bytes`].
    pub(crate) fn bytes_max(&self) -> usize {
        self.memory
    }

    /// Records a job's size while it grows. So the jobs that were not queried for longest are dropped before it has
    /// grown, and all jobs together never take more than twice the limit.
    fn keep(&self, job: i64, bytes: usize) {
        let mut jobs = self.lock();
        if let Some(known) = jobs.known.get_mut(&job) {
            known.bytes = bytes;
        }
        // A job that is too large holds no bytes, so the number of jobs is limited too.
        while jobs.known.len() > 1
            && (jobs.known.len() > JOBS_KEPT
                || jobs.known.values().map(|known| known.bytes).sum::<usize>() > self.memory)
        {
            let oldest = jobs.known.iter().filter(|(key, _)| **key != job).min_by_key(|(_, known)| known.asked);
            let Some(oldest) = oldest.map(|(key, _)| *key) else { break };
            jobs.known.remove(&oldest);
        }
    }
}

/// The remedies of the finding about a job that could not be judged: after a fault, where data are missing, and for a job
/// that is too large.
const FAULT: &str = "This is a fault of memctl: the daemon's log has the details.";
const NOT_THERE: &str = "A part of its stored data is damaged or gone.";
const ALLOW_MORE: &str = "Allow the judge more with `judge_memory` in the daemon's configuration.";

/// The finding that a job could not be judged. Without it the job would look healthy.
fn unjudged(found: &FoundJob, fault: &str, advice: &str) -> Finding {
    let ranks: BTreeSet<u32> = found.sessions.iter().map(|session| session.info.rank).collect();
    let job = shell_word(&found.job.address().to_string());
    Finding {
        title: "This job could not be judged".to_owned(),
        explanation: format!(
            "Judging it failed: {fault}. Leaks, fragmentation and failed requests in it are unknown; the \
             recorded data can still be queried."
        ),
        advice: format!("{advice} `memctl sites --job {job}` and `memctl timeline --job {job}` show the figures."),
        processes: found.sessions.iter().map(|session| found.process_name(session)).collect(),
        all_ranks: ranks.len() > 1,
        evidence: vec![("fault".to_owned(), EvidenceValue::Text(fault.to_owned()))],
        ..Finding::new(FindingKind::Unjudged, Severity::Warning, 1.0, ranks.into_iter().collect())
    }
}

/// If a query covers only some devices of a process, keeps only the growth that these devices show by themselves.
fn of_devices(findings: &mut Vec<Finding>, watch: &JobWatch, found: &FoundJob, asked: &FoundJob, activity: Activity) {
    let is_asked = counts_of(asked);
    let of_asked = asked.by_key();
    if found.devices.iter().all(|row| !of_asked.contains_key(&row.session) || is_asked(row.session, row.info.index.0)) {
        return;
    }
    let own = judge::findings(&watch.watches(is_asked), activity);
    findings.retain(|finding| {
        let shown = |other: &Finding| {
            (other.kind, &other.site, &other.subject) == (finding.kind, &finding.site, &finding.subject)
        };
        !judge::GROWTH.contains(&finding.kind) || own.iter().any(shown)
    });
}

/// Whether a device is among those that were found.
fn counts_of(found: &FoundJob) -> impl Fn(SessionKey, u8) -> bool + '_ {
    |session, device| found.devices_of(session).iter().any(|row| row.info.index.0 == device)
}
