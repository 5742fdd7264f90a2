//! Writes sessions and items, each call inside the caller's transaction.
//!
//! Guarantees: the counts match the inserts, because the sessions' rows are locked before the inserts are planned. In
//! Postgres the rows are locked in ascending order; in SQLite there is only one writer.

use super::query::{SqlConnection, query, sql};
use super::{Batches, expire, read};
use crate::store::StoreError;
use crate::store::holders::{self, HoldersIndex, HoldersRow};
use crate::store::opening::Opening;
use crate::store::plan::{SUM_MAX, checksum, plan, sessions_of};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Append, OpenedSession, SessionKey, WatchRow};
use crate::store::runs::{self, Series};
use crate::store::wire_form;

/// Finds or creates job, session and devices. Fails with [`Fault::Overtaken`] if another writer was faster.
pub(super) async fn open_session<C: SqlConnection>(
    tx: &mut C,
    opening: &Opening<'_>,
    described: &[u8],
) -> Result<OpenedSession, Fault> {
    let Opening { tenant, info, owner, secret, now_ns } = opening;
    let now_ns = (*now_ns).min(SUM_MAX);
    let id = opening.stored_id().0;
    if let Some(row) = tx.optional(query(sql!("session_find")).bind(&id[..])).await? {
        let (opened, held) = row_reader::held(&row)?;
        if !opening.may_continue(&held) {
            return Err(StoreError::Foreign.into());
        }
        tx.run(query(sql!("session_touch")).bind(opened.key).bind(now_ns)).await?;
        return Ok(opened);
    }
    tx.optional(query(sql!("run_lock")).bind(tenant.name()).bind(&info.job[..])).await?;
    let (run, is_there) = series(tx, opening).await?.run_of(info);
    let upsert = query(sql!("job_upsert"))
        .bind(&info.job[..])
        .bind(info.attempt)
        .bind(info.started_ns)
        .bind(info.world_size)
        .bind(wire_form::labels(&info.labels))
        .bind(tenant.name())
        .bind(run)
        .bind(runs::group_of(info))
        .bind(opening.arrived_ns())
        .bind(is_there);
    let job = tx.optional(upsert).await?.ok_or(Fault::Overtaken)?.int(0)?;
    let insert = query(sql!("session_insert"))
        .bind(job)
        .bind(&id[..])
        .bind(info.rank)
        .bind(info.started_ns)
        .bind(described)
        .bind(now_ns)
        .bind(*owner)
        .bind(secret.as_ref().map(|hash| &hash[..]))
        .bind(info.launch.launcher);
    // The rollback also removes a job that this transaction created.
    let key = tx.optional(insert).await?.ok_or(Fault::Overtaken)?.int(0)?;
    for device in &info.devices {
        let insert = query(sql!("device_insert")).bind(job).bind(key).bind(device.index.0);
        tx.run(insert.bind(wire_form::device_info(device))).await?;
    }
    Ok(OpenedSession { key, job, run, durable_seq: 0, ended: false })
}

/// The state of the series that a new session belongs to.
async fn series<C: SqlConnection>(tx: &mut C, opening: &Opening<'_>) -> Result<Series, Fault> {
    let Opening { tenant, info, now_ns, .. } = opening;
    let launcher = info.launch.launcher;
    let of_series = |sql| query(sql).bind(tenant.name()).bind(&info.job[..]);
    let found = tx.one(of_series(sql!("run_series")).bind(launcher).bind(runs::group_of(info))).await?;
    let of_launcher = match found.small_or_null::<u32>(1)? {
        Some(run) => {
            let known = tx.all(of_series(sql!("run_launched")).bind(run).bind(launcher)).await?;
            Some(row_reader::launched(run, &known, info)?)
        }
        None => None,
    };
    let of_group = match found.small_or_null::<u32>(2)? {
        Some(run) => {
            let known = of_series(sql!("run_group")).bind(run).bind(info.attempt).bind(info.rank);
            let known = tx.one(known.bind(runs::heard_since_ns(*now_ns).min(SUM_MAX))).await?;
            Some(row_reader::grouped(run, &known)?)
        }
        None => None,
    };
    Ok(Series { newest: found.small_or_null(0)?.unwrap_or(0), of_launcher, of_group })
}

/// Stores appends.
pub(super) async fn append<C: Batches>(tx: &mut C, place: &str, appends: &[Append]) -> Result<(), Fault> {
    let keys: Vec<SessionKey> = sessions_of(appends).into_iter().collect();
    let (states, present) = tx.states(keys).await?;
    let plan = plan(place, appends, states, present)?;
    tx.write(&plan).await
}

/// Stores the analyser's state of a session, if the session exists.
pub(super) async fn put_watch<C: SqlConnection>(
    tx: &mut C,
    session: SessionKey,
    watch: &WatchRow,
) -> Result<(), Fault> {
    let put = query(sql!("watch_put")).bind(session).bind(watch.seq).bind(&watch.form[..]);
    tx.run(put.bind(&watch.state[..]).bind(checksum(&watch.state))).await?;
    Ok(())
}

/// Stores an answer about holders, if the session exists, and removes the oldest beyond the limits.
pub(super) async fn put_holders<C: SqlConnection>(tx: &mut C, row: &HoldersRow) -> Result<(), Fault> {
    let HoldersIndex { session, asked_ns: _, finding, site, unasked, says, counted_epoch, bytes: _ } =
        row.index.clone();
    let Some(found) = tx.optional(query(sql!("session_job")).bind(session)).await? else { return Ok(()) };
    let job = found.int(0)?;
    // With this lock, each of two daemons reads the answers that the other has stored for the job.
    tx.optional(query(sql!("job_lock")).bind(job)).await?;
    let (asked_ns, gone) = holders::put(&read::holders_kept(tx, job).await?, row);
    let put = query(sql!("holders_put"))
        .bind(session)
        .bind(asked_ns)
        .bind(finding)
        .bind(site)
        .bind(unasked)
        .bind(says.number())
        .bind(counted_epoch)
        .bind(checksum(&row.answer))
        .bind(&row.answer[..]);
    tx.run(put).await?;
    expire::delete_holders(tx, job, &gone).await?;
    Ok(())
}
