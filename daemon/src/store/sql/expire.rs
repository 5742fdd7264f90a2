//! Removes whole jobs, or items oldest first, each call inside the caller's transaction.
//!
//! Guarantees: the counts match what this transaction deleted, and it also updates the sessions' sums. In Postgres rows
//! are locked in the order job, then sessions ascending, so that appends and removals by other daemons cannot deadlock.

use std::collections::{BTreeMap, BTreeSet};

use memctl_proto::v1::ItemKind;

use super::query::{Sql, SqlConnection, query, sql};
use super::{Batches, read};
use crate::store::expiry::{BATCH_ITEMS, Candidate, FUTURE_NS, Part, victims};
use crate::store::holders::{self, HoldersIndex};
use crate::store::plan::SUM_MAX;
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Expired, SessionKey};

/// Deletes everything of a job; the job's own row is last.
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

/// Removes a job, if it was not heard from in the meantime.
pub(super) async fn job_by_age<C: Batches>(tx: &mut C, job: i64, cutoff_ns: u64) -> Result<Expired, Fault> {
    tx.lock_job(job).await?;
    let is_due = read::jobs_unheard(tx, cutoff_ns).await?.contains(&job);
    if is_due { whole_job(tx, job, true).await } else { Ok(Expired::default()) }
}

/// Removes a job on request.
pub(super) async fn job_by_hand<C: Batches>(tx: &mut C, job: i64) -> Result<Expired, Fault> {
    tx.lock_job(job).await?;
    whole_job(tx, job, false).await
}

async fn whole_job<C: SqlConnection>(tx: &mut C, job: i64, by_age: bool) -> Result<Expired, Fault> {
    let (gone, whole) = row_reader::job_sums(&tx.one(query(sql!("job_sums")).bind(job)).await?)?;
    let mut deleted = 0;
    for statement in DELETE_JOB {
        deleted = tx.run(query(Sql::Both(statement)).bind(job)).await?;
    }
    if deleted == 0 {
        return Ok(Expired::default());
    }
    let expired = if by_age { whole.by_age() } else { whole.by_hand() };
    tx.run(query(sql!("tally_add")).bind(expired)).await?;
    Ok(gone)
}

/// Corrects times that a wrong clock recorded: a time in the future becomes now.
pub(super) async fn heard_too_late<C: SqlConnection>(tx: &mut C, now_ns: u64) -> Result<(), Fault> {
    let [now_ns, too_late_ns] = [now_ns, now_ns.saturating_add(FUTURE_NS)].map(|ns| ns.min(SUM_MAX));
    tx.run(query(sql!("heard_too_late")).bind(now_ns).bind(too_late_ns)).await?;
    Ok(())
}

/// Removes a batch of a job's oldest items, as many as it takes to free `excess_bytes`, and the keyframes that no
/// remaining chunk needs.
pub(super) async fn items<C: Batches>(tx: &mut C, job: i64, part: Part, excess_bytes: u64) -> Result<Expired, Fault> {
    let oldest = match part {
        Part::Chunks => sql!("chunks_oldest"),
        Part::Rest => sql!("rest_oldest"),
    };
    let rows = tx.all(query(oldest).bind(job).bind(BATCH_ITEMS)).await?;
    let candidates = rows.iter().map(row_reader::candidate).collect::<Result<Vec<_>, _>>()?;
    let victims = victims(candidates, excess_bytes);
    let sessions: BTreeSet<SessionKey> = victims.iter().map(|item| item.session).collect();
    tx.lock_sessions(sessions.into_iter().collect()).await?;
    let mut deleted = tx.delete(victims, part).await?;
    let chunks = deleted.iter().filter(|item| item.is_chunk());
    let devices: BTreeSet<_> = chunks.map(|item| (item.session, item.device)).collect();
    let mut idle = Vec::new();
    for (session, device) in devices {
        idle.extend(idle_keyframes(tx, job, session, device).await?);
    }
    deleted.extend(tx.delete(idle, Part::Rest).await?);
    tx.delete_payloads(&deleted).await?;
    let mut by_session: BTreeMap<SessionKey, Expired> = BTreeMap::new();
    for item in &deleted {
        *by_session.entry(item.session).or_default() += item.gone();
    }
    let mut gone = Expired::default();
    for (session, went) in by_session {
        let update = query(sql!("session_expired")).bind(session).bind(went.bytes).bind(went.events);
        tx.run(update.bind(went.items)).await?;
        gone += went;
    }
    Ok(gone)
}

/// The keyframes that no remaining chunk of the device needs.
async fn idle_keyframes<C: SqlConnection>(
    tx: &mut C,
    job: i64,
    session: SessionKey,
    device: u8,
) -> Result<Vec<Candidate>, Fault> {
    let kind = ItemKind::Keyframe as i32;
    let idle = query(sql!("keyframes_idle")).bind(job).bind(session).bind(i64::from(kind)).bind(device);
    let read = |row: &C::Row| {
        Ok(Candidate { job, session, device: 0, kind, seq: row.word(0)?, events: 0, bytes: row.word(1)? })
    };
    tx.all(idle).await?.iter().map(read).collect()
}

/// Removes the analyser's state of a job.
pub(super) async fn watches<C: SqlConnection>(tx: &mut C, job: i64) -> Result<Expired, Fault> {
    let mut gone = Expired::default();
    for row in &tx.all(query(sql!("watches_delete")).bind(job)).await? {
        gone.bytes = gone.bytes.saturating_add(row.small(0)?);
    }
    Ok(gone)
}

/// Removes a job's oldest answers about holders, as many as it takes to free `excess_bytes`.
pub(super) async fn holders<C: SqlConnection>(tx: &mut C, job: i64, excess_bytes: u64) -> Result<Expired, Fault> {
    let kept = read::holders_kept(tx, job).await?;
    let bytes = delete_holders(tx, job, &holders::victims(kept, excess_bytes)).await?;
    Ok(Expired { bytes, ..Expired::default() })
}

/// Removes answers about holders; returns the bytes of those that still existed.
pub(super) async fn delete_holders<C: SqlConnection>(
    tx: &mut C,
    job: i64,
    victims: &[HoldersIndex],
) -> Result<u64, Fault> {
    let mut bytes = 0_u64;
    for row in victims {
        let delete = query(sql!("holders_delete")).bind(job).bind(row.session).bind(row.asked_ns);
        bytes = bytes.saturating_add(row.spends() * tx.run(delete).await?);
    }
    Ok(bytes)
}
