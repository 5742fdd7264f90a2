//! Removal: whole jobs, or items oldest first, one transaction per call.
//!
//! Guarantees: the counts match what this transaction deleted, and the sessions' sums follow in it. Rows are locked in
//! the order job, then sessions ascending, so that appends and removals by other daemons cannot deadlock.

use std::collections::{BTreeMap, BTreeSet};

use memctl_proto::v1::ItemKind;
use sqlx::Executor;
use sqlx::postgres::{PgConnection, PgPool};

use crate::store::expiry::{BATCH_ITEMS, Candidate, FUTURE_NS, Part, victims};
use crate::store::holders::{self, HoldersIndex};
use crate::store::plan::SUM_MAX;
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Expired, SessionKey};

/// Deletes everything of a job, the job itself last.
const DELETE_JOB: [&str; 10] = [
    "DELETE FROM memctl.payload WHERE job_id = $1",
    "DELETE FROM memctl.chunk WHERE job_id = $1",
    "DELETE FROM memctl.item WHERE job_id = $1",
    "DELETE FROM memctl.epoch_end WHERE job_id = $1",
    "DELETE FROM memctl.gap WHERE job_id = $1",
    "DELETE FROM memctl.watch WHERE job_id = $1",
    "DELETE FROM memctl.holders WHERE job_id = $1",
    "DELETE FROM memctl.device WHERE job_id = $1",
    "DELETE FROM memctl.session WHERE job_id = $1",
    "DELETE FROM memctl.job WHERE job_id = $1",
];

/// Removes a job, if it is still unheard.
pub(super) async fn job_by_age(pool: &PgPool, job: i64, cutoff_ns: u64) -> Result<Expired, Fault> {
    whole_job(pool, job, Some(i64::try_from(cutoff_ns).unwrap_or(i64::MAX))).await
}

/// Removes a job on request.
pub(super) async fn job_by_hand(pool: &PgPool, job: i64) -> Result<Expired, Fault> {
    whole_job(pool, job, None).await
}

async fn whole_job(pool: &PgPool, job: i64, unheard_since_ns: Option<i64>) -> Result<Expired, Fault> {
    let mut tx = pool.begin().await?;
    // A large job takes a while, but not without limit.
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
    let (gone, whole) = row_reader::job_sums(&sums)?;
    for statement in DELETE_JOB {
        sqlx::query(statement).bind(job).execute(&mut *tx).await?;
    }
    let expired = if unheard_since_ns.is_some() { whole.by_age() } else { whole.by_hand() };
    sqlx::query(include_str!("sql/tally_add.sql")).bind(expired).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(gone)
}

/// Corrects what a wrong clock recorded: a time in the future becomes now.
pub(super) async fn heard_too_late(pool: &PgPool, now_ns: u64) -> Result<(), Fault> {
    let [now_ns, too_late_ns] = [now_ns, now_ns.saturating_add(FUTURE_NS)].map(|ns| ns.min(SUM_MAX).cast_signed());
    sqlx::query(include_str!("sql/heard_too_late.sql")).bind(now_ns).bind(too_late_ns).execute(pool).await?;
    Ok(())
}

/// Removes a batch of a job's oldest items, as many as it takes to free `excess_bytes`.
pub(super) async fn items(pool: &PgPool, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, Fault> {
    let mut tx = pool.begin().await?;
    let oldest = match part {
        Part::Chunks => include_str!("sql/chunks_oldest.sql"),
        Part::Rest => include_str!("sql/rest_oldest.sql"),
    };
    let rows = sqlx::query(oldest).bind(job).bind(BATCH_ITEMS).fetch_all(&mut *tx).await?;
    let candidates = rows.iter().map(row_reader::candidate).collect::<Result<Vec<_>, _>>()?;
    let victims = victims(candidates, excess_bytes);
    let sessions: BTreeSet<SessionKey> = victims.iter().map(|item| item.session).collect();
    let sessions: Vec<SessionKey> = sessions.into_iter().collect();
    sqlx::query(include_str!("sql/sessions_lock.sql")).bind(sessions).fetch_all(&mut *tx).await?;
    let mut gone = Expired::default();
    for (session, went) in delete(&mut tx, &victims, part).await? {
        sqlx::query(include_str!("sql/session_expired.sql"))
            .bind(session)
            .bind(went.bytes.cast_signed())
            .bind(went.events.cast_signed())
            .bind(went.items.cast_signed())
            .execute(&mut *tx)
            .await?;
        gone += went;
    }
    tx.commit().await?;
    Ok(gone)
}

/// Deletes items and the keyframes that no remaining chunk needs; returns what was removed of each session.
async fn delete(
    tx: &mut PgConnection,
    victims: &[Candidate],
    part: Part,
) -> Result<BTreeMap<SessionKey, Expired>, Fault> {
    let mut by_session: BTreeMap<SessionKey, Expired> = BTreeMap::new();
    let mut devices = BTreeSet::new();
    let statement = match part {
        Part::Chunks => include_str!("sql/chunks_delete.sql"),
        Part::Rest => include_str!("sql/rest_delete.sql"),
    };
    let part_of_key = |item: &Candidate| match part {
        Part::Chunks => i64::from(item.device),
        Part::Rest => i64::from(item.kind),
    };
    let deleted = sqlx::query(statement)
        .bind(victims.iter().map(|item| item.job).collect::<Vec<_>>())
        .bind(victims.iter().map(|item| item.session).collect::<Vec<_>>())
        .bind(victims.iter().map(part_of_key).collect::<Vec<_>>())
        .bind(victims.iter().map(|item| item.seq.cast_signed()).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await?;
    let mut payloads = Vec::new();
    for row in &deleted {
        let item = row_reader::candidate(row)?;
        *by_session.entry(item.session).or_default() += item.gone();
        if item.is_chunk() {
            devices.insert((item.job, item.session, item.device));
        }
        payloads.push((item.job, item.session, item.seq));
    }
    let kind = i64::from(ItemKind::Keyframe as i32);
    for (job, session, device) in devices {
        let query = sqlx::query(include_str!("sql/keyframes_idle.sql")).bind(job).bind(session).bind(kind);
        let mut seqs = Vec::new();
        for row in query.bind(i64::from(device)).fetch_all(&mut *tx).await? {
            seqs.push(row.int(0)?);
            payloads.push((job, session, row.word(0)?));
            *by_session.entry(session).or_default() += Expired { items: 1, bytes: row.word(1)?, ..Expired::default() };
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

/// Removes the analyser's state of a job.
pub(super) async fn watches(pool: &PgPool, job: i64) -> Result<Expired, Fault> {
    let rows = sqlx::query(include_str!("sql/watches_delete.sql")).bind(job).fetch_all(pool).await?;
    let mut gone = Expired::default();
    for row in &rows {
        gone.bytes = gone.bytes.saturating_add(row.small(0)?);
    }
    Ok(gone)
}

/// Removes a job's oldest answers about holders, as many as it takes to free `excess_bytes`.
pub(super) async fn holders(pool: &PgPool, job: i64, excess_bytes: u64) -> Result<Expired, Fault> {
    let mut tx = pool.begin().await?;
    let rows = sqlx::query(include_str!("sql/holders_kept.sql")).bind(job).fetch_all(&mut *tx).await?;
    let kept = rows.iter().map(row_reader::holders_index).collect::<Result<Vec<_>, _>>()?;
    let bytes = delete_holders(&mut tx, job, &holders::victims(kept, excess_bytes)).await?;
    tx.commit().await?;
    Ok(Expired { bytes, ..Expired::default() })
}

/// Removes answers about holders; returns the bytes of those that still existed.
pub(super) async fn delete_holders(tx: &mut PgConnection, job: i64, victims: &[HoldersIndex]) -> Result<u64, Fault> {
    let mut bytes = 0_u64;
    for row in victims {
        let delete = sqlx::query(include_str!("sql/holders_delete.sql")).bind(job).bind(row.session);
        let deleted = delete.bind(row.asked_ns.cast_signed()).execute(&mut *tx).await?;
        bytes = bytes.saturating_add(row.spends() * deleted.rows_affected());
    }
    Ok(bytes)
}
