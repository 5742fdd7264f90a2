//! Removal: whole jobs, or items oldest first, each call inside the caller's transaction.
//!
//! Guarantees: the counts match the deleted rows, and the sessions' sums follow in the same transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use memctl_proto::v1::ItemKind;
use sqlx::sqlite::SqliteConnection;

use super::{SqliteStore, StoreError, connection};
use crate::store::expiry::{BATCH_ITEMS, FUTURE_NS, Part, victims};
use crate::store::holders::{self, HoldersIndex};
use crate::store::plan::SUM_MAX;
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Expired, SessionKey};

/// Deletes everything of a job, the job itself last.
const DELETE_JOB: [&str; 10] = [
    "DELETE FROM payload WHERE job_id = ?1",
    "DELETE FROM chunk WHERE job_id = ?1",
    "DELETE FROM item WHERE job_id = ?1",
    "DELETE FROM epoch_end WHERE job_id = ?1",
    "DELETE FROM gap WHERE job_id = ?1",
    "DELETE FROM watch WHERE job_id = ?1",
    "DELETE FROM holders WHERE job_id = ?1",
    "DELETE FROM device WHERE job_id = ?1",
    "DELETE FROM session WHERE job_id = ?1",
    "DELETE FROM job WHERE job_id = ?1",
];

type Removal<'t> = Pin<Box<dyn Future<Output = Result<Expired, Fault>> + Send + 't>>;

impl SqliteStore {
    /// Runs a removal in its own transaction.
    pub(super) async fn remove(
        &self,
        removal: impl FnOnce(&mut SqliteConnection) -> Removal<'_> + Send,
    ) -> Result<Expired, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin(&self.place).await?;
        let outcome = removal(&mut tx).await;
        let outcome = connection::finish(tx, outcome).await;
        let gone = writer.settle(&self.place, "removing", outcome)?;
        writer.checkpoint_when_due(&self.place).await;
        Ok(gone)
    }
}

/// Removes a job, if it is still unheard.
pub(super) async fn job_by_age(tx: &mut SqliteConnection, job: i64, cutoff_ns: u64) -> Result<Expired, Fault> {
    let cutoff_ns = i64::try_from(cutoff_ns).unwrap_or(i64::MAX);
    let due: Vec<i64> =
        sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(&mut *tx).await?;
    if due.contains(&job) { whole_job(tx, job, true).await } else { Ok(Expired::default()) }
}

/// Removes a job on request.
pub(super) async fn job_by_hand(tx: &mut SqliteConnection, job: i64) -> Result<Expired, Fault> {
    whole_job(tx, job, false).await
}

async fn whole_job(tx: &mut SqliteConnection, job: i64, by_age: bool) -> Result<Expired, Fault> {
    let sums = sqlx::query(include_str!("sql/job_sums.sql")).bind(job).fetch_one(&mut *tx).await?;
    let (gone, whole) = row_reader::job_sums(&sums)?;
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

/// Corrects what a wrong clock recorded: a time in the future becomes now.
pub(super) async fn heard_too_late(tx: &mut SqliteConnection, now_ns: u64) -> Result<Expired, Fault> {
    let [now_ns, too_late_ns] = [now_ns, now_ns.saturating_add(FUTURE_NS)].map(|ns| ns.min(SUM_MAX).cast_signed());
    sqlx::query(include_str!("sql/heard_too_late.sql")).bind(now_ns).bind(too_late_ns).execute(tx).await?;
    Ok(Expired::default())
}

/// Removes a batch of a job's oldest items, as many as it takes to free `excess_bytes`.
pub(super) async fn items(
    tx: &mut SqliteConnection,
    job: i64,
    part: Part,
    excess_bytes: u64,
) -> Result<Expired, Fault> {
    let oldest = match part {
        Part::Chunks => include_str!("sql/chunks_oldest.sql"),
        Part::Rest => include_str!("sql/rest_oldest.sql"),
    };
    let rows = sqlx::query(oldest).bind(job).bind(BATCH_ITEMS).fetch_all(&mut *tx).await?;
    let candidates = rows.iter().map(row_reader::candidate).collect::<Result<Vec<_>, _>>()?;
    let mut by_session: BTreeMap<SessionKey, Expired> = BTreeMap::new();
    let mut devices = BTreeSet::new();
    for item in victims(candidates, excess_bytes) {
        let (kept_in, part_of_key) = match part {
            Part::Chunks => (include_str!("sql/chunk_delete.sql"), i64::from(item.device)),
            Part::Rest => (include_str!("sql/item_delete.sql"), i64::from(item.kind)),
        };
        let delete = sqlx::query(kept_in).bind(item.job).bind(item.session).bind(part_of_key);
        delete.bind(item.seq.cast_signed()).execute(&mut *tx).await?;
        delete_payload(tx, item.job, item.session, item.seq).await?;
        *by_session.entry(item.session).or_default() += item.gone();
        if item.is_chunk() {
            devices.insert((item.job, item.session, item.device));
        }
    }
    for (job, session, device) in devices {
        *by_session.entry(session).or_default() += idle_keyframes(tx, job, session, device).await?;
    }
    let mut gone = Expired::default();
    for (session, went) in by_session {
        sqlx::query(include_str!("sql/session_expired.sql"))
            .bind(session)
            .bind(went.bytes.cast_signed())
            .bind(went.events.cast_signed())
            .bind(went.items.cast_signed())
            .execute(&mut *tx)
            .await?;
        gone += went;
    }
    Ok(gone)
}

/// Removes the keyframes that no remaining chunk of the device needs.
async fn idle_keyframes(
    tx: &mut SqliteConnection,
    job: i64,
    session: SessionKey,
    device: u8,
) -> Result<Expired, Fault> {
    let kind = i64::from(ItemKind::Keyframe as i32);
    let idle = sqlx::query(include_str!("sql/keyframes_idle.sql"))
        .bind(job)
        .bind(session)
        .bind(kind)
        .bind(i64::from(device))
        .fetch_all(&mut *tx)
        .await?;
    let mut gone = Expired::default();
    for row in &idle {
        let seq = row.word(0)?;
        gone += Expired { items: 1, bytes: row.word(1)?, ..Expired::default() };
        let delete = sqlx::query(include_str!("sql/item_delete.sql")).bind(job).bind(session).bind(kind);
        delete.bind(seq.cast_signed()).execute(&mut *tx).await?;
        delete_payload(tx, job, session, seq).await?;
    }
    Ok(gone)
}

async fn delete_payload(tx: &mut SqliteConnection, job: i64, session: SessionKey, seq: u64) -> Result<(), Fault> {
    let delete = sqlx::query(include_str!("sql/payload_delete.sql")).bind(job).bind(session).bind(seq.cast_signed());
    delete.execute(tx).await?;
    Ok(())
}

/// Removes the analyser's state of a job.
pub(super) async fn watches(tx: &mut SqliteConnection, job: i64) -> Result<Expired, Fault> {
    let rows = sqlx::query(include_str!("sql/watches_delete.sql")).bind(job).fetch_all(tx).await?;
    let mut gone = Expired::default();
    for row in &rows {
        gone.bytes = gone.bytes.saturating_add(row.small(0)?);
    }
    Ok(gone)
}

/// Removes a job's oldest answers about holders, as many as it takes to free `excess_bytes`.
pub(super) async fn holders(tx: &mut SqliteConnection, job: i64, excess_bytes: u64) -> Result<Expired, Fault> {
    let rows = sqlx::query(include_str!("sql/holders_kept.sql")).bind(job).fetch_all(&mut *tx).await?;
    let kept = rows.iter().map(row_reader::holders_index).collect::<Result<Vec<_>, _>>()?;
    let bytes = delete_holders(tx, job, &holders::victims(kept, excess_bytes)).await?;
    Ok(Expired { bytes, ..Expired::default() })
}

/// Removes answers about holders; returns the bytes of those that still existed.
pub(super) async fn delete_holders(
    tx: &mut SqliteConnection,
    job: i64,
    victims: &[HoldersIndex],
) -> Result<u64, Fault> {
    let mut bytes = 0_u64;
    for row in victims {
        let delete = sqlx::query(include_str!("sql/holders_delete.sql")).bind(job).bind(row.session);
        let deleted = delete.bind(row.asked_ns.cast_signed()).execute(&mut *tx).await?;
        bytes = bytes.saturating_add(row.spends() * deleted.rows_affected());
    }
    Ok(bytes)
}
