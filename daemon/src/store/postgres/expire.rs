//! Removing: jobs whole, chunks oldest first, one transaction a call.
//!
//! Guarantees: what is counted as gone is what this transaction deleted, and the sessions' sums follow in it. Rows
//! are locked in the order job, sessions ascending, so that appends and other daemons' removals cannot deadlock.

use std::collections::{BTreeMap, BTreeSet};

use memctl_proto::v1::ItemKind;
use sqlx::Executor;
use sqlx::postgres::{PgConnection, PgPool};

use crate::store::cells::{self, Cells, Fault};
use crate::store::expiry::{BATCH_CHUNKS, Candidate, victims};
use crate::store::rows::{Expired, SessionKey};

/// Everything of a job, the job itself last.
const DELETE_JOB: [&str; 8] = [
    "DELETE FROM memctl.payload WHERE job_id = $1",
    "DELETE FROM memctl.chunk WHERE job_id = $1",
    "DELETE FROM memctl.item WHERE job_id = $1",
    "DELETE FROM memctl.epoch_end WHERE job_id = $1",
    "DELETE FROM memctl.gap WHERE job_id = $1",
    "DELETE FROM memctl.device WHERE job_id = $1",
    "DELETE FROM memctl.session WHERE job_id = $1",
    "DELETE FROM memctl.job WHERE job_id = $1",
];

/// Removes a job that is still unheard of.
pub(super) async fn job_by_age(pool: &PgPool, job: i64, cutoff_ns: u64) -> Result<Expired, Fault> {
    whole_job(pool, job, Some(i64::try_from(cutoff_ns).unwrap_or(i64::MAX))).await
}

/// Removes a job because somebody said so.
pub(super) async fn job_by_hand(pool: &PgPool, job: i64) -> Result<Expired, Fault> {
    whole_job(pool, job, None).await
}

async fn whole_job(pool: &PgPool, job: i64, unheard_since_ns: Option<i64>) -> Result<Expired, Fault> {
    let mut tx = pool.begin().await?;
    // A large job takes a while; it is bounded all the same.
    tx.execute("SET LOCAL statement_timeout = '15min'").await?;
    let locked = sqlx::query(include_str!("sql/job_lock.sql")).bind(job).fetch_optional(&mut *tx).await?;
    if locked.is_none() {
        return Ok(Expired::default());
    }
    let sessions: Vec<SessionKey> =
        sqlx::query_scalar(include_str!("sql/job_sessions.sql")).bind(job).fetch_all(&mut *tx).await?;
    sqlx::query(include_str!("sql/sessions_lock.sql")).bind(sessions).fetch_all(&mut *tx).await?;
    if let Some(cutoff_ns) = unheard_since_ns {
        let due: Vec<i64> =
            sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(&mut *tx).await?;
        if !due.contains(&job) {
            return Ok(Expired::default());
        }
    }
    let sums = sqlx::query(include_str!("sql/job_sums.sql")).bind(job).fetch_one(&mut *tx).await?;
    let (gone, whole) = cells::job_sums(&sums)?;
    for statement in DELETE_JOB {
        sqlx::query(statement).bind(job).execute(&mut *tx).await?;
    }
    let expired = if unheard_since_ns.is_some() { whole.by_age() } else { whole.by_hand() };
    sqlx::query(include_str!("sql/tally_add.sql")).bind(expired).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(gone)
}

/// Removes a batch of the oldest chunks, of ended sessions first, while more than `limit_bytes` are stored.
pub(super) async fn chunks(pool: &PgPool, limit_bytes: u64) -> Result<Expired, Fault> {
    let mut tx = pool.begin().await?;
    let totals = cells::totals(&sqlx::query(include_str!("sql/totals.sql")).fetch_one(&mut *tx).await?)?;
    let excess_bytes = totals.stored_bytes.saturating_sub(limit_bytes);
    let mut gone = Expired::default();
    if excess_bytes == 0 {
        return Ok(gone);
    }
    let mut rows = Vec::new();
    for ended in [true, false] {
        if rows.is_empty() {
            let query = sqlx::query(include_str!("sql/expiry_candidates.sql")).bind(ended).bind(BATCH_CHUNKS);
            rows = query.fetch_all(&mut *tx).await?;
        }
    }
    let candidates = rows.iter().map(cells::candidate).collect::<Result<Vec<_>, _>>()?;
    let victims = victims(candidates, excess_bytes);
    let sessions: BTreeSet<SessionKey> = victims.iter().map(|chunk| chunk.session).collect();
    let sessions: Vec<SessionKey> = sessions.into_iter().collect();
    sqlx::query(include_str!("sql/sessions_lock.sql")).bind(sessions).fetch_all(&mut *tx).await?;
    for (session, went) in delete(&mut tx, &victims).await? {
        let (bytes, events) = (went.bytes.cast_signed(), went.events.cast_signed());
        sqlx::query(include_str!("sql/session_expired.sql"))
            .bind(session)
            .bind(bytes)
            .bind(events)
            .execute(&mut *tx)
            .await?;
        gone += went;
    }
    tx.commit().await?;
    Ok(gone)
}

/// Deletes chunks and the keyframes that no remaining chunk needs; what went of each session.
async fn delete(tx: &mut PgConnection, victims: &[Candidate]) -> Result<BTreeMap<SessionKey, Expired>, Fault> {
    let mut by_session: BTreeMap<SessionKey, Expired> = BTreeMap::new();
    let mut devices = BTreeSet::new();
    let deleted = sqlx::query(include_str!("sql/chunks_delete.sql"))
        .bind(victims.iter().map(|chunk| chunk.job).collect::<Vec<_>>())
        .bind(victims.iter().map(|chunk| chunk.session).collect::<Vec<_>>())
        .bind(victims.iter().map(|chunk| i64::from(chunk.device)).collect::<Vec<_>>())
        .bind(victims.iter().map(|chunk| chunk.seq.cast_signed()).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await?;
    let mut payloads = Vec::new();
    for row in &deleted {
        let chunk = cells::candidate(row)?;
        *by_session.entry(chunk.session).or_default() +=
            Expired { chunks: 1, events: chunk.events, bytes: chunk.bytes, ..Expired::default() };
        devices.insert((chunk.job, chunk.session, chunk.device));
        payloads.push((chunk.job, chunk.session, chunk.seq));
    }
    let kind = i64::from(ItemKind::Keyframe as i32);
    for (job, session, device) in devices {
        let query = sqlx::query(include_str!("sql/keyframes_idle.sql")).bind(job).bind(session).bind(kind);
        let mut seqs = Vec::new();
        for row in query.bind(i64::from(device)).fetch_all(&mut *tx).await? {
            seqs.push(row.int(0)?);
            payloads.push((job, session, row.word(0)?));
            by_session.entry(session).or_default().bytes += row.word(1)?;
        }
        let query = sqlx::query(include_str!("sql/items_delete.sql")).bind(job).bind(session).bind(kind);
        query.bind(seqs).execute(&mut *tx).await?;
    }
    sqlx::query(include_str!("sql/payloads_delete.sql"))
        .bind(payloads.iter().map(|(job, ..)| *job).collect::<Vec<_>>())
        .bind(payloads.iter().map(|(_, session, _)| *session).collect::<Vec<_>>())
        .bind(payloads.iter().map(|(.., seq)| seq.cast_signed()).collect::<Vec<_>>())
        .execute(tx)
        .await?;
    Ok(by_session)
}
