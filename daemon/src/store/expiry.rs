//! Decides what is removed when a store exceeds its limits; one rule for both databases.
//!
//! Guarantees: everything that a job stores counts: payloads, and the rows of items, sessions, devices and epoch ends.
//! No more is removed than needed. The tenant that uses most loses data first, until it uses no more than the next. Of
//! its jobs, the biggest loses its oldest chunks; chunks of ended sessions go before those of running ones.
//!
//! If a tenant's chunks do not suffice, further data is removed in this order: the analyser's cached state, which is
//! regenerated on request; answers about holders, oldest first; whole ended jobs, oldest first; site tables, marks and
//! samples. The latest data of a running session always stays, and so do stacks.
//!
//! The rule is independent of the database: a store reports what it holds and removes what the rule selects.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use async_trait::async_trait;
use memctl_proto::v1::ItemKind;

use super::StoreError;
use super::losses::{ExpiredJob, Losses};
use super::rows::{Expired, Retention, SessionKey};

/// Items removed per transaction. Removing them takes a few milliseconds, so appends wait no longer than that.
pub(super) const BATCH_ITEMS: i64 = 256;
/// How many bytes two equally large jobs lose in turns.
const STEP_BYTES: u64 = 1 << 20;
/// Size of an item's rows and index entries, measured in SQLite and Postgres.
const ITEM_ROW_BYTES: u64 = 256;
const SESSION_ROW_BYTES: u64 = 512;
pub(super) const SMALL_ROW_BYTES: u64 = 128;
/// A session without an end counts as ended if it was last heard from this long before the store's latest time.
const RUNNING_NS: u64 = 24 * 3_600 * 1_000_000_000;
/// If a session was last heard from this far in the future, the time was recorded by a wrong clock.
pub(super) const FUTURE_NS: u64 = 24 * 3_600 * 1_000_000_000;

/// The stored bytes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spending {
    pub job: i64,
    pub tenant: String,
    /// When any of its sessions was last heard from.
    pub heard_ns: u64,
    /// When a session that has not ended was last heard from; 0 if all have ended.
    pub open_heard_ns: u64,
    /// Its total bytes.
    pub bytes: u64,
    pub name: String,
    pub run: u32,
    pub attempt: u32,
    /// The start of its first session.
    pub started_ns: u64,
}

impl Spending {
    /// The job as one that lost this.
    pub(super) fn lost(&self, gone: Expired) -> ExpiredJob {
        let Self { job, tenant, name, run, attempt, started_ns, .. } = self;
        let (tenant, name) = (tenant.clone(), name.clone());
        ExpiredJob { key: *job, tenant, name, run: *run, attempt: *attempt, started_ns: *started_ns, gone }
    }
}

/// The parts of a job's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JobBytes {
    pub payload_bytes: u64,
    pub items: u64,
    pub sessions: u64,
    pub description_bytes: u64,
    pub watch_bytes: u64,
    pub holders_bytes: u64,
    pub epoch_ends: u64,
    pub epoch_end_bytes: u64,
    /// Devices, gaps and answers about holders.
    pub small_rows: u64,
}

impl JobBytes {
    /// Their sum.
    pub(super) fn bytes(self) -> u64 {
        let Self {
            payload_bytes,
            items,
            sessions,
            description_bytes,
            watch_bytes,
            holders_bytes,
            epoch_ends,
            epoch_end_bytes,
            small_rows,
        } = self;
        [
            payload_bytes,
            items.saturating_mul(ITEM_ROW_BYTES),
            sessions.saturating_mul(SESSION_ROW_BYTES),
            description_bytes,
            watch_bytes,
            holders_bytes,
            epoch_ends.saturating_add(small_rows).saturating_mul(SMALL_ROW_BYTES),
            epoch_end_bytes,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// A part of a job's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Chunks, and the keyframes that no remaining chunk needs.
    Chunks,
    /// Site tables, marks and samples.
    Rest,
}

/// An item that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub job: i64,
    pub session: SessionKey,
    /// The device, for a chunk.
    pub device: u8,
    pub kind: i32,
    pub seq: u64,
    pub events: u64,
    pub bytes: u64,
}

impl Candidate {
    pub(super) fn is_chunk(&self) -> bool {
        self.kind == ItemKind::Chunk as i32
    }

    /// The removal of this item, as counts.
    pub(super) fn gone(&self) -> Expired {
        let Self { events, bytes, .. } = *self;
        Expired { chunks: u64::from(self.is_chunk()), items: 1, events, bytes, ..Expired::default() }
    }
}

/// The first candidates that together free `excess_bytes`; all of them if they do not suffice.
pub(super) fn victims(candidates: Vec<Candidate>, excess_bytes: u64) -> Vec<Candidate> {
    let mut freed = 0_u64;
    candidates
        .into_iter()
        .take_while(|candidate| {
            let wanted = freed < excess_bytes;
            freed = freed.saturating_add(candidate.gone().freed());
            wanted
        })
        .collect()
}

/// A store whose jobs can be made smaller.
#[async_trait]
pub(super) trait Shrink: Sync {
    /// The stored bytes of every job.
    async fn spending(&self) -> Result<Vec<Spending>, StoreError>;
    /// Removes a batch of a job's oldest items, as many as it takes to free `excess_bytes`, in one transaction.
    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError>;
    /// Removes the analyser's cached state of a job.
    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError>;
    /// Removes a job's oldest answers about holders, as many as it takes to free `excess_bytes`.
    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError>;
    /// Removes a job, unless it was heard from after `heard_ns`.
    async fn take_job(&self, job: i64, heard_ns: u64) -> Result<Expired, StoreError>;
}

/// Brings jobs, tenants and the whole store below their limits, and adds what was removed to `losses`.
pub(super) async fn shrink(store: &dyn Shrink, policy: &Retention, losses: &mut Losses) -> Result<(), StoreError> {
    let Retention { age_ns: _, bytes, bytes_per_job, bytes_per_tenant } = *policy;
    if bytes.is_none() && bytes_per_job.is_none() && bytes_per_tenant.is_none() {
        return Ok(());
    }
    let mut books = Books::of(store.spending().await?);
    if let Some(limit) = bytes_per_job {
        for job in books.jobs.iter().map(|spending| spending.job).collect::<Vec<_>>() {
            books.shrink(store, &|spending| spending.job == job, (limit, false), losses).await?;
        }
    }
    if let Some(limit) = bytes_per_tenant {
        let tenants: BTreeSet<String> = books.jobs.iter().map(|spending| spending.tenant.clone()).collect();
        for tenant in tenants {
            books.shrink(store, &|spending| spending.tenant == tenant, (limit, true), losses).await?;
        }
    }
    if let Some(limit) = bytes {
        books.shrink(store, &|_| true, (limit, true), losses).await?;
    }
    Ok(())
}

/// The kinds of data that a tenant loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Chunks,
    Watches,
    Holders,
    EndedJobs,
    Rest,
}

/// The order of removal.
const STAGES: [Stage; 5] = [Stage::Chunks, Stage::Watches, Stage::Holders, Stage::EndedJobs, Stage::Rest];

/// The job and the stage that lose data next. `lead` is by how much the job uses more than the next candidate.
struct Giver {
    at: usize,
    stage: Stage,
    lead: u64,
}

type Scope<'s> = &'s (dyn Fn(&Spending) -> bool + Sync);

struct Books {
    jobs: Vec<Spending>,
    latest_ns: u64,
}

impl Books {
    fn of(jobs: Vec<Spending>) -> Self {
        let latest_ns = jobs.iter().map(|spending| spending.heard_ns).max().unwrap_or(0);
        Self { jobs, latest_ns }
    }

    fn is_running(&self, spending: &Spending) -> bool {
        spending.open_heard_ns > 0 && spending.open_heard_ns >= self.latest_ns.saturating_sub(RUNNING_NS)
    }

    /// Brings the jobs in scope below a limit as far as possible. `whole` allows the removal of ended jobs.
    async fn shrink(
        &mut self,
        store: &dyn Shrink,
        scope: Scope<'_>,
        (limit, whole): (u64, bool),
        losses: &mut Losses,
    ) -> Result<(), StoreError> {
        // Stages and jobs with nothing left to remove.
        let mut spent: BTreeSet<(Stage, i64)> = BTreeSet::new();
        loop {
            let stored = self.jobs.iter().filter(|spending| scope(spending)).map(|spending| spending.bytes);
            let excess = stored.fold(0, u64::saturating_add).saturating_sub(limit);
            let next = if excess > 0 { self.next(scope, whole, &spent) } else { None };
            let Some(Giver { at, stage, lead }) = next else { return Ok(()) };
            let Spending { job, heard_ns, .. } = self.jobs[at];
            let wanted = excess.min(lead.max(STEP_BYTES));
            let went = match stage {
                Stage::Chunks => store.take(job, Part::Chunks, wanted).await?,
                Stage::Watches => store.take_watches(job).await?,
                Stage::Holders => store.take_holders(job, wanted).await?,
                Stage::Rest => store.take(job, Part::Rest, wanted).await?,
                Stage::EndedJobs => store.take_job(job, heard_ns).await?,
            };
            if went == Expired::default() {
                spent.insert((stage, job));
            }
            losses.add(self.jobs[at].lost(went));
            self.jobs[at].bytes = self.jobs[at].bytes.saturating_sub(went.freed());
            if went.jobs > 0 {
                self.jobs.remove(at);
            }
        }
    }

    /// Selects what is removed next, from the tenant that uses most and still has something to remove.
    fn next(&self, scope: Scope<'_>, whole: bool, spent: &BTreeSet<(Stage, i64)>) -> Option<Giver> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for spending in self.jobs.iter().filter(|spending| scope(spending)) {
            let sum = sums.entry(&spending.tenant).or_default();
            *sum = sum.saturating_add(spending.bytes);
        }
        let mut tenants: Vec<(u64, &str)> = sums.into_iter().map(|(tenant, sum)| (sum, tenant)).collect();
        tenants.sort_unstable_by_key(|(sum, _)| Reverse(*sum));
        tenants.iter().enumerate().find_map(|(place, (sum, tenant))| {
            let tenant_lead = sum - tenants.get(place + 1).map_or(0, |(sum, _)| *sum);
            let giver = STAGES.into_iter().find_map(|stage| {
                let may_give = |spending: &Spending| {
                    let in_time = stage != Stage::EndedJobs || (whole && !self.is_running(spending));
                    spending.tenant == *tenant && scope(spending) && in_time && !spent.contains(&(stage, spending.job))
                };
                self.of_tenant(stage, &may_give)
            })?;
            Some(Giver { lead: giver.lead.min(tenant_lead), ..giver })
        })
    }

    /// The job that loses data first at a stage, and by how much it uses more than the next.
    fn of_tenant(&self, stage: Stage, may_give: &dyn Fn(&Spending) -> bool) -> Option<Giver> {
        let mut givers: Vec<(usize, &Spending)> =
            self.jobs.iter().enumerate().filter(|(_, spending)| may_give(spending)).collect();
        match stage {
            Stage::EndedJobs => givers.sort_by_key(|(_, spending)| (spending.heard_ns, spending.job)),
            Stage::Chunks | Stage::Watches | Stage::Holders | Stage::Rest => {
                givers.sort_by_key(|(_, spending)| (Reverse(spending.bytes), spending.job))
            }
        }
        let (at, first) = *givers.first()?;
        let lead = first.bytes.saturating_sub(givers.get(1).map_or(0, |(_, second)| second.bytes));
        Some(Giver { at, stage, lead })
    }
}

impl Expired {
    /// The bytes that the removal freed: payloads and the rows of items. The other rows of a removed job need no count,
    /// because the job leaves the list.
    fn freed(&self) -> u64 {
        self.bytes.saturating_add(self.items.saturating_mul(ITEM_ROW_BYTES))
    }
}

impl AddAssign for Expired {
    fn add_assign(&mut self, more: Self) {
        let Self { jobs, sessions, chunks, events, items, bytes } = more;
        self.jobs += jobs;
        self.sessions += sessions;
        self.chunks += chunks;
        self.events = self.events.saturating_add(events);
        self.items = self.items.saturating_add(items);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Jobs last heard from before this moment are removed by age. The age counts from the latest stored data, so a clock
/// that jumps forward does not make any job old.
pub(super) fn cutoff(now_ns: u64, latest_ns: Option<u64>, age_ns: u64) -> u64 {
    now_ns.min(latest_ns.unwrap_or(0)).saturating_sub(age_ns)
}

#[cfg(test)]
#[path = "expiry_tests.rs"]
mod tests;
