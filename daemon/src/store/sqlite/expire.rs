//! Removing: jobs whole, chunks oldest first, each call inside the caller's transaction.
//!
//! Guarantees: what is counted as gone is what was deleted, and the sessions' sums follow in the same transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use memctl_proto::v1::ItemKind;
use sqlx::sqlite::SqliteConnection;

use super::{SqliteStore, StoreError, connection};
use crate::store::cells::{self, Cells, Fault};
use crate::store::expiry::{BATCH_CHUNKS, victims};
use crate::store::rows::{Expired, SessionKey};

/// Everything of a job, the job itself last.
const DELETE_JOB: [&str; 8] = [
    "DELETE FROM payload WHERE job_id = ?1",
    "DELETE FROM chunk WHERE job_id = ?1",
    "DELETE FROM item WHERE job_id = ?1",
    "DELETE FROM epoch_end WHERE job_id = ?1",
    "DELETE FROM gap WHERE job_id = ?1",
    "DELETE FROM device WHERE job_id = ?1",
    "DELETE FROM session WHERE job_id = ?1",
    "DELETE FROM job WHERE job_id = ?1",
];

type Removal<'t> = Pin<Box<dyn Future<Output = Result<Expired, Fault>> + Send + 't>>;

impl SqliteStore {
    /// Runs a removal in a transaction of its own.
    pub(super) async fn remove(
        &self,
        removal: impl FnOnce(&mut SqliteConnection) -> Removal<'_> + Send,
    ) -> Result<Expired, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = removal(&mut tx).await;
        let outcome = connection::finish(tx, outcome).await;
        let gone = writer.settle(&self.place, "removing", outcome)?;
        // Freeing pages writes little, but it writes.
        writer.checkpoint_when_due(&self.place, gone.bytes / 16).await;
        Ok(gone)
    }
}

/// Removes a job that is still unheard of.
pub(super) async fn job_by_age(tx: &mut SqliteConnection, job: i64, cutoff_ns: u64) -> Result<Expired, Fault> {
    let cutoff_ns = i64::try_from(cutoff_ns).unwrap_or(i64::MAX);
    let due: Vec<i64> =
        sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(&mut *tx).await?;
    if due.contains(&job) { whole_job(tx, job, true).await } else { Ok(Expired::default()) }
}

/// Removes a job because somebody said so.
pub(super) async fn job_by_hand(tx: &mut SqliteConnection, job: i64) -> Result<Expired, Fault> {
    whole_job(tx, job, false).await
}

async fn whole_job(tx: &mut SqliteConnection, job: i64, by_age: bool) -> Result<Expired, Fault> {
    let sums = sqlx::query(include_str!("sql/job_sums.sql")).bind(job).fetch_one(&mut *tx).await?;
    let (gone, whole) = cells::job_sums(&sums)?;
    let mut deleted = 0;
    for statement in DELETE_JOB {
        deleted = sqlx::query(statement).bind(job).execute(&mut *tx).await?.rows_affected();
    }
    if deleted == 0 {
        return Ok(Expired::default());
    }
    let expired = if by_age { whole.by_age() } else { whole.by_hand() };
    sqlx::query(include_str!("sql/tally_add.sql")).bind(expired).execute(tx).await?;
    Ok(gone)
}

/// Removes a batch of the oldest chunks, of ended sessions first, while more than `limit_bytes` are stored.
pub(super) async fn chunks(tx: &mut SqliteConnection, limit_bytes: u64) -> Result<Expired, Fault> {
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
    let mut by_session: BTreeMap<SessionKey, Expired> = BTreeMap::new();
    let mut devices = BTreeSet::new();
    for chunk in victims(candidates, excess_bytes) {
        let delete = sqlx::query(include_str!("sql/chunk_delete.sql")).bind(chunk.job).bind(chunk.session);
        delete.bind(i64::from(chunk.device)).bind(chunk.seq.cast_signed()).execute(&mut *tx).await?;
        delete_payload(tx, chunk.job, chunk.session, chunk.seq).await?;
        *by_session.entry(chunk.session).or_default() +=
            Expired { chunks: 1, events: chunk.events, bytes: chunk.bytes, ..Expired::default() };
        devices.insert((chunk.job, chunk.session, chunk.device));
    }
    for (job, session, device) in devices {
        by_session.entry(session).or_default().bytes += idle_keyframes(tx, job, session, device).await?;
    }
    for (session, went) in by_session {
        let (bytes, events) = (went.bytes.cast_signed(), went.events.cast_signed());
        sqlx::query(include_str!("sql/session_expired.sql"))
            .bind(session)
            .bind(bytes)
            .bind(events)
            .execute(&mut *tx)
            .await?;
        gone += went;
    }
    Ok(gone)
}

/// Removes the keyframes that no remaining chunk of the device needs; the bytes they took.
async fn idle_keyframes(tx: &mut SqliteConnection, job: i64, session: SessionKey, device: u8) -> Result<u64, Fault> {
    let kind = i64::from(ItemKind::Keyframe as i32);
    let idle = sqlx::query(include_str!("sql/keyframes_idle.sql"))
        .bind(job)
        .bind(session)
        .bind(kind)
        .bind(i64::from(device))
        .fetch_all(&mut *tx)
        .await?;
    let mut bytes = 0;
    for row in &idle {
        let seq = row.word(0)?;
        bytes += row.word(1)?;
        let delete = sqlx::query(include_str!("sql/item_delete.sql")).bind(job).bind(session).bind(kind);
        delete.bind(seq.cast_signed()).execute(&mut *tx).await?;
        delete_payload(tx, job, session, seq).await?;
    }
    Ok(bytes)
}

async fn delete_payload(tx: &mut SqliteConnection, job: i64, session: SessionKey, seq: u64) -> Result<(), Fault> {
    let delete = sqlx::query(include_str!("sql/payload_delete.sql")).bind(job).bind(session).bind(seq.cast_signed());
    delete.execute(tx).await?;
    Ok(())
}
