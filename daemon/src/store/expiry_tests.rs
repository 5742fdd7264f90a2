//! Tests which jobs lose data, and how much, with a store in memory.

use std::sync::Mutex;

use super::*;

fn candidates(bytes: &[u64]) -> Vec<Candidate> {
    (1..)
        .zip(bytes)
        .map(|(seq, &bytes)| Candidate { job: 1, session: 1, device: 0, kind: 1, seq, events: 1, bytes })
        .collect()
}

#[test]
fn no_more_go_than_are_needed() {
    let went = |bytes: &[u64], excess| victims(candidates(bytes), excess).len();
    assert_eq!(went(&[44, 44, 44], 0), 0);
    assert_eq!(went(&[44, 44, 44], 1), 1);
    assert_eq!(went(&[44, 44, 44], 300), 1);
    assert_eq!(went(&[44, 44, 44], 301), 2);
    assert_eq!(went(&[44, 44, 44], 10_000), 3);
    assert_eq!(went(&[u64::MAX, u64::MAX], u64::MAX), 1);
}

/// A job of a tenant: chunks and tables of a MiB each.
#[derive(Clone)]
struct Job {
    spending: Spending,
    chunks: u64,
    tables: u64,
    watch_bytes: u64,
    /// Answers about holders of a MiB each.
    answers: u64,
}

const ITEM_BYTES: u64 = (1 << 20) - ITEM_ROW_BYTES;

struct Shelf(Mutex<Vec<Job>>);

fn job(key: i64, tenant: &str, chunks: u64, tables: u64, is_open: bool) -> Job {
    let heard_ns = 1_000 + key.unsigned_abs();
    let open_heard_ns = if is_open { heard_ns } else { 0 };
    let bytes = (chunks + tables) << 20;
    Job {
        spending: Spending { job: key, tenant: tenant.into(), heard_ns, open_heard_ns, bytes, ..Spending::default() },
        chunks,
        tables,
        watch_bytes: 0,
        answers: 0,
    }
}

#[async_trait]
impl Shrink for Shelf {
    async fn spending(&self) -> Result<Vec<Spending>, StoreError> {
        Ok(self.0.lock().unwrap().iter().map(|job| job.spending.clone()).collect())
    }

    async fn take(&self, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, StoreError> {
        let mut jobs = self.0.lock().unwrap();
        let job = jobs.iter_mut().find(|kept| kept.spending.job == job).unwrap();
        let running = u64::from(job.spending.open_heard_ns > 0);
        let wanted = excess_bytes.div_ceil(1 << 20).min(3);
        let from = if part == Part::Chunks { &mut job.chunks } else { &mut job.tables };
        let kept = if part == Part::Chunks { running } else { 1 };
        let items = wanted.min(from.saturating_sub(kept));
        *from -= items;
        job.spending.bytes -= items << 20;
        Ok(Expired { items, bytes: items * ITEM_BYTES, ..Expired::default() })
    }

    async fn take_watches(&self, job: i64) -> Result<Expired, StoreError> {
        let mut jobs = self.0.lock().unwrap();
        let job = jobs.iter_mut().find(|kept| kept.spending.job == job).unwrap();
        let bytes = std::mem::take(&mut job.watch_bytes);
        job.spending.bytes -= bytes;
        Ok(Expired { bytes, ..Expired::default() })
    }

    async fn take_holders(&self, job: i64, excess_bytes: u64) -> Result<Expired, StoreError> {
        let mut jobs = self.0.lock().unwrap();
        let job = jobs.iter_mut().find(|kept| kept.spending.job == job).unwrap();
        let answers = excess_bytes.div_ceil(1 << 20).min(job.answers);
        job.answers -= answers;
        job.spending.bytes -= answers << 20;
        Ok(Expired { bytes: answers << 20, ..Expired::default() })
    }

    async fn take_job(&self, job: i64, _: u64) -> Result<Expired, StoreError> {
        let mut jobs = self.0.lock().unwrap();
        let at = jobs.iter().position(|kept| kept.spending.job == job).unwrap();
        let job = jobs.remove(at);
        Ok(Expired { jobs: 1, items: job.chunks + job.tables, ..Expired::default() })
    }
}

/// The data that a policy leaves of each job: key, chunks, tables.
async fn left(jobs: &[Job], policy: Retention) -> Vec<(i64, u64, u64)> {
    let shelf = Shelf(Mutex::new(jobs.to_vec()));
    shrink(&shelf, &policy, &mut Losses::default()).await.unwrap();
    shelf.0.into_inner().unwrap().iter().map(|job| (job.spending.job, job.chunks, job.tables)).collect()
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn the_biggest_gives_first_and_stops_where_it_is_like_the_next() {
    let jobs = [job(1, "", 30, 0, false), job(2, "", 10, 0, true), job(3, "", 5, 0, false)];
    let policy = |bytes| Retention { bytes: Some(bytes), ..Retention::default() };
    assert_eq!(left(&jobs, policy(45 * MIB)).await, [(1, 30, 0), (2, 10, 0), (3, 5, 0)]);
    assert_eq!(left(&jobs, policy(25 * MIB)).await, [(1, 10, 0), (2, 10, 0), (3, 5, 0)]);
    let shared = left(&jobs, policy(15 * MIB)).await;
    assert!(shared.iter().all(|(_, chunks, _)| (4..=7).contains(chunks)), "{shared:?}");
}

#[tokio::test]
async fn what_the_judge_keeps_goes_before_jobs_do_and_behind_chunks() {
    let mut with = job(1, "", 4, 8, false);
    with.watch_bytes = 3 * MIB;
    with.spending.bytes += with.watch_bytes;
    let policy = |mib| Retention { bytes: Some(mib * MIB), ..Retention::default() };
    let left_of = |jobs: Vec<Job>, policy| async move {
        let shelf = Shelf(Mutex::new(jobs));
        shrink(&shelf, &policy, &mut Losses::default()).await.unwrap();
        shelf.0.into_inner().unwrap().iter().map(|job| (job.chunks, job.tables, job.watch_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(left_of(vec![with.clone()], policy(12)).await, [(1, 8, 3 * MIB)], "chunks are enough");
    assert_eq!(left_of(vec![with.clone()], policy(9)).await, [(0, 8, 0)], "it is removed, and the job stays");
    assert_eq!(left_of(vec![with], policy(7)).await, []);
}

#[tokio::test]
async fn answers_about_holders_go_behind_what_the_judge_keeps_and_before_jobs_do() {
    let with = |key, tables| {
        let mut with = job(key, "", 4, tables, false);
        (with.watch_bytes, with.answers) = (MIB, 6);
        with.spending.bytes += 7 * MIB;
        with
    };
    let left_of = |jobs: Vec<Job>, policy| async move {
        let shelf = Shelf(Mutex::new(jobs));
        shrink(&shelf, &policy, &mut Losses::default()).await.unwrap();
        let jobs = shelf.0.into_inner().unwrap();
        jobs.iter().map(|job| (job.chunks, job.watch_bytes, job.answers, job.tables)).collect::<Vec<_>>()
    };
    let per_job = |mib| Retention { bytes_per_job: Some(mib * MIB), ..Retention::default() };
    assert_eq!(left_of(vec![with(1, 8)], per_job(15)).await, [(0, MIB, 6, 8)], "chunks are enough");
    assert_eq!(left_of(vec![with(1, 8)], per_job(14)).await, [(0, 0, 6, 8)]);
    assert_eq!(left_of(vec![with(1, 8)], per_job(11)).await, [(0, 0, 3, 8)], "no more than is needed");
    assert_eq!(left_of(vec![with(1, 8)], per_job(5)).await, [(0, 0, 0, 5)], "tables are removed last");
    // Two equal jobs lose data in turns, and no job is removed while there are answers.
    let policy = Retention { bytes: Some(20 * MIB), ..Retention::default() };
    assert_eq!(left_of(vec![with(1, 8), with(2, 8)], policy).await, [(0, 0, 2, 8), (0, 0, 2, 8)]);
}

#[tokio::test]
async fn a_tenant_within_its_quota_keeps_what_it_has() {
    let jobs = [job(1, "quiet", 10, 0, false), job(2, "noisy", 80, 2, true), job(3, "noisy", 60, 0, false)];
    let quota =
        |total: Option<u64>, tenant| Retention { bytes: total, bytes_per_tenant: Some(tenant), ..Retention::default() };
    let kept = left(&jobs, quota(None, 20 * MIB)).await;
    assert_eq!(kept[0], (1, 10, 0));
    assert_eq!(kept[1..].iter().map(|(_, chunks, tables)| chunks + tables).sum::<u64>(), 20);
    // The same holds if a tenant's chunks do not suffice: its tables are removed before the other tenant's chunks.
    let jobs = [job(1, "quiet", 10, 0, false), job(2, "noisy", 5, 60, true)];
    let only_all = Retention { bytes: Some(25 * MIB), ..Retention::default() };
    assert_eq!(left(&jobs, only_all).await, [(1, 10, 0), (2, 1, 14)]);
    let jobs = [job(1, "quiet", 10, 0, false), job(2, "noisy", 80, 2, true), job(3, "noisy", 60, 0, false)];
    // The whole store's limit takes from the largest user.
    let kept = left(&jobs, quota(Some(25 * MIB), 20 * MIB)).await;
    assert_eq!(kept[0], (1, 10, 0));
    assert_eq!(kept[1..].iter().map(|(_, chunks, tables)| chunks + tables).sum::<u64>(), 15);
}

#[tokio::test]
async fn a_job_has_a_quota_of_its_own_and_does_not_go_whole_for_it() {
    let jobs = [job(1, "", 4, 8, false), job(2, "", 30, 0, true)];
    let policy = Retention { bytes_per_job: Some(6 * MIB), ..Retention::default() };
    assert_eq!(left(&jobs, policy).await, [(1, 0, 6), (2, 6, 0)]);
}

#[tokio::test]
async fn when_chunks_are_not_enough_the_oldest_ended_job_goes_before_a_running_one_gives_its_tables() {
    let jobs = [job(1, "", 1, 10, true), job(2, "", 1, 10, false), job(3, "", 1, 10, false)];
    let policy = |mib: u64| Retention { bytes: Some(mib * MIB), ..Retention::default() };
    assert_eq!(left(&jobs, policy(31)).await, [(1, 1, 10), (2, 0, 10), (3, 0, 10)]);
    assert_eq!(left(&jobs, policy(25)).await, [(1, 1, 10), (3, 0, 10)]);
    assert_eq!(left(&jobs, policy(5)).await, [(1, 1, 4)]);
    assert_eq!(left(&jobs, policy(0)).await, [(1, 1, 1)], "the latest data of a running job stays");
}

#[test]
fn age_counts_from_what_was_stored_last() {
    assert_eq!(cutoff(1_000, Some(900), 100), 800);
    assert_eq!(cutoff(1_000_000, Some(900), 100), 800, "a clock that jumps forward makes nothing old");
    assert_eq!(cutoff(500, Some(900), 100), 400, "a clock that went back does not either");
    assert_eq!(cutoff(1_000, None, 100), 0);
}
