//! Writing sessions and items, each call inside the caller's transaction.
//!
//! Guarantees: the counts match the inserts, because the plan is made from rows read under the write lock.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::sqlite::SqliteConnection;

use super::expire;
use crate::store::StoreError;
use crate::store::holders::{self, HoldersIndex, HoldersRow};
use crate::store::opening::Opening;
use crate::store::plan::{Plan, PlannedItem, SUM_MAX, SessionState, checksum, plan, sessions_of};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Append, DeviceUpdate, EpochEndRow, OpenedSession, SessionKey, WatchRow};
use crate::store::runs::{self, Series};
use crate::store::wire_form;

/// Finds or makes job, session and devices.
pub(super) async fn open_session(
    tx: &mut SqliteConnection,
    opening: &Opening<'_>,
    described: Vec<u8>,
) -> Result<OpenedSession, Fault> {
    let Opening { tenant, info, owner, secret, now_ns } = opening;
    let now_ns = (*now_ns).min(SUM_MAX).cast_signed();
    let id = opening.stored_id().0.to_vec();
    if let Some(row) = sqlx::query(include_str!("sql/session_find.sql")).bind(&id).fetch_optional(&mut *tx).await? {
        let (opened, held) = row_reader::held(&row)?;
        if !opening.may_continue(&held) {
            return Err(StoreError::Foreign.into());
        }
        sqlx::query(include_str!("sql/session_touch.sql")).bind(opened.key).bind(now_ns).execute(tx).await?;
        return Ok(opened);
    }
    let (run, _) = series(tx, opening).await?.run_of(info);
    let job: i64 = sqlx::query_scalar(include_str!("sql/job_upsert.sql"))
        .bind(&info.job)
        .bind(i64::from(info.attempt))
        .bind(info.started_ns.cast_signed())
        .bind(info.world_size.map(i64::from))
        .bind(wire_form::labels(&info.labels))
        .bind(tenant.name().to_owned())
        .bind(i64::from(run))
        .bind(runs::group_of(info).to_owned())
        .bind(opening.arrived_ns().cast_signed())
        .fetch_one(&mut *tx)
        .await?;
    let key: i64 = sqlx::query_scalar(include_str!("sql/session_insert.sql"))
        .bind(job)
        .bind(id)
        .bind(i64::from(info.rank))
        .bind(info.started_ns.cast_signed())
        .bind(described)
        .bind(now_ns)
        .bind((*owner).to_owned())
        .bind(secret.map(|hash| hash.to_vec()))
        .bind(info.launch.launcher.map(u64::cast_signed))
        .fetch_one(&mut *tx)
        .await?;
    for device in &info.devices {
        sqlx::query(include_str!("sql/device_insert.sql"))
            .bind(job)
            .bind(key)
            .bind(i64::from(device.index.0))
            .bind(wire_form::device_info(device))
            .execute(&mut *tx)
            .await?;
    }
    Ok(OpenedSession { key, job, run, durable_seq: 0, ended: false })
}

/// What is known of the series of a new session.
async fn series(tx: &mut SqliteConnection, opening: &Opening<'_>) -> Result<Series, Fault> {
    let Opening { tenant, info, now_ns, .. } = opening;
    let launcher = info.launch.launcher.map(u64::cast_signed);
    let found = sqlx::query(include_str!("sql/run_series.sql"))
        .bind(tenant.name().to_owned())
        .bind(&info.job)
        .bind(launcher)
        .bind(runs::group_of(info).to_owned())
        .fetch_one(&mut *tx)
        .await?;
    let of_launcher = match found.small_or_null::<u32>(1)? {
        Some(run) => {
            let known = sqlx::query(include_str!("sql/run_launched.sql"))
                .bind(tenant.name().to_owned())
                .bind(&info.job)
                .bind(i64::from(run))
                .bind(launcher)
                .fetch_all(&mut *tx)
                .await?;
            Some(row_reader::launched(run, &known, info)?)
        }
        None => None,
    };
    let of_group = match found.small_or_null::<u32>(2)? {
        Some(run) => {
            let known = sqlx::query(include_str!("sql/run_group.sql"))
                .bind(tenant.name().to_owned())
                .bind(&info.job)
                .bind(i64::from(run))
                .bind(i64::from(info.attempt))
                .bind(i64::from(info.rank))
                .bind(runs::heard_since_ns(*now_ns).min(SUM_MAX).cast_signed())
                .fetch_one(&mut *tx)
                .await?;
            Some(row_reader::grouped(run, &known)?)
        }
        None => None,
    };
    Ok(Series { newest: found.small_or_null(0)?.unwrap_or(0), of_launcher, of_group })
}

/// Stores appends.
pub(super) async fn append(tx: &mut SqliteConnection, place: &str, appends: &[Append]) -> Result<(), Fault> {
    let mut states = BTreeMap::new();
    let mut present = BTreeSet::new();
    for key in sessions_of(appends) {
        let Some(row) = sqlx::query(include_str!("sql/session_state.sql")).bind(key).fetch_optional(&mut *tx).await?
        else {
            continue;
        };
        let (_, state) = row_reader::session_state(&row)?;
        let above = sqlx::query(include_str!("sql/present.sql"))
            .bind(state.job)
            .bind(key)
            .bind(state.durable_seq.cast_signed())
            .fetch_all(&mut *tx)
            .await?;
        for row in &above {
            present.insert((key, row.word(0)?));
        }
        states.insert(key, state);
    }
    let plan = plan(place, appends, states, present)?;
    write(tx, &plan).await
}

async fn write(tx: &mut SqliteConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    for planned in &plan.items {
        insert_payload(tx, *planned).await?;
        if planned.item.is_chunk() {
            insert_chunk(tx, *planned).await?;
        } else {
            insert_item(tx, *planned).await?;
        }
    }
    let job_of = |session: &SessionKey| plan.sessions.get(session).map_or(0, |state| state.job);
    for (session, gap) in &plan.gaps {
        sqlx::query(include_str!("sql/gap_insert.sql"))
            .bind(job_of(session))
            .bind(session)
            .bind(gap.first.cast_signed())
            .bind(gap.last.cast_signed())
            .execute(&mut *tx)
            .await?;
    }
    for ((session, device), update) in &plan.devices {
        update_device(tx, job_of(session), *session, *device, update).await?;
    }
    for ((session, ..), end) in &plan.epoch_ends {
        put_epoch_end(tx, job_of(session), *session, end).await?;
    }
    for (session, state) in &plan.sessions {
        update_session(tx, *session, state).await?;
    }
    Ok(())
}

async fn insert_payload(tx: &mut SqliteConnection, planned: PlannedItem<'_>) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/payload_insert.sql"))
        .bind(planned.job)
        .bind(planned.session)
        .bind(planned.item.seq.cast_signed())
        .bind(planned.item.payload.to_vec())
        .bind(checksum(&planned.item.payload))
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_chunk(
    tx: &mut SqliteConnection,
    PlannedItem { job, session, item }: PlannedItem<'_>,
) -> Result<(), Fault> {
    let index = item.index;
    let levels = item.levels.unwrap_or_default();
    sqlx::query(include_str!("sql/chunk_insert.sql"))
        .bind(job)
        .bind(session)
        .bind(index.device.map(i64::from))
        .bind(item.seq.cast_signed())
        .bind(index.first_ns.cast_signed())
        .bind(index.last_ns.cast_signed())
        .bind(index.first_event.cast_signed())
        .bind(index.count.cast_signed())
        .bind(i64::from(index.first_epoch))
        .bind(i64::from(index.last_epoch))
        .bind(index.first_step.cast_signed())
        .bind(index.last_step.cast_signed())
        .bind(levels.allocated_end.cast_signed())
        .bind(levels.reserved_end.cast_signed())
        .bind(levels.allocated_min.cast_signed())
        .bind(levels.allocated_max.cast_signed())
        .bind(levels.reserved_max.cast_signed())
        .bind(levels.ooms.cast_signed())
        .bind(levels.dropped_before.cast_signed())
        .bind(levels.exact)
        .bind(item.payload.len() as i64)
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_item(
    tx: &mut SqliteConnection,
    PlannedItem { job, session, item }: PlannedItem<'_>,
) -> Result<(), Fault> {
    let index = item.index;
    sqlx::query(include_str!("sql/item_insert.sql"))
        .bind(job)
        .bind(session)
        .bind(i64::from(item.kind as i32))
        .bind(item.seq.cast_signed())
        .bind(index.device.map(i64::from))
        .bind(index.first_ns.cast_signed())
        .bind(index.last_ns.cast_signed())
        .bind(index.first_event.cast_signed())
        .bind(index.count.cast_signed())
        .bind(i64::from(index.first_epoch))
        .bind(i64::from(index.last_epoch))
        .bind(index.first_step.cast_signed())
        .bind(index.last_step.cast_signed())
        .bind(i64::from(item.unpacked_bytes))
        .bind(item.payload.len() as i64)
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_device(
    tx: &mut SqliteConnection,
    job: i64,
    session: SessionKey,
    device: u8,
    update: &DeviceUpdate,
) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/device_update.sql"))
        .bind(job)
        .bind(session)
        .bind(i64::from(device))
        .bind(wire_form::device_info(&wire_form::unannounced(device)))
        .bind(update.events.cast_signed())
        .bind(update.ooms.cast_signed())
        .bind(update.epochs.cast_signed())
        .bind(update.steps.cast_signed())
        .bind(update.latest.as_ref().map(wire_form::latest))
        .bind(update.device_used_bytes.map(u64::cast_signed))
        .bind(update.alloc_retries.map(u64::cast_signed))
        .execute(tx)
        .await?;
    Ok(())
}

async fn put_epoch_end(
    tx: &mut SqliteConnection,
    job: i64,
    session: SessionKey,
    end: &EpochEndRow,
) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/epoch_end_put.sql"))
        .bind(job)
        .bind(session)
        .bind(i64::from(end.device))
        .bind(i64::from(end.epoch))
        .bind(end.time_ns.cast_signed())
        .bind(end.table_seq.cast_signed())
        .bind(wire_form::epoch_end(end))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_session(tx: &mut SqliteConnection, session: SessionKey, state: &SessionState) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/session_update.sql"))
        .bind(session)
        .bind(state.durable_seq.cast_signed())
        .bind(state.heard_ns.cast_signed())
        .bind(state.end.as_ref().map(wire_form::session_end))
        .bind(state.events.cast_signed())
        .bind(state.stored_bytes.cast_signed())
        .bind(state.dropped.ring_full.cast_signed())
        .bind(state.dropped.spool_full.cast_signed())
        .bind(state.dropped.shutdown.cast_signed())
        .bind(state.duplicates.cast_signed())
        .bind(state.missing_items.cast_signed())
        .bind(state.stored_items.cast_signed())
        .bind(state.expandable.map(i64::from))
        .execute(tx)
        .await?;
    Ok(())
}

/// Stores the analyser's state of a session, if the session exists.
pub(super) async fn put_watch(tx: &mut SqliteConnection, session: SessionKey, watch: &WatchRow) -> Result<(), Fault> {
    let query = sqlx::query(include_str!("sql/watch_put.sql")).bind(session).bind(watch.seq.cast_signed());
    let query = query.bind(watch.form.clone()).bind(watch.state.to_vec()).bind(checksum(&watch.state));
    query.execute(tx).await?;
    Ok(())
}

/// Stores an answer about holders, if the session exists, and removes the oldest beyond the limits.
pub(super) async fn put_holders(tx: &mut SqliteConnection, row: &HoldersRow) -> Result<(), Fault> {
    let HoldersIndex { session, asked_ns: _, finding, site, unasked, says, counted_epoch, bytes: _ } =
        row.index.clone();
    let found: Option<i64> =
        sqlx::query_scalar(include_str!("sql/session_job.sql")).bind(session).fetch_optional(&mut *tx).await?;
    let Some(job) = found else { return Ok(()) };
    let kept = sqlx::query(include_str!("sql/holders_kept.sql")).bind(job).fetch_all(&mut *tx).await?;
    let kept = kept.iter().map(row_reader::holders_index).collect::<Result<Vec<_>, _>>()?;
    let (asked_ns, gone) = holders::put(&kept, row);
    sqlx::query(include_str!("sql/holders_put.sql"))
        .bind(session)
        .bind(asked_ns.cast_signed())
        .bind(finding.map(u64::cast_signed))
        .bind(site.cast_signed())
        .bind(unasked)
        .bind(says.number())
        .bind(counted_epoch.map(i64::from))
        .bind(checksum(&row.answer))
        .bind(row.answer.to_vec())
        .execute(&mut *tx)
        .await?;
    expire::delete_holders(tx, job, &gone).await?;
    Ok(())
}
