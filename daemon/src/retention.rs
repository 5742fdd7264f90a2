//! Removes the oldest data every minute.
//!
//! Guarantees: data is deleted for its age only if the clock has run long enough without a jump. A clock that has not
//! just jumped and agrees with the latest stored data also suffices. Age counts from the latest stored data, so nothing
//! gets older while no new data arrives. A store that shrinks returns its disk space.
//!
//! A limit that a reload lowers deletes nothing for the first minute, so that a mistake can be corrected. The log names
//! the jobs that lost data. A job that is removed whole has an entry in the audit log, its alerts resolve, and its
//! metrics end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::access::{Caller, Gate};
use crate::alerts::{Alerts, JobFacts};
use crate::clock::{JUMP_NS, Reading, STAND_NS, now_ns, steady};
use crate::ingest::counts::Counts;
use crate::judge::Judge;
use crate::store::{Expired, ExpiredJob, Retention, Scope, Store, StoreError, Tenant};

/// How often it runs.
const EVERY: Duration = Duration::from_secs(60);
/// How long a lower limit waits before it deletes for the first time.
pub const GRACE: Duration = Duration::from_secs(60);
/// The most jobs that a message names.
const NAMED_MAX: usize = 5;

/// The parts of the daemon that retention changes.
#[derive(Clone)]
pub(crate) struct Removing {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) judge: Judge,
    pub(crate) alerts: Alerts,
    pub(crate) gate: Gate,
    /// Has the last failed write, for the daemon's health.
    pub(crate) counts: Arc<Counts>,
}

impl Removing {
    /// Runs until the daemon shuts down, and additionally whenever the policy changes.
    pub(crate) async fn run(self, mut policy: watch::Receiver<Retention>, mut shutting_down: watch::Receiver<bool>) {
        // The time is read before any data arrives that a wrong clock could stamp.
        let mut latest_ns = None;
        let mut limits = Limits::new(*policy.borrow_and_update());
        loop {
            if latest_ns.is_none() {
                latest_ns = self.store.heard_latest().await.unwrap_or_default();
            }
            let (jobs, outcome) = once(&*self.store, limits.at(Instant::now()), steady(), latest_ns).await;
            if !jobs.is_empty() {
                self.report(&jobs).await;
            }
            if let Err(error) = outcome {
                tracing::error!(%error, "retention failed and will be retried");
                self.counts.not_written(&error);
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                Ok(()) = policy.changed() => limits.change(*policy.borrow_and_update(), Instant::now()),
                _ = shutting_down.wait_for(|down| *down) => return,
            }
        }
    }

    /// Logs what was removed, and ends the alerts and metrics of jobs that were removed whole.
    async fn report(&self, jobs: &[ExpiredJob]) {
        let mut gone = Expired::default();
        jobs.iter().for_each(|job| gone += job.gone);
        tracing::info!(
            jobs = gone.jobs,
            chunks = gone.chunks,
            items = gone.items,
            events = gone.events,
            bytes = gone.bytes,
            of = named(jobs.iter(), true),
            "retention removed the oldest"
        );
        let mut whole: BTreeMap<&str, Vec<&ExpiredJob>> = BTreeMap::new();
        for job in jobs.iter().filter(|job| job.gone.jobs > 0) {
            self.judge.forget(job.key);
            let facts = JobFacts::deleted(&job.tenant, &job.name, job.run, job.attempt, job.started_ns);
            self.alerts.observe(&facts, &[], now_ns());
            whole.entry(&job.tenant).or_default().push(job);
        }
        for (tenant, jobs) in whole {
            let caller = Caller { scope: Scope::One(Tenant::stored(tenant)), ..Caller::owner("retention", "") };
            let bytes: u64 = jobs.iter().map(|job| job.gone.bytes).sum();
            let outcome = format!("{} jobs, {bytes} bytes", jobs.len());
            self.gate.audit().done(&caller, "Retention", &named(jobs.into_iter(), false), &outcome).await;
        }
    }
}

/// The names of the jobs that lost most, `vit#2, gpt (and 3 more)`; with their tenants, `red/vit#2`.
fn named<'j>(jobs: impl Iterator<Item = &'j ExpiredJob>, with_tenant: bool) -> String {
    let mut jobs: Vec<&ExpiredJob> = jobs.collect();
    jobs.sort_by_key(|job| std::cmp::Reverse((job.gone.jobs, job.gone.bytes)));
    let name = |job: &&ExpiredJob| {
        let tenant = if with_tenant { format!("{}/", job.tenant) } else { String::new() };
        let attempt = if job.attempt > 0 { format!(" (attempt {})", job.attempt) } else { String::new() };
        format!("{tenant}{}#{}{attempt}", job.name, job.run).escape_debug().to_string()
    };
    let names: Vec<String> = jobs.iter().take(NAMED_MAX).map(name).collect();
    let more = match jobs.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    format!("{}{more}", names.join(", "))
}

/// The limits in force, and those that a reload wants.
struct Limits {
    in_force: Retention,
    wanted: Retention,
    since: Option<Instant>,
}

impl Limits {
    fn new(policy: Retention) -> Self {
        Self { in_force: policy, wanted: policy, since: None }
    }

    /// Takes the limits of a reload. A higher limit is in force at once, a lower one after [`GRACE`]. Limits that are
    /// the same as before change nothing: what waits does not wait longer.
    fn change(&mut self, wanted: Retention, now: Instant) {
        let before = self.at(now);
        if wanted == self.wanted {
            return;
        }
        let highest = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.max(other));
        self.in_force = Retention {
            age_ns: highest(before.age_ns, wanted.age_ns),
            bytes: highest(before.bytes, wanted.bytes),
            bytes_per_job: highest(before.bytes_per_job, wanted.bytes_per_job),
            bytes_per_tenant: highest(before.bytes_per_tenant, wanted.bytes_per_tenant),
        };
        (self.wanted, self.since) = (wanted, Some(now));
        if self.in_force != wanted {
            tracing::warn!(
                seconds = GRACE.as_secs(),
                "a retention limit is lower than before; it deletes data after this time, unless a reload raises it again"
            );
        }
    }

    /// The limits at this moment.
    fn at(&mut self, now: Instant) -> Retention {
        if self.since.is_some_and(|since| now.duration_since(since) >= GRACE) {
            (self.in_force, self.since) = (self.wanted, None);
        }
        self.in_force
    }
}

/// Runs once, at the time of a clock reading. `latest_ns` is the time of the newest data from before this daemon
/// started. Returns the jobs that lost data, and the outcome.
pub async fn once(
    store: &dyn Store,
    retention: Retention,
    reading: Reading,
    latest_ns: Option<u64>,
) -> (Vec<ExpiredJob>, Result<(), StoreError>) {
    let mut policy = retention;
    // Age counts only if the clock has run without a jump for a while, or agrees with the latest stored data.
    let agrees = latest_ns.is_some_and(|latest_ns| reading.now_ns.abs_diff(latest_ns) <= JUMP_NS);
    if reading.stood_ns < STAND_NS && (reading.jumped_ns.is_some() || !agrees) {
        policy.age_ns = None;
    }
    store.expire_jobs(policy, reading.now_ns).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(tenant: &str, name: &str, bytes: u64) -> ExpiredJob {
        let (tenant, name, gone) = (tenant.into(), name.into(), Expired { bytes, ..Expired::default() });
        ExpiredJob { key: 1, tenant, name, run: 2, attempt: u32::from(bytes == 3), started_ns: 1, gone }
    }

    #[test]
    fn a_lower_limit_waits_and_can_be_taken_back() {
        let of = |bytes, age_ns| Retention { bytes, age_ns, ..Retention::default() };
        let (mut now, mut limits) = (Instant::now(), Limits::new(of(Some(9), None)));
        assert_eq!(limits.at(now), of(Some(9), None), "the limits of the start wait for nothing");
        limits.change(of(Some(5), Some(7)), now);
        assert_eq!(limits.at(now + GRACE / 2), of(Some(9), None));
        // The mistake is taken back, and another limit is raised.
        limits.change(of(Some(20), None), now + GRACE / 2);
        assert_eq!(limits.at(now + GRACE / 2), of(Some(20), None));
        assert_eq!(limits.at(now + GRACE * 2), of(Some(20), None));
        now += GRACE * 2;
        limits.change(of(Some(5), Some(7)), now);
        // A further reload, which lowers the limit again, begins the wait again.
        limits.change(of(Some(4), Some(7)), now + GRACE / 2);
        assert_eq!(limits.at(now + GRACE), of(Some(20), None));
        assert_eq!(limits.at(now + GRACE * 3 / 2), of(Some(4), Some(7)));
    }

    #[test]
    fn a_reload_that_changes_no_limit_does_not_delay_a_lower_one() {
        let of = |bytes| Retention { bytes: Some(bytes), ..Retention::default() };
        let (now, mut limits) = (Instant::now(), Limits::new(of(9)));
        limits.change(of(5), now);
        limits.change(of(5), now + GRACE / 2);
        assert_eq!(limits.at(now + GRACE / 2), of(9));
        assert_eq!(limits.at(now + GRACE), of(5));
    }

    #[test]
    fn the_jobs_that_lost_most_are_named() {
        let jobs = [job("red", "vit", 1), job("blue", "gpt", 3), job("red", "forged\n", 2)];
        assert_eq!(named(jobs.iter(), true), "blue/gpt#2 (attempt 1), red/forged\\n#2, red/vit#2");
        let many: Vec<ExpiredJob> = (10..18).map(|bytes| job("red", &format!("job-{bytes}"), bytes)).collect();
        assert_eq!(named(many.iter(), false), "job-17#2, job-16#2, job-15#2, job-14#2, job-13#2 (and 3 more)");
    }
}
