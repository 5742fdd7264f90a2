//! Summaries: figures of jobs from the judge's last round, for clients that read all jobs at once.
//!
//! Guarantees: memory is bounded by `JOBS_KEPT` jobs of at most `DEVICES_KEPT` devices each. A job leaves the summaries
//! [`SHOWN_FOR`] after it has ended, or after its last update. Reading the summaries needs no query, because they never
//! read the store.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memctl_model::{FindingKind, JobState, Severity};

/// How long an ended job is shown; this is three scrapes at the slowest usual interval.
pub const SHOWN_FOR: Duration = Duration::from_secs(15 * 60);
/// The most jobs; the judge keeps as many.
const JOBS_KEPT: usize = 1_024;
/// The maximum number of devices of one job. Further devices are left out.
const DEVICES_KEPT: usize = 16_384;

/// One device of one process.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DeviceFigures {
    /// Its process's rank.
    pub rank: u32,
    /// The name of its process within the job.
    pub process: String,
    /// The host.
    pub host: String,
    /// Its index within the process.
    pub gpu: u8,
    /// Its UUID.
    pub uuid: String,
    /// Whether its process was lost or has failed.
    pub is_lost: bool,
    /// Allocated bytes at the last sample point.
    pub allocated_bytes: Option<u64>,
    /// Reserved bytes at the last sample point.
    pub reserved_bytes: Option<u64>,
    /// The highest allocated bytes.
    pub peak_allocated_bytes: Option<u64>,
    /// Bytes in use on the device.
    pub used_bytes: Option<u64>,
    /// Bytes of the device.
    pub total_bytes: Option<u64>,
    /// Growth of the allocated bytes.
    pub growth_bytes_per_epoch: Option<f64>,
    /// Share of the reserved bytes that no live block uses.
    pub fragmentation_ratio: Option<f64>,
    /// Steps that have ended.
    pub steps: u64,
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFigures {
    /// Its key in the store.
    pub key: i64,
    /// Its name.
    pub name: String,
    /// The tenant that owns the job.
    pub tenant: String,
    /// The number of the run.
    pub run: u32,
    /// The attempt.
    pub attempt: u32,
    /// Its state.
    pub state: JobState,
    /// The number of ranks that it should have.
    pub expected_ranks: Option<u32>,
    /// Processes by their state.
    pub processes: BTreeMap<JobState, u64>,
    /// Epochs that the furthest rank has completed.
    pub epochs: u64,
    /// Steps that the furthest rank has completed.
    pub steps: u64,
    /// Events received, including those that retention has removed.
    pub events: u64,
    /// Events dropped.
    pub dropped: u64,
    /// Failed requests.
    pub ooms: u64,
    /// Allocator retries; `None` if they are not counted.
    pub alloc_retries: Option<u64>,
    /// Time until a device is full.
    pub time_to_oom_seconds: Option<f64>,
    /// The number of findings of each severity and kind.
    pub findings: BTreeMap<(Severity, FindingKind), u64>,
    /// Its devices, by rank.
    pub devices: Vec<DeviceFigures>,
    /// When the figures were taken, in nanoseconds since the Unix epoch.
    pub taken_ns: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    figures: Arc<JobFigures>,
    taken: Instant,
    /// When the job was first found to have ended.
    ended: Option<Instant>,
}

/// The summaries; clones share them.
#[derive(Clone, Default)]
pub struct Summaries {
    jobs: Arc<Mutex<HashMap<i64, Entry>>>,
}

impl Summaries {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Entry>> {
        // Every change is one call, so the data is consistent even if the lock is poisoned.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a job's figures and replaces earlier ones. `silent` is the time since the job last sent data. If a
    /// job has already ended when it is put for the first time, it counts as ended that long ago.
    pub fn put(&self, job: i64, figures: JobFigures, silent: Duration) {
        self.put_at(job, figures, (Instant::now(), silent));
    }

    fn put_at(&self, job: i64, mut figures: JobFigures, (now, silent): (Instant, Duration)) {
        figures.devices.truncate(DEVICES_KEPT);
        let mut jobs = self.lock();
        let before = jobs.get(&job).and_then(|entry| entry.ended);
        let heard = now.checked_sub(silent).unwrap_or(now);
        let ended = (figures.state != JobState::Running).then(|| before.unwrap_or(heard));
        if jobs.len() >= JOBS_KEPT && !jobs.contains_key(&job) {
            jobs.retain(|_, entry| entry.is_shown(now));
            // If the summaries are still full, the least recently updated job is dropped, ended jobs first.
            let oldest = jobs.iter().min_by_key(|(_, entry)| (entry.ended.is_none(), entry.taken)).map(|(job, _)| *job);
            if let Some(oldest) = oldest.filter(|_| jobs.len() >= JOBS_KEPT) {
                jobs.remove(&oldest);
            }
        }
        jobs.insert(job, Entry { figures: Arc::new(figures), taken: now, ended });
    }

    /// Drops a job that no longer exists.
    pub fn forget(&self, job: i64) {
        self.lock().remove(&job);
    }

    /// The jobs to show: running ones first, then by name, run and attempt.
    #[must_use]
    pub fn shown(&self) -> Vec<Arc<JobFigures>> {
        self.shown_at(Instant::now())
    }

    fn shown_at(&self, now: Instant) -> Vec<Arc<JobFigures>> {
        let mut jobs = self.lock();
        jobs.retain(|_, entry| entry.is_shown(now));
        let mut shown: Vec<Arc<JobFigures>> = jobs.values().map(|entry| entry.figures.clone()).collect();
        drop(jobs);
        let order = |job: &JobFigures| {
            (job.state != JobState::Running, job.tenant.clone(), job.name.clone(), job.run, job.attempt)
        };
        shown.sort_by_cached_key(|job| order(job));
        shown
    }
}

impl Entry {
    fn is_shown(&self, now: Instant) -> bool {
        now.duration_since(self.ended.unwrap_or(self.taken)) < SHOWN_FOR
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn job(name: &str, state: JobState) -> JobFigures {
        JobFigures {
            key: 0,
            name: name.into(),
            tenant: "default".into(),
            run: 1,
            attempt: 0,
            state,
            expected_ranks: None,
            processes: BTreeMap::new(),
            epochs: 0,
            steps: 0,
            events: 0,
            dropped: 0,
            ooms: 0,
            alloc_retries: None,
            time_to_oom_seconds: None,
            findings: BTreeMap::new(),
            devices: Vec::new(),
            taken_ns: 0,
        }
    }

    #[test]
    fn jobs_leave_the_summaries_long_after_their_end_or_their_last_update() {
        let (summaries, mut now) = (Summaries::default(), Instant::now());
        let names = |now| summaries.shown_at(now).iter().map(|job| job.name.clone()).collect::<Vec<_>>();
        summaries.put_at(1, job("ended", JobState::Finished), (now, Duration::ZERO));
        summaries.put_at(2, job("running", JobState::Running), (now, Duration::ZERO));
        now += SHOWN_FOR / 2;
        // The job is updated again; the time of its first end counts.
        summaries.put_at(1, job("ended", JobState::Finished), (now, Duration::ZERO));
        summaries.put_at(2, job("running", JobState::Running), (now, Duration::ZERO));
        assert_eq!(names(now), ["running", "ended"]);
        now += SHOWN_FOR / 2;
        assert_eq!(names(now), ["running"]);
        now += SHOWN_FOR / 2;
        assert!(names(now).is_empty());
    }

    #[test]
    fn a_job_that_ended_before_the_daemon_started_is_shown_until_its_time_is_over() {
        let (summaries, now) = (Summaries::default(), Instant::now());
        summaries.put_at(1, job("ended", JobState::Finished), (now, SHOWN_FOR * 2 / 3));
        assert_eq!(summaries.shown_at(now + SHOWN_FOR / 4).len(), 1);
        assert!(summaries.shown_at(now + SHOWN_FOR / 2).is_empty());
    }

    #[test]
    fn one_job_more_takes_the_place_of_one_that_has_ended() {
        let (summaries, mut now) = (Summaries::default(), Instant::now());
        for key in 0..JOBS_KEPT as i64 {
            let state = if key == 700 { JobState::Lost } else { JobState::Running };
            summaries.put_at(key, job(&format!("job-{key}"), state), (now, Duration::ZERO));
            now += Duration::from_millis(1);
        }
        summaries.put_at(-1, job("one more", JobState::Running), (now, Duration::ZERO));
        let shown = summaries.shown_at(now);
        assert_eq!(shown.len(), JOBS_KEPT);
        assert!(shown.iter().any(|job| job.name == "one more") && shown.iter().all(|job| job.name != "job-700"));
        summaries.forget(700);
        summaries.forget(3);
        assert_eq!(summaries.shown_at(now).len(), JOBS_KEPT - 1);
    }
}
