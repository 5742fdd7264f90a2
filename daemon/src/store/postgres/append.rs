//! Writing sessions and items, one transaction per call. Rows are sent as arrays, one statement per table.
//!
//! Guarantees: the sessions' rows are locked in ascending order before anything is decided, so that the counts match
//! the inserts even with other writers.

use std::collections::BTreeSet;

use sqlx::postgres::{PgConnection, PgPool};

use super::expire;
use crate::store::StoreError;
use crate::store::holders::{self, HoldersIndex, HoldersRow};
use crate::store::opening::Opening;
use crate::store::plan::{Plan, PlannedItem, SUM_MAX, checksum, plan, sessions_of};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{Append, OpenedSession, SessionKey, WatchRow};
use crate::store::runs::{self, Series};
use crate::store::wire_form;

/// Bytes of payloads in one statement: the server holds them twice while it runs.
const STATEMENT_BYTES: usize = 16 << 20;
/// Rows in one statement.
const STATEMENT_ROWS: usize = 4096;

/// Finds or makes job, session and devices; `None` if another writer was faster and the caller must retry.
pub(super) async fn open_session(
    pool: &PgPool,
    opening: &Opening<'_>,
    described: &[u8],
) -> Result<Option<OpenedSession>, Fault> {
    let Opening { tenant, info, owner, secret, now_ns } = opening;
    let now_ns = (*now_ns).min(SUM_MAX).cast_signed();
    let id = opening.stored_id().0;
    let mut tx = pool.begin().await?;
    let find = sqlx::query(include_str!("sql/session_find.sql")).bind(&id[..]);
    if let Some(row) = find.fetch_optional(&mut *tx).await? {
        let (opened, held) = row_reader::held(&row)?;
        if !opening.may_continue(&held) {
            return Err(StoreError::Foreign.into());
        }
        sqlx::query(include_str!("sql/session_touch.sql")).bind(opened.key).bind(now_ns).execute(&mut *tx).await?;
        tx.commit().await?;
        return Ok(Some(opened));
    }
    sqlx::query(include_str!("sql/run_lock.sql")).bind(tenant.name()).bind(&info.job).fetch_optional(&mut *tx).await?;
    let (run, is_there) = series(&mut tx, opening).await?.run_of(info);
    let job: Option<i64> = sqlx::query_scalar(include_str!("sql/job_upsert.sql"))
        .bind(&info.job)
        .bind(i64::from(info.attempt))
        .bind(info.started_ns.cast_signed())
        .bind(info.world_size.map(i64::from))
        .bind(wire_form::labels(&info.labels))
        .bind(tenant.name())
        .bind(i64::from(run))
        .bind(runs::group_of(info))
        .bind(opening.arrived_ns().cast_signed())
        .bind(is_there)
        .fetch_optional(&mut *tx)
        .await?;
    let Some(job) = job else {
        tx.rollback().await?;
        return Ok(None);
    };
    let key: Option<i64> = sqlx::query_scalar(include_str!("sql/session_insert.sql"))
        .bind(job)
        .bind(&id[..])
        .bind(i64::from(info.rank))
        .bind(info.started_ns.cast_signed())
        .bind(described)
        .bind(now_ns)
        .bind(*owner)
        .bind(secret.as_ref().map(|hash| &hash[..]))
        .bind(info.launch.launcher.map(u64::cast_signed))
        .fetch_optional(&mut *tx)
        .await?;
    let Some(key) = key else {
        // This also removes a job that was made in vain.
        tx.rollback().await?;
        return Ok(None);
    };
    for device in &info.devices {
        sqlx::query(include_str!("sql/device_insert.sql"))
            .bind(job)
            .bind(key)
            .bind(i64::from(device.index.0))
            .bind(wire_form::device_info(device))
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(Some(OpenedSession { key, job, run, durable_seq: 0, ended: false }))
}

/// What is known of the series of a new session.
async fn series(tx: &mut PgConnection, opening: &Opening<'_>) -> Result<Series, Fault> {
    let Opening { tenant, info, now_ns, .. } = opening;
    let launcher = info.launch.launcher.map(u64::cast_signed);
    let found = sqlx::query(include_str!("sql/run_series.sql"))
        .bind(tenant.name())
        .bind(&info.job)
        .bind(launcher)
        .bind(runs::group_of(info))
        .fetch_one(&mut *tx)
        .await?;
    let of_launcher = match found.small_or_null::<u32>(1)? {
        Some(run) => {
            let known = sqlx::query(include_str!("sql/run_launched.sql"))
                .bind(tenant.name())
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
                .bind(tenant.name())
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
pub(super) async fn append(pool: &PgPool, place: &str, appends: &[Append]) -> Result<(), Fault> {
    let mut tx = pool.begin().await?;
    let keys: Vec<SessionKey> = sessions_of(appends).into_iter().collect();
    let locked = sqlx::query(include_str!("sql/sessions_lock.sql")).bind(&keys).fetch_all(&mut *tx).await?;
    let states = locked.iter().map(row_reader::session_state).collect::<Result<_, _>>()?;
    let mut present = BTreeSet::new();
    for row in sqlx::query(include_str!("sql/present.sql")).bind(&keys).fetch_all(&mut *tx).await? {
        present.insert((row.int(0)?, row.word(1)?));
    }
    let plan = plan(place, appends, states, present)?;
    insert_payloads(&mut tx, &plan.items).await?;
    let (chunks, others): (Vec<_>, Vec<_>) = plan.items.iter().copied().partition(|planned| planned.item.is_chunk());
    for rows in chunks.chunks(STATEMENT_ROWS) {
        insert_chunks(&mut tx, rows).await?;
    }
    for rows in others.chunks(STATEMENT_ROWS) {
        insert_items(&mut tx, rows).await?;
    }
    insert_gaps(&mut tx, &plan).await?;
    update_devices(&mut tx, &plan).await?;
    put_epoch_ends(&mut tx, &plan).await?;
    update_sessions(&mut tx, &plan).await?;
    tx.commit().await?;
    Ok(())
}

/// One column of many rows.
fn column<R: Copy, T>(rows: &[R], cell: impl Fn(R) -> T) -> Vec<T> {
    rows.iter().map(|&row| cell(row)).collect()
}

async fn insert_payloads(tx: &mut PgConnection, mut items: &[PlannedItem<'_>]) -> Result<(), Fault> {
    while !items.is_empty() {
        let mut bytes = 0;
        let fitting = items
            .iter()
            .take(STATEMENT_ROWS)
            .take_while(|planned| {
                let fits = bytes < STATEMENT_BYTES;
                bytes += planned.item.payload.len();
                fits
            })
            .count();
        let (now, later) = items.split_at(fitting);
        sqlx::query(include_str!("sql/payloads_insert.sql"))
            .bind(column(now, |row| row.job))
            .bind(column(now, |row| row.session))
            .bind(column(now, |row| row.item.seq.cast_signed()))
            .bind(now.iter().map(|row| &row.item.payload[..]).collect::<Vec<&[u8]>>())
            .bind(now.iter().map(|row| checksum(&row.item.payload)).collect::<Vec<i64>>())
            .execute(&mut *tx)
            .await?;
        items = later;
    }
    Ok(())
}

async fn insert_chunks(tx: &mut PgConnection, rows: &[PlannedItem<'_>]) -> Result<(), Fault> {
    let levels = |row: PlannedItem<'_>| row.item.levels.unwrap_or_default();
    sqlx::query(include_str!("sql/chunks_insert.sql"))
        .bind(column(rows, |row| row.job))
        .bind(column(rows, |row| row.session))
        .bind(column(rows, |row| row.item.index.device.map(i64::from)))
        .bind(column(rows, |row| row.item.seq.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_event.cast_signed()))
        .bind(column(rows, |row| row.item.index.count.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.index.first_epoch)))
        .bind(column(rows, |row| i64::from(row.item.index.last_epoch)))
        .bind(column(rows, |row| row.item.index.first_step.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_step.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_end.cast_signed()))
        .bind(column(rows, |row| levels(row).reserved_end.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_min.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_max.cast_signed()))
        .bind(column(rows, |row| levels(row).reserved_max.cast_signed()))
        .bind(column(rows, |row| levels(row).ooms.cast_signed()))
        .bind(column(rows, |row| levels(row).dropped_before.cast_signed()))
        .bind(column(rows, |row| levels(row).exact))
        .bind(column(rows, |row| row.item.payload.len() as i64))
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_items(tx: &mut PgConnection, rows: &[PlannedItem<'_>]) -> Result<(), Fault> {
    sqlx::query(include_str!("sql/items_insert.sql"))
        .bind(column(rows, |row| row.job))
        .bind(column(rows, |row| row.session))
        .bind(column(rows, |row| i64::from(row.item.kind as i32)))
        .bind(column(rows, |row| row.item.seq.cast_signed()))
        .bind(column(rows, |row| row.item.index.device.map(i64::from)))
        .bind(column(rows, |row| row.item.index.first_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_event.cast_signed()))
        .bind(column(rows, |row| row.item.index.count.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.index.first_epoch)))
        .bind(column(rows, |row| i64::from(row.item.index.last_epoch)))
        .bind(column(rows, |row| row.item.index.first_step.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_step.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.unpacked_bytes)))
        .bind(column(rows, |row| row.item.payload.len() as i64))
        .execute(tx)
        .await?;
    Ok(())
}

fn job_of(plan: &Plan<'_>, session: SessionKey) -> i64 {
    plan.sessions.get(&session).map_or(0, |state| state.job)
}

async fn insert_gaps(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.gaps.is_empty() {
        return Ok(());
    }
    sqlx::query(include_str!("sql/gaps_insert.sql"))
        .bind(column(&plan.gaps, |(session, _)| job_of(plan, session)))
        .bind(column(&plan.gaps, |(session, _)| session))
        .bind(column(&plan.gaps, |(_, gap)| gap.first.cast_signed()))
        .bind(column(&plan.gaps, |(_, gap)| gap.last.cast_signed()))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_devices(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.devices.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = plan.devices.iter().collect();
    sqlx::query(include_str!("sql/devices_update.sql"))
        .bind(column(&rows, |((session, _), _)| job_of(plan, *session)))
        .bind(column(&rows, |((session, _), _)| *session))
        .bind(column(&rows, |((_, device), _)| i64::from(*device)))
        .bind(column(&rows, |((_, device), _)| wire_form::device_info(&wire_form::unannounced(*device))))
        .bind(column(&rows, |(_, update)| update.events.cast_signed()))
        .bind(column(&rows, |(_, update)| update.ooms.cast_signed()))
        .bind(column(&rows, |(_, update)| update.epochs.cast_signed()))
        .bind(column(&rows, |(_, update)| update.steps.cast_signed()))
        .bind(column(&rows, |(_, update)| update.latest.as_ref().map(wire_form::latest)))
        .bind(column(&rows, |(_, update)| update.device_used_bytes.map(u64::cast_signed)))
        .bind(column(&rows, |(_, update)| update.alloc_retries.map(u64::cast_signed)))
        .execute(tx)
        .await?;
    Ok(())
}

async fn put_epoch_ends(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.epoch_ends.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = plan.epoch_ends.iter().map(|((session, ..), end)| (*session, *end)).collect();
    sqlx::query(include_str!("sql/epoch_ends_put.sql"))
        .bind(column(&rows, |(session, _)| job_of(plan, session)))
        .bind(column(&rows, |(session, _)| session))
        .bind(column(&rows, |(_, end)| i64::from(end.device)))
        .bind(column(&rows, |(_, end)| i64::from(end.epoch)))
        .bind(column(&rows, |(_, end)| end.time_ns.cast_signed()))
        .bind(column(&rows, |(_, end)| end.table_seq.cast_signed()))
        .bind(column(&rows, |(_, end)| wire_form::epoch_end(end)))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_sessions(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    let rows: Vec<_> = plan.sessions.iter().collect();
    sqlx::query(include_str!("sql/sessions_update.sql"))
        .bind(column(&rows, |(session, _)| *session))
        .bind(column(&rows, |(_, state)| state.durable_seq.cast_signed()))
        .bind(column(&rows, |(_, state)| state.heard_ns.cast_signed()))
        .bind(column(&rows, |(_, state)| state.end.as_ref().map(wire_form::session_end)))
        .bind(column(&rows, |(_, state)| state.events.cast_signed()))
        .bind(column(&rows, |(_, state)| state.stored_bytes.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.ring_full.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.spool_full.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.shutdown.cast_signed()))
        .bind(column(&rows, |(_, state)| state.duplicates.cast_signed()))
        .bind(column(&rows, |(_, state)| state.missing_items.cast_signed()))
        .bind(column(&rows, |(_, state)| state.stored_items.cast_signed()))
        .bind(column(&rows, |(_, state)| state.expandable.map(i64::from)))
        .execute(tx)
        .await?;
    Ok(())
}

/// Stores the analyser's state of a session, if the session exists.
pub(super) async fn put_watch(pool: &PgPool, session: SessionKey, watch: &WatchRow) -> Result<(), Fault> {
    let query = sqlx::query(include_str!("sql/watch_put.sql")).bind(session).bind(watch.seq.cast_signed());
    let query = query.bind(watch.form.clone()).bind(watch.state.to_vec()).bind(checksum(&watch.state));
    query.execute(pool).await?;
    Ok(())
}

/// Stores an answer about holders, if the session exists, and removes the oldest beyond the limits.
pub(super) async fn put_holders(pool: &PgPool, row: &HoldersRow) -> Result<(), Fault> {
    let mut tx = pool.begin().await?;
    let HoldersIndex { session, asked_ns: _, finding, site, unasked, says, counted_epoch, bytes: _ } =
        row.index.clone();
    let found: Option<i64> =
        sqlx::query_scalar(include_str!("sql/session_job.sql")).bind(session).fetch_optional(&mut *tx).await?;
    let Some(job) = found else { return Ok(()) };
    // The lock lets each of two daemons see the other's answers for the job.
    sqlx::query(include_str!("sql/job_lock.sql")).bind(job).fetch_optional(&mut *tx).await?;
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
    expire::delete_holders(&mut tx, job, &gone).await?;
    Ok(tx.commit().await?)
}
